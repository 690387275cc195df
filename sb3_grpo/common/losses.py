"""
Policy losses and the weights that sum them up. Steps are flat: N steps, each with the index of its episode.

The loss of a batch is ``(weights * losses).sum()``. The weights are computed once for the whole batch, so it does not matter
how it is then cut into minibatches: the sums over the pieces add up to the sum over the whole, and so do the gradients.

References: [PPO] arXiv:1707.06347, [DeepSeekMath] arXiv:2402.03300, [DAPO] arXiv:2503.14476, [Dr. GRPO] arXiv:2503.20783,
[GSPO] arXiv:2507.18071.
"""

from collections.abc import Callable

import torch as th

from sb3_grpo.utils.plugins import check_tensor, name_of

LOSS_WEIGHTS = ("episode", "step", "constant")
# Weighs steps; see :func:`step_weights` for the arguments
WeightFunction = Callable[..., th.Tensor]


def clipped_surrogate(log_ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float) -> th.Tensor:
    """
    Clipped surrogate ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``, [PPO] eq. 7, [DAPO] eq. 8.

    The minimum is the pessimistic of the two for either sign of A: the gradient vanishes where the policy has already moved
    far enough in the wanted direction (A > 0 and r > 1 + clip_high, A < 0 and r < 1 - clip_low) and is whole elsewhere.

    :param log_ratio: (N,), log of r, the probability of the action now over that at the time of sampling
    :param advantages: (N,)
    :param clip_low: how far the ratio may fall below 1
    :param clip_high: how far the ratio may rise above 1
    :return: (N,) loss of each step, to minimise
    """
    ratio = log_ratio.exp()
    return -th.min(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


PolicyLoss = Callable[[th.Tensor, th.Tensor, float, float], th.Tensor]

POLICY_LOSSES: dict[str, PolicyLoss] = {"clip": clipped_surrogate}


def policy_losses(
    policy_loss: str | PolicyLoss, log_ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float
) -> th.Tensor:
    """
    The loss of each step by the name of a function of this module, or by another function with the same signature.

    :param policy_loss: "clip": :func:`clipped_surrogate`; or a function
    :param log_ratio: (N,)
    :param advantages: (N,)
    :param clip_low: how far the ratio may fall below 1
    :param clip_high: how far the ratio may rise above 1
    :return: (N,) loss of each step, to minimise
    :raises ValueError: a function that does not return finite values of this shape
    """
    if isinstance(policy_loss, str):
        return POLICY_LOSSES[policy_loss](log_ratio, advantages, clip_low, clip_high)
    losses = policy_loss(log_ratio, advantages, clip_low, clip_high)
    return check_tensor(
        f"{name_of(policy_loss)}, given as policy_loss,", losses, advantages.shape, "(N,), an entry for each step"
    )


def cut_off(ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float) -> tuple[th.Tensor, th.Tensor]:
    """
    Which steps have their gradient cut off, below (A < 0, r < 1 - clip_low) and above (A > 0, r > 1 + clip_high).

    :param ratio: (N,)
    :param advantages: (N,)
    :param clip_low: as in :func:`clipped_surrogate`
    :param clip_high: as in :func:`clipped_surrogate`
    :return: (N,) bool each, cut off below, cut off above
    """
    return (advantages < 0) & (ratio < 1.0 - clip_low), (advantages > 0) & (ratio > 1.0 + clip_high)


def clip_fractions(
    ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float, weights: th.Tensor
) -> tuple[th.Tensor, th.Tensor]:
    """
    Fractions of the steps whose gradient is cut off, below and above, see :func:`cut_off`.

    Unlike the fraction of ratios outside of the interval, this leaves out those on the side where clipping does nothing.

    :param ratio: (N,)
    :param advantages: (N,)
    :param clip_low: as in :func:`clipped_surrogate`
    :param clip_high: as in :func:`clipped_surrogate`
    :param weights: (N,), a mask or the weights of the steps; both fractions are of their sum
    :return: fraction cut off below, fraction cut off above: scalars on the device, 0 if no step has weight
    """
    weights = weights.to(ratio.dtype)
    total = weights.sum().clamp(min=th.finfo(ratio.dtype).tiny)
    below, above = cut_off(ratio, advantages, clip_low, clip_high)
    return (weights * below).sum() / total, (weights * above).sum() / total


def episode_log_ratio(log_ratio: th.Tensor, episode: th.Tensor, n_episodes: int) -> th.Tensor:
    """
    Log of the sequence-level ratio, [GSPO] eq. 7: mean of the log ratios of an episode, given to each of its steps.

    The mean is over the steps that are passed in, which have to be whole episodes.

    :param log_ratio: (N,)
    :param episode: (N,) long, index of the episode of each step, below ``n_episodes``
    :param n_episodes: number of episodes (given, as counting them would wait for the device)
    :return: (N,)
    """
    zeros = log_ratio.new_zeros(n_episodes)
    lengths = zeros.index_add(0, episode, th.ones_like(log_ratio))
    return (zeros.index_add(0, episode, log_ratio) / lengths.clamp(min=1.0))[episode]


def step_weights(
    episode: th.Tensor,
    n_episodes: int,
    mode: str | WeightFunction,
    kept: th.Tensor | None = None,
    constant_length: float | None = None,
) -> th.Tensor:
    """
    Weight of each step in the loss of the whole batch.

    - "episode", [DeepSeekMath] eq. 3: mean over the steps of an episode, then over episodes. All episodes count the same.
    - "step", [DAPO] eq. 8: mean over all steps. All steps count the same, long episodes more.
    - "constant", [Dr. GRPO]: sum over the steps of an episode over a constant, then mean over episodes.

    A step that is not kept counts neither above nor below the fraction line; an episode counts while one of its steps is
    kept. Episodes without advantage (dead groups) are counted: leave them out of the batch, or of ``kept``, if unwanted.

    :param episode: (N,) long, index of the episode of each step, below ``n_episodes``
    :param n_episodes: number of episodes (given, as counting them would wait for the device)
    :param mode: "episode", "step" or "constant"; or a function that is called with ``episode`` and ``n_episodes``, and with
        ``kept`` and ``constant_length`` by name
    :param kept: (N,) bool, False at the steps to leave out (overlong filtering); default: all are kept
    :param constant_length: for "constant": what the sum over an episode is divided by, in steps
    :return: (N,) non-negative weights, all 0 if no step is kept
    :raises ValueError: unknown ``mode``, shapes that differ, "constant" without a positive ``constant_length``, a function
        that does not return finite values of this shape
    """
    if not isinstance(mode, str):
        weights = mode(episode, n_episodes, kept=kept, constant_length=constant_length)
        wanted = "(N,), the weight of each step"
        return check_tensor(f"{name_of(mode)}, given as loss_average,", weights, episode.shape, wanted)
    if mode not in LOSS_WEIGHTS:
        raise ValueError(f"Unknown loss weights {mode!r}, must be one of {', '.join(LOSS_WEIGHTS)}")
    if kept is not None and kept.shape != episode.shape:
        raise ValueError(f"kept and episode must have the same shape, got {tuple(kept.shape)} and {tuple(episode.shape)}")
    one = th.ones_like(episode, dtype=th.get_default_dtype()) if kept is None else kept.to(th.get_default_dtype())
    if mode == "step":
        return one / one.sum().clamp(min=1.0)
    lengths = one.new_zeros(n_episodes).index_add(0, episode, one)
    n_kept = (lengths > 0).sum().clamp(min=1)
    if mode == "episode":
        return one / (lengths.clamp(min=1.0)[episode] * n_kept)
    if constant_length is None or constant_length <= 0:
        raise ValueError(f'"constant" loss weights need a positive constant_length, got {constant_length}')
    return one / (n_kept * constant_length)
