"""The clipped objective."""

from typing import Any

import torch as th

from sb3_grpo.classroom.lecture.golden import Grid, axis
from sb3_grpo.common.losses import clipped_surrogate


def clip(ratio: float, advantage: float, clip_low: float, clip_high: float) -> tuple[float, float]:
    """
    :param ratio: Current probability of the action divided by its probability when it was sampled
    :param advantage: Advantage of the action
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    :return: Objective, to be maximised, and its derivative with respect to the ratio
    """
    at = th.tensor([ratio], dtype=th.float64, requires_grad=True)
    advantages = th.tensor([advantage], dtype=th.float64)
    value = -clipped_surrogate(at.log(), advantages, clip_low, clip_high).sum()
    value.backward()
    assert at.grad is not None
    return value.item(), at.grad.item()


def objective(ratio: float, advantage: float, clip_low: float = 0.2, clip_high: float = 0.2) -> float:
    """
    :param ratio: Current probability of the action divided by its probability when it was sampled
    :param advantage: Advantage of the action
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    :return: Objective, to be maximised
    """
    return clip(ratio, advantage, clip_low, clip_high)[0]


def slope(ratio: float, advantage: float) -> float:
    """
    :param ratio: Current probability of the action divided by its probability when it was sampled
    :param advantage: Advantage of the action
    :return: Derivative of the objective with respect to the ratio, with PPO's clip range
    """
    return clip(ratio, advantage, 0.2, 0.2)[1]


# Not at the edges of the clip ranges, where the derivative is not unique
GRIDS: dict[str, Grid] = {
    "clip": (clip, (axis(0.05, 2.04, 80), (-2.1, -1.0, 0.0, 0.5, 1.43), (0.1, 0.2), (0.2, 0.28, 0.4))),
}
EXAMPLES: dict[str, Any] = {"objective": objective, "slope": slope}
