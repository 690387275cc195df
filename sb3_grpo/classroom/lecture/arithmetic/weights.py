"""DAPO's changes: the weights of steps, the treatment of long episodes, and the loss as written in verl."""

from collections.abc import Sequence
from typing import Any

import torch as th

from sb3_grpo.classroom.lecture.golden import Grid
from sb3_grpo.common.losses import LOSS_WEIGHTS, step_weights
from sb3_grpo.common.rewards import soft_overlong_penalty

# Dr. GRPO's average is given by its constant
AVERAGES = (*LOSS_WEIGHTS, "constant")


def loss_weights(mode: int, constant_length: float, limit: float, *lengths: float) -> list[float]:
    """
    :param mode: Index of the average in ``AVERAGES``
    :param constant_length: Constant by which Dr. GRPO divides the sum over an episode
    :param limit: Longer episodes are left out
    :param lengths: Lengths of the episodes, in steps
    :return: For each episode, the weight of one step
    """
    n_steps = th.tensor(lengths, dtype=th.long)
    episode = th.repeat_interleave(th.arange(len(lengths)), n_steps)
    kept = (n_steps <= limit)[episode]
    average = float(constant_length) if AVERAGES[mode] == "constant" else AVERAGES[mode]
    weights = step_weights(episode, len(lengths), average, kept)
    return weights[n_steps.cumsum(0) - 1].double().tolist()


def overlong(length: float, max_length: float, cache_length: float) -> list[float]:
    """
    :param length: Length of an episode, in steps
    :param max_length: Length from which the full penalty applies
    :param cache_length: Number of steps up to ``max_length`` over which the penalty grows
    :return: The soft overlong punishment
    """
    lengths = th.tensor([length], dtype=th.float64)
    return soft_overlong_penalty(lengths, int(max_length - cache_length), int(max_length)).tolist()


def step_weight(mode: str, lengths: Sequence[int], episode: int = 0, constant_length: float = 10.0) -> float:
    """
    :param mode: One of ``AVERAGES``
    :param lengths: Lengths of the episodes, in steps
    :param episode: Index of an episode
    :param constant_length: Constant by which Dr. GRPO divides the sum over an episode
    :return: The weight of one of its steps
    """
    return loss_weights(AVERAGES.index(mode), constant_length, max(lengths), *lengths)[episode]


def penalty(length: float, max_length: int = 20480, cache_length: int = 4096) -> float:
    """
    :param length: Length of an episode, in steps
    :param max_length: Length from which the full penalty applies
    :param cache_length: Number of steps up to ``max_length`` over which the penalty grows
    :return: The soft overlong punishment
    """
    return overlong(length, max_length, cache_length)[0]


def verl(ratio: float, advantage: float, cliprange_low: float = 0.2, cliprange_high: float = 0.28) -> float:
    """
    :param ratio: Probability ratio of a step
    :param advantage: Advantage of the step
    :param cliprange_low: How far the ratio may fall below 1
    :param cliprange_high: How far the ratio may rise above 1
    :return: Its loss, computed as in verl
    """
    ratios, advantages = th.tensor([ratio], dtype=th.float64), th.tensor([advantage], dtype=th.float64)
    pg_losses1 = -advantages * ratios
    pg_losses2 = -advantages * th.clamp(ratios, 1 - cliprange_low, 1 + cliprange_high)
    return th.maximum(pg_losses1, pg_losses2).item()


LENGTHS = (0, 8192, 12288, 16383, 16384, 16385, 17408, 18432, 19456, 20479, 20480, 20481, 24576)
GRIDS: dict[str, Grid] = {
    "lossWeights": (loss_weights, ((0, 1, 2), (10, 16), (4, 12), (1, 2, 9), (4, 5), (3, 10, 12), (2, 20))),
    "overlong": (overlong, (LENGTHS, (8192, 16384, 20480), (1, 1024, 4096, 8192))),
}
EXAMPLES: dict[str, Any] = {"step_weight": step_weight, "penalty": penalty, "verl": verl}
