"""What an argument may be: kinds of values that name the argument, what is wrong with it, and what would do."""

import difflib
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from sb3_grpo.utils.plugins import import_plugin, name_of

# No number of steps, groups or epochs is larger, and PyTorch takes no index that is much larger
_HIGHEST = 2**31 - 1


# Words that are taken for a truth value elsewhere
_FLAGS: dict[Any, bool] = {"true": True, "1": True, "false": False, "0": False}


def short_repr(value: Any) -> str:
    """
    :param value: Anything
    :return: How it is written, or the beginning of that
    """
    try:
        return f"{value!r:.80}"
    except Exception:  # an integer of thousands of digits, or an object that cannot say what it is
        return object.__repr__(value)


def _shown(value: Any) -> str:
    return f"{short_repr(value)} ({type(value).__name__})"


class Kind:
    """A kind of values."""

    def check(self, name: str, value: Any) -> Any:
        """
        :param name: Name of the argument
        :param value: What it is to be
        :return: The value; a number or truth value of NumPy as one of Python
        :raises ValueError: if it is of another kind
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Number(Kind):
    """
    A number.

    :param low: The lowest that it may be
    :param high: The highest
    :param positive: Whether it must be above 0
    :param limit: Whether it is a limit, which may be infinite
    :param schedule: Whether it may be a function of the progress remaining, from 1 to 0
    :param none: What ``None`` means, if it may be that
    :param why: Why it has bounds, if that is not plain
    """

    low: float = -math.inf
    high: float = math.inf
    positive: bool = False
    limit: bool = False
    schedule: bool = False
    none: str | None = None
    why: str = ""

    def check(self, name: str, value: Any) -> Any:
        if value is None and self.none is not None:
            return None
        if self.schedule and callable(value):
            return self._check_schedule(name, value)
        if not self._is_number(value):
            others = [text for text, is_there in (("a function", self.schedule), ("None", self.none is not None)) if is_there]
            wanted = " or ".join([self._noun(), *others])
            raise ValueError(f"{name} must be {wanted}, got {_shown(value)}{self._advice(name, value)}.")
        value = self._plain(value)
        if not self.low <= value <= self.high or (self.positive and value <= 0.0):
            none = f", or None for {self.none}" if self.none else ""
            why = f": {self.why}" if self.why else ""
            raise ValueError(f"{name} must {self._bounds()}{none}, got {short_repr(value)}{why}.")
        return value

    def _check_schedule(self, name: str, schedule: Callable[[float], Any]) -> Callable[[float], Any]:
        for progress in (1.0, 0.0):
            called = f"{name}({progress})"
            try:
                value = schedule(progress)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"{name} is called with the progress remaining, from 1 to 0. {called} raised {what}"
                ) from error
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            Number(self.low, self.high, self.positive, self.limit).check(called, value)
        return schedule

    def _is_number(self, value: Any) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        try:
            return math.isfinite(value) or (self.limit and value == math.inf)
        except OverflowError:
            return False

    def _plain(self, value: Any) -> float:
        return value if type(value) in (int, float) else float(value)

    def _noun(self) -> str:
        return "a number" if self.limit else "a finite number"

    def _bounds(self) -> str:
        if self.positive:
            return "be positive"
        if self.high == math.inf:
            return "not be negative" if self.low == 0 else f"be at least {self.low}"
        return f"be between {self.low:g} and {self.high:g}"

    def _advice(self, name: str, value: Any) -> str:
        """What the user may have meant: 512 by 512.0 or '512'."""
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real | str):
            return ""
        try:
            meant = self._plain_text(float(value))
        except (ValueError, OverflowError):
            return ""
        return f": write {name}={meant}" if meant else ""

    def _plain_text(self, meant: float) -> str:
        return str(meant) if math.isfinite(meant) else ""


@dataclass(frozen=True)
class Whole(Number):
    """
    A whole number.

    :param flag: Whether it may be True or False
    """

    low: float = 1
    high: float = _HIGHEST
    flag: bool = False

    def _is_number(self, value: Any) -> bool:
        return isinstance(value, Integral) and (self.flag or not isinstance(value, bool))

    def _plain(self, value: Any) -> int:
        return value if type(value) is bool else int(value)

    def _noun(self) -> str:
        return "a whole number"

    def _bounds(self) -> str:
        return f"be at least {self.low}" if self.high == _HIGHEST else f"be between {self.low} and {self.high}"

    def check(self, name: str, value: Any) -> Any:
        if self._is_number(value) and value > _HIGHEST >= self.high:
            raise ValueError(f"{name} must be at most {self.high}, got {short_repr(value)}.")
        return super().check(name, value)

    def _plain_text(self, meant: float) -> str:
        return str(int(meant)) if math.isfinite(meant) and meant.is_integer() else ""


@dataclass(frozen=True)
class Flag(Kind):
    """True or False."""

    def check(self, name: str, value: Any) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        meant = _FLAGS.get(str(value).lower()) if isinstance(value, str | int) else None
        advice = "" if meant is None else f": write {name}={meant}"
        raise ValueError(f"{name} must be True or False, got {_shown(value)}{advice}.")


def _check_function(name: str, function: Callable[..., Any], call: str) -> None:
    """
    :param name: Name of the argument
    :param function: What it is to be
    :param call: How that will be called, such as ``"rewards, mask, *, gamma"``
    :raises ValueError: if it cannot be called so
    """
    called = f"{name} is called as {name}({call}), and {name_of(function)}"
    if isinstance(function, type):
        raise ValueError(f"{called} is a class: give a function, or an object of this class that can be called.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    by_position, _, by_name = (part.strip(", ").split(", ") for part in call.partition("*"))
    try:
        signature.bind(*by_position, **dict.fromkeys(filter(None, by_name)))
    except TypeError as error:
        raise ValueError(
            f"{called}{signature} cannot be: {error}. Arguments that it does not need can be taken by **others."
        ) from error


@dataclass(frozen=True)
class Choice(Kind):
    """
    One of some names.

    :param names: The names
    :param call: How a function is called that can stand there, if one can. It can be written ``"module.function"``, too
    """

    names: tuple[str, ...]
    call: str | None = None

    def check(self, name: str, value: Any) -> Any:
        if self.call is not None:
            value = import_plugin(value)
            if callable(value):
                _check_function(name, value, self.call)
                return value
        if not isinstance(value, str) or value not in self.names:
            known = f"{', '.join(self.names)}{', or a function' if self.call else ''}"
            close = difflib.get_close_matches(value, self.names, n=1) if isinstance(value, str) else []
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"Unknown {name}={short_repr(value)}, must be one of {known}.{meant}")
        return str(value)


@dataclass(frozen=True)
class Function(Kind):
    """
    A function or ``None``.

    :param wanted: What it does
    :param call: How it is called
    """

    wanted: str
    call: str

    def check(self, name: str, value: Any) -> Any:
        value = import_plugin(value)
        if value is None:
            return None
        if not callable(value):
            raise ValueError(f"{name} must be {self.wanted}, got {_shown(value)}.")
        _check_function(name, value, self.call)
        return value


@dataclass(frozen=True)
class Text(Kind):
    """
    Words.

    :param none: What ``None`` means, if it may be that
    :param path: Whether it may be a path
    """

    none: str | None = None
    path: bool = False

    def check(self, name: str, value: Any) -> str | None:
        if value is None and self.none is not None:
            return None
        if self.path and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value or "\0" in value:
            none = f", or None for {self.none}" if self.none else ""
            wanted = "a path" if self.path else "a string"
            raise ValueError(f"{name} must be {wanted}{none}, got {_shown(value)}.")
        return str(value)


@dataclass(frozen=True)
class Keywords(Kind):
    """Keyword arguments of something else, or ``None``."""

    def check(self, name: str, value: Any) -> dict[str, Any] | None:
        if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
            raise ValueError(
                f"{name} must be a dictionary of keyword arguments, such as {name}=dict(net_arch=[64, 64]), or None, got "
                f"{_shown(value)}."
            )
        return value
