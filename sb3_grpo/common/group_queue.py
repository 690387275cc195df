"""The work queue of grouped rollouts: which episode of which group the next free environment copy plays."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.common.advantages import live_groups
from sb3_grpo.common.start_queue import QueuedStart, ensure_start_queues
from sb3_grpo.common.starts import SeedStart, SnapshotStart, Start

StartSampler = Callable[[np.random.Generator], Start]

# In place of the ticket, for a copy that plays an episode that nobody wants
NO_EPISODE = -1

# An episode that is longer than this will hardly end by itself (an Atari game is cut after 27,000 steps)
MAX_EPISODE_LENGTH = 100_000

# Episodes in pieces that are under way, about. With as many as there are groups in an update, all would be at the same time of
# the episode: those of HalfCheetah, which all last 1000 steps, from the first to the last update
N_UNFINISHED = 16

# All queues draw from it, so that an environment that two models use tells their episodes apart
_tickets = count()


def endless_episode(n_steps: int) -> ValueError:
    """
    :param n_steps: How long it is
    :return: The error of an episode that does not end
    """
    return ValueError(
        f"An episode has not ended after {n_steps} steps. It has to end some time: "
        "wrap the environment in gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)."
    )


class UnequalStartError(ValueError):
    """Two members of a group did not start from the same observation."""


def random_seed_start(rng: np.random.Generator) -> SeedStart:
    """
    The default start sampler: a fresh seed for ``env.reset(seed=...)``.

    :param rng: The model's generator of starts
    :return: A start that every environment with a working ``reset(seed=...)`` can reproduce
    """
    return SeedStart(int(rng.integers(2**31)))


@dataclass(slots=True)
class Episode:
    """One member of a group: its place, and what is known of it once it has ended."""

    ticket: int
    member: int
    length: int = 0
    outcome: float = 0.0  # undiscounted return of the environment's own rewards
    truncated: bool = False


@dataclass(slots=True)
class Group:
    """The episodes that share one start."""

    start: Start | None
    episodes: list[Episode]
    noise_seeds: list[int | None]
    played: int = 0  # steps of the pieces before
    first_observation: Any = None
    n_ended: int = 0
    replaced: bool = False  # dead, and another one was drawn for it

    @property
    def complete(self) -> bool:
        return self.n_ended == len(self.episodes)


def outcomes(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) raw outcomes
    """
    return th.tensor([[episode.outcome for episode in group.episodes] for group in groups], dtype=th.float64)


class GroupSettings(NamedTuple):
    """
    What groups are drawn.

    :param group_size: Episodes per group
    :param n_groups: Groups per update
    :param max_sampling_rounds: How many times at the most groups are drawn for an update until none is dead.
        1: dead groups are not replaced.
    :param start_sampler: Draws the start of a group, ``None`` for groups of unrelated starts
    :param common_noise: Whether the environment's noise after the start is the same for all members
    :param horizon: Members are cut after so many steps, ``None`` for whole episodes
    """

    group_size: int
    n_groups: int
    max_sampling_rounds: int
    start_sampler: StartSampler | None
    common_noise: bool
    horizon: int | None = None


class GroupQueue:
    """
    Draws groups, hands out their members one by one in order, and keeps account of the open groups.

    :param settings: What groups are drawn
    """

    def __init__(self, settings: GroupSettings):
        self.settings = settings
        self.groups: deque[Group] = deque()  # open groups in the order in which they were drawn
        self._members: dict[int, tuple[Group, Episode]] = {}
        self._waiting: deque[int] = deque()  # tickets that no environment copy has been given yet
        self._unfinished: list[tuple[SnapshotStart, int]] = []  # where first members were cut, after how many steps in all
        self.n_wanted = settings.n_groups  # how many of the open groups, from the left, make the present update
        self.n_sampling_rounds = 1

    def _draw_group(self, rng: np.random.Generator) -> None:
        start: Start | None = None
        played = 0
        if self._unfinished and rng.random() * N_UNFINISHED < len(self._unfinished):
            start, played = self._unfinished.pop(rng.integers(len(self._unfinished)))
        elif self.settings.start_sampler is not None:
            start = self.settings.start_sampler(rng)
        noise_seeds: list[int | None] = [None] * self.settings.group_size  # the noise that the start fixes
        if not self.settings.common_noise:
            noise_seeds = [int(k) for k in rng.integers(2**31, size=self.settings.group_size)]
        elif isinstance(start, SnapshotStart):
            # A snapshot holds the state of the generators: its noise would be the same in every group, for ever
            noise_seeds = [int(rng.integers(2**31))] * self.settings.group_size
        episodes = [Episode(next(_tickets), member) for member in range(self.settings.group_size)]
        group = Group(start, episodes, noise_seeds, played)
        self.groups.append(group)
        for episode in episodes:
            self._members[episode.ticket] = (group, episode)
            self._waiting.append(episode.ticket)

    def next_ticket(self, rng: np.random.Generator, max_open_groups: int) -> int | None:
        """
        Take the next (group, member) off the queue, drawing a new group when the last one is given out.

        :param rng: Generator from which new starts are drawn
        :param max_open_groups: Draw no further group if this many are open
        :return: The member's ticket; ``None`` if there is no work left
        """
        if not self._waiting:
            if len(self.groups) >= max_open_groups:
                return None
            self._draw_group(rng)
        return self._waiting.popleft()

    def give_back(self, tickets: list[int]) -> None:
        """
        Put members back that were handed out but never started.

        :param tickets: In the order in which they were handed out
        """
        self._waiting.extendleft(reversed(tickets))

    def queued_start(self, ticket: int) -> QueuedStart:
        """
        :param ticket: The member's ticket
        :return: What the member's environment copy has to start from
        """
        group, episode = self._members[ticket]
        assert group.start is not None  # unrelated starts are never queued
        noise_seed, horizon = group.noise_seeds[episode.member], self.settings.horizon
        return QueuedStart(ticket, group.start, noise_seed, horizon, horizon is not None and episode.member == 0)

    def compare_first_observation(self, ticket: int, observation: Any) -> str | None:
        """
        Compare a member's first observation with that of the group's first member.

        :param ticket: The member's ticket
        :param observation: The environment's own first observation
        :return: How they differ, in words; ``None`` if they do not
        """
        group, _ = self._members[ticket]
        if group.first_observation is None:
            group.first_observation = observation
            return None
        difference = _difference(group.first_observation, observation)
        return difference and f"Two members of a group did not begin alike from {group.start}: {difference}"

    def end_episode(
        self, ticket: int, length: int, outcome: float, truncated: bool, cut_at: SnapshotStart | None = None
    ) -> None:
        """
        Note the end of an episode, or of the piece of it that a member plays.

        The episode of the first member goes on in a later group. Not that of a member chosen by its end: those that have not
        failed would be taken more often than they occur.

        :param ticket: The member's ticket
        :param length: Its number of steps
        :param outcome: The sum of the environment's own rewards
        :param truncated: Whether a time limit cut it off
        :param cut_at: Where it was cut at the horizon, if it is to go on
        """
        group, episode = self._members[ticket]
        episode.length, episode.outcome, episode.truncated = length, outcome, truncated
        group.n_ended += 1
        if cut_at is not None:
            if group.played + length > MAX_EPISODE_LENGTH:
                raise endless_episode(MAX_EPISODE_LENGTH)
            self._unfinished.append((cut_at, group.played + length))

    def is_first(self, ticket: int) -> bool:
        """
        :param ticket: A member's ticket
        :return: Whether it is the first member of its group
        """
        return self._members[ticket][1].member == 0

    def wanted(self) -> list[Group]:
        """
        :return: The groups of this update that were drawn so far
        """
        return list(islice(self.groups, self.n_wanted))

    def take(self) -> list[Group]:
        """
        Close the groups of this update and turn to the next one. Groups that were drawn ahead come first.

        :return: The groups, dead ones included
        """
        wanted = self.wanted()
        for group in wanted:
            self.groups.popleft()
            for episode in group.episodes:
                del self._members[episode.ticket]
        self.n_wanted = self.settings.n_groups
        self.n_sampling_rounds = 1
        return wanted

    def ready(self) -> bool:
        """
        Whether the groups of the update are complete. With more than one sampling round, dead groups are replaced
        round after round, until ``n_groups`` are live or the last round is over.

        :return: True if the update can begin
        """
        while True:
            wanted = self.wanted()
            if len(wanted) < self.n_wanted or not all(group.complete for group in wanted):
                return False
            live = live_groups(outcomes(wanted)).tolist()
            n_missing = self.settings.n_groups - sum(live)
            if n_missing == 0 or self.n_sampling_rounds == self.settings.max_sampling_rounds:
                return True
            for group, is_live in zip(wanted, live, strict=True):
                group.replaced = not is_live
            self.n_wanted += n_missing
            self.n_sampling_rounds += 1

    def open_tickets(self) -> list[int]:
        """
        :return: The members of all open groups whose steps may be learned from
        """
        return [ticket for ticket, (group, _) in self._members.items() if not group.replaced]


class StartFeeder:
    """
    Keeps the start queues of the environment copies filled, so that SB3's automatic reset lands on the next start.

    The copies of a ``DummyVecEnv`` share one queue: whichever ends first takes the next start. So do those of a
    ``VecEnv`` that is one object and has an attribute ``queue`` of its own.
    A copy in another process has a queue of its own that holds one start ahead.

    :param env: The training environment
    :param groups: Where the work comes from
    """

    def __init__(self, env: VecEnv, groups: GroupQueue):
        self.env = env
        self.groups = groups
        self._shared: deque[QueuedStart] | None = None
        self._ahead: list[deque[int]] = [deque() for _ in range(env.num_envs)]
        if groups.settings.start_sampler is None:
            return
        ensure_start_queues(env)
        copies = env.unwrapped
        if isinstance(copies, DummyVecEnv):
            self._shared = deque()
            for copy in copies.envs:
                copy.queue = self._shared  # type: ignore[attr-defined]
        elif isinstance(getattr(copies, "queue", None), deque):
            if groups.settings.horizon is not None:
                raise ValueError(
                    f"A {type(copies).__name__} cannot cut episodes at a horizon: leave horizon=None, or build the copies "
                    "with make_group_env(...)."
                )
            self._shared = copies.queue  # type: ignore[attr-defined]

    def fill(self, rng: np.random.Generator, max_open_groups: int) -> None:
        """
        Top up the queues.

        :param rng: Generator from which new starts are drawn
        :param max_open_groups: Draw no further group if this many are open
        """
        if self.groups.settings.start_sampler is None:
            return
        if self._shared is not None:
            # All copies can end in the same step
            while len(self._shared) < self.env.num_envs:
                ticket = self.groups.next_ticket(rng, max_open_groups)
                if ticket is None:
                    return
                self._shared.append(self.groups.queued_start(ticket))
            return
        for idx, ahead in enumerate(self._ahead):
            if not ahead:
                ticket = self.groups.next_ticket(rng, max_open_groups)
                if ticket is None:
                    return
                queued = self.groups.queued_start(ticket)
                # Three arguments where they will do: whoever has a queue_start of his own need not know the others
                self.env.env_method("queue_start", *(queued[:3] if queued.horizon is None else queued), indices=idx)
                ahead.append(ticket)

    def started(self, copies: list[int], rng: np.random.Generator, max_open_groups: int) -> list[int]:
        """
        Find out which members environment copies have begun with their last reset.

        :param copies: The environment copies
        :param rng: Generator from which new starts are drawn
        :param max_open_groups: Draw no further group if this many are open
        :return: The members' tickets; ``NO_EPISODE`` for a copy that had no work and began an episode of its own
        """
        if self.groups.settings.start_sampler is None:
            drawn = [self.groups.next_ticket(rng, max_open_groups) for _ in copies]
            return [NO_EPISODE if ticket is None else ticket for ticket in drawn]
        reset_infos = self.env.unwrapped.reset_infos  # wrappers keep an empty list of their own
        tickets = [reset_infos[idx].get("group_start", NO_EPISODE) for idx in copies]
        if self._shared is None:
            for idx, ticket in zip(copies, tickets, strict=True):
                self._take_from_own_queue(idx, ticket)
        begun = [idx for idx, ticket in zip(copies, tickets, strict=True) if ticket != NO_EPISODE]
        if begun:
            wanted = [ticket for ticket in tickets if ticket != NO_EPISODE]
            observations = self.env.get_attr("first_observation", indices=begun)
            for idx, ticket, observation in zip(begun, wanted, observations, strict=True):
                difference = self.groups.compare_first_observation(ticket, observation)
                if difference is not None:
                    raise UnequalStartError(
                        f"{self._env_name(idx)}: {difference}. Either make reset(seed=...) of the environment reproducible "
                        "(draw every random number from self.np_random); or give it get_state() and set_state(state), and "
                        "pass a start_sampler that returns snapshots; or, if it cannot start twice in the same state (a "
                        "robot), opt in to groups of unrelated starts with unrelated_starts=True."
                    )
        return tickets

    def _take_from_own_queue(self, idx: int, ticket: int) -> None:
        ahead = self._ahead[idx]
        if ticket != NO_EPISODE:
            ahead.popleft()
        elif ahead:
            raise RuntimeError(
                f"Environment copy {idx} was reset but did not begin the start that was queued for it. "
                "StartQueue must be the outermost wrapper of each copy: use make_group_env(...), or "
                "make_vec_env(..., wrapper_class=StartQueue), whose wrapper stands outside of all others."
            )

    def in_sync(self, tickets: np.ndarray) -> bool:
        """
        Whether the copies are still in the episodes in which the last rollout left them.
        They are not if somebody else has reset them since, e.g. an evaluation on the training environment.

        :param tickets: The ticket of each copy
        :return: True if nothing has changed; False if it has, or if that cannot be known
        """
        if self.groups.settings.start_sampler is None:
            return False
        current = [NO_EPISODE if ticket is None else ticket for ticket in self.env.get_attr("current_ticket")]
        return current == tickets.tolist()

    def disturbed(self, tickets: np.ndarray) -> bool:
        """
        What ``in_sync`` finds out, as far as it can be known without asking the copies: for every step.

        :param tickets: The ticket of each copy
        :return: True if somebody else has reset the environments
        """
        if self.groups.settings.start_sampler is None:
            return False
        infos = self.env.unwrapped.reset_infos
        return [info.get("group_start", NO_EPISODE) for info in infos] != tickets.tolist()

    def clear(self) -> None:
        """Take back all starts that no copy has begun."""
        if self._shared is not None:
            self.groups.give_back([queued.ticket for queued in self._shared])
            self._shared.clear()
        elif any(self._ahead):
            self.env.env_method("clear_starts")
            self.groups.give_back(sorted(ticket for ahead in self._ahead for ticket in ahead))
            for ahead in self._ahead:
                ahead.clear()

    def _env_name(self, idx: int) -> str:
        try:
            spec = self.env.get_attr("spec", indices=idx)[0]
            return spec.id
        except AttributeError:
            return f"Environment copy {idx}"


def _difference(expected: Any, observed: Any) -> str | None:
    """
    :param expected: An observation (array, or dict of arrays)
    :param observed: Another one
    :return: What differs, in words; ``None`` if nothing does
    """
    if observed is expected:
        return None
    if isinstance(expected, dict):
        for key, value in expected.items():
            difference = _difference(value, observed[key])
            if difference is not None:
                return f"in observation[{key!r}], {difference}"
        return None
    first, second = np.asarray(expected), np.asarray(observed)
    if first.shape == second.shape and np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
        return None
    if first.shape != second.shape:
        return f"the first observations have shapes {first.shape} and {second.shape}"
    n_unequal = int(np.sum(first != second))
    largest = np.max(np.abs(first.astype(np.float64) - second.astype(np.float64)))
    return f"{n_unequal} of {first.size} numbers of the first observation differ, by at most {largest:.3g}"
