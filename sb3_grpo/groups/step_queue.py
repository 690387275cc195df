"""The work queue of rollouts with a fixed number of steps: an update does not wait for episodes to end."""

from collections import deque
from typing import Any

import numpy as np

from sb3_grpo.groups.group import Group, live_groups, outcomes
from sb3_grpo.groups.queue import GroupQueue, GroupSettings


class StepQueue(GroupQueue):
    """
    An update takes all steps since the previous one, whichever group they belong to. Unfinished episodes continue under the
    next policy, so no copy waits or runs ahead, and no step is older than the previous update.

    With more than one sampling round, the steps of dead groups do not count: the rollout continues until it has enough other
    steps, or is ``max_sampling_rounds`` times as long (``None``: no limit).

    :param settings: Settings of the groups
    :param n_envs: Number of environment copies
    :param rng: Random generator for the starts
    """

    def __init__(self, settings: GroupSettings, n_envs: int, rng: np.random.Generator):
        super().__init__(settings, n_envs, rng)
        self._n_envs = n_envs
        self.begin_rollout(settings.n_steps)

    def has_room(self) -> bool:
        # Each open group has an episode in progress, or one that a copy takes next
        return True

    def begin_rollout(self, n_steps: int | None) -> None:
        assert n_steps is not None
        self._wanted_steps = n_steps * self._n_envs
        # Also after a rollout that a callback stopped, whose steps are not learned from
        self._drop_complete_groups()
        self._n_new_steps = self._n_dead_steps = self._n_live = 0
        self.n_sampling_rounds = 1

    def add_steps(self, n_steps: int) -> None:
        self._n_new_steps += n_steps
        self.n_sampling_rounds = -(-self._n_new_steps // self._wanted_steps)

    def note_open_episode(self, ticket: int, length: int, outcome: float, observation: Any) -> None:
        """
        Record the progress of an unfinished episode when an update is due.

        :param ticket: The member's ticket
        :param length: Number of steps so far
        :param outcome: Sum of the environment's own rewards so far
        :param observation: Next observation of the policy
        """
        _, episode = self._members[ticket]
        episode.length, episode.outcome, episode.next_observation = length, outcome, observation

    def end_episode(self, ticket: int, length: int, outcome: float, truncated: bool, info: dict[str, Any]) -> None:
        group, episode = self._members[ticket]
        episode.is_cut = "group_cut" in info
        super().end_episode(ticket, length, outcome, truncated, info)
        # A cut episode could have gone on, like one truncated by a time limit. Not every VecEnv gives the terminal
        # observation: see SB3's PPO
        episode.next_observation = info.get("terminal_observation") if truncated or episode.is_cut else None
        if not group.can_be_judged:
            return
        if live_groups(outcomes([group]))[0]:
            self._n_live += 1
        else:
            self._n_dead_steps += sum(member.length - member.n_before for member in group.episodes)

    def ready(self) -> bool:
        """
        :return: Whether there are enough steps for an update
        """
        n_left = self._wanted_steps - self._n_new_steps
        if self.settings.max_sampling_rounds == 1 or n_left > 0:
            return n_left <= 0
        if self._n_dead_steps + n_left <= 0:
            return True
        max_rounds = self.settings.max_sampling_rounds
        return max_rounds is not None and self._n_new_steps >= max_rounds * self._wanted_steps

    def take(self) -> list[Group]:
        """
        Take the groups of this update. Groups with unfinished episodes stay in the queue.

        :return: The groups that have new steps
        """
        taken = [group for group in self.groups if any(episode.length > episode.n_before for episode in group.episodes)]
        self._drop_complete_groups()
        return taken

    def _drop_complete_groups(self) -> None:
        for group in self.groups:
            if group.complete:
                self._forget_members(group)
        self.groups = deque(group for group in self.groups if not group.complete)

    def open_tickets(self) -> list[int]:
        """
        :return: No members, as all steps have been learned from
        """
        return []
