"""
Check whether all copies of an environment continue from a snapshot in the same way.

A probe plays a few steps from the start of a group in a copy that is about to begin there. The traces of all members are
compared, as are their first observations. A probe has no side effects: Python objects are restored to what they were, and the
rest of the state is replaced by the start, from which the copy then begins.
"""

import copy
import functools
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.monitor import Monitor

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.generators import GENERATORS, generator_state, set_generator_state
from sb3_grpo.starts.holdings import attributes, env_name, is_compiled, is_of_library, layers_of, records_of, slots_of, walk
from sb3_grpo.starts.snapshots import begin
from sb3_grpo.starts.starts import SEE_CHECK_STARTS, SnapshotStart, UnequalStartError
from sb3_grpo.utils.chance import process_state, set_process_state

# What an episode returns at each step: observation, reward, terminated, truncated; or the error that ended it
Trace: TypeAlias = list[Any]

_ADVICE = (
    "Something that the environment depends on is not restored: a quantity that get_state() leaves out or set_state(state) "
    "does not set, a random generator that no attribute leads to, or a clock. With a start_sampler "
    "of seeds, none of it is needed." + SEE_CHECK_STARTS
)


class Probe(NamedTuple):
    """
    What to play from a start.

    :param seed: seed of the actions and of the noise after the start
    :param n_steps: number of steps to play
    :param again: whether to play them again after the copy has been in a different state
    :param own_noise: whether the noise of members is independent: noise that cannot be seeded may then differ between members
    """

    seed: int
    n_steps: int
    again: bool
    own_noise: bool


def play_probe(env: gym.Env, start: SnapshotStart, probe: Probe) -> Trace | str:
    """
    :param env: a copy of the environment, between two episodes
    :param start: where its next episode begins
    :param probe: what to play
    :return: the trace, to be compared with those of other copies; if the traces of both times differ, the difference
    """
    space = copy.deepcopy(env.action_space)
    space.seed(probe.seed)
    actions = [space.sample() for _ in range(2 * probe.n_steps)]
    with put_back(env):
        try:
            trace = _play(env, start, probe, actions[: probe.n_steps])
            if not probe.again:
                return trace
            with without_watchers(env) as inner:
                inner.reset()
                play_actions(inner, actions[probe.n_steps :])
            difference = compare_traces(trace, _play(env, start, probe, actions[: probe.n_steps]))
        except UnequalStartError as error:
            return str(error)
    return trace if difference is None else f"{env_name(env)}: put into one and the same state twice, {difference}. {_ADVICE}"


def compare_traces(expected: Trace, observed: Trace) -> str | None:
    """
    :param expected: trace of one copy
    :param observed: trace of another copy
    :return: description of how they differ; None if they do not
    """
    names = ("observation", "reward", "terminated", "truncated")
    for n_steps, (one, other) in enumerate(zip(expected, observed, strict=False), start=1):
        if isinstance(one, str) or isinstance(other, str):
            difference = first_difference(one, other, "the result")
        else:
            differences = (first_difference(a, b, name) for a, b, name in zip(one, other, names, strict=True))
            difference = next(filter(None, differences), None)
        if difference is not None:
            return f"it went on differently: after {n_steps} equal action{'s' * (n_steps > 1)}, {difference}"
    return None


def describe_difference(name: str, difference: str) -> str:
    """
    :param name: name of the environment
    :param difference: difference between the traces of two members
    :return: the message for the user
    """
    return f"{name}: two copies were put into one and the same state, and {difference}. {_ADVICE}"


def _play(env: gym.Env, start: SnapshotStart, probe: Probe, actions: list[Any]) -> Trace:
    begin(env, start, probe.seed, compare=True)
    if probe.own_noise:
        _seed_global_generators(probe.seed)
    with without_watchers(env) as inner:
        return play_actions(inner, actions)


def play_actions(env: gym.Env, actions: list[Any]) -> Trace:
    """
    :param env: an environment in an episode
    :param actions: actions to take until the episode ends
    :return: the trace
    """
    trace: Trace = []
    for action in actions:
        try:
            observation, reward, terminated, truncated, _ = env.step(copy.copy(action))
        except Exception as error:
            # Perhaps the actions are invalid here, in all copies
            return [*trace, f"{type(error).__name__}: {error}"]
        trace.append((copy.deepcopy(observation), reward, terminated, truncated))
        if terminated or truncated:
            break
    return trace


def has_ended(trace: Trace) -> bool:
    """
    :param trace: trace of an episode
    :return: whether the episode has ended, by itself or with an error
    """
    return bool(trace) and (isinstance(trace[-1], str) or bool(trace[-1][2] or trace[-1][3]))


@contextmanager
def without_watchers(env: gym.Env) -> Iterator[gym.Env]:
    """
    :param env: an environment with its wrappers
    :return: the environment without wrappers that only keep statistics, record or render
    """
    layers = layers_of(env)
    kept = [layer for layer in layers if not _only_watches(type(layer))]
    links = [(layer, layer.env) for layer in kept if isinstance(layer, gym.Wrapper)]
    try:
        for (layer, _), inner in zip(links, kept[1:], strict=True):
            layer.env = inner
        yield kept[0]
    finally:
        for layer, inner in links:
            layer.env = inner


def step_unwatched(env: gym.Env, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """
    Make a step that no wrapper records. A ``Monitor`` counts it if the episode continues, because its counters are part of
    the state.

    :param env: an environment with its wrappers, in an episode
    :param action: the action
    :return: the result of ``step``
    """
    with without_watchers(env) as inner:
        result = inner.step(copy.copy(action))
    if not (result[2] or result[3]):
        for layer in layers_of(env):
            if isinstance(layer, Monitor):
                # Monitor only reports their sum and number, and the monitor of a batch does not store more
                layer.rewards[:] = [sum(layer.rewards) + float(result[1])] + [0.0] * len(layer.rewards)
    return result


def _only_watches(cls: type) -> bool:
    return bool(records_of(cls)) or cls.__module__ == "gymnasium.wrappers.rendering"


@contextmanager
def put_back(env: gym.Env) -> Iterator[None]:
    """
    Restore all Python objects that an environment holds, in place, and the global generators.

    If a layer also holds compiled objects, only its generators are restored: a simulator may have destroyed what these objects
    stand for and created new ones.

    :param env: an environment with its wrappers
    """
    layers = layers_of(env)
    undo: list[Callable[[], Any] | None] = [_undo_global_generators()]
    for layer in layers:
        undo.extend(_undo_space(space) for space in (layer.observation_space, layer.action_space))
        items = [layer, *(item for item, _ in walk([*attributes(layer).items()], known=layers))]
        if any(is_compiled(item) for item in items):
            items = [item for item in items if isinstance(item, GENERATORS)]
        for item in items:
            undo.extend((_undo_content(item), _undo_attributes(item)))
    try:
        yield
    finally:
        for each in filter(None, undo):
            each()


def _undo_content(item: Any) -> Callable[[], Any] | None:
    """Get a function that restores the current content of an object. The content of its entries is not restored."""
    if isinstance(item, GENERATORS):
        state = generator_state(item)
        return lambda: set_generator_state(item, state)
    if isinstance(item, np.ndarray) and item.flags.writeable:
        array = item.copy()
        return lambda: np.copyto(item, array)
    if isinstance(item, th.Tensor):
        tensor = item.detach().clone()
        return lambda: item.detach().copy_(tensor)
    for cls, fill in _CONTAINERS:
        if isinstance(item, cls):
            content = dict(item) if isinstance(item, dict) else [*item]
            return functools.partial(_refill, item, cls, fill, content)
    return None


def _fill_ordered(container: OrderedDict[Any, Any], content: dict[Any, Any]) -> None:
    for key, value in content.items():
        OrderedDict.__setitem__(container, key, value)


# Each type with the function that fills it. An OrderedDict must not be filled as a dict: it would lose its order
_CONTAINERS: tuple[tuple[Any, Any], ...] = (
    (OrderedDict, _fill_ordered),
    (dict, dict.update),
    (set, set.update),
    (list, list.extend),
    (deque, deque.extend),
)


def _refill(container: Any, cls: Any, fill: Callable[[Any, Any], Any], content: Any) -> None:
    # Not by methods with which a user's class overrides them
    cls.clear(container)
    fill(container, content)


def _undo_attributes(item: Any) -> Callable[[], None] | None:
    held = dict(attributes(item))
    if not held or isinstance(item, GENERATORS) or is_of_library(type(item)):
        return None

    def undo() -> None:
        now = attributes(item)
        in_dict = getattr(item, "__dict__", {})
        for name in [name for name in now if name not in held]:
            # Bypasses properties and the like, which may do more than set a value
            in_dict.pop(name) if name in in_dict else object.__delattr__(item, name)
        for name, value in held.items():
            if name not in now or now[name] is not value:
                _set(item, in_dict, name, value)

    return undo


def _set(item: Any, in_dict: dict[str, Any], name: str, value: Any) -> None:
    if name in slots_of(type(item)):
        object.__setattr__(item, name, value)
    else:
        in_dict[name] = value


def _undo_space(space: gym.Space) -> Callable[[], None]:
    parts = getattr(space, "spaces", ())
    inner = [_undo_space(part) for part in (parts.values() if isinstance(parts, dict) else parts)]
    generator = space._np_random
    state = None if generator is None else generator_state(generator)

    def undo() -> None:
        space._np_random = generator
        if generator is not None:
            set_generator_state(generator, state)
        for each in inner:
            each()

    return undo


def _undo_global_generators() -> Callable[[], None]:
    return functools.partial(set_process_state, process_state())


def _seed_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    th.random.default_generator.manual_seed(seed)
