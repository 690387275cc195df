"""Reward shaping: the soft overlong punishment of DAPO (arXiv:2503.14476), the KL penalty of PPO for language models."""

import torch as th


def soft_overlong_penalty(lengths: th.Tensor, low: int, high: int) -> th.Tensor:
    """
    Soft punishment of long episodes, DAPO eq. 13, to be added to the reward of the episode.

    It is 0 up to ``low`` steps, then falls linearly to -1 at ``high`` steps and stays there: in the paper's terms, ``high`` is
    L_max and ``low`` is L_max - L_cache. Because it distinguishes equally successful members by their length, dynamic sampling
    must use the outcomes before it is added.

    :param lengths: lengths of the episodes in steps, any shape
    :param low: length up to which there is no penalty, in steps
    :param high: length at which the full penalty is reached, in steps
    :return: same shape as ``lengths``, floating point, in [-1, 0]
    :raises ValueError: unless ``0 <= low < high``
    """
    if not 0 <= low < high:
        raise ValueError(f"low and high must be lengths with 0 <= low < high, got {low} and {high}")
    return ((low - lengths) / (high - low)).clamp(min=-1.0, max=0.0)


def kl_penalised_rewards(rewards: th.Tensor, log_prob: th.Tensor, ref_log_prob: th.Tensor, kl_coef: float) -> th.Tensor:
    """
    Subtract the KL penalty from the rewards, ``r_t - beta (log pi(a_t | s_t) - log ref(a_t | s_t))`` (arXiv:2402.03300 eq. 2,
    arXiv:2402.14740): PPO for language models puts it in the reward, GRPO in the loss.

    The sum of the log ratios over an episode is an estimate (k1) of the KL divergence over whole episodes, so the return is
    the total reward minus beta times this estimate.

    :param rewards: reward of each step, any shape
    :param log_prob: same shape, log probabilities of the actions under the policy that sampled them
    :param ref_log_prob: same shape, under the reference
    :param kl_coef: beta
    :return: same shape
    """
    return rewards - kl_coef * (log_prob - ref_log_prob)
