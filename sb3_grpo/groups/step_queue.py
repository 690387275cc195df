"""The work queue of rollouts that are sized in steps: an update does not wait for the end of episodes."""

from collections import deque
from typing import Any

import numpy as np

from sb3_grpo.groups.group import Group, live_groups, metrics
from sb3_grpo.groups.queue import GroupQueue, GroupSettings


class StepQueue(GroupQueue):
    """
    Takes all steps since the last update, of whatever groups. Episodes that have not ended go on under the next policy, so no
    copy waits or runs ahead, and no step is older than the update before.

    With more than one sampling round, the steps of dead groups do not count: the rollout goes on until there are enough
    others, or it is ``max_sampling_rounds`` times as long (``None``: without that end).

    :param settings: What groups are drawn
    :param n_envs: How many environment copies take members
    :param rng: Generator from which starts are drawn
    """

    def __init__(self, settings: GroupSettings, n_envs: int, rng: np.random.Generator):
        super().__init__(settings, n_envs, rng)
        self._n_envs = n_envs
        self.begin_rollout(settings.n_steps)

    def has_room(self) -> bool:
        # Of the groups that are drawn each has an episode under way, or one that a copy takes next
        return True

    def begin_rollout(self, n_steps: int | None) -> None:
        assert n_steps is not None
        self._wanted_steps = n_steps * self._n_envs
        # Also after one that a callback has stopped, whose steps are not learned from
        self._drop_complete_groups()
        self._n_new_steps = self._n_dead_steps = self._n_live = 0
        self.n_sampling_rounds = 1

    def add_steps(self, n_steps: int) -> None:
        self._n_new_steps += n_steps
        self.n_sampling_rounds = -(-self._n_new_steps // self._wanted_steps)

    def note_open_episode(self, ticket: int, length: int, outcome: float, observation: Any) -> None:
        """
        Note how far an episode has got when an update is due.

        :param ticket: The member's ticket
        :param length: Its number of steps so far
        :param outcome: The sum of the environment's own rewards so far
        :param observation: What the policy sees next
        """
        _, episode = self._members[ticket]
        episode.length, episode.outcome, episode.next_observation = length, outcome, observation

    def end_episode(self, ticket: int, length: int, outcome: float, truncated: bool, info: dict[str, Any]) -> None:
        group, episode = self._members[ticket]
        episode.is_cut = "group_cut_at" in info
        super().end_episode(ticket, length, outcome, truncated, info)
        # What was cut off could have gone on, as what a time limit cuts off. Not every VecEnv says from where: see SB3's PPO
        episode.next_observation = info.get("terminal_observation") if truncated or episode.is_cut else None
        if not group.can_be_judged:
            return
        if live_groups(metrics([group]))[0]:
            self._n_live += 1
        else:
            self._n_dead_steps += sum(member.length - member.n_before for member in group.episodes)

    def ready(self) -> bool:
        """
        :return: Whether the steps of an update are complete
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
        Turn to the next update. Groups with episodes under way stay.

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
        :return: No members: all steps have been learned from
        """
        return []
