"""Find, reseed, capture and restore the random generators that an environment holds, in place."""

import random
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo.starts.holdings import (
    attributes,
    cache_by_class,
    env_name,
    is_container,
    is_leaf,
    package_of,
    path_name,
    records_of,
    walk,
)
from sb3_grpo.starts.starts import StartNotSupportedError

GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, th.Generator)

# Layers of these packages have generators directly in their attributes, but no deeper
_KNOWN_PACKAGES = ("gymnasium", "stable_baselines3", "ale_py", "sb3_grpo")

# An environment that holds more objects than this, or only consists of known packages, is searched the first few times, then
# each time the number of calls has doubled. In between, generators are looked up in the places found before; the environment
# is searched again if they are not there, or not in attributes
_LARGE = 50
_N_FIRST_SEARCHES = 3


@dataclass(slots=True)
class _Search:
    """Result of the last full search through the objects of an environment."""

    places: list[str]
    n_calls: int
    next_search: int


_searches: WeakKeyDictionary[gym.Env, _Search] = WeakKeyDictionary()


def find_generators(layers: Sequence[gym.Env], skipped: Collection[str] = ()) -> dict[str, Any]:
    """
    Find all random generators that the layers of an environment hold, including those inside other objects.

    :param layers: the environment with its wrappers, the outermost first
    :param skipped: attributes of the base environment that are not searched
    :return: the generators by their places
    """
    return _search(layers, skipped)[0]


def known_generators(layers: Sequence[gym.Env], skipped: Collection[str] = ()) -> dict[str, Any]:
    """
    Same as ``find_generators``; if a search takes long, mostly by looking up the places of the last search.

    :param layers: the environment with its wrappers, the outermost first
    :param skipped: attributes of the base environment that are not searched
    :return: the generators by their places
    """
    is_hashable = type(layers[0]).__hash__ is not None
    search = _searches.get(layers[0]) if is_hashable else None
    n_calls = 1 if search is None else search.n_calls + 1
    if search is not None and n_calls < search.next_search:
        search.n_calls = n_calls
        # Entries of containers are not attributes
        with suppress(AttributeError):
            found = {place: attrgetter(place)(layers[0]) for place in search.places}
            if all(isinstance(generator, GENERATORS) for generator in found.values()):
                return found
    found, n_objects = _search(layers, skipped)
    is_rare = n_objects > _LARGE or all(is_known(type(layer)) for layer in layers)
    next_search = max(2 * n_calls, _N_FIRST_SEARCHES) if is_rare else n_calls
    if is_hashable:
        _searches[layers[0]] = _Search([*found], n_calls, next_search)
    return found


def depth_of(place: str) -> int:
    """
    :param place: place of a generator
    :return: depth of the layer that holds it, 0 for the outermost
    """
    names = place.split(".")
    return next(depth for depth, name in enumerate(names) if name != "env")


def readable_place(place: str, layers: Sequence[gym.Env]) -> str:
    """
    :param place: place of a generator
    :param layers: the environment with its wrappers
    :return: the place in readable form, such as ``env.unwrapped.rng`` if the base environment holds it
    """
    depth = depth_of(place)
    return f"env.unwrapped.{place[len('env.') * depth :]}" if depth == len(layers) - 1 else f"env.{place}"


def reseed_generators(layers: Sequence[gym.Env], seed: int, skipped: Collection[str] = ()) -> None:
    """
    Reseed all generators found by ``find_generators`` in place, so that the change is seen through all references to them.

    :param layers: the environment with its wrappers, the outermost first
    :param seed: the seed, not negative
    :param skipped: attributes of the base environment that are not searched
    :raises StartNotSupportedError: if one of them cannot be seeded
    """
    for place, generator in known_generators(layers, skipped).items():
        # Depends on its place, counted from the inside: this is the same in all copies, however they are wrapped
        depth = depth_of(place)
        from_inside = f"{len(layers) - depth} {place[len('env.') * depth :]}"
        try:
            reseed(generator, [seed, zlib.crc32(from_inside.encode())])
        except Exception as error:
            kind = f"{type(generator).__module__}.{type(generator).__qualname__}"
            raise StartNotSupportedError(
                f"{env_name(layers[0])}: the random generator {readable_place(place, layers)} ({kind}) cannot be seeded: "
                f"{type(error).__name__}, {str(error).rstrip('.')}. Members of a group need noise from a known seed: use a "
                "numpy.random.Generator, a random.Random or a torch.Generator in its place."
            ) from error


def reseed(generator: Any, entropy: list[int]) -> None:
    """
    :param generator: one of ``GENERATORS``
    :param entropy: the seed, as a list of non-negative numbers
    """
    sequence = np.random.SeedSequence(entropy)
    if isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(sequence).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(sequence.generate_state(4))
    elif isinstance(generator, th.Generator):
        generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    else:
        generator.seed(int.from_bytes(sequence.generate_state(4).tobytes(), "little"))
        # A generator that draws from the system accepts any seed but ignores it, and raises an error here
        generator.getstate()


def can_be_seeded(generator: Any) -> bool:
    """
    :param generator: one of ``GENERATORS``
    :return: whether its numbers are determined by a seed rather than drawn from the system
    """
    return not isinstance(generator, random.SystemRandom)


def generator_state(generator: Any) -> Any:
    """
    :param generator: one of ``GENERATORS``
    :return: its state, which can be pickled; None if it draws from the system
    """
    if isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        return bits.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, th.Generator):
        return generator.get_state().numpy()
    return generator.getstate() if can_be_seeded(generator) else None


def set_generator_state(generator: Any, state: Any) -> None:
    """
    :param generator: one of ``GENERATORS``
    :param state: the result of ``generator_state`` for a generator of the same kind
    """
    if isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        bits.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, th.Generator):
        generator.set_state(th.from_numpy(state))
    elif state is not None:
        generator.setstate(state)


def _search(layers: Sequence[gym.Env], skipped: Collection[str]) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    n_objects = 0
    for item, path in walk(_roots(layers, skipped), known=layers):
        n_objects += 1
        if isinstance(item, GENERATORS):
            found[path_name(path)] = item
    return found, n_objects


def _roots(layers: Sequence[gym.Env], skipped: Collection[str]) -> Iterator[tuple[str, Any]]:
    for depth, layer in enumerate(layers):
        left_out = skipped if layer is layers[-1] else records_of(type(layer))
        # Cached by class, because this is needed for each attribute at each start
        looked_into = _is_searched_in_known if is_known(type(layer)) else _is_searched
        for name, value in attributes(layer).items():
            if looked_into(type(value)) and name not in left_out:
                yield f"{'env.' * depth}{name}", value


@cache_by_class
def _is_searched(cls: type) -> bool:
    return not is_leaf(cls)


@cache_by_class
def _is_searched_in_known(cls: type) -> bool:
    """Objects of known packages do not hold generators at a deeper level, but they may hold a user's function."""
    return issubclass(cls, GENERATORS) or not (is_leaf(cls) or is_container(cls) or is_known(cls))


@cache_by_class
def is_known(cls: type) -> bool:
    """
    :param cls: a class
    :return: whether it belongs to a package for which it is known what its environments and wrappers hold
    """
    return package_of(cls) in _KNOWN_PACKAGES
