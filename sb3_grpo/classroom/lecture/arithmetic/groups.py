"""Groups: advantages, dead groups, and the noise of the mean over a few members."""

import math
from collections.abc import Sequence
from typing import Any

import torch as th

from sb3_grpo.classroom.lecture.golden import Grid, axis
from sb3_grpo.common.advantages import SCALES, group_advantages
from sb3_grpo.common.losses import step_weights
from sb3_grpo.groups.group import live_groups


def group(size: int, ddof: int, leave_one_out: int, scale: int, *rewards: float) -> list[float]:
    """
    :param size: Number of members per group
    :param ddof: 1 for the sample standard deviation, 0 for the population's
    :param leave_one_out: Whether the mean that a member is compared with leaves this member out
    :param scale: Index of the standard deviation in ``SCALES``
    :param rewards: Rewards of all members, one group after the other
    :return: Their advantages
    """
    table = th.tensor(rewards, dtype=th.float64).reshape(-1, size, 1)
    mask = th.ones_like(table, dtype=th.bool)
    by_sample = group_advantages(table, mask, kind="outcome", leave_one_out=bool(leave_one_out), scale=SCALES[scale])
    # The package divides by the sample standard deviation, of the group or of all groups
    counted = {"group": size, "batch": len(rewards), "none": math.inf}[SCALES[scale]]
    of_population = 1.0 if ddof or counted == math.inf else math.sqrt(counted / (counted - 1))
    return (of_population * by_sample).flatten().tolist()


def live(size: int, *rewards: float) -> list[float]:
    """
    :param size: Number of members per group
    :param rewards: Rewards of all members, one group after the other
    :return: For each group, 1 if there is something to learn, 0 if it is dead
    """
    return live_groups(th.tensor(rewards, dtype=th.float64).reshape(-1, size)).double().tolist()


def group_noise(success: float, size: int) -> tuple[float, float]:
    """
    :param success: Probability of a right answer, which has a reward of 1; that of a wrong one is 0
    :param size: Number of members per group
    :return: Standard deviation of a group's mean, and probability of a dead group, as sums over the number of right answers
    """
    counts = range(size + 1)
    table = th.tensor([[float(member < count) for member in range(size)] for count in counts], dtype=th.float64)
    chances = [math.comb(size, count) * success**count * (1.0 - success) ** (size - count) for count in counts]
    probability = th.tensor(chances, dtype=th.float64)
    variance = (probability * (table.mean(1) - success).square()).sum()
    return math.sqrt(variance.item()), probability[~live_groups(table)].sum().item()


def advantages(rewards: Sequence[float], ddof: int = 1, scale: str = "group", leave_one_out: bool = False) -> list[float]:
    """
    :param rewards: Rewards of one group
    :param ddof: 1 for the sample standard deviation, 0 for the population's
    :param scale: One of ``SCALES``
    :param leave_one_out: Whether the mean that a member is compared with leaves this member out
    :return: Advantages
    """
    return group(len(rewards), ddof, leave_one_out, SCALES.index(scale), *rewards)


def upweight(n_live: int, n_groups: int, size: int = 4) -> float:
    """
    :param n_live: Number of groups left
    :param n_groups: Number of groups drawn
    :param size: Number of members per group, with one step each
    :return: Factor by which the weight of a step grows when the dead groups are left out
    """
    left, all_steps = th.arange(n_live * size), th.arange(n_groups * size)
    return (step_weights(left, len(left), "step")[0] / step_weights(all_steps, len(all_steps), "step")[0]).item()


# Some of the groups of two and of three are dead
REWARDS: tuple[tuple[float, ...], ...] = ((1.0, 3.8), (1.0,), (1.0, 6.1), (0.0,), (0.0, 2.5), (0.0,))
GRIDS: dict[str, Grid] = {
    "group": (group, ((2, 3, 6), (0, 1), (0, 1), (0, 1, 2), *REWARDS)),
    "live": (live, ((2, 3, 6), *((0.0, 1.0),) * 6)),
    "groupNoise": (group_noise, (axis(0.0, 1.0, 21), range(2, 34))),
}
EXAMPLES: dict[str, Any] = {"advantages": advantages, "group_noise": group_noise, "upweight": upweight}
