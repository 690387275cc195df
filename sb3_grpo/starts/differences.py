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
        # For objects that refer to each other. Keeps them, because an id is only unique as long as its object exists
        self.compared: dict[tuple[int, int], tuple[Any, Any]] = {}

    def compare(self, expected: Any, observed: Any, name: str) -> str | None:
        if expected is observed:
            return None
        arrays = np.ndarray | np.generic | th.Tensor
        if isinstance(expected, arrays) or isinstance(observed, arrays):
            return self._compare_arrays(expected, observed, name)
        numbers = isinstance(expected, int | float) and isinstance(observed, int | float)
        if type(expected) is not type(observed) and not numbers:
            return self._describe(name, expected, observed)
        if isinstance(expected, GENERATORS):
            return self.compare(generator_state(expected), generator_state(observed), f"the state of {name}")
        if isinstance(expected, dict):
            return self._compare_entries(expected, observed, name, "{}[{!r}]")
        if isinstance(expected, list | tuple | deque):
            return self._compare_entries(dict(enumerate(expected)), dict(enumerate(observed)), name, "{}[{}]")
        if isinstance(expected, _VALUES):
            # NaN equals itself here
            same = expected == observed or (expected != expected and observed != observed)
            return None if same else self._describe(name, expected, observed)
        if (id(expected), id(observed)) in self.compared:
            return None
        self.compared[id(expected), id(observed)] = expected, observed
        return self._compare_entries(_parts(expected), _parts(observed), name, "{}.{}")

    def _compare_entries(self, expected: dict[Any, Any], observed: dict[Any, Any], name: str, written: str) -> str | None:
        for key in [*expected, *(key for key in observed if key not in expected)]:
            entry = written.format(name, key)
            if key not in expected or key not in observed:
                return f"{entry} is only there {self.sides[key in observed]}"
            difference = self.compare(expected[key], observed[key], entry)
            if difference is not None:
                return difference
        return None

    def _compare_arrays(self, expected: Any, observed: Any, name: str) -> str | None:
        # Numbers do not differ just because they have different types
        first, second = np.asarray(expected), np.asarray(observed)
        if first.shape != second.shape:
            return self._describe(f"the shape of {name}", first.shape, second.shape)
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
        return self._describe(entry, first[index].item(), second[index].item()) + more

    def _describe(self, name: str, one: Any, other: Any) -> str:
        numbers = isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool)
        by = f" (by {abs(one - other):.3g})" if numbers and np.isfinite([one, other]).all() else ""
        return f"{name} is {_short(one)} {self.sides[0]} and {_short(other)} {self.sides[1]}{by}"


def _parts(item: Any) -> dict[str, Any]:
    """What an object consists of when it is pickled: its attributes, the arguments it is made with, its entries."""
    reduced = item.__reduce_ex__(4)
    if isinstance(reduced, str):
        return {"name": reduced}
    _, arguments, state, entries, pairs = [*reduced, None, None, None][:5]
    attributes = state if isinstance(state, dict) else {"state": state}
    return {**attributes, "entries": [*(entries or ())], "pairs": [*(pairs or ())], "arguments": arguments}


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
