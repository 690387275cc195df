"""``check_starts``: try out which starts of an environment are exact, and show the results in a table."""

import copy
import functools
import inspect
import pickle
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.generators import can_be_seeded, find_generators, readable_place
from sb3_grpo.starts.hidden_generators import hidden_generators, shared_states
from sb3_grpo.starts.holdings import env_name, layers_of
from sb3_grpo.starts.probes import Trace, compare_traces, has_ended, play_actions
from sb3_grpo.starts.snapshots import identity, restore, skipped_of
from sb3_grpo.starts.start_queue import StartQueue, importable_id
from sb3_grpo.starts.starts import (
    SEE_CHECK_STARTS,
    SeedStart,
    SnapshotStart,
    Start,
    StartMismatchError,
    StartNotSupportedError,
    UnequalStartError,
)

# What an episode from a start shows: its first observation and its trace
Episode: TypeAlias = tuple[Any, Trace]

_POSSIBLE = "an episode can begin there"
_STARTS = ("seeds", "snapshots", "noise")
_ONE_COPY = "not tried: give the id of the environment, or a function that makes it"
_NO_ENVIRONMENT = "check_starts needs an environment, got {}: give the id of one, or a function that makes it."
# Enough to encounter different noise even if an episode lasts only a few steps
_NOISE_SEEDS = (1, 2, 3, 4, 5, 6)
# Errors described by their message alone
_OWN_ERRORS = (StartNotSupportedError, StartMismatchError, UnequalStartError)


class StartCheck(NamedTuple):
    """
    Result of one comparison.

    :param starts: ``"seeds"``, ``"snapshots"`` or ``"noise"``
    :param what: what was compared
    :param exact: whether everything was equal to the last bit in all trials; None if it was not tried
    :param note: how it differs, or why it was not tried
    :param needed: whether groups need it
    """

    starts: str
    what: str
    exact: bool | None
    note: str = ""
    needed: bool = True


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
    checks: list[StartCheck] = field(default_factory=list)

    def is_exact(self, *starts: str) -> bool:
        """
        :param starts: ``"seeds"``, ``"snapshots"``, ``"noise"``; all three if none is given
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
        before = ""
        # If members of a group are not identical, every detail may help to find out why
        unneeded = "no, not needed" if self.is_exact("snapshots") else "no"
        for check in self.checks:
            word = "-" if check.exact is None else "yes" if check.exact else "no" if check.needed else unneeded
            table.add_row("" if check.starts == before else check.starts, check.what, word, check.note)
            before = check.starts
        table.caption = f"Random generators that are reseeded: {', '.join(self.generators) or 'none'}"
        table.caption_justify = "left"
        console = Console(width=shutil.get_terminal_size((120, 24)).columns)
        with console.capture() as captured:
            console.print(table)
        return captured.get()


def check_starts(
    env: str | gym.Env | Callable[[], gym.Env], n_starts: int = 3, n_steps: int = 100, seed: int = 0, verbose: int = 1
) -> StartReport:
    """
    Find out which starts of an environment are exact by playing from them: in the same copy and in another one; in copies
    that are new, just reset or in mid-episode; from pickled starts; with noise shared by all members of a group and with
    independent noise.

    Differences that do not show within ``n_steps`` random actions are not found.

    :param env: the id of an environment, or a function or class that creates it with all wrappers. An environment object also
        works if it was created from its id alone; otherwise, checks that need another copy are skipped, and the environment
        is left in mid-episode
    :param n_starts: number of starts of each kind to try
    :param n_steps: number of steps to play from each start
    :param seed: seed of the starts and actions
    :param verbose: 0 prints nothing, 1 prints the table
    :return: the results
    :raises ValueError: if a number is invalid
    :raises TypeError: if ``env`` neither is an environment nor creates one
    """
    for name, value, least in (("n_starts", n_starts, 1), ("n_steps", n_steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}.")
    checker = _Checker(env, n_steps, seed)
    for index in range(n_starts):
        checker.check_seed(index)
    for index in range(n_starts):
        checker.check_snapshot(index)
    checker.check_noise()
    report = checker.report()
    if verbose:
        print(report)
    return report


class _Checker:
    """The environment copies used for the checks, and the results so far."""

    def __init__(self, env: str | gym.Env | Callable[[], gym.Env], n_steps: int, seed: int):
        self.make = _maker(env)
        self.one = _wrap_in_queue(env if isinstance(env, gym.Env) or self.make is None else self.make())
        self.other = self._make_copy()
        self.n_steps, self.seed = n_steps, seed
        self.space = copy.deepcopy(self.one.action_space)
        self.found: dict[tuple[str, str], StartCheck] = {}
        self.last_start: dict[str, Start] = {}
        self.shared = shared_states(layers_of(self.one.env))

    def _make_copy(self) -> StartQueue | None:
        if self.make is None:
            return None
        made = self.make()
        if made.unwrapped is self.one.unwrapped:
            raise ValueError(
                "check_starts needs a function that makes a new environment each time, and got the same one twice."
            )
        other = _wrap_in_queue(made)
        return other if identity(other.env) == identity(self.one.env) else None

    def note(self, starts: str, what: str, difference: str | None, needed: bool = True, note: str = "") -> None:
        """Record a result; of several trials, the first difference is kept."""
        before = self.found.get((starts, what))
        if before is None or before.exact:
            self.found[starts, what] = StartCheck(starts, what, difference is None, difference or note, needed)

    def compare(self, starts: str, what: str, expected: Episode, play: Callable[[], Episode]) -> None:
        try:
            difference = _difference(expected, play())
        except Exception as error:
            difference = _words(error)
        self.note(starts, what, difference)

    def compare_others(self, starts: str, trials: dict[str, Callable[[StartQueue], str | None]]) -> None:
        """Run the trials that need another copy of the environment."""
        for what, trial in trials.items():
            if self.other is None:
                self.found[starts, what] = StartCheck(starts, what, None, _ONE_COPY)
                continue
            try:
                difference = trial(self.other)
            except Exception as error:
                difference = _words(error)
            self.note(starts, what, difference)

    def actions(self, index: int) -> list[Any]:
        self.space.seed(int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0] >> 1))
        return [self.space.sample() for _ in range(self.n_steps)]

    def wander(self, env: StartQueue, n_steps: int) -> StartQueue:
        """Play a different episode and stay in the middle of it."""
        env.reset()
        for _ in range(n_steps):
            if any(env.step(self.space.sample())[2:4]):
                env.reset()
        return env

    def play(self, env: StartQueue, start: Start, actions: list[Any], noise_seed: int | None = None) -> Episode:
        env.queue_start(0, start, noise_seed)
        first = copy.deepcopy(env.reset()[0])
        return first, play_actions(env, actions)

    def play_side_by_side(self, other: StartQueue, start: Start, actions: list[Any], noise_seed: int | None) -> str | None:
        """Step two copies in turn, as the members of a group are played."""
        episodes: list[Episode] = [self.play(env, start, [], noise_seed) for env in (self.one, other)]
        for action in actions:
            for env, (_, trace) in zip((self.one, other), episodes, strict=True):
                trace.extend(play_actions(env, [action]))
            if any(has_ended(trace) for _, trace in episodes):
                break
        return _difference(*episodes)

    def check_seed(self, index: int) -> None:
        """
        :param index: index of the start
        """
        start, actions = SeedStart(self.seed + index), self.actions(index)
        try:
            expected = self.play(self.one, start, actions)
        except Exception as error:
            self.note("seeds", _POSSIBLE, _words(error))
            return
        self.last_start["seeds"] = start
        play = functools.partial(self.play, start=start, actions=actions)
        self.compare(
            "seeds", "the same copy, after other episodes", expected, lambda: play(self.wander(self.one, self.n_steps))
        )
        self.compare("seeds", "the same copy, in mid-episode", expected, lambda: play(self.wander(self.one, 5)))
        self.compare_others(
            "seeds",
            {
                "another copy, new or after one episode": lambda other: _difference(expected, play(other)),
                "another copy, in mid-episode": lambda other: _difference(expected, play(self.wander(other, self.n_steps))),
                "two copies in turn": lambda other: self.play_side_by_side(other, start, actions, None),
            },
        )

    def check_snapshot(self, index: int) -> None:
        """
        :param index: index of the start
        """
        before, actions = self.actions(1000 + index), self.actions(2000 + index)
        seed, noise_seed = SeedStart(self.seed + index), self.seed + index
        try:
            # The first snapshot is taken at the beginning of an episode, the others anywhere in it
            n_before = 0 if index == 0 else int(np.random.default_rng([self.seed, index]).integers(1, self.n_steps + 1))
            _, trace = self.play(self.one, seed, before[:n_before])
            if has_ended(trace):
                self.play(self.one, seed, before[: len(trace) - 1])
            start = self.one.capture_start()
        except Exception as error:
            self.note("snapshots", _POSSIBLE, _words(error))
            return
        captured = copy.deepcopy(start.observation), play_actions(self.one, actions)
        try:
            as_captured = self.play(self.wander(self.one, 5), start, actions)
            # As in a group: with noise that the members share
            expected = self.play(self.wander(self.one, 5), start, actions, noise_seed)
        except Exception as error:
            self.note("snapshots", "the state is restored", _words(error))
            return
        self.last_start["snapshots"] = start

        def play(env: StartQueue, start: Start = start) -> Episode:
            return self.play(env, start, actions, noise_seed)

        self.note("snapshots", "the state is restored", self._restore_elsewhere(start))
        self.note("snapshots", "as the captured episode went on", _difference(captured, as_captured), needed=False)
        self.compare(
            "snapshots", "the same copy, after other episodes", expected, lambda: play(self.wander(self.one, self.n_steps))
        )
        pickled = pickle.loads(pickle.dumps(start))
        self.compare_others(
            "snapshots",
            {
                "another copy, just reset": lambda other: _difference(expected, play(self.wander(other, 0))),
                "another copy, in mid-episode": lambda other: _difference(expected, play(self.wander(other, self.n_steps))),
                "another copy, after pickling": lambda other: _difference(expected, play(other, pickled)),
                "two copies in turn, common noise": lambda other: self.play_side_by_side(other, start, actions, noise_seed),
            },
        )

    def _restore_elsewhere(self, start: SnapshotStart) -> str | None:
        try:
            restore(self.one.env, start, compare=True)
        except Exception as error:
            return _words(error)
        return None

    def check_noise(self) -> None:
        """Check the noise. Must be called after all starts were tried."""
        actions = self.actions(3000)
        for starts, start in self.last_start.items():
            # Use the other copy, because in the same one, a generator that was not found would continue
            env = self.other or self.one
            try:
                one, *others = (self.play(self.one, start, actions, noise_seed) for noise_seed in _NOISE_SEEDS)
                again = self.play(self.wander(env, 5), start, actions, _NOISE_SEEDS[0])
            except Exception as error:
                self.note("noise", f"independent, from {starts}", _words(error))
                continue
            firsts = (first_difference(one[0], other[0], "the first observation") for other in others)
            difference = next(filter(None, firsts), None) or _difference(one, again)
            is_seen = any(compare_traces(one[1], other[1]) for other in others)
            seen = "noise was seen" if is_seen else "no noise was seen"
            self.note("noise", f"independent, from {starts}", difference, note=seen)
        layers = layers_of(self.one.env)
        skipped = skipped_of(layers[-1])
        systems = [
            readable_place(place, layers)
            for place, each in find_generators(layers, skipped).items()
            if not can_be_seeded(each)
        ]
        unseeded = [*systems, *hidden_generators(layers, skipped)]
        self.note("noise", "all generators can be seeded", f"not: {'; '.join(unseeded)}" if unseeded else None)
        now = shared_states(layers)
        drawn = [name for name, state in self.shared.items() if first_difference(state, now[name], name)]
        self.note("noise", "from generators of its own", f"{', '.join(drawn)}: shared by all copies" if drawn else None)

    def report(self) -> StartReport:
        """
        :return: the results
        """
        layers = layers_of(self.one.env)
        held = find_generators(layers, skipped_of(layers[-1]))
        generators = [readable_place(place, layers) for place, each in held.items() if can_be_seeded(each)]
        return StartReport(env_name(self.one), generators, [*self.found.values()])


def _words(error: Exception) -> str:
    words = str(error).removesuffix(SEE_CHECK_STARTS)
    if isinstance(error, _OWN_ERRORS):
        return words
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}, line {place.lineno} of {Path(place.filename).name}: {words}"


def _difference(expected: Episode, observed: Episode) -> str | None:
    return first_difference(expected[0], observed[0], "the first observation") or compare_traces(expected[1], observed[1])


def _wrap_in_queue(env: Any) -> StartQueue:
    return env if isinstance(env, StartQueue) else StartQueue(env)


def _make(function: Callable[[], gym.Env]) -> gym.Env:
    if not callable(function):
        raise TypeError(_NO_ENVIRONMENT.format(type(function).__name__))
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(f"check_starts calls {name}() without arguments ({error}): give lambda: {name}(...).") from None
    except ValueError:
        pass  # not known for some compiled functions
    env = function()
    if not isinstance(env, gym.Env):
        raise TypeError(_NO_ENVIRONMENT.format(f"a function that returns a {type(env).__name__}"))
    return env


def _maker(env: str | gym.Env | Callable[[], gym.Env]) -> Callable[[], gym.Env] | None:
    """
    :param env: ``env`` given by the user
    :return: a function that creates the environment, None if there is only the given one
    """
    if isinstance(env, str):
        return functools.partial(gym.make, importable_id(env))
    if not isinstance(env, gym.Env):
        return functools.partial(_make, env)
    if env.spec is None or any(wrapper.kwargs is None for wrapper in env.spec.additional_wrappers):
        # Not all wrappers record how they were created
        return None
    return functools.partial(gym.make, env.spec)
