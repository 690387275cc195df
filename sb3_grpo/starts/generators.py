"""
Find, reseed, capture and restore the random generators of an environment, in place: those that are attributes of one of its
layers, or of an object that is such an attribute.

Generators that lie deeper are left alone. If a start depends on one, its members do not begin or continue alike, which the
checks during training and ``check_starts`` report.
"""

import random
import zlib
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo.starts.layers import DESCRIPTIVE, env_name, records_of
from sb3_grpo.starts.starts import StartNotSupportedError

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, th.Generator)

# For messages about starts that are not exact
HOW_TO_DRAW = (
    "Draw random numbers from self.np_random, or from a generator that is an attribute of the environment or of an object in "
    "its attributes: generators elsewhere are not restored."
)


def find_generators(layers: Sequence[gym.Env], skipped: Collection[str] = ()) -> dict[str, Any]:
    """
    :param layers: the environment with its wrappers, the outermost first
    :param skipped: attributes of the base environment to leave out
    :return: the random generators by their places, such as ``env.weather.rng`` for one of an object of the base environment
        below one wrapper
    """
    held: list[tuple[str, Any]] = []
    for depth, layer in enumerate(layers):
        left_out = skipped if layer is layers[-1] else records_of(layer)
        held += [
            (f"{'env.' * depth}{name}", value)
            for name, value in vars(layer).items()
            if name not in DESCRIPTIVE and name not in left_out and not isinstance(value, type | ModuleType)
        ]
    inside = [
        (f"{place}.{name}", value)
        for place, holder in held
        for name, value in getattr(holder, "__dict__", {}).items()
        if isinstance(value, GENERATORS)
    ]
    found: dict[int, tuple[str, Any]] = {}
    for place, value in [*held, *inside]:
        if isinstance(value, GENERATORS):
            # Only once, even if there are several ways to it
            found.setdefault(id(value), (place, value))
    return dict(found.values())


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
    :param skipped: attributes of the base environment to leave out
    :raises StartNotSupportedError: if one of them cannot be seeded
    """
    for place, generator in find_generators(layers, skipped).items():
        # Depends on its place, counted from the inside: this is the same in all copies, however they are wrapped
        depth = depth_of(place)
        from_inside = f"{len(layers) - depth} {place[len('env.') * depth :]}"
        if isinstance(generator, random.SystemRandom):
            raise StartNotSupportedError(
                f"{env_name(layers[0])}: the random generator {readable_place(place, layers)} (random.SystemRandom) cannot be "
                "seeded. Members of a group need noise from a known seed: use a numpy.random.Generator or a random.Random in "
                "its place."
            )
        reseed(generator, [seed, zlib.crc32(from_inside.encode())])


def reseed(generator: Any, entropy: list[int]) -> None:
    """
    :param generator: one of ``GENERATORS``
    :param entropy: the seed, as a list of non-negative numbers
    """
    sequence = np.random.SeedSequence(entropy)
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(sequence).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(sequence.generate_state(4))
    elif isinstance(generator, th.Generator):
        generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    else:
        generator.seed(int.from_bytes(sequence.generate_state(4).tobytes(), "little"))


def generator_state(generator: Any) -> Any:
    """
    :param generator: one of ``GENERATORS``
    :return: its state, which can be pickled; None if it draws from the system
    """
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, th.Generator):
        return generator.get_state().numpy()
    return None if isinstance(generator, random.SystemRandom) else generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """
    :param generator: one of ``GENERATORS``
    :param state: the result of ``generator_state`` for a generator of the same kind
    """
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, th.Generator):
        generator.set_state(th.from_numpy(state))
    elif state is not None:
        generator.setstate(state)
