"""
Episodes that begin from a seed, and the random generators of an environment: those that are attributes of the environment, of
one of its wrappers, or of an object that is such an attribute.

Generators that lie deeper are left alone. If a start depends on one, its members do not begin or continue alike, which the
checks during training and ``check_starts`` report.
"""

import copy
import random
import zlib
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo.starts.known_envs import DESCRIPTIVE, base_state, env_name, is_known, package_of, wrapper_stack
from sb3_grpo.starts.starts import SeedStart, StartNotSupportedError
from sb3_grpo.utils.vec_envs import ask

RNG_TYPES = (np.random.Generator, np.random.RandomState, random.Random, th.Generator)


def begin_from_seed(env: gym.Env, start: SeedStart) -> tuple[Any, dict[str, Any]]:
    """
    Put an environment into the state after ``reset(seed=...)`` of a fresh one.

    :param env: the environment with its wrappers
    :param start: the seed and the options
    :return: the first observation and the info dict
    :raises StartNotSupportedError: if a wrapper makes something else of the same seed each time
    """
    for wrapper in wrapper_stack(env):
        attributes = vars(wrapper)
        if "was_real_done" in attributes:
            # EpisodicLifeEnv: without this, reset continues the current game
            attributes["was_real_done"] = True
        if attributes.get("_update_running_mean"):
            raise StartNotSupportedError(
                f"{type(wrapper).__name__} changes with everything it has seen, so the same seed gives different episodes "
                "in different copies of the environment. Use VecNormalize around the VecEnv instead."
            )
    # Reach what reset(seed) does not: the generators of wrappers, and those of spaces
    seed_rngs(env, start.seed)
    return clean_reset(env, start.seed, copy.deepcopy(start.options))


def clean_reset(env: gym.Env, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """
    :param env: the environment with its wrappers
    :param seed: seed for ``reset``
    :param options: options for ``reset``, which is called without them if None: not every ``reset`` accepts them
    :return: the result of ``reset``, on which earlier episodes in the same simulator have no influence
    """
    base = wrapper_stack(env)[-1]
    base_state(base).before_reset(base)
    result = env.reset(seed=seed) if options is None else env.reset(seed=seed, options=options)
    if not isinstance(result, tuple | list) or len(result) != 2:
        # An observation of two numbers would be taken for the pair
        raise TypeError(f"reset() must return (observation, info), as in Gymnasium, and returned {type(result).__name__}.")
    observation, info = result
    # Some return None, which is no obstacle for SB3's algorithms
    return observation, info or {}


def renew_noise(env: gym.Env, seed: int) -> None:
    """
    Make the randomness after a start depend on a seed only.

    :param env: the environment with its wrappers
    :param seed: the seed, not negative
    """
    seed_rngs(env, seed)
    base = wrapper_stack(env)[-1]
    base_state(base).reseed(base, seed)


def find_rngs(env: gym.Env) -> dict[tuple[int, str], Any]:
    """
    :param env: the environment with its wrappers
    :return: its random generators by their paths: how many wrappers are around the holder, and the attribute. The path of
        ``self.weather.rng`` in a base environment below one wrapper is ``(1, "weather.rng")``
    """
    stack = wrapper_stack(env)
    create_np_random(stack[-1])
    attributes = [
        ((depth, name), value)
        for depth, holder in enumerate(stack)
        for name, value in vars(holder).items()
        if name not in DESCRIPTIVE and not isinstance(value, type | ModuleType)
    ]
    inside = [
        ((depth, f"{outer}.{name}"), value)
        for (depth, outer), holder in attributes
        for name, value in getattr(holder, "__dict__", {}).items()
        if isinstance(value, RNG_TYPES)
    ]
    found: dict[int, tuple[tuple[int, str], Any]] = {}
    for path, value in [*attributes, *inside]:
        if isinstance(value, RNG_TYPES):
            # Only once, even if there are several ways to it
            found.setdefault(id(value), (path, value))
    return dict(found.values())


def create_np_random(base: gym.Env) -> None:
    """
    Gymnasium creates it on first use with a seed from the system: too late to be captured or seeded.

    :param base: a base environment
    """
    if getattr(base, "_np_random", 0) is None:
        ask(None, getattr, base, "np_random")


def readable_path(env: gym.Env, path: tuple[int, str]) -> str:
    """
    :param env: the environment with its wrappers
    :param path: path of a random generator
    :return: the path in readable form, such as ``env.unwrapped.rng`` if the base environment holds it
    """
    depth, name = path
    return f"env.unwrapped.{name}" if depth == len(wrapper_stack(env)) - 1 else f"env.{'env.' * depth}{name}"


def seed_rngs(env: gym.Env, seed: int) -> None:
    """
    Seed all random generators of an environment in place, so that the change is seen through all references to them.

    :param env: the environment with its wrappers
    :param seed: the seed, not negative
    :raises StartNotSupportedError: if one of them cannot be seeded
    """
    stack = wrapper_stack(env)
    base = stack[-1]
    for (depth, name), rng in find_rngs(env).items():
        if isinstance(rng, random.SystemRandom):
            raise StartNotSupportedError(
                f"{env_name(env)}: the random generator {readable_path(env, (depth, name))} (random.SystemRandom) cannot be "
                "seeded. Members of a group need noise from a known seed: use a numpy.random.Generator or a random.Random in "
                "its place."
            )
        # Depends on its path, counted from the inside: this is the same in all copies, however they are wrapped
        path = f"{len(stack) - depth} {name}"
        _seed_rng(rng, np.random.SeedSequence([seed, zlib.crc32(path.encode())]))
    if "_np_random_seed" in vars(base):
        base._np_random_seed = -1  # Gymnasium's mark for "unknown"
    # Many environments and wrappers sample from their spaces, which reset(seed) does not reach. Of those known, only SB3's do
    if package_of(type(base)) == "stable_baselines3" or not all(map(is_known, stack)):
        # Wrappers may have different spaces from the base environment
        spaces = (space for each in stack for space in (each.observation_space, each.action_space))
        for space in {id(space): space for space in spaces}.values():
            space.seed(seed)


def _seed_rng(rng: Any, seed: np.random.SeedSequence) -> None:
    if isinstance(rng, np.random.Generator):
        bits: Any = rng.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(rng, np.random.RandomState):
        rng.seed(seed.generate_state(4))
    elif isinstance(rng, th.Generator):
        rng.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    else:
        rng.seed(int.from_bytes(seed.generate_state(4).tobytes(), "little"))


def rng_state(rng: Any) -> Any:
    """
    :param rng: one of ``RNG_TYPES``
    :return: its state, which can be pickled; None if it draws from the system
    """
    if isinstance(rng, np.random.Generator):
        return rng.bit_generator.state
    if isinstance(rng, np.random.RandomState):
        return rng.get_state(legacy=False)
    if isinstance(rng, th.Generator):
        return rng.get_state().numpy()
    return None if isinstance(rng, random.SystemRandom) else rng.getstate()


def set_rng_state(rng: Any, state: Any) -> None:
    """
    :param rng: one of ``RNG_TYPES``
    :param state: the result of ``rng_state`` for a generator of the same kind
    """
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = state
    elif isinstance(rng, np.random.RandomState):
        rng.set_state(state)
    elif isinstance(rng, th.Generator):
        rng.set_state(th.from_numpy(state))
    elif state is not None:
        rng.setstate(state)
