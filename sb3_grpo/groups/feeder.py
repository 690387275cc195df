"""Passes the members of groups to the environment copies, by keeping their start queues filled."""

import operator
from collections import deque
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.groups.queue import NO_EPISODE, GroupQueue
from sb3_grpo.starts.probes import describe_difference
from sb3_grpo.starts.start_queue import QueuedStart, ensure_start_queues
from sb3_grpo.starts.starts import UnequalStartError


class Feeder:
    """
    Passes members of groups to the environment copies, and finds out which ones they have begun.
    This base class is for groups of unrelated starts: any episode that a copy begins belongs to the next member.

    :param env: The training environment
    :param groups: The work queue
    """

    def __init__(self, env: VecEnv, groups: GroupQueue):
        self.env = env
        self.groups = groups
        # For each copy, an object that is replaced by a reset
        self._reset_infos: list[Any] = []

    def fill(self) -> None:
        """Fill up the start queues."""

    def tickets_of(self, copies: list[int]) -> list[int]:
        """
        Find out which members the environment copies have begun at their last reset.

        :param copies: The environment copies
        :return: The members' tickets; ``NO_EPISODE`` for a copy without work, which began an episode outside of any group
        """
        self.note_episodes()
        tickets = [self.groups.next_ticket() for _ in copies]
        return [NO_EPISODE if ticket is None else ticket for ticket in tickets]

    def note_episodes(self) -> None:
        """Remember the current episodes of the copies."""
        self._reset_infos = [*self.env.unwrapped.reset_infos]

    def is_disturbed(self, tickets: np.ndarray) -> bool:
        """
        Check, without asking the copies, whether they have been reset elsewhere since the last look, e.g. by an evaluation on
        the training environment.

        :param tickets: The ticket of each copy
        :return: Whether they are no longer in the same episodes
        """
        now = self.env.unwrapped.reset_infos
        return not all(map(operator.is_, now, self._reset_infos))

    def clear(self) -> None:
        """Remove all starts that no copy has begun, to leave the copies to other code."""

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The members that are queued at the copies
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Queue the same members again. The copies must already be in their episodes.

        :param state: Result of ``state_dict``
        """
        self.note_episodes()


class StartFeeder(Feeder):
    """
    Keeps the start queues filled, so that SB3's automatic reset uses the next start, and compares the members' beginnings.
    """

    def __init__(self, env: VecEnv, groups: GroupQueue):
        super().__init__(env, groups)
        self._can_probe = env.has_attr("start_trace")

    def tickets_of(self, copies: list[int]) -> list[int]:
        reset_infos = self.env.unwrapped.reset_infos  # wrappers keep an empty list of their own
        tickets = [reset_infos[idx].get("group_start", NO_EPISODE) for idx in copies]
        self._take_from_queues(copies, tickets)
        begun = [idx for idx, ticket in zip(copies, tickets, strict=True) if ticket != NO_EPISODE]
        if begun:
            members = [ticket for ticket in tickets if ticket != NO_EPISODE]
            if self._can_probe:
                self._compare_traces(begun, members)
            self._compare_first_observations(begun, members)
        return tickets

    def _take_from_queues(self, copies: list[int], tickets: list[int]) -> None:
        """
        :param copies: Environment copies that have begun the next episode
        :param tickets: Tickets of the members that they play
        """

    def _compare_first_observations(self, copies: list[int], tickets: list[int]) -> None:
        """
        :param copies: Environment copies that have begun the next episode
        :param tickets: Tickets of the members that they play
        :raises UnequalStartError: if a member's first observation differs from that of its group's first member
        """
        observations = self.env.get_attr("first_observation", indices=copies)
        for idx, ticket, observation in zip(copies, tickets, observations, strict=True):
            difference = self.groups.compare_first_observation(ticket, observation)
            if difference is not None:
                raise UnequalStartError(
                    f"{self._env_name(idx)}: {difference}. Either make reset(seed=...) of the environment reproducible "
                    "(draw every random number from self.np_random, or from a generator that is one of its attributes); or "
                    "give it get_state() and set_state(state), and pass a start_sampler that returns snapshots; or, if it "
                    "cannot start twice in the same state (a robot), opt in to groups of unrelated starts with "
                    "unrelated_starts=True."
                )

    def _compare_traces(self, copies: list[int], tickets: list[int]) -> None:
        """
        :param copies: Environment copies that have begun the next episode
        :param tickets: Tickets of the members that they play
        :raises UnequalStartError: if a member's probe does not match that of its group's first member
        """
        probed = [(idx, ticket) for idx, ticket in zip(copies, tickets, strict=True) if self.groups.is_probed(ticket)]
        if not probed:
            return
        traces: list[Any] = self.env.get_attr("start_trace", indices=[idx for idx, _ in probed])
        for (idx, ticket), trace in zip(probed, traces, strict=True):
            if isinstance(trace, str):
                raise UnequalStartError(trace)
            difference = self.groups.compare_trace(ticket, trace)
            if difference is not None:
                raise UnequalStartError(describe_difference(self._env_name(idx), difference))

    def note_episodes(self) -> None:
        """Nothing to do: each copy reports the ticket that it plays."""

    def is_disturbed(self, tickets: np.ndarray) -> bool:
        infos = self.env.unwrapped.reset_infos
        return [info.get("group_start", NO_EPISODE) for info in infos] != tickets.tolist()

    def clear(self) -> None:
        self.groups.give_back(self._queued_tickets())
        self.env.env_method("clear_starts")

    def _queued_tickets(self) -> list[int]:
        """
        :return: Tickets of the members that no copy has begun, in the order in which they were handed out
        """
        raise NotImplementedError

    def _env_name(self, idx: int) -> str:
        if self.env.has_attr("env_name"):
            return self.env.get_attr("env_name", indices=idx)[0]
        return f"{type(self.env.unwrapped).__name__}, copy {idx}"


class SharedQueueFeeder(StartFeeder):
    """
    For copies in this process, which share one queue: the first copy to end its episode takes the next start.

    :param env: The training environment
    :param groups: The work queue
    :param queue: The start queue shared by all copies
    """

    def __init__(self, env: VecEnv, groups: GroupQueue, queue: deque[QueuedStart]):
        super().__init__(env, groups)
        self._queue = queue

    def fill(self) -> None:
        # All copies can end in the same step
        while len(self._queue) < self.env.num_envs:
            ticket = self.groups.next_ticket()
            if ticket is None:
                return
            self._queue.append(self.groups.queued_start(ticket))

    def _queued_tickets(self) -> list[int]:
        return [queued.ticket for queued in self._queue]

    def state_dict(self) -> dict[str, Any]:
        return {"queued": self._queued_tickets()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue.clear()
        self._queue.extend(self.groups.queued_start(ticket) for ticket in state["queued"])


class OwnQueuesFeeder(StartFeeder):
    """For copies in subprocesses. Each has its own queue, which holds one start in advance."""

    def __init__(self, env: VecEnv, groups: GroupQueue):
        super().__init__(env, groups)
        self._ahead: list[deque[int]] = [deque() for _ in range(env.num_envs)]

    def fill(self) -> None:
        for idx, ahead in enumerate(self._ahead):
            if not ahead:
                ticket = self.groups.next_ticket()
                if ticket is None:
                    return
                self._queue_start(idx, ticket)

    def _queue_start(self, idx: int, ticket: int) -> None:
        queued = self.groups.queued_start(ticket)
        # An environment's own queue_start may not take all arguments
        self.env.env_method("queue_start", *queued, indices=idx)
        self._ahead[idx].append(ticket)

    def _take_from_queues(self, copies: list[int], tickets: list[int]) -> None:
        for idx, ticket in zip(copies, tickets, strict=True):
            ahead = self._ahead[idx]
            if ticket != NO_EPISODE:
                ahead.popleft()
            elif ahead:
                raise RuntimeError(
                    f"Environment copy {idx} was reset but did not begin the start that was queued for it. "
                    "StartQueue must be the outermost wrapper of each copy: use make_group_env(...), or "
                    "make_vec_env(..., wrapper_class=StartQueue), whose wrapper stands outside of all others."
                )

    def _queued_tickets(self) -> list[int]:
        tickets = sorted(ticket for ahead in self._ahead for ticket in ahead)
        for ahead in self._ahead:
            ahead.clear()
        return tickets

    def state_dict(self) -> dict[str, Any]:
        return {"ahead": [list(ahead) for ahead in self._ahead]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for idx, tickets in enumerate(state["ahead"]):
            for ticket in tickets:
                self._queue_start(idx, ticket)


def make_feeder(env: VecEnv, groups: GroupQueue) -> Feeder:
    """
    :param env: The training environment
    :param groups: The work queue
    :return: The feeder for these environments. The copies of a ``DummyVecEnv`` share one queue, and so do those of a
        ``VecEnv`` that is a single object with its own attribute ``queue``
    :raises ValueError: if the environments cannot begin from queued starts
    """
    if groups.settings.sampler is None:
        return Feeder(env, groups)
    ensure_start_queues(env)
    copies = env.unwrapped
    if isinstance(copies, DummyVecEnv):
        queue: deque[QueuedStart] = deque()
        for copy in copies.envs:
            copy.queue = queue  # type: ignore[attr-defined]
        return SharedQueueFeeder(env, groups, queue)
    if isinstance(getattr(copies, "queue", None), deque):
        return SharedQueueFeeder(env, groups, copies.queue)  # type: ignore[attr-defined]
    return OwnQueuesFeeder(env, groups)
