"""Custom functions in place of built-in names: how they are imported, checked and saved."""

import base64
import importlib
import io
import json
import pathlib
import pickle
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import torch as th
from stable_baselines3.common.save_util import open_path

# A function that can be used instead of a built-in name
PlugIn = Callable[..., Any]


def name_of(function: PlugIn) -> str:
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
    if isinstance(value, str) and "." in value:
        module, _, name = value.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError):
            return value
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
    Placeholder for a missing parameter of a saved model. When it is saved again, the original is preserved.

    :param parameter: Name of the parameter
    :param reason: Why it cannot be imported; ``None``: it was left out of the file
    :param pickled: The saved parameter
    """

    def __init__(self, parameter: str, reason: str | None = None, pickled: bytes | None = None):
        self.parameter = parameter
        self.reason = reason
        self.pickled = pickled

    def __reduce__(self) -> Any:
        return (type(self), (self.parameter,)) if self.pickled is None else (pickle.loads, (self.pickled,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(self.message)

    @property
    def message(self) -> str:
        """Error message that says what is missing, and what to do."""
        what, remedy = "was left out when it was saved", ""
        if self.reason is not None:
            what = f"is a function that cannot be imported here ({self.reason})"
            remedy = "make its module importable, or "
        return (
            f"{self.parameter} of this model {what}. To predict it is not needed. To go on learning {remedy}give it anew: "
            f"load(path, custom_objects=dict({self.parameter}=...))."
        )


def missing_plugins(path: str | pathlib.Path | io.BufferedIOBase, parameters: Iterable[str]) -> dict[str, MissingPlugIn]:
    """
    Find the functions of a saved model that cannot be imported.

    :param path: Path to the file, or the open file
    :param parameters: Names of parameters that can be functions
    :return: Placeholders to load instead, by parameter
    """
    missing = {}
    file = open_path(path, "r", verbose=0, suffix="zip")
    position = file.tell()
    with zipfile.ZipFile(file) as archive:
        data = json.loads(archive.read("data")) if "data" in archive.namelist() else {}
    if file is not path:
        file.close()
    else:
        file.seek(position)
    for parameter in parameters:
        saved = data.get(parameter)
        if isinstance(saved, dict) and ":serialized:" in saved:
            pickled = base64.b64decode(saved[":serialized:"])
            try:
                pickle.loads(pickled)
            except (ImportError, AttributeError) as error:
                missing[parameter] = MissingPlugIn(parameter, str(error), pickled)
    return missing
