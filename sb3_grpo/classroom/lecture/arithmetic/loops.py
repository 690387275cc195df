"""The ratios of a recorded update, and which gradients are cut off."""

from typing import Any

import torch as th

from sb3_grpo.classroom.lecture.golden import Grid, axis
from sb3_grpo.common.losses import cut_off


def judged(
    log_prob: float, old_log_prob: float, advantage: float, clip_low: float, clip_high: float
) -> tuple[float, float, float]:
    """
    :param log_prob: Current log probability of the action
    :param old_log_prob: Log probability of the action when it was sampled
    :param advantage: Advantage of the action
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    :return: Ratio, and whether its gradient is cut off below and above
    """
    ratio = th.tensor([log_prob - old_log_prob], dtype=th.float64).exp()
    below, above = cut_off(ratio, th.tensor([advantage], dtype=th.float64), clip_low, clip_high)
    return ratio.item(), float(below.item()), float(above.item())


# Ratios from 0.2 to 5, none of them at the edges of a clip range
GRIDS: dict[str, Grid] = {
    "judged": (judged, (axis(-1.3, -0.1, 13), axis(-1.25, -0.05, 7), (-1.3, 0.0, 0.7), (0.2,), (0.2, 0.28))),
}
EXAMPLES: dict[str, Any] = {}
