"""A judged batch: what the loss of an update needs to know."""

from dataclasses import dataclass

import torch as th

from sb3_grpo.common.batch import GroupBatch


@dataclass(frozen=True)
class JudgedBatch:
    """
    What the loss of an update needs to know.

    :param batch: The groups of the update: N steps
    :param advantages: (N,)
    :param weights: (N,) the weight of each step in the loss
    :param kept: (K,) long, indices of the steps that take part in it
    :param value_targets: (N,) what an auxiliary value head learns to predict; ``None`` without one, or if nothing is known of
        the returns
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    """

    batch: GroupBatch
    advantages: th.Tensor
    weights: th.Tensor
    kept: th.Tensor
    value_targets: th.Tensor | None
    clip_low: float
    clip_high: float


def averaged(stats: list[dict[str, th.Tensor]]) -> dict[str, th.Tensor]:
    """
    :param stats: Statistics of each minibatch of an epoch, or of each epoch of an update
    :return: Their means, except for ``ratio_max``: the maximum
    """
    stacked = {key: th.stack([part[key] for part in stats]) for key in stats[0]}
    return {key: values.max() if key == "ratio_max" else values.mean() for key, values in stacked.items()}
