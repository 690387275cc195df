"""
Check during training whether all copies of an environment continue from a snapshot in the same way.

A probe plays a few steps from the start of a group in a copy that is about to begin there, after a few steps of another
episode. The traces of all members are compared, as are their first observations. The copy then begins from the start itself,
which replaces what the probe has left behind: everything that is part of the state.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.known_envs import only_renders, records_of, wrapper_stack
from sb3_grpo.starts.snapshots import begin
from sb3_grpo.starts.starts import HOW_TO_DRAW, SEE_CHECK_STARTS, SnapshotStart, UnequalStartError
from sb3_grpo.utils.action_masks import allowed_action
from sb3_grpo.utils.random_states import process_state, set_process_state

# What an episode returns at each step: observation, reward, terminated, truncated; or the error that ended it
Trace: TypeAlias = list[Any]

_ADVICE = (
    "Something that the environment depends on is not restored: a quantity that get_state() leaves out or set_state(state) "
    f"does not set, a random generator, or a clock. {HOW_TO_DRAW} With a start_sampler of seeds, none of it is needed."
    + SEE_CHECK_STARTS
)


class Probe(NamedTuple):
    """
    What to play from a start.

    :param seed: seed of the actions and of the noise after the start
    :param n_steps: number of steps to play
    :param other_seed: seed of the noise of another episode that the copy plays before, different for each member: what is not
        restored then differs between members, even if they all play in one copy
    :param n_other_steps: number of steps of that episode, different for each of up to ``n_steps`` (8 in training) members, and
        for as many probes: a counter that is not restored then differs, too, whatever its period
    """

    seed: int
    n_steps: int
    other_seed: int = 0
    n_other_steps: int = 1

    def of_member(self, episode_id: int, member: int) -> "Probe":
        """
        :param episode_id: id of an episode from the start
        :param member: its number in the group
        :return: the probe before this episode
        """
        return self._replace(other_seed=episode_id, n_other_steps=1 + (self.seed + member) % self.n_steps)


def play_probe(env: gym.Env, start: SnapshotStart, probe: Probe) -> Trace | str:
    """
    :param env: a copy of the environment, between two episodes
    :param start: where its next episode begins
    :param probe: what to play
    :return: the trace, to be compared with those of other copies; if the copy is not in the state of the start, the difference
    """
    space = copy.deepcopy(env.action_space)
    space.seed(probe.seed)
    actions = [space.sample() for _ in range(probe.n_steps + probe.n_other_steps)]
    before = process_state()
    try:
        begin(env, start, probe.other_seed)
        with _without_watchers(env) as inner:
            inner.reset()
            play_actions(inner, actions[probe.n_steps :])
        begin(env, start, probe.seed)
        with _without_watchers(env) as inner:
            return play_actions(inner, actions[: probe.n_steps])
    except UnequalStartError as error:
        return str(error)
    finally:
        set_process_state(before)


def play_actions(env: gym.Env, actions: list[Any]) -> Trace:
    """
    :param env: an environment in an episode
    :param actions: actions to take until the episode ends
    :return: the trace
    """
    trace: Trace = []
    for action in actions:
        try:
            observation, reward, terminated, truncated, _ = env.step(allowed_action(env, copy.deepcopy(action)))
        except Exception as error:
            # Perhaps the actions are invalid here, in all copies
            return [*trace, f"{type(error).__name__}: {error}"]
        trace.append((copy.deepcopy(observation), reward, terminated, truncated))
        if terminated or truncated:
            break
    return trace


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
    return f"{name}: two copies were restored to the same state, and {difference}. {_ADVICE}"


@contextmanager
def _without_watchers(env: gym.Env) -> Iterator[gym.Env]:
    """
    :param env: an environment with its wrappers
    :return: the environment without wrappers that only keep statistics, record or render
    """
    kept = [each for each in wrapper_stack(env) if not records_of(each) and not only_renders(each)]
    links = [(wrapper, wrapper.env) for wrapper in kept if isinstance(wrapper, gym.Wrapper)]
    try:
        for (wrapper, _), inner in zip(links, kept[1:], strict=True):
            wrapper.env = inner
        yield kept[0]
    finally:
        for wrapper, inner in links:
            wrapper.env = inner
