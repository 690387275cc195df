"""The work queue of grouped rollouts: decides which episode of which group the next free environment copy plays."""

from collections import deque
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from sb3_grpo.groups.group import Episode, Group, live_groups, outcomes
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.probes import Probe, Trace, compare_traces
from sb3_grpo.starts.start_queue import QueuedStart
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, Start

# Ticket of a copy whose episode does not belong to any group
NO_EPISODE = -1

# The first groups that start from snapshots are probed; later ones only while the probes take about this share of all steps
N_PROBED_FIRST = 2
PROBED_SHARE = 0.003
# Steps of a probe, and the overhead of a probe in steps
PROBE_STEPS = 8
PROBE_OVERHEAD = 50

# Shared by all queues, so that the episodes of two models that use the same environment can be told apart
_tickets = count()


class GroupSettings(NamedTuple):
    """
    Settings of the groups to draw.

    :param group_size: Number of episodes per group
    :param n_groups: Number of groups per update; unused with ``n_steps``
    :param max_sampling_rounds: Maximum number of rounds in which groups are drawn for an update, until none is dead.
        1: dead groups are not replaced. ``None``: no limit
    :param sampler: Sampler of the groups' starts, ``None`` for groups of unrelated starts
    :param n_steps: Number of steps of each copy per update, whether or not their episodes have ended.
        ``None``: an update takes whole groups
    """

    group_size: int
    n_groups: int
    max_sampling_rounds: int | None
    sampler: StartSampler | None
    n_steps: int | None = None


class GroupQueue:
    """
    Draws groups, hands out their members one by one in order, and keeps track of the open groups.

    :param settings: Settings of the groups
    :param n_envs: Number of environment copies
    :param rng: Random generator for the starts
    """

    def __init__(self, settings: GroupSettings, n_envs: int, rng: np.random.Generator):
        self.settings = settings
        self.rng = rng
        self._n_spare = -(-n_envs // settings.group_size)
        self.groups: deque[Group] = deque()  # open groups in the order in which they were drawn
        self._members: dict[int, tuple[Group, Episode]] = {}
        self._waiting: deque[int] = deque()  # tickets not yet given to an environment copy
        self.n_wanted = settings.n_groups  # number of open groups, from the left, that make up the current update
        self.n_sampling_rounds = 1
        self._n_judged = self._n_live = 0  # of the wanted groups, those of the finished rounds
        self._n_drawn = 0
        self._n_probed = 0
        self._n_steps = 0  # of all finished episodes
        self._probed_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The open groups with their members, and all counters
        """
        return {name: value for name, value in vars(self).items() if name not in ("rng", "settings")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: Result of ``state_dict``, possibly from another process
        """
        vars(self).update(state)
        newest = max((episode.ticket for group in self.groups for episode in group.episodes), default=NO_EPISODE)
        while next(_tickets) < newest:
            """New tickets must differ from those of episodes that began in another process."""

    def has_room(self) -> bool:
        """
        Whether another group may be drawn. While an update waits for its last episodes, free environment copies may run
        ahead: by the groups of the next update, plus enough groups to keep every copy busy.
        """
        return len(self.groups) < self.n_wanted + self.settings.n_groups + self._n_spare

    def _draw_group(self) -> None:
        rng = self.rng
        start: Start | None = None
        if self.settings.sampler is not None:
            start = self.settings.sampler(rng)
            if not isinstance(start, (SeedStart, SnapshotStart)):
                raise TypeError(f"A start sampler must return a SeedStart or a SnapshotStart, got {start!r:.80}.")
        # A snapshot includes the state of the random generators: its noise would be the same in every group
        noise_seed = int(rng.integers(2**31)) if isinstance(start, SnapshotStart) else None
        episodes = [Episode(next(_tickets), member) for member in range(self.settings.group_size)]
        group = Group(self._n_drawn, start, episodes, noise_seed, self._next_probe(start))
        self._n_drawn += 1
        self.groups.append(group)
        for episode in episodes:
            self._members[episode.ticket] = (group, episode)
            self._waiting.append(episode.ticket)

    def _next_probe(self, start: Start | None) -> Probe | None:
        """
        :param start: Start of a group
        :return: The probe that checks whether all members are in the same state, ``None`` for most groups
        """
        if not isinstance(start, SnapshotStart):
            return None
        replayed = sum(len(piece.actions) for piece in start.replay.pieces) if start.replay else 0
        # The start is restored twice, and two short episodes are played
        cost = self.settings.group_size * (2 * PROBE_STEPS + PROBE_OVERHEAD + 2 * replayed)
        if self._n_probed >= N_PROBED_FIRST and self._probed_steps + cost > PROBED_SHARE * self._n_steps:
            return None
        self._n_probed += 1
        self._probed_steps += cost
        # Does not use the generator of the starts, which are the same as without probes
        return Probe(self._n_probed, PROBE_STEPS)

    def next_ticket(self) -> int | None:
        """
        Take the next member off the queue. A new group is drawn when all members have been handed out.

        :return: The member's ticket; ``None`` if there is no work left
        """
        if not self._waiting:
            if not self.has_room():
                return None
            self._draw_group()
        return self._waiting.popleft()

    def give_back(self, tickets: list[int]) -> None:
        """
        Put back members that were handed out but never started.

        :param tickets: Their tickets, in the order in which they were handed out
        """
        self._waiting.extendleft(reversed(tickets))

    def queued_start(self, ticket: int) -> QueuedStart:
        """
        :param ticket: The member's ticket
        :return: The start of the member's episode, to be queued at an environment copy
        """
        group, episode = self._members[ticket]
        assert group.start is not None  # unrelated starts are never queued
        probe = group.probe and group.probe._replace(other_seed=ticket)
        return QueuedStart(ticket, group.start, group.noise_seed, group.number, episode.member, probe)

    def compare_first_observation(self, ticket: int, observation: Any) -> str | None:
        """
        Compare a member's first observation with that of the group's first member.

        :param ticket: The member's ticket
        :param observation: The environment's own first observation
        :return: Description of the difference; ``None`` if they are equal
        """
        group, _ = self._members[ticket]
        if group.first_observation is None:
            group.first_observation = observation
            return None
        difference = first_difference(group.first_observation, observation, "the first observation")
        return difference and f"two members of a group did not begin alike from {group.start}: {difference}"

    def is_probed(self, ticket: int) -> bool:
        """
        :param ticket: The member's ticket
        :return: Whether the member has played a probe
        """
        return self._members[ticket][0].probe is not None

    def compare_trace(self, ticket: int, trace: Trace) -> str | None:
        """
        Compare a member's trace of the group's probe with the first member's.

        :param ticket: The member's ticket
        :param trace: The member's trace
        :return: Description of the difference; ``None`` if they are equal
        """
        group, _ = self._members[ticket]
        if group.trace is None:
            group.trace = trace
        return compare_traces(group.trace, trace)

    def begin_rollout(self, n_steps: int | None) -> None:
        """
        Begin the rollout of the next update.

        :param n_steps: Number of steps of each copy, ``None`` for whole groups
        """

    def add_steps(self, n_steps: int) -> None:
        """
        Count a step of the vectorized environment.

        :param n_steps: Number of environment steps, one per copy
        """

    def end_episode(self, ticket: int, length: int, outcome: float, truncated: bool, info: dict[str, Any]) -> None:
        """
        Record the end of an episode.

        :param ticket: The member's ticket
        :param length: Number of steps
        :param outcome: Sum of the environment's own rewards
        :param truncated: Whether it was truncated by a time limit
        :param info: Info of the last step
        """
        group, episode = self._members[ticket]
        episode.length, episode.outcome, episode.truncated = length, outcome, truncated
        group.n_ended += 1
        self._n_steps += length
        if self.settings.sampler is not None and not episode.is_cut:
            self.settings.sampler.after_episode(group, episode, info)

    def member(self, ticket: int) -> tuple[Group, Episode]:
        """
        :param ticket: A member's ticket
        :return: Its group and its episode
        """
        return self._members[ticket]

    def wanted_groups(self) -> list[Group]:
        """
        :return: The groups of this update that have been drawn so far
        """
        return list(islice(self.groups, self.n_wanted))

    def take(self) -> list[Group]:
        """
        Close the groups of this update and go on to the next one, which begins with the groups that were drawn ahead.

        :return: The groups of this update, including dead ones
        """
        wanted = self.wanted_groups()
        for group in wanted:
            self.groups.popleft()
            self._forget_members(group)
        self.n_wanted = self.settings.n_groups
        self.n_sampling_rounds = 1
        self._n_judged = self._n_live = 0
        return wanted

    def ready(self) -> bool:
        """
        Check whether the groups of the update are complete. With more than one sampling round, dead groups are replaced in
        each round, until ``n_groups`` are live or the last round is over.

        :return: Whether the update can begin
        """
        while True:
            # Without a limit there may be many groups: those of earlier rounds are not checked again
            latest = list(islice(self.groups, self._n_judged, self.n_wanted))
            if self._n_judged + len(latest) < self.n_wanted or not all(group.complete for group in latest):
                return False
            live = live_groups(outcomes(latest)).tolist()
            n_missing = self.settings.n_groups - self._n_live - sum(live)
            if n_missing == 0 or self.n_sampling_rounds == self.settings.max_sampling_rounds:
                return True
            for group, is_live in zip(latest, live, strict=True):
                if not is_live:
                    self._forget_members(group)
            self._n_judged, self._n_live = self.n_wanted, self._n_live + sum(live)
            self.n_wanted += n_missing
            self.n_sampling_rounds += 1

    def has_live_group(self) -> bool:
        """
        :return: Whether any of the complete groups is live
        """
        if self._n_live > 0:
            return True
        complete = [group for group in islice(self.groups, self._n_judged, None) if group.can_be_judged]
        return bool(complete) and bool(live_groups(outcomes(complete)).any())

    def _forget_members(self, group: Group) -> None:
        for episode in group.episodes:
            self._members.pop(episode.ticket, None)

    def open_tickets(self) -> list[int]:
        """
        :return: Tickets of the members of all open groups whose steps may be learned from
        """
        return list(self._members)
