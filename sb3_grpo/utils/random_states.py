"""Saves and restores the states of a process's global random generators, and of those of spaces."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th


def process_state() -> tuple[Any, ...]:
    """
    :return: The states of the global generators of Python, NumPy and PyTorch, with those of GPUs if they are in use
    """
    on_gpus = th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), th.get_rng_state().numpy(), on_gpus


def set_process_state(state: tuple[Any, ...]) -> None:
    """
    :param state: Result of ``process_state``; with another number of GPUs, their generators are left as they are
    """
    random.setstate(state[0])
    np.random.set_state(state[1])
    th.set_rng_state(th.from_numpy(state[2].copy()))
    if len(state[3]) == th.cuda.device_count():
        th.cuda.set_rng_state_all(state[3])


def space_states(spaces: Iterable[gym.Space]) -> list[dict[str, Any] | None]:
    """
    :param spaces: Spaces, which may contain other spaces
    :return: The states of their generators, ``None`` for one that was never used
    """
    generators: list[np.random.Generator | None] = [each._np_random for space in spaces for each in _spaces_in(space)]
    return [None if each is None else dict(each.bit_generator.state) for each in generators]


def set_space_states(spaces: Iterable[gym.Space], states: list[dict[str, Any] | None]) -> None:
    """
    :param spaces: Spaces
    :param states: Result of ``space_states`` for spaces like them
    """
    for each, state in zip((each for space in spaces for each in _spaces_in(space)), states, strict=True):
        if state is None:
            each._np_random = None  # type: ignore[assignment]
        else:
            each.np_random.bit_generator.state = state


def _spaces_in(space: gym.Space) -> Iterator[gym.Space]:
    yield space
    for value in vars(space).values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if isinstance(part, gym.Space):
                yield from _spaces_in(part)
