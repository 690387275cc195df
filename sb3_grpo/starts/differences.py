"""Description of the first difference between two observations or two states."""

import math
from collections import deque
from collections.abc import Iterator, Set
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import torch as th

from sb3_grpo.starts.seeding import RNG_TYPES, rng_state

_ARRAYS = (np.ndarray, np.generic, th.Tensor)
_VALUES = (bool, int, float, complex, str, bytes, bytearray, Set, range, type, FunctionType, type(None))
_ABSENT = object()

# The name of an entry that differs, the entry on both sides, and what else there is to say
_Difference: TypeAlias = tuple[str, Any, Any, str]


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
    difference = next(_differences(expected, observed, name, {}), None)
    if difference is None:
        return None
    entry, one, other, more = difference
    if one is _ABSENT or other is _ABSENT:
        return f"{entry} is only there {sides[one is _ABSENT]}"
    numbers = _are_numbers(one, other) and not isinstance(one, bool) and math.isfinite(one) and math.isfinite(other)
    by = f" (by {abs(one - other):.3g})" if numbers else ""
    return f"{entry} is {_short(one)} {sides[0]} and {_short(other)} {sides[1]}{by}{more}"


def _differences(one: Any, other: Any, name: str, compared: dict[tuple[int, int], Any]) -> Iterator[_Difference]:
    """
    :param compared: pairs that need not be compared again, for objects that refer to each other, by their ids. It keeps them,
        because an id is only unique as long as its object exists
    """
    if one is other or (id(one), id(other)) in compared:
        return
    if one is _ABSENT or other is _ABSENT:
        yield name, one, other, ""
    elif isinstance(one, _ARRAYS) or isinstance(other, _ARRAYS):
        yield from _array_differences(np.asarray(one), np.asarray(other), name, compared)
    elif type(one) is not type(other) and not _are_numbers(one, other):
        yield name, one, other, ""
    elif isinstance(one, RNG_TYPES):
        yield from _differences(rng_state(one), rng_state(other), f"the state of {name}", compared)
    elif isinstance(one, _VALUES):
        # NaN equals itself here
        if one != other and (one == one or other == other):
            yield name, one, other, ""
    else:
        compared[id(one), id(other)] = one, other
        (entries, written), (other_entries, _) = _entries(one), _entries(other)
        for key in {**entries, **other_entries}:
            values = entries.get(key, _ABSENT), other_entries.get(key, _ABSENT)
            yield from _differences(*values, written.format(name, key), compared)


def _array_differences(one: Any, other: Any, name: str, compared: dict[tuple[int, int], Any]) -> Iterator[_Difference]:
    # Numbers do not differ just because they have different types
    if one.shape != other.shape:
        yield f"the shape of {name}", one.shape, other.shape, ""
    elif one.dtype.hasobject:
        yield from _differences(one.tolist(), other.tolist(), name, compared)
    else:
        unequal = one != other
        if one.dtype.kind in "fc" and other.dtype.kind in "fc":
            unequal = unequal & ~(np.isnan(one) & np.isnan(other))
        if unequal.any():
            index = tuple(np.argwhere(unequal)[0].tolist())
            entry = f"{name}[{', '.join(map(str, index))}]" if index else name
            more = f"; {np.sum(unequal)} of {one.size} numbers differ" if one.size > 1 else ""
            yield entry, one[index].item(), other[index].item(), more


def _entries(item: Any) -> tuple[dict[Any, Any], str]:
    """What a container or an object consists of, and how its entries are written."""
    if isinstance(item, dict):
        return item, "{}[{!r}]"
    if isinstance(item, list | tuple | deque):
        return dict(enumerate(item)), "{}[{}]"
    # As it is pickled: its attributes, the arguments it is made with, its entries
    reduced = item.__reduce_ex__(4)
    if isinstance(reduced, str):
        return {"name": reduced}, "{}.{}"
    _, arguments, state, entries, pairs = [*reduced, None, None, None][:5]
    attributes = state if isinstance(state, dict) else {"state": state}
    return {**attributes, "entries": [*(entries or ())], "pairs": [*(pairs or ())], "arguments": arguments}, "{}.{}"


def _are_numbers(one: Any, other: Any) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float)


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
