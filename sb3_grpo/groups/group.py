"""Groups of episodes that share one start, and the test whether there is something to learn from them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th

from sb3_grpo.starts.starts import SnapshotStart, Start
from sb3_grpo.utils.plugins import name_of

if TYPE_CHECKING:
    from sb3_grpo.starts.probes import Probe, Trace


@dataclass(slots=True, eq=False)
class Episode:
    """
    A member of a group: where its steps are in the rollout buffer, and how it went, so far or as a whole.

    :param id: Its number among all episodes, ``info["group_start"]`` of the environment that plays it
    :param group: Its group
    :param member: Its number in the group, from 0
    :param env: Index of the environment copy that plays it
    :param first_row: The row of the rollout buffer with its first step that is in there, -1 before it begins
    :param length: Number of steps
    :param n_used: Number of steps that earlier updates have learned from, which are no longer in the buffer
    :param n_stale: Number of steps in the buffer that an earlier policy has chosen
    :param outcome: Undiscounted sum of the environment's own rewards
    :param truncated: Whether it was truncated by a time limit
    :param is_success: Whether it was a success, ``None`` if the environment does not say so
    :param reward_parts: Value and weight, by name, of each part that the last reward is the weighted sum of, if the
        environment says so
    :param is_cut: Whether it was cut short to desynchronize the copies: its outcome is not that of a whole episode
    :param next_observation: Next observation of the policy if the episode goes on, or could have; otherwise ``None``
    :param next_state: State of the policy's memory with this observation, if it has a memory
    :param text: The last observation that the policy has seen, for policies that read texts
    """

    id: int
    group: "Group" = field(repr=False)
    member: int
    env: int = -1
    first_row: int = -1
    length: int = 0
    n_used: int = 0
    n_stale: int = 0
    outcome: float = 0.0
    truncated: bool = False
    is_success: bool | None = None
    reward_parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    is_cut: bool = False
    next_observation: Any = field(default=None, repr=False)
    next_state: Any = field(default=None, repr=False)
    text: Any = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Group:
    """
    The episodes that share one start.

    :param number: Its number, in the order in which groups are drawn
    :param start: The start, ``None`` for unrelated starts
    :param noise_seed: Seed of the environment's noise after the start; ``None``: the start determines it
    :param probe: What is played from the start to check that it is the same in all copies, ``None`` for most groups
    :param episodes: Its members
    :param n_ended: Number of members that have ended
    :param is_dead: Whether it has turned out that there is nothing to learn from it, and another one was drawn in its place
    :param first_observation: The first observation of the member that began first
    :param trace: What this member has met in the probe
    """

    number: int
    start: Start | None
    noise_seed: int | None = None
    probe: "Probe | None" = None
    episodes: list[Episode] = field(default_factory=list)
    n_ended: int = 0
    is_dead: bool = False
    first_observation: Any = field(default=None, repr=False)
    trace: "Trace | None" = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        """Whether all members have ended."""
        return self.n_ended == len(self.episodes)

    @property
    def can_be_judged(self) -> bool:
        """Whether the group is complete, and its outcomes are those of whole episodes."""
        return self.complete and not any(episode.is_cut for episode in self.episodes)

    def results(self) -> "Group":
        """
        :return: The group without its states and observations: small enough to be sent to other processes
        """
        start = self.start
        if isinstance(start, SnapshotStart):
            start = replace(start, observation=None, wrappers=b"", simulator=None, replay=None)
        group = replace(self, start=start, probe=None, first_observation=None, trace=None)
        group.episodes = [
            replace(each, group=group, next_observation=None, next_state=None, text=None) for each in self.episodes
        ]
        return group


def outcomes(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) raw outcomes
    """
    return th.tensor([[episode.outcome for episode in group.episodes] for group in groups], dtype=th.float64)


def normalized_parts(parts: th.Tensor, weights: th.Tensor, eps: float = 1e-8) -> th.Tensor:
    """
    Outcome of several parts, each normalised in its group before they are added (GDPO, arXiv:2601.05242, sec. 3.1):
    ``sum_k w_k (r_ik - mean(r_k)) / std(r_k)``. Added first, members with different parts but the same sum would be equal, and
    the part with the largest spread would drown the others. A part that is the same for all members adds 0.

    :param parts: (B, G, K) parts of the outcome of each episode
    :param weights: (K,) their weights
    :param eps: added to the standard deviation
    :return: (B, G)
    """
    deviations = th.where(parts.amax(1, keepdim=True) > parts.amin(1, keepdim=True), parts - parts.mean(1, keepdim=True), 0.0)
    return (weights * deviations / (parts.std(1, keepdim=True) + eps)).sum(-1)


def normalized_outcomes(groups: list[Group]) -> th.Tensor:
    """
    :param groups: B complete groups
    :return: (B, G) the outcomes, in which each part of the last reward is normalised, see :func:`normalized_parts`. An episode
        that lacks a part has 0 there. NaN if no episode has parts
    """
    episodes = [episode for group in groups for episode in group.episodes]
    weights = {name: weight for episode in episodes for name, (_, weight) in episode.reward_parts.items()}
    if not weights:
        return th.full_like(outcomes(groups), th.nan)
    parts = [[episode.reward_parts.get(name, (0.0,))[0] for name in weights] for episode in episodes]
    values, weight = th.tensor(parts, dtype=th.float64), th.tensor([*weights.values()], dtype=th.float64)
    values = values.view(len(groups), -1, len(weights))
    return outcomes(groups) - values @ weight + normalized_parts(values, weight)


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


# Selects the groups to learn from by their outcomes
LiveFunction = Callable[[th.Tensor], th.Tensor]


def judge(groups: list[Group], is_live: LiveFunction, normalize_parts: bool = False) -> list[bool]:
    """
    :param groups: B complete groups
    :param is_live: :func:`live_groups`, or a function with the same signature
    :param normalize_parts: Whether outcomes are compared with their parts normalised
    :return: Whether there is something to learn from each of them
    :raises ValueError: if the function does not return (B,) booleans
    """
    if not groups:
        return []
    compared = outcomes(groups)
    if normalize_parts:
        normalized = normalized_outcomes(groups)
        compared = th.where(normalized.isfinite(), normalized, compared)
    live = is_live(compared)
    if not isinstance(live, th.Tensor) or live.dtype != th.bool or live.shape != (len(groups),):
        got = f"{live.dtype} of shape {tuple(live.shape)}" if isinstance(live, th.Tensor) else type(live).__name__
        raise ValueError(
            f"{name_of(is_live)}, given as dynamic_sampling, must return a tensor of {len(groups)} booleans, one for each "
            f"group. Got {got}."
        )
    return live.tolist()


def start_share(outcomes: th.Tensor) -> float:
    """
    Share of the variance of outcomes that lies between groups: the intraclass correlation, from the unbiased estimates of both
    variances (one-way analysis of variance). If members share a start, the mean of the group takes this share of the noise
    out of advantages that are outcomes; with unrelated starts it is 0 on average.

    :param outcomes: (B, G)
    :return: At most 1, and by chance below 0; NaN for fewer than two groups, or if all outcomes are equal
    """
    size = outcomes.shape[1]
    between, within = size * outcomes.mean(1).var(), outcomes.var(1).mean()
    return ((between - within) / (between + (size - 1) * within)).item()


def summary(groups: list[Group], live: list[bool]) -> dict[str, float]:
    """
    :param groups: Groups that are complete and can be judged
    :param live: Whether there is something to learn from each of them
    :return: What is logged of them as ``group/...``
    """
    episodes = [episode for group in groups for episode in group.episodes]
    raw = outcomes(groups)
    found = {
        "return_mean": raw.mean().item(),
        "return_std": raw.std(dim=1).mean().item(),
        "dead_fraction": 1.0 - float(np.mean(live)),
        "overlong_fraction": float(np.mean([episode.truncated for episode in episodes])),
    }
    if all(episode.is_success is not None for episode in episodes):
        successes = np.array([episode.is_success for episode in episodes]).reshape(len(groups), -1)
        found |= {"success_rate": float(successes.mean()), "pass_at_group_size": float(successes.any(axis=1).mean())}
    for name in sorted({name for episode in episodes for name in episode.reward_parts}):
        values = [episode.reward_parts[name][0] for episode in episodes if name in episode.reward_parts]
        found[f"reward_{name}"] = float(np.mean(values))
    return found
