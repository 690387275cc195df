"""The queue of groups: draws them, hands out their episodes, and says when an update has enough of them."""

import copy
from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sb3_grpo.groups.group import Episode, Group, LiveFunction, judge, live_groups
from sb3_grpo.groups.samplers import StartSampler, VisitedState
from sb3_grpo.starts.starts import NextLife, SeedStart, SnapshotStart, Start
from sb3_grpo.utils.ranks import gather, n_ranks, rank, share

if TYPE_CHECKING:
    from sb3_grpo.starts.probes import Probe

# The first groups that start from snapshots are probed; later ones only while the probes take about this share of all steps
N_PROBED_FIRST = 2
PROBED_SHARE = 0.003
# Steps of a probe, and the overhead of a probe in steps
PROBE_STEPS = 8
PROBE_OVERHEAD = 50

# Shared by all queues, so that the episodes of two models that use the same environment can be told apart
_episode_ids = count()


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
    :param is_live: Selects the groups to learn from by their outcomes, see :func:`live_groups`
    :param only_live: Whether an update of whole groups learns from live ones only
    :param normalize_parts: Whether outcomes are compared with their parts normalised
    :param use_masking: Whether to ask the environments for action masks
    """

    group_size: int
    n_groups: int
    max_sampling_rounds: int | None
    sampler: StartSampler | None
    n_steps: int | None = None
    is_live: LiveFunction = live_groups
    only_live: bool = False
    normalize_parts: bool = False
    use_masking: bool = True


class GroupQueue:
    """
    The open groups in the order in which they were drawn. Their episodes are handed out one by one. What an update takes of
    them is up to :class:`WholeGroupQueue` or :class:`StepQueue`.

    In a game whose lives are episodes, a group plays the same life, and a later group the next life of its first member,
    until this game is over. The sampler of the starts draws games.

    :param settings: Settings of the groups
    :param n_envs: Number of environment copies
    :param rng: Random generator for the starts
    """

    # Whether an update takes the steps of episodes that go on
    takes_steps: ClassVar[bool]

    def __init__(self, settings: GroupSettings, n_envs: int, rng: np.random.Generator):
        self.settings = settings
        self.rng = rng
        self.n_envs = n_envs
        self.groups: deque[Group] = deque()
        self.next_lives: deque[NextLife] = deque()
        self.n_sampling_rounds = 1
        self._waiting: deque[Episode] = deque()  # not yet given to an environment copy
        self._n_drawn = self._n_probed = self._n_probe_steps = 0
        self._n_ended_steps = 0  # of all finished episodes
        self._n_live = 0  # live groups of the update in progress

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
        newest = max((episode.id for group in self.groups for episode in group.episodes), default=-1)
        # New ids must differ from those of episodes that began in another process
        while next(_episode_ids) < newest:
            pass

    def next_episode(self) -> Episode | None:
        """
        Take the next episode off the queue. A new group is drawn when all episodes have been handed out.

        :return: The episode; ``None`` if there is no work left
        """
        if not self._waiting:
            if not self._has_room():
                return None
            self._draw_group()
        return self._waiting.popleft()

    def give_back(self, episodes: list[Episode]) -> None:
        """
        Put back episodes that were handed out but never begun.

        :param episodes: The episodes, in the order in which they were handed out
        """
        self._waiting.extendleft(reversed(episodes))

    def _has_room(self) -> bool:
        """
        :return: Whether another group may be drawn
        """
        raise NotImplementedError

    def _draw_group(self) -> None:
        start: Start | None = None
        if self.settings.sampler is not None:
            start = self.next_lives.popleft() if self.next_lives else self._draw_start(self.settings.sampler)
            if not isinstance(start, (SeedStart, SnapshotStart)):
                raise TypeError(f"A start sampler must return a SeedStart or a SnapshotStart, got {start!r:.80}.")
        # A snapshot includes the state of the random generators: its noise would be the same in every group
        noise_seed = int(self.rng.integers(2**31, size=n_ranks())[rank()]) if isinstance(start, SnapshotStart) else None
        group = Group(self._n_drawn * n_ranks() + rank(), start, noise_seed, self._next_probe(start))
        group.episodes = [Episode(next(_episode_ids), group, member) for member in range(self.settings.group_size)]
        self._n_drawn += 1
        self.groups.append(group)
        self._waiting.extend(group.episodes)

    def _draw_start(self, sampler: StartSampler) -> Start:
        # All ranks draw the same starts, and take turns in playing them
        return [sampler(self.rng) for _ in range(n_ranks())][rank()]

    def _next_probe(self, start: Start | None) -> "Probe | None":
        """
        :param start: Start of a group
        :return: The probe that checks whether all members are in the same state, ``None`` for most groups
        """
        if not isinstance(start, SnapshotStart):
            return None
        from sb3_grpo.starts.probes import Probe

        replayed = sum(len(piece.actions) for piece in start.replay.pieces) if start.replay else 0
        # The start is restored twice, and two short episodes are played
        cost = self.settings.group_size * (2 * PROBE_STEPS + PROBE_OVERHEAD + 2 * replayed)
        if self._n_probed >= N_PROBED_FIRST and self._n_probe_steps + cost > PROBED_SHARE * self._n_ended_steps:
            return None
        self._n_probed += 1
        self._n_probe_steps += cost
        # Does not use the generator of the starts, which are the same as without probes
        return Probe(self._n_probed, PROBE_STEPS)

    def begin_rollout(self, n_steps: int | None) -> None:
        """
        Begin the rollout of the next update. Steps taken before it belong to an earlier policy.

        :param n_steps: Number of steps of each copy, ``None`` for whole groups
        """
        raise NotImplementedError

    def add_step(self) -> None:
        """Count a step of all copies."""

    def end_episode(self, episode: Episode, info: dict[str, Any]) -> None:
        """
        Record the end of an episode.

        :param episode: The episode, with its length and outcome
        :param info: Info of the last step
        """
        group = episode.group
        group.n_ended += 1
        episode.is_cut = "group_cut" in info
        episode.truncated = not episode.is_cut and bool(info.get("TimeLimit.truncated", False))
        episode.is_success = None if info.get("is_success") is None else bool(info["is_success"])
        weights = info.get("reward_weights", {})
        episode.reward_parts = {name: (part, weights.get(name, 1.0)) for name, part in info.get("reward_parts", {}).items()}
        self._n_ended_steps += episode.length
        # Not those of branches, whose games are not whole
        if isinstance(info.get("next_life"), NextLife) and not isinstance(group.start, VisitedState):
            self.next_lives.append(info.pop("next_life"))
        if self.settings.sampler is not None and not episode.is_cut:
            self.settings.sampler.after_episode(group, episode, info)

    def live(self, groups: list[Group]) -> list[bool]:
        """
        :param groups: Complete groups
        :return: Whether there is something to learn from each of them
        """
        return judge(groups, self.settings.is_live, self.settings.normalize_parts)

    def ready(self) -> bool:
        """
        :return: Whether the update can begin
        """
        raise NotImplementedError

    def has_live_group(self) -> bool:
        """
        :return: Whether any group of this update has turned out to be live
        """
        return self._n_live > 0 or any(self.live([group for group in self.groups if group.can_be_judged]))

    def wanted_groups(self) -> list[Group]:
        """
        :return: The groups of this update that have been drawn so far
        """
        raise NotImplementedError

    def take(self) -> list[Group]:
        """
        Close the groups of this update, and go on to the next one. Groups with unfinished episodes stay open.

        :return: The groups of this update, including dead ones
        """
        wanted = self.wanted_groups()
        self._close(wanted)
        return wanted

    def learned(self, groups: list[Group]) -> list[Group]:
        """
        :param groups: The groups of an update
        :return: Those that the update learns from
        """
        return groups

    def summary(self, groups: list[Group]) -> dict[str, float]:
        """
        :param groups: Groups of an update
        :return: What else is logged of them as ``group/...``
        """
        return {}

    def begun_episodes(self) -> list[Episode]:
        """
        :return: The episodes of open groups that have begun and may be learned from
        """
        return [each for group in self.groups if not group.is_dead for each in group.episodes if each.first_row >= 0]

    def unused_episodes(self) -> list[Episode]:
        """
        :return: The begun episodes with steps that no update has learned from, when a rollout begins
        """
        return self.begun_episodes()

    def _close(self, groups: list[Group]) -> None:
        closed = {id(group) for group in groups if group.complete}
        self.groups = deque(group for group in self.groups if id(group) not in closed)


class WholeGroupQueue(GroupQueue):
    """
    An update waits for ``n_groups`` complete groups, and dead ones are replaced in up to ``max_sampling_rounds`` rounds.
    Meanwhile, copies that have nothing to do begin the groups of the next update.
    """

    takes_steps = False

    def __init__(self, *args: Any):
        super().__init__(*args)
        # The update in progress: how many groups, from the left; how many of them in finished rounds
        self._n_wanted, self._n_judged = self.settings.n_groups, 0

    def _has_room(self) -> bool:
        # Free copies may run ahead: by the groups of the next update, plus enough groups to keep every copy busy
        n_spare = -(-self.n_envs // self.settings.group_size)
        return len(self.groups) < self._n_wanted + self.settings.n_groups + n_spare

    def begin_rollout(self, n_steps: int | None) -> None:
        for episode in self.begun_episodes():
            episode.n_stale = episode.length

    def ready(self) -> bool:
        while True:
            # Without a limit there may be many groups: those of earlier rounds are not checked again
            latest = list(islice(self.groups, self._n_judged, self._n_wanted))
            if self._n_judged + len(latest) < self._n_wanted or not all(group.complete for group in latest):
                return False
            live = self.live(latest)
            # Ranks end a round together
            n_missing = sum(gather(self.settings.n_groups - self._n_live - sum(live)))
            if n_missing == 0 or self.n_sampling_rounds == self.settings.max_sampling_rounds:
                return True
            for group, is_live in zip(latest, live, strict=True):
                group.is_dead = not is_live
                if group.is_dead:
                    # Only its outcomes are still needed: without a limit, there may be many
                    group.first_observation = group.trace = None
                    for episode in group.episodes:
                        episode.text = None
            self._n_judged, self._n_live = self._n_wanted, self._n_live + sum(live)
            self._n_wanted += share(n_missing, first=self.n_sampling_rounds)
            self.n_sampling_rounds += 1

    def wanted_groups(self) -> list[Group]:
        return list(islice(self.groups, self._n_wanted))

    def take(self) -> list[Group]:
        wanted = super().take()
        # The next update begins with the groups that were drawn ahead
        self._n_wanted, self.n_sampling_rounds = self.settings.n_groups, 1
        self._n_judged = self._n_live = 0
        return wanted

    def summary(self, groups: list[Group]) -> dict[str, float]:
        episodes = [episode for group in groups for episode in group.episodes]
        n_stale = sum(episode.n_stale for episode in episodes)
        return {"stale_fraction": n_stale / sum(episode.length for episode in episodes)}

    def learned(self, groups: list[Group]) -> list[Group]:
        if not self.settings.only_live:
            return groups
        # The steps of a group that has been replaced are gone, whatever a function of one's own says now
        return [group for group, is_live in zip(groups, self.live(groups), strict=True) if is_live and not group.is_dead]


class StepQueue(GroupQueue):
    """
    An update takes all steps since the previous one, whichever group they belong to. Unfinished episodes continue under the
    next policy, so no copy waits or runs ahead, and no step is older than the previous update. With more than one sampling
    round, the steps of dead groups do not count: the rollout continues until it has enough other steps, or is
    ``max_sampling_rounds`` times as long.
    """

    takes_steps = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        # The update in progress: how many steps of all copies; how many have been taken; how many of these in dead groups.
        # It cannot end before a number of steps
        self._n_wanted = self._n_taken = self._n_dead = self._n_least = 0

    def _has_room(self) -> bool:
        return True  # each open group has an episode in progress, or one that a copy takes next

    def begin_rollout(self, n_steps: int | None) -> None:
        assert n_steps is not None
        for episode in self.begun_episodes():
            episode.n_used, episode.first_row = episode.length, 0
        # Also after a rollout that a callback stopped, whose steps are not learned from
        self._close([*self.groups])
        self._n_wanted = self._n_least = n_steps * self.n_envs
        self._n_taken = self._n_dead = self._n_live = 0
        self.n_sampling_rounds = 1

    def add_step(self) -> None:
        self._n_taken += self.n_envs
        self.n_sampling_rounds = -(-self._n_taken // self._n_wanted)

    def end_episode(self, episode: Episode, info: dict[str, Any]) -> None:
        super().end_episode(episode, info)
        # A truncated episode could have gone on. Not every VecEnv gives the terminal observation: see SB3's PPO
        could_go_on = episode.truncated or episode.is_cut
        # A copy: the environment may reuse its array
        episode.next_observation = copy.deepcopy(info.get("terminal_observation")) if could_go_on else None
        group = episode.group
        if group.can_be_judged:
            if self.live([group])[0]:
                self._n_live += 1
            else:
                self._n_dead += sum(member.length - member.n_used for member in group.episodes)

    def ready(self) -> bool:
        max_rounds = self.settings.max_sampling_rounds
        if max_rounds is not None and self._n_taken >= max_rounds * self._n_wanted:
            return True
        if self._n_taken < self._n_least:
            return False
        # Ranks take equally many steps, and end together
        self._n_least = self._n_wanted + -(-sum(gather(self._n_dead)) // n_ranks())
        return self._n_taken >= self._n_least

    def wanted_groups(self) -> list[Group]:
        return [group for group in self.groups if any(episode.length > episode.n_used for episode in group.episodes)]

    def unused_episodes(self) -> list[Episode]:
        return []
