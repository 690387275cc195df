"""Checks of arguments, whose messages name the argument, what is wrong with it, and what is allowed."""

import difflib
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from sb3_grpo.utils.plugins import import_plugin, name_of

# Upper limit for numbers of steps, groups and epochs; PyTorch does not accept much larger indices
_HIGHEST = 2**31 - 1


def short_repr(value: Any) -> str:
    """
    :param value: Any value
    :return: Its ``repr``, or the beginning of it
    """
    try:
        return f"{value!r:.80}"
    except Exception:  # an integer of thousands of digits, or an object whose __repr__ fails
        return object.__repr__(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    :param name: An unknown name
    :param known: The known ones
    :return: The known one that may have been meant, or that there is none
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "nothing has a similar name."


def _with_type(value: Any) -> str:
    return f"{short_repr(value)} ({type(value).__name__})"


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except Exception:
        return math.nan


class Check:
    """A kind of value that an argument must have."""

    def check(self, name: str, value: Any) -> Any:
        """
        :param name: Name of the argument
        :param value: Its value
        :return: The value, with NumPy numbers and booleans converted to Python's
        :raises ValueError: if the value is not of this kind
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Number(Check):
    """
    A number.

    :param low: Lowest allowed value
    :param high: Highest allowed value
    :param whole: Whether it must be an integer
    :param positive: Whether it must be greater than 0
    :param limit: Whether it is a limit, which may be infinite
    :param schedule: Whether it may be a function of the progress remaining, from 1 to 0
    :param flag: Whether it may also be True or False
    :param none: Meaning of ``None``, if it is allowed
    :param why: Reason for the bounds, if it is not obvious
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    positive: bool = False
    limit: bool = False
    schedule: bool = False
    flag: bool = False
    none: str | None = None
    why: str = ""

    def check(self, name: str, value: Any) -> Any:
        if value is None and self.none is not None:
            return None
        if self.schedule and callable(value):
            self._check_schedule(name, value)
            return value
        if not self._is_number(value):
            wanted = "a whole number" if self.whole else "a number" if self.limit else "a finite number"
            wanted += " or a function" * self.schedule + " or None" * (self.none is not None)
            raise ValueError(f"{name} must be {wanted}, got {_with_type(value)}{self._advice(name, value)}.")
        if not self.low <= value <= self.high or (self.positive and value <= 0.0):
            none = f", or None for {self.none}" if self.none else ""
            why = f": {self.why}" if self.why else ""
            raise ValueError(f"{name} must {self._bounds(value)}{none}, got {short_repr(value)}{why}.")
        return int(value) if isinstance(value, Integral) else float(value)

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return self.flag and isinstance(value, bool)
        return self.whole or math.isfinite(_as_float(value)) or (self.limit and value == math.inf)

    def _bounds(self, value: Any) -> str:
        if self.positive:
            return "be positive"
        if self.high not in (math.inf, _HIGHEST):
            return f"be between {self.low} and {self.high}"
        if value > self.high:
            return f"be at most {self.high}"
        return "not be negative" if self.low == 0 and not self.whole else f"be at least {self.low}"

    def _advice(self, name: str, value: Any) -> str:
        """Suggest what the user may have meant, e.g. 512 instead of 512.0 or '512'."""
        meant = math.nan if isinstance(value, bool | np.bool_) else _as_float(value)
        if not (meant.is_integer() if self.whole else math.isfinite(meant)):
            return ""
        return f": write {name}={int(meant) if self.whole else meant}"

    def _check_schedule(self, name: str, schedule: Callable[[float], Any]) -> None:
        for progress in (1.0, 0.0):
            called = f"{name}({progress})"
            try:
                value = schedule(progress)
            except Exception as error:
                raised = f"{called} raised {type(error).__name__}: {error}"
                raise ValueError(f"{name} is called with the progress remaining, from 1 to 0. {raised}") from error
            value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
            replace(self, schedule=False, none=None).check(called, value)


@dataclass(frozen=True)
class Whole(Number):
    """An integer, by default from 1 on."""

    low: float = 1
    high: float = _HIGHEST
    whole: bool = True


@dataclass(frozen=True)
class Flag(Check):
    """
    True or False.

    :param call: Arguments of a function that can be used instead, if allowed. It can also be written as ``"module.function"``
    """

    call: str | None = None

    def check(self, name: str, value: Any) -> Any:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        if self.call is not None and callable(function := import_plugin(value)):
            _check_function(name, function, self.call)
            return function
        meant = {"true": True, "1": True, "false": False, "0": False}.get(short_repr(value).strip("'").lower())
        advice = "" if meant is None else f": write {name}={meant}"
        function = ", or a function" * bool(self.call)
        raise ValueError(f"{name} must be True or False{function}, got {_with_type(value)}{advice}.")


def _check_function(name: str, function: Callable[..., Any], call: str) -> None:
    """
    :param name: Name of the argument
    :param function: Its value
    :param call: Arguments with which the function will be called, such as ``"rewards, mask, *, gamma"``
    :raises ValueError: if it cannot be called with these arguments
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
class Choice(Check):
    """
    One of several names.

    :param names: The names
    :param call: Arguments of a function that can be used instead, if allowed. It can also be written as ``"module.function"``
    :param number: A number that can be used instead, if allowed
    :param elsewhere: What to write for names that others use here, in lower case
    """

    names: tuple[str, ...]
    call: str | None = None
    number: Number | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def check(self, name: str, value: Any) -> Any:
        if self.number is not None and isinstance(value, Real):
            return self.number.check(name, value)
        if self.call is not None and callable(function := import_plugin(value)):
            _check_function(name, function, self.call)
            return function
        if not isinstance(value, str) or value not in self.names:
            known = ", ".join(self.names) + ", or a number" * (self.number is not None) + ", or a function" * bool(self.call)
            close = difflib.get_close_matches(value, self.names, n=1) if isinstance(value, str) else []
            meant = f" Did you mean {close[0]!r}?" if close else ""
            if isinstance(value, str) and (other := value.lower().replace("-", "_")) in self.elsewhere:
                meant = f" Write {self.elsewhere[other]}."
            raise ValueError(f"Unknown {name}={short_repr(value)}, must be one of {known}.{meant}")
        return str(value)


@dataclass(frozen=True)
class Instance(Check):
    """
    An object of certain classes, not empty if it is a string.

    :param classes: Class, or a tuple of classes
    :param wanted: Description of the object
    :param none: Meaning of ``None``, if it is allowed
    :param call: Arguments with which it is called, if it is a function. It can also be written as ``"module.function"``
    """

    classes: Any
    wanted: str
    none: str | None = None
    call: str | None = None

    def check(self, name: str, value: Any) -> Any:
        if value is None and self.none is not None:
            return None
        found = value if self.call is None else import_plugin(value)
        if not isinstance(found, self.classes) or found == "":
            none = f", or None for {self.none}" if self.none else ""
            raise ValueError(f"{name} must be {self.wanted}{none}, got {_with_type(value)}.")
        if self.call is not None:
            _check_function(name, found, self.call)
        return os.fspath(found) if isinstance(found, os.PathLike) else found
