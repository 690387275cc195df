"""
GRPO and DAPO in seven functions. Write them with PyTorch alone; `sb3-grpo homework check` says what is wrong with them.

B groups of G episodes, the longest has T steps: `rewards` is (B, G, T), 0 behind the end of an episode, and `mask`, of the
same shape, is True where a step exists.
"""

import torch as th


def group_advantage(rewards: th.Tensor, mask: th.Tensor, **settings) -> th.Tensor:
    """
    GRPO's advantage: (R_i - mean(R)) / (std(R) + 1e-8) within each group, with the sum of the rewards of an episode as its
    outcome R_i and the sample standard deviation. All steps of an episode have the same one.

    :param rewards: (B, G, T)
    :param mask: (B, G, T)
    :param settings: not needed
    :return: (B, G, T), 0 where the mask is False
    """
    outcomes = rewards.sum(-1, keepdim=True)
    advantages = (outcomes - outcomes.mean(1, keepdim=True)) / (outcomes.std(1, keepdim=True) + 1e-8)
    return th.where(mask, advantages, 0.0)


def ppo_loss(log_ratio: th.Tensor, advantages: th.Tensor, clip_range: float) -> th.Tensor:
    """
    PPO's clipped loss. The ratio may move by the same amount in both directions.

    :param log_ratio: (N,) logarithm of the ratio of the current to the old probability of each action
    :param advantages: (N,)
    :param clip_range: epsilon
    :return: (N,) loss of each step, to be minimised
    """
    return dapo_loss(log_ratio, advantages, clip_range, clip_range)


def dapo_loss(log_ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float) -> th.Tensor:
    """
    DAPO's clip-higher: the same with two bounds.

    :param log_ratio: (N,) logarithm of the ratio of the current to the old probability of each action
    :param advantages: (N,)
    :param clip_low: the ratio may fall to 1 - clip_low
    :param clip_high: the ratio may rise to 1 + clip_high
    :return: (N,) loss of each step, to be minimised
    """
    ratio = log_ratio.exp()
    return -th.min(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def k3(log_prob: th.Tensor, ref_log_prob: th.Tensor) -> th.Tensor:
    """
    The estimate r - 1 - log r of KL(pi || ref), with r = ref / pi.

    :param log_prob: (N,) log probabilities of actions under pi, which chose them
    :param ref_log_prob: (N,) the same under the reference
    :return: (N,)
    """
    log_r = ref_log_prob - log_prob
    return log_r.exp() - 1 - log_r


def token_average(episode: th.Tensor, n_episodes: int, **settings) -> th.Tensor:
    """
    The weight of each step in DAPO's loss: all steps of all episodes count the same, and the weights sum to 1.

    :param episode: (N,) number of the episode of each step, from 0 to n_episodes - 1
    :param n_episodes: number of episodes
    :param settings: not needed
    :return: (N,)
    """
    return th.full(episode.shape, 1 / len(episode))


def live(outcomes: th.Tensor) -> th.Tensor:
    """
    Dynamic sampling: which groups have something to learn from?

    :param outcomes: (B, G)
    :return: (B,) bool, True unless all outcomes of the group are equal
    """
    return (outcomes != outcomes[:, :1]).any(1)


def overlong(rewards: th.Tensor, mask: th.Tensor, low: int, high: int) -> th.Tensor:
    """
    DAPO's soft punishment of long episodes: 0 up to `low` steps, then falling linearly to -1 at `high` steps, and -1 beyond.
    It is added once, to the reward of the last step of an episode.

    :param rewards: (B, G, T)
    :param mask: (B, G, T)
    :param low: length up to which there is no penalty
    :param high: length from which on it is -1
    :return: (B, G, T) the rewards with the penalty
    """
    lengths = mask.sum(-1, keepdim=True)
    penalty = ((low - lengths) / (high - low)).clamp(-1, 0)
    is_last = th.arange(rewards.shape[-1]) == lengths - 1
    return th.where(is_last, rewards + penalty, rewards)


# Given: this is how hw.yml calls the losses
def grpo(steps):
    return ppo_loss(steps.log_ratio, steps.advantages, steps.clip_low)


def dapo(steps):
    return dapo_loss(steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)
