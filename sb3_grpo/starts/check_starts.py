"""``check_starts``: try out which starts of an environment are exact, and show the results in a table."""

import copy
import functools
import pickle
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.group_env import importable_id
from sb3_grpo.starts.known_envs import env_name, wrapper_stack
from sb3_grpo.starts.probes import Trace, compare_traces, play_actions
from sb3_grpo.starts.seeding import find_rngs, readable_path
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import (
    HOW_TO_DRAW,
    SEE_CHECK_STARTS,
    SeedStart,
    Start,
    StartMismatchError,
    StartNotSupportedError,
    UnequalStartError,
)
from sb3_grpo.utils.action_masks import allowed_action
from sb3_grpo.utils.parameters import Whole
from sb3_grpo.utils.vec_envs import spec_of

# What an episode from a start shows: its first observation and its trace
Episode: TypeAlias = tuple[Any, Trace]

_STARTS = ("seeds", "snapshots")
# Errors described by their message alone
_OWN_ERRORS = (StartNotSupportedError, StartMismatchError, UnequalStartError)


class StartCheck(NamedTuple):
    """
    Result of one comparison.

    :param starts: ``"seeds"`` or ``"snapshots"``
    :param what: what was compared
    :param exact: whether everything was equal to the last bit in all trials
    :param note: how it differs
    :param needed: whether groups need it
    """

    starts: str
    what: str
    exact: bool
    note: str
    needed: bool


@dataclass
class StartReport:
    """
    The results of ``check_starts``. ``print(report)`` shows them as a table.

    :param env: the id of the environment, or its class if it has none
    :param generators: where its random generators that are reseeded are stored
    :param checks: the results of all comparisons
    """

    env: str
    generators: list[str]
    checks: list[StartCheck]

    def is_exact(self, *starts: str) -> bool:
        """
        :param starts: ``"seeds"``, ``"snapshots"``; both if none is given
        :return: whether everything that groups need from them was tried and is exact
        """
        unknown = [each for each in starts if each not in _STARTS]
        if unknown:
            raise ValueError(f"Unknown starts {unknown[0]!r}, must be among {', '.join(_STARTS)}.")
        asked = [[check for check in self.checks if check.needed and check.starts == each] for each in starts or _STARTS]
        return all(checks and all(check.exact for check in checks) for checks in asked)

    def __str__(self) -> str:
        """The table."""
        table = Table("Starts", "What was compared", "Exact", "How it differs", title=self.env, title_justify="left")
        for check in self.checks:
            what = check.what + " (not needed)" * (not check.needed)
            table.add_row(check.starts, what, "yes" if check.exact else "no", check.note)
        table.caption = f"Random generators that are reseeded: {', '.join(self.generators) or 'none'}"
        if not self.is_exact():
            table.caption += f"\n{HOW_TO_DRAW} Everything else that later steps depend on belongs to get_state()."
        table.caption_justify = "left"
        console = Console(width=shutil.get_terminal_size((120, 24)).columns)
        with console.capture() as captured:
            console.print(table)
        return captured.get()


def check_starts(
    env: str | gym.Env | Callable[[], gym.Env], n_starts: int = 3, n_steps: int = 100, seed: int = 0, verbose: int = 1
) -> StartReport:
    """
    Find out which starts of an environment are exact by playing from them: in the same copy and in another one, after other
    episodes and in mid-episode, and from pickled starts, with noise shared by all members of a group.

    Differences that do not show within ``n_steps`` random actions are not found.

    :param env: the id of an environment, or a function or class that creates it with all wrappers. An environment object also
        works if it was created from its id
    :param n_starts: number of starts of each kind to try
    :param n_steps: number of steps to play from each start
    :param seed: seed of the actions. Starts have the seeds from ``seed + 1`` on: 0 is no seed to some environments
    :param verbose: 0 prints nothing, 1 prints the table
    :return: the results
    :raises ValueError: if a number is invalid
    :raises TypeError: if ``env`` does not say how to create an environment
    """
    n_starts, n_steps = Whole(1).check("n_starts", n_starts), Whole(1).check("n_steps", n_steps)
    seed = Whole(0).check("seed", seed)
    checker = _Checker(_maker(env), n_steps, seed)
    for index in range(n_starts):
        checker.check_start("seeds", checker.seed_start(index), checker.actions(index, n_steps), None)
    for index in range(n_starts):
        checker.check_snapshot(index)
    one = checker.one.env
    generators = [readable_path(one, path) for path in find_rngs(one)]
    report = StartReport(env_name(one), generators, [*checker.checks.values()])
    if verbose:
        print(report)
    return report


class _Checker:
    """Two copies of the environment, and the results so far."""

    def __init__(self, make: Callable[[], gym.Env], n_steps: int, seed: int):
        self.one, self.other = (each if isinstance(each, StartQueue) else StartQueue(each) for each in (make(), make()))
        if wrapper_stack(self.one)[-1] is wrapper_stack(self.other)[-1]:
            raise ValueError(
                "check_starts needs a function that makes a new environment each time, and got the same one twice."
            )
        self.n_steps, self.seed, self.n_wandered = n_steps, seed, 0
        self.space = copy.deepcopy(self.one.action_space)
        self.checks: dict[tuple[str, str], StartCheck] = {}

    def check(self, starts: str, what: str, trial: Callable[[], str | None], needed: bool = True) -> bool:
        """Run a trial, which returns how two episodes differ; of several trials, the first difference is recorded."""
        try:
            difference = trial()
        except Exception as error:
            difference = _describe_error(error)
        before = self.checks.get((starts, what))
        if before is None or before.exact:
            self.checks[starts, what] = StartCheck(starts, what, difference is None, difference or "", needed)
        return difference is None

    def seed_start(self, index: int) -> SeedStart:
        return SeedStart(self.seed + 1 + index)  # not 0, which some environments take for None, and training hardly ever draws

    def actions(self, index: int, n_steps: int) -> list[Any]:
        self.space.seed(int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0] >> 1))
        return [self.space.sample() for _ in range(n_steps)]

    def wander(self, env: StartQueue, n_steps: int) -> StartQueue:
        """Play a different episode and stay in the middle of it, each time one step later: a counter may be left over."""
        self.n_wandered += 1
        env.reset()
        for _ in range(n_steps + self.n_wandered):
            if any(env.step(allowed_action(env, self.space.sample()))[2:4]):
                env.reset()
        return env

    def play(self, env: StartQueue, start: Start, actions: list[Any], noise_seed: int | None = None) -> Episode:
        env.queue_start(0, start, noise_seed)
        first = copy.deepcopy(env.reset()[0])
        return first, play_actions(env, actions)

    def play_in_turn(self, start: Start, actions: list[Any], noise_seed: int | None) -> list[Episode]:
        """Step both copies in turn, as the members of a group are played."""
        episodes = [self.play(env, start, [], noise_seed) for env in (self.one, self.other)]
        for action in actions:
            for env, (_, trace) in zip((self.one, self.other), episodes, strict=True):
                trace.extend(play_actions(env, [action]))
            if any(_has_ended(trace) for _, trace in episodes):
                break
        return episodes

    def check_snapshot(self, index: int) -> None:
        """
        :param index: index of the start
        """
        # The first snapshot is taken at the beginning of an episode, the others anywhere in it
        n_before = 0 if index == 0 else int(np.random.default_rng([self.seed, index]).integers(1, self.n_steps + 1))
        before, actions = self.actions(1000 + index, n_before), self.actions(2000 + index, self.n_steps)
        captured: list[Any] = []

        def capture() -> None:
            _, trace = self.play(self.one, self.seed_start(index), before)
            if _has_ended(trace):
                self.play(self.one, self.seed_start(index), before[: len(trace) - 1])
            captured.append(self.one.capture_start())

        if not self.check("snapshots", "the state is captured", capture):
            return
        (start,) = captured
        went_on = copy.deepcopy(start.observation), play_actions(self.one, actions)
        # As in a group: with noise that the members share
        if self.check_start("snapshots", start, actions, self.seed + index):
            self.check(
                "snapshots",
                "as the captured episode went on",
                lambda: _difference(went_on, self.play(self.wander(self.one, 5), start, actions)),
                needed=False,
            )

    def check_start(self, starts: str, start: Start, actions: list[Any], noise_seed: int | None) -> bool:
        """
        :param starts: what the start is called
        :param start: the start
        :param actions: actions to take from there
        :param noise_seed: seed of the noise after the start, None for the noise of the start
        :return: whether an episode can begin there
        """
        expected: list[Episode] = []
        if not self.check(
            starts, "an episode begins there", lambda: expected.append(self.play(self.one, start, actions, noise_seed))
        ):
            return False

        def difference(*episodes: Episode) -> str | None:
            found = next(filter(None, (_difference(expected[0], each) for each in episodes)), None)
            return f"{found} (from seed {start.seed})" if found and isinstance(start, SeedStart) else found

        def play_again() -> str | None:
            return difference(self.play(self.wander(self.one, self.n_steps), start, actions, noise_seed))

        def play_in_turn() -> str | None:
            self.wander(self.other, self.n_steps)
            return difference(*self.play_in_turn(pickle.loads(pickle.dumps(start)), actions, noise_seed))

        self.check(starts, "the same copy, after other episodes", play_again)
        self.check(starts, "two copies in turn, one in mid-episode", play_in_turn)
        return True


def _has_ended(trace: Trace) -> bool:
    """Whether an episode has ended, by itself or with an error."""
    return bool(trace) and (isinstance(trace[-1], str) or bool(trace[-1][2] or trace[-1][3]))


def _describe_error(error: Exception) -> str:
    message = str(error).removesuffix(SEE_CHECK_STARTS)
    if isinstance(error, _OWN_ERRORS):
        return message
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}, line {frame.lineno} of {Path(frame.filename).name}: {message}"


def _difference(expected: Episode, observed: Episode) -> str | None:
    return first_difference(expected[0], observed[0], "the first observation") or compare_traces(expected[1], observed[1])


def _maker(env: str | gym.Env | Callable[[], gym.Env]) -> Callable[[], gym.Env]:
    """
    :param env: ``env`` given by the user
    :return: a function that creates the environment
    :raises TypeError: if there is none
    """
    if isinstance(env, str):
        return functools.partial(gym.make, importable_id(env))
    if not isinstance(env, gym.Env) and callable(env):
        return env
    spec = spec_of(env) if isinstance(env, gym.Env) else None
    # Not all wrappers record how they were made
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        raise TypeError(
            f"check_starts cannot make another environment like {env!r:.80}: give the id of the environment, or a function "
            "that makes it with its wrappers."
        )
    return functools.partial(gym.make, spec)
