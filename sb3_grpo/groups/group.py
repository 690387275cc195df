"""Groups of episodes that share one start, and the test whether there is something to learn from them."""

from dataclasses import dataclass
from typing import Any

import torch as th

from sb3_grpo.starts.probes import Probe, Trace
from sb3_grpo.starts.starts import Start


@dataclass(slots=True)
class Episode:
    """
    A member of a group: its position, and its statistics once it has ended. If updates do not wait for the end of episodes,
    these are the statistics so far, and ``next_observation`` is the policy's next observation, ``None`` if the episode
    terminated.
    """

    ticket: int
    member: int
    length: int = 0
    outcome: float = 0.0  # undiscounted return of the environment's own rewards
    truncated: bool = False
    n_before: int = 0  # number of steps taken before the current rollout, by an earlier policy
    next_observation: Any = None
    is_cut: bool = False  # cut once to desynchronize the copies: its statistics are not those of a whole episode


@dataclass(slots=True)
class Group:
    """The episodes that share one start."""

    number: int
    start: Start | None
    episodes: list[Episode]
    noise_seed: int | None  # of the environment after the start; None: the start determines it
    probe: Probe | None = None
    first_observation: Any = None
    trace: Trace | None = None
    n_ended: int = 0

    @property
    def complete(self) -> bool:
        return self.n_ended == len(self.episodes)

    @property
    def can_be_judged(self) -> bool:
        """Whether the group is complete, and its outcomes are those of whole episodes."""
        return self.complete and not any(episode.is_cut for episode in self.episodes)


def outcomes(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) raw outcomes
    """
    return th.tensor([[episode.outcome for episode in group.episodes] for group in groups], dtype=th.float64)


def live_groups(outcomes: th.Tensor) -> th.Tensor:
    """
    Constraint of dynamic sampling, [DAPO] eq. 11: selects the groups whose outcomes are not all equal, as only these have a
    gradient.

    Equality is exact and over the whole group: a threshold on the standard deviation would be sensitive to rounding. Pass the
    raw outcomes (success, score): a shaped reward makes a group of failures look alive.

    :param outcomes: (B, G), any dtype
    :return: (B,) bool, True where there is something to learn
    :raises ValueError: if ``outcomes`` is not a matrix with at least 2 members per group
    """
    if outcomes.ndim != 2 or outcomes.shape[1] < 2:
        raise ValueError(f"outcomes must be (groups, members) with at least 2 members, got {tuple(outcomes.shape)}")
    return (outcomes != outcomes[:, :1]).any(dim=1)
