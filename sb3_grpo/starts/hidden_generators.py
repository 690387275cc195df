"""Random generators of an environment that cannot be seeded: not reachable through attributes, or shared between copies."""

import gc
import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo.starts.generators import GENERATORS, find_generators, generator_state, is_known
from sb3_grpo.starts.holdings import is_of_library

_MAX_OBJECTS = 200_000
_NOT_FOLLOWED = (type, types.ModuleType, types.CodeType, gym.Space, str, bytes, int, float, np.random.SeedSequence)


def hidden_generators(layers: Sequence[gym.Env], skipped: frozenset[str]) -> list[str]:
    """
    Follow all references, including those of suspended functions, iterators and compiled objects, which Python code cannot
    follow.

    :param layers: an environment with its wrappers, the outermost first
    :param skipped: attributes of the base environment that are not searched
    :return: descriptions of the generators that ``find_generators`` does not find and of how they are reached
    """
    found = find_generators(layers, skipped).values()
    seen = {id(item) for generator in found for item in (generator, getattr(generator, "bit_generator", None))}
    seen |= {id(layer) for layer in layers} | {id(generator) for generator, _ in shared_generators(layers)}
    # Objects held by a module do not belong to the environment, but its functions refer to them
    seen |= {id(vars(module)) for module in list(sys.modules.values()) if hasattr(module, "__dict__")}
    holders: dict[int, Any] = {}
    hidden: list[str] = []
    kept: list[Any] = list(layers)  # an id is only unique as long as its object exists
    for item in kept:
        if isinstance(item, GENERATORS):
            hidden.append(_describe(item, holders))
            continue
        for inner in gc.get_referents(item):
            if id(inner) not in seen and not isinstance(inner, _NOT_FOLLOWED) and len(kept) < _MAX_OBJECTS:
                seen.add(id(inner))
                holders[id(inner)] = item
                kept.append(inner)
    return hidden


def _describe(item: Any, holders: dict[int, Any]) -> str:
    chain: list[str] = []
    while item is not None:
        chain.append(getattr(item, "__qualname__", None) or type(item).__qualname__)
        item = holders.get(id(item))
    return " > ".join(name for name in reversed(chain) if name not in ("dict", "list", "tuple", "cell"))


def shared_generators(layers: Sequence[gym.Env]) -> Iterator[tuple[Any, str]]:
    """
    :param layers: an environment with its wrappers
    :return: the generators, with their names, that all copies of it would share: the global ones of NumPy, Python and PyTorch,
        and those held by its modules and classes
    """
    yield np.random.mtrand._rand, "numpy.random"
    yield random._inst, "random"
    yield th.default_generator, "torch"
    classes = {cls for layer in layers for cls in type(layer).__mro__ if not is_known(cls) and not is_of_library(cls)}
    for cls in sorted(classes, key=lambda each: f"{each.__module__}.{each.__qualname__}"):
        holders = {
            cls.__module__: vars(sys.modules.get(cls.__module__, object)),
            f"{cls.__module__}.{cls.__qualname__}": vars(cls),
        }
        for name, held in holders.items():
            yield from ((value, f"{name}.{key}") for key, value in held.items() if isinstance(value, GENERATORS))


def shared_states(layers: Sequence[gym.Env]) -> dict[str, Any]:
    """
    :param layers: an environment with its wrappers
    :return: the states of ``shared_generators`` by name
    """
    return {name: generator_state(generator) for generator, name in shared_generators(layers)}
