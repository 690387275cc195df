"""Policies that only do what an environment allows: distributions with action masks."""

from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution

# Logit of an action that is not allowed: its probability is exactly 0, and 0 times its logarithm is 0 as well
MASKED = -1e8

Logits = TypeVar("Logits", np.ndarray, th.Tensor)


def mask_logits(logits: Logits, masks: Logits, action_space: spaces.Space) -> Logits:
    """
    :param logits: (n, \\*) output of the policy's last layer, what SB3 makes a distribution of this action space from
    :param masks: (n, A) bool, whether each value of each part of an action is allowed, as in SB3-Contrib
    :param action_space: Action space
    :return: (n, \\*) the logits of the distribution over the actions that are allowed
    """
    where: Any = np.where if isinstance(logits, np.ndarray) else th.where
    if not isinstance(action_space, spaces.MultiBinary):
        return where(masks, logits, np.float32(MASKED) if where is np.where else MASKED)
    # A logit for each bit, and two entries of the mask: whether it may be 0, and whether it may be 1
    may_be_0, may_be_1 = masks[:, 0::2], masks[:, 1::2]
    high, low = (np.float32(-MASKED), np.float32(MASKED)) if where is np.where else (-MASKED, MASKED)
    return where(may_be_1, where(may_be_0, logits, high), low)


def masked(distribution: Any, masks: th.Tensor, action_space: spaces.Space) -> Distribution:
    """
    :param distribution: Distribution over the actions of this space
    :param masks: (n, A) bool, see :func:`mask_logits`
    :param action_space: Action space
    :return: The distribution over the actions that are allowed: the others have probability 0, and the ratios between these
        are as before
    """
    parts = distribution.distribution
    logits = th.cat([part.logits for part in parts], dim=1) if isinstance(parts, list) else parts.logits
    return distribution.proba_distribution(action_logits=mask_logits(logits, masks, action_space))
