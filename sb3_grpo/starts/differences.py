"""Description of the first difference between two observations or two states."""

from collections import deque
from collections.abc import Set
from types import FunctionType
from typing import Any

import numpy as np
import torch as th

from sb3_grpo.starts.generators import GENERATORS, generator_state

_VALUES = (bool, int, float, complex, str, bytes, bytearray, Set, range, type, FunctionType, type(None))


def first_difference(
    expected: Any, observed: Any, name: str, sides: tuple[str, str] = ("in one", "in the other")
) -> str | None:
    """
    Compare two objects and everything they hold, to the last bit.

    :param expected: arrays, numbers, containers, objects that can be pickled
    :param observed: an object of the same kind
    :param name: name of the objects in the description
    :param sides: names of the two sides in the description
    :return: which entry differs first, and by how much; None if nothing differs
    """
    return _Comparison(sides).compare(expected, observed, name)


class _Comparison:
    def __init__(self, sides: tuple[str, str]):
        self.sides = sides
        # Keeps the objects, because an id is only unique as long as its object exists
        self.compared: dict[tuple[int, int], tuple[Any, Any]] = {}

    def compare(self, expected: Any, observed: Any, name: str) -> str | None:
        if expected is observed or (id(expected), id(observed)) in self.compared:
            return None
        arrays = np.ndarray | np.generic | th.Tensor
        if isinstance(expected, arrays) or isinstance(observed, arrays):
            return self._compare_arrays(expected, observed, name)
        numbers = isinstance(expected, int | float) and isinstance(observed, int | float)
        if type(expected) is not type(observed) and not numbers:
            return self._differ(name, expected, observed)
        # For objects that refer to each other
        self.compared[id(expected), id(observed)] = expected, observed
        if isinstance(expected, GENERATORS):
            return self.compare(generator_state(expected), generator_state(observed), f"the state of {name}")
        if isinstance(expected, dict):
            return self._compare_dicts(expected, observed, name)
        if isinstance(expected, list | tuple | deque):
            if len(expected) != len(observed):
                return self._differ(f"the length of {name}", len(expected), len(observed))
            pairs = enumerate(zip(expected, observed, strict=True))
            return next(filter(None, (self.compare(*pair, f"{name}[{index}]") for index, pair in pairs)), None)
        if isinstance(expected, _VALUES):
            # NaN equals itself here
            same = expected == observed or (expected != expected and observed != observed)
            return None if same else self._differ(name, expected, observed)
        return self._compare_objects(expected, observed, name)

    def _compare_dicts(self, expected: Any, observed: Any, name: str, written: str = "{}[{!r}]") -> str | None:
        for key in [*expected, *(key for key in observed if key not in expected)]:
            entry = written.format(name, key)
            if key not in expected or key not in observed:
                return f"{entry} is only there {self.sides[key in observed]}"
            difference = self.compare(expected[key], observed[key], entry)
            if difference is not None:
                return difference
        return None

    def _compare_objects(self, expected: Any, observed: Any, name: str) -> str | None:
        """Compare objects by their parts when pickled: class and arguments, state, entries."""
        first, second = expected.__reduce_ex__(4), observed.__reduce_ex__(4)
        if isinstance(first, str) or isinstance(second, str):
            return self.compare(first, second, name)
        (_, arguments, state, *entries), (_, now, state_now, *entries_now) = map(_pad, (first, second))
        if isinstance(state, dict) and isinstance(state_now, dict):
            difference = self._compare_dicts(state, state_now, name, "{}.{}")
        else:
            difference = self.compare(state, state_now, name)
        return difference or self.compare(entries, entries_now, name) or self.compare(arguments, now, name)

    def _compare_arrays(self, expected: Any, observed: Any, name: str) -> str | None:
        # Numbers do not differ just because they have different types
        first, second = np.asarray(expected), np.asarray(observed)
        if first.shape != second.shape:
            return self._differ(f"the shape of {name}", first.shape, second.shape)
        if first.dtype.hasobject:
            return self.compare(first.tolist(), second.tolist(), name)
        unequal = first != second
        if first.dtype.kind in "fc" and second.dtype.kind in "fc":
            unequal = unequal & ~(np.isnan(first) & np.isnan(second))
        if not unequal.any():
            return None
        index = tuple(np.argwhere(unequal)[0].tolist())
        entry = f"{name}[{', '.join(map(str, index))}]" if index else name
        more = f"; {np.sum(unequal)} of {first.size} numbers differ" if first.size > 1 else ""
        return self._differ(entry, first[index].item(), second[index].item()) + more

    def _differ(self, name: str, one: Any, other: Any) -> str:
        return f"{name} is {_short(one)} {self.sides[0]} and {_short(other)} {self.sides[1]}{_by(one, other)}"


def _pad(reduced: tuple[Any, ...]) -> list[Any]:
    """Pad to the full length, with lists instead of iterators."""
    function, arguments, state, *entries = (*reduced, None, None, None)[:5]
    return [function, arguments, state, *([] if each is None else list(each) for each in entries)]


def _by(one: Any, other: Any) -> str:
    if isinstance(one, bool) or not (isinstance(one, int | float) and isinstance(other, int | float)):
        return ""
    return f" (by {abs(one - other):.3g})" if -1e300 < one < 1e300 and -1e300 < other < 1e300 else ""


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
