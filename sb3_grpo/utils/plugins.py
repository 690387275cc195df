"""Custom functions in place of built-in names: how they are imported, checked and saved."""

import importlib
from collections.abc import Callable
from typing import Any

import torch as th


def name_of(function: Callable[..., Any]) -> str:
    """
    :param function: A function, or another callable object
    :return: Its name for messages
    """
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def import_plugin(value: Any) -> Any:
    """
    :param value: Value of a parameter; in a configuration file, a function can be written as ``"module.function"``
    :return: The function, or the unchanged value if it does not name one
    """
    if not isinstance(value, str) or "." not in value or not all(map(str.isidentifier, value.split("."))):
        return value
    module, _, name = value.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, value)
    except ModuleNotFoundError as error:
        # What is missing may also be something that the module itself imports
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        return value


def check_tensor(returns: str, values: Any, shape: th.Size, wanted: str, mask: th.Tensor | None = None) -> th.Tensor:
    """
    :param returns: Name of the function that returned the values, for messages
    :param values: The returned values
    :param shape: The required shape
    :param wanted: Description of the required shape
    :param mask: Same shape, True at the entries that count; default: all
    :return: The values, 0 where ``mask`` is False
    :raises ValueError: if the values are not a finite floating point tensor of this shape
    """
    if not isinstance(values, th.Tensor) or not values.is_floating_point():
        got = str(values.dtype) if isinstance(values, th.Tensor) else type(values).__name__
        raise ValueError(f"{returns} must return a floating point tensor, got {got}.")
    if values.shape != shape:
        raise ValueError(f"{returns} must return a tensor of shape {tuple(shape)}: {wanted}. Got {tuple(values.shape)}.")
    if mask is not None:
        values = th.where(mask, values, 0.0)
    if not values.isfinite().all():
        n_bad = int((~values.isfinite()).sum())
        raise ValueError(f"{returns} returned {n_bad} values of {values.numel()} that are not finite (NaN or infinite).")
    return values


class MissingPlugIn:
    """
    Placeholder for a function of a saved model, which predicts without it.

    :param parameter: Name of the parameter
    :param reason: Why the function is missing
    """

    def __init__(self, parameter: str, reason: str):
        self.message = (
            f"{parameter} of this model is a function that was left out when it was saved, or cannot be imported here "
            f"({reason}). It is only needed to continue training: "
            f"load(path, custom_objects=dict({parameter}=...))."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(self.message)
