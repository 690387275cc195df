"""Queues the starts of the next episodes at the environment copies, and finds out which episodes they have begun."""

from collections import deque
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.groups.group import Episode
from sb3_grpo.groups.queue import GroupQueue
from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.group_env import ensure_start_queues
from sb3_grpo.starts.start_queue import QueuedStart
from sb3_grpo.starts.starts import UnequalStartError
from sb3_grpo.utils.vec_envs import ask, call, innermost, names_of, offers

_HOW_TO_START_ALIKE = (
    "Either make reset(seed=...) of the environment reproducible (draw every random number from self.np_random, or from a "
    "generator that is one of its attributes); or give it get_state() and set_state(state), and pass a start_sampler that "
    "returns snapshots; or, if it cannot start twice in the same state (a robot), opt in to groups of unrelated starts with "
    "unrelated_starts=True."
)


class StartDispatcher:
    """
    Keeps the start queues of the copies filled, so that SB3's automatic reset uses the next start, and compares how the
    members of a group begin. Copies in this process share one queue: the first to end its episode takes the next start.
    Copies in other processes have one start ahead each. Without shared starts, any episode that a copy begins is the next one.

    :param env: The training environment
    :param groups: The queue of groups
    :raises ValueError: if the environments cannot begin from queued starts
    """

    def __init__(self, env: VecEnv, groups: GroupQueue):
        self.env = env
        self.groups = groups
        self._copies = innermost(env)
        self._queued: dict[int, Episode] = {}  # handed out and not begun, by id, in this order
        self._shared: deque[QueuedStart] | None = None
        self._is_probing = offers(self._copies, "start_trace")
        if groups.settings.sampler is None:
            return
        ensure_start_queues(env)
        if isinstance(self._copies, DummyVecEnv):
            self._shared = deque()
            for copy in self._copies.envs:
                copy.queue = self._shared  # type: ignore[attr-defined]
        elif isinstance(queue := ask(None, getattr, self._copies, "queue"), deque):
            self._shared = queue

    def fill(self) -> None:
        """Fill up the start queues."""
        if self.groups.settings.sampler is None:
            return
        # All copies can end in the same step
        served = {episode.env for episode in self._queued.values()} if self._shared is None else range(len(self._queued))
        for idx in range(self.env.num_envs):
            if idx in served:
                continue
            episode = self.groups.next_episode()
            if episode is None:
                return
            episode.env = idx
            self._queue(episode)

    def _queue(self, episode: Episode) -> None:
        group = episode.group
        assert group.start is not None
        probe = group.probe and group.probe.of_member(episode.id, episode.member)
        start = QueuedStart(episode.id, group.start, group.noise_seed, group.number, episode.member, probe)
        self._queued[episode.id] = episode
        if self._shared is not None:
            self._shared.append(start)
        else:
            # An environment's own queue_start may not take all arguments
            call(self._copies, "queue_start", *start, indices=episode.env)

    def begun(self, indices: list[int]) -> list[Episode | None]:
        """
        Find out which episodes the copies have begun at their last reset.

        :param indices: Environment copies that were reset
        :return: Their episodes; ``None`` for a copy without work, which began an episode outside of any group
        :raises UnequalStartError: if a member of a group did not begin like the others
        """
        if self.groups.settings.sampler is None:
            infos: Any = ask(None, getattr, self._copies, "reset_infos") or [{}] * self.env.num_envs
            episodes = [None if "between_episodes" in infos[idx] else self.groups.next_episode() for idx in indices]
        else:
            ids: list[Any] = [self._copies.reset_infos[idx].get("group_start") for idx in indices]
            ahead = {episode.env for episode in self._queued.values()} if self._shared is None else set()
            for idx, number in zip(indices, ids, strict=True):
                if number is None and idx in ahead:
                    raise RuntimeError(
                        f"Environment copy {idx} was reset but did not begin the start that was queued for it. "
                        "StartQueue must be the outermost wrapper of each copy: use make_group_env(...), or "
                        "make_vec_env(..., wrapper_class=StartQueue), whose wrapper stands outside of all others."
                    )
            episodes = [self._queued.pop(number, None) for number in ids]
        for idx, episode in zip(indices, episodes, strict=True):
            if episode is not None:
                episode.env = idx
        if self.groups.settings.sampler is not None:
            self._compare([episode for episode in episodes if episode is not None])
        return episodes

    def _compare(self, episodes: list[Episode]) -> None:
        """
        Compare the begin of members with that of the first member of their group: what they have met in a probe, and their
        first observations.

        :param episodes: Members that have just begun
        """
        probed = [episode for episode in episodes if episode.group.probe is not None] if self._is_probing else []
        traces: list[Any] = self._copies.get_attr("start_trace", [episode.env for episode in probed]) if probed else []
        for episode, trace in zip(probed, traces, strict=True):
            from sb3_grpo.starts.probes import compare_traces, describe_difference

            if isinstance(trace, str):
                raise UnequalStartError(trace)
            if episode.group.trace is None:
                episode.group.trace = trace
            difference = compare_traces(episode.group.trace, trace)
            if difference is not None:
                raise UnequalStartError(describe_difference(names_of(self.env)[episode.env], difference))
        observations = self._copies.get_attr("first_observation", [episode.env for episode in episodes]) if episodes else []
        for episode, observation in zip(episodes, observations, strict=True):
            first = episode.group.first_observation
            if first is None:
                episode.group.first_observation = observation
                continue
            if isinstance(first, np.ndarray) and np.array_equal(first, observation):
                continue
            difference = first_difference(first, observation, "the first observation")
            if difference is not None:
                raise UnequalStartError(
                    f"{names_of(self.env)[episode.env]}: two members of a group did not begin alike from "
                    f"{episode.group.start}: {difference}. {_HOW_TO_START_ALIKE}"
                )

    def clear(self) -> None:
        """Remove all starts that no copy has begun, to leave the copies to other code."""
        self.groups.give_back([*self._queued.values()])
        self._queued.clear()
        if self.groups.settings.sampler is not None:
            call(self._copies, "clear_starts")

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The episodes that are queued at the copies
        """
        return {"queued": [*self._queued.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Queue the same episodes again. The copies must already be in theirs.

        :param state: Result of ``state_dict``
        """
        if self._shared is not None:
            self._shared.clear()
        for episode in state["queued"]:
            self._queue(episode)
