"""What a group is: episodes that share one start, and when there is something to learn from them."""

from dataclasses import dataclass
from typing import Any

import torch as th

from sb3_grpo.starts.probes import Probe, Trace
from sb3_grpo.starts.starts import Start


@dataclass(slots=True)
class Episode:
    """
    A member of a group: its place, and its figures once it has ended. Where an update does not wait for the end, they are
    those so far, and ``next_observation`` is what the policy sees next, ``None`` after an end that is no time limit's.
    """

    ticket: int
    member: int
    length: int = 0
    outcome: float = 0.0  # undiscounted return of the environment's own rewards
    truncated: bool = False
    metric: float = 0.0  # what tells live groups from dead ones: the outcome, or a value of the last info
    n_before: int = 0  # of its steps, those that were chosen before the present rollout, by an earlier policy
    next_observation: Any = None
    is_cut: bool = False  # once, to take copies apart: its figures are not those of a whole episode


@dataclass(slots=True)
class Group:
    """The episodes that share one start."""

    number: int
    start: Start | None
    episodes: list[Episode]
    noise_seeds: list[int | None]
    probe: Probe | None = None
    first_observation: Any = None
    trace: Trace | None = None
    n_ended: int = 0

    @property
    def complete(self) -> bool:
        return self.n_ended == len(self.episodes)

    @property
    def can_be_judged(self) -> bool:
        """Whether it is complete, and its outcomes are those of whole episodes, or of pieces of one length."""
        return self.complete and not any(episode.is_cut for episode in self.episodes)


def outcomes(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) raw outcomes
    """
    return th.tensor([[episode.outcome for episode in group.episodes] for group in groups], dtype=th.float64)


def metrics(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) what tells live groups from dead ones
    """
    return th.tensor([[episode.metric for episode in group.episodes] for group in groups], dtype=th.float64)


def live_groups(outcomes: th.Tensor) -> th.Tensor:
    """
    Constraint of dynamic sampling, [DAPO] eq. 11: groups whose outcomes are not all equal, the only ones with a gradient.

    Equality is exact and over the whole group: a threshold on the standard deviation would trip over rounding. Pass the raw
    outcomes (success, score): a shaped reward makes a group of failures look alive.

    :param outcomes: (B, G), any type
    :return: (B,) bool, True where there is something to learn
    :raises ValueError: not a matrix of at least 2 members per group
    """
    if outcomes.ndim != 2 or outcomes.shape[1] < 2:
        raise ValueError(f"outcomes must be (groups, members) with at least 2 members, got {tuple(outcomes.shape)}")
    return (outcomes != outcomes[:, :1]).any(dim=1)
