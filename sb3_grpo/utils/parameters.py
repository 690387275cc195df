"""Parameters that are numbers: what they may be is in the signature of the constructor."""

import functools
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, get_args, get_origin

import numpy as np

# Without any limit
_MAY_BE_INFINITE = ("max_grad_norm", "clip_range", "clip_range_high", "target_kl", "step_timeout")
# verbose=True is as good as 1
_NOT_CHECKED = ("verbose",)


@functools.cache
def number_parameters(algorithm: type) -> dict[str, tuple[Any, ...]]:
    """
    :param algorithm: A class of this package, or one that is derived from it
    :return: The parameters of its constructors that are numbers, and the types that each may have
    """
    found: dict[str, tuple[Any, ...]] = {}
    for cls in reversed(algorithm.__mro__):
        if not cls.__module__.startswith("sb3_grpo."):
            continue
        for name, parameter in inspect.signature(cls.__init__).parameters.items():  # type: ignore[misc]
            kinds = get_args(parameter.annotation) or (parameter.annotation,)
            if (int in kinds or float in kinds) and name not in _NOT_CHECKED:
                found[name] = kinds
    return found


def check_number(algorithm: type, name: str, value: Any) -> Any:
    """
    :param algorithm: See :func:`number_parameters`
    :param name: One of these parameters
    :param value: What it is to be
    :return: The same, as a number of Python if it is one of NumPy
    :raises ValueError: if it is no number, or one that makes no sense
    """
    kinds = number_parameters(algorithm)[name]
    may_be_function = any(get_origin(kind) is Callable for kind in kinds)
    if (value is None and type(None) in kinds) or (may_be_function and callable(value)):
        return value
    is_whole = int in kinds
    right_type = isinstance(value, Integral if is_whole else Real) and not isinstance(value, bool)
    if right_type and (math.isfinite(value) or (name in _MAY_BE_INFINITE and value == math.inf)):
        if is_whole:
            return int(value)
        return value if type(value) in (int, float) else float(value)
    wanted = "a whole number" if is_whole else "a number" if name in _MAY_BE_INFINITE else "a finite number"
    others = [text for text, is_there in (("a function", may_be_function), ("None", type(None) in kinds)) if is_there]
    said = f"{value!r:.80} ({type(value).__name__})"
    raise ValueError(f"{name} must be {' or '.join([wanted, *others])}, got {said}{_advice(name, value, is_whole)}.")


def _advice(name: str, value: Any, is_whole: bool) -> str:
    """What the user may have meant: 512 by 512.0 or '512'."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real | str):
        return ""
    try:
        meant = float(value)
    except ValueError:
        return ""
    if not math.isfinite(meant) or (is_whole and not meant.is_integer()):
        return ""
    return f": write {name}={int(meant) if is_whole else meant}"
