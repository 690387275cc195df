"""
Policy losses and the weights with which they are summed. Steps are flat: N steps, each with the index of its episode.

The loss of a batch is ``(weights * losses).sum()``. The weights are computed once for the whole batch, so it does not matter
how it is then split into minibatches: their sums add up to the sum over the whole batch, and so do the gradients.

References: [PPO] arXiv:1707.06347, [DeepSeekMath] arXiv:2402.03300, [DAPO] arXiv:2503.14476, [Dr. GRPO] arXiv:2503.20783,
[GSPO] arXiv:2507.18071, [MiniMax-M1] arXiv:2506.13585, [SAPO] arXiv:2511.20347, [TPO] arXiv:2604.06159; DPPO as in verl,
SkyRL and prime-rl.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch as th

from sb3_grpo.utils.plugins import check_tensor, name_of

LOSS_WEIGHTS = ("episode", "step")
# Weights the steps; see :func:`step_weights` for the arguments
WeightFunction = Callable[..., th.Tensor]


def clipped_surrogate(log_ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float) -> th.Tensor:
    """
    Clipped surrogate ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``, [PPO] eq. 7, [DAPO] eq. 8.

    The minimum is the pessimistic choice for either sign of A: the gradient vanishes where the policy has already moved
    far enough in the desired direction (A > 0 and r > 1 + clip_high, A < 0 and r < 1 - clip_low), and is unchanged elsewhere.

    :param log_ratio: (N,), log of r, the action's probability under the current policy over that at the time of sampling
    :param advantages: (N,)
    :param clip_low: how far the ratio may fall below 1
    :param clip_high: how far the ratio may rise above 1
    :return: (N,) loss of each step, to be minimised
    """
    ratio = log_ratio.exp()
    return -th.min(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


@dataclass(frozen=True)
class LossInputs:
    """
    What a policy loss may depend on: M steps of a minibatch.

    :param log_ratio: (M,) log of the action's probability under the current policy over that at the time of sampling; the
        mean over the episode with ``ratio_level="episode"``
    :param log_prob: (M,) log probability under the current policy, with its gradient
    :param old_log_prob: (M,) log probability at the time of sampling
    :param advantages: (M,)
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    :param entropy: (M,) entropy of the current policy, with its gradient; ``None`` without an analytical form
    :param episode: (M,) long, number of each step's episode in the whole batch
    :param group: (M,) long, number of each step's group in the whole batch
    :param outcomes: (M,) raw outcome of each step's episode
    """

    log_ratio: th.Tensor
    log_prob: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    clip_low: float
    clip_high: float
    entropy: th.Tensor | None
    episode: th.Tensor
    group: th.Tensor
    outcomes: th.Tensor


# Marks of steps by name, (M,) bool each, of which the fractions are logged
Marks = dict[str, th.Tensor]
# Returns the loss of each step; or this, and marks
PolicyLoss = Callable[[LossInputs], th.Tensor | tuple[th.Tensor, Marks]]


def clip(steps: LossInputs) -> tuple[th.Tensor, Marks]:
    """
    PPO's loss, see :func:`clipped_surrogate`.

    :param steps: M steps
    :return: (M,) loss of each step, to be minimised; which ones are cut off, see :func:`cut_off`
    """
    losses = clipped_surrogate(steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)
    below, above = cut_off(steps.log_ratio.detach().exp(), steps.advantages, steps.clip_low, steps.clip_high)
    return losses, {"clip_fraction_low": below, "clip_fraction_high": above}


def cispo(steps: LossInputs) -> tuple[th.Tensor, Marks]:
    """
    CISPO, [MiniMax-M1] sec. 3.1: REINFORCE with a clipped importance weight,
    ``-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi``. Unlike with :func:`clip`, every step keeps a gradient: its weight
    is bounded, not cut off. So the bounds are of another kind than PPO's 0.2: the paper has no lower one (``clip_low=1``),
    and TRL's ``epsilon_high=5`` is the largest ratio itself (``clip_high=4``).

    :param steps: M steps
    :return: (M,) loss of each step, to be minimised; which ones have their weight bounded, ``clip_fraction_high``
    """
    ratio = steps.log_ratio.detach().exp()
    weight = ratio.clamp(1.0 - steps.clip_low, 1.0 + steps.clip_high)
    return -weight * steps.advantages * steps.log_prob, {"clip_fraction_high": ratio > 1.0 + steps.clip_high}


def sapo(steps: LossInputs) -> th.Tensor:
    """
    [SAPO]: a soft gate in place of the clip, ``-A (4 / tau) sigmoid(tau (r - 1))``. Its slope over r is -A at r = 1 and falls
    smoothly on both sides, faster for negative advantages: tau is 1 if A > 0, otherwise 1.05. Clip ranges have no effect.

    :param steps: M steps
    :return: (M,) loss of each step, to be minimised
    """
    tau = th.where(steps.advantages > 0, 1.0, 1.05)
    return -steps.advantages * (4.0 / tau) * th.sigmoid(tau * (steps.log_ratio.exp() - 1.0))


def importance_sampling(steps: LossInputs) -> th.Tensor:
    """
    The policy gradient with an importance weight, ``-r A``, and nothing that bounds it: for one epoch, in which r stays close
    to 1. Clip ranges have no effect.

    :param steps: M steps
    :return: (M,) loss of each step, to be minimised
    """
    return -steps.log_ratio.exp() * steps.advantages


def dppo(steps: LossInputs) -> tuple[th.Tensor, Marks]:
    """
    DPPO: ``-r A``, cut off where the probability p of the action, not its ratio, has moved too far in the desired direction:
    A > 0 and p - p_old > clip_high, A < 0 and p - p_old < -clip_low (the binary total variation; with two actions the exact
    one). Rare actions may change by a large factor, frequent ones by little: the ratio allows the opposite. Densities of
    continuous actions are no probabilities.

    :param steps: M steps
    :return: (M,) loss of each step, to be minimised; which ones are cut off
    """
    moved = (steps.log_prob.exp() - steps.old_log_prob.exp()).detach()
    below = (steps.advantages < 0) & (moved < -steps.clip_low)
    above = (steps.advantages > 0) & (moved > steps.clip_high)
    losses = importance_sampling(steps).masked_fill(below | above, 0.0)
    return losses, {"clip_fraction_low": below, "clip_fraction_high": above}


def target_policy(steps: LossInputs) -> th.Tensor:
    """
    [TPO], eq. 4 and 5 with a temperature of 1: cross entropy to a target over the members of a group,
    ``q = softmax(log p_old + u)``, with the probability p of a whole episode and its standardised outcome u. The gradient with
    respect to the log probability of each of its steps is that of p, minus q: it vanishes where the target is reached, so
    nothing has to be clipped. Needs groups that are whole (``n_groups``, ``batch_size=None``). Groups of equal outcomes hold
    the policy where it is, so they should not be dropped (``dynamic_sampling=False``). Advantages and clip ranges have no
    effect.

    :param steps: The steps of whole groups
    :return: (M,) loss of each step, to be minimised: a surrogate with this gradient
    """
    episodes, of_step = steps.episode.unique(return_inverse=True)
    n_groups = len(steps.group.unique())

    def by_group(values: th.Tensor) -> th.Tensor:
        return values.new_zeros(len(episodes)).index_add(0, of_step, values.detach()).view(n_groups, -1)

    outcomes = by_group(steps.outcomes) / by_group(th.ones_like(steps.outcomes))
    standardised = (outcomes - outcomes.mean(1, keepdim=True)) / (outcomes.std(1, correction=0, keepdim=True) + 1e-8)
    target = (by_group(steps.old_log_prob) + standardised).softmax(1)
    gradient = by_group(steps.log_prob).softmax(1) - target
    return gradient.flatten()[of_step].to(steps.log_prob.dtype) * steps.log_prob


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": clip,
    "cispo": cispo,
    "dppo": dppo,
    "importance_sampling": importance_sampling,
    "sapo": sapo,
    "target_policy": target_policy,
}
# Losses of each step alone, which do not depend on the other steps of a minibatch
PER_STEP_LOSSES = POLICY_LOSSES.keys() - {"target_policy"}


def policy_losses(policy_loss: str | PolicyLoss, steps: LossInputs) -> tuple[th.Tensor, Marks]:
    """
    Compute the loss of each step.

    :param policy_loss: A key of ``POLICY_LOSSES``, or a function
    :param steps: M steps
    :return: (M,) loss of each step, to be minimised; the marks of steps, if there are any
    :raises ValueError: if the function does not return finite values of this shape, with a gradient
    """
    found = (POLICY_LOSSES[policy_loss] if isinstance(policy_loss, str) else policy_loss)(steps)
    losses, marks = found if isinstance(found, tuple) else (found, {})
    if isinstance(policy_loss, str):
        return losses, marks
    wanted = "(M,), an entry for each step"
    returns = f"{name_of(policy_loss)}, given as policy_loss,"
    losses = check_tensor(returns, losses, steps.advantages.shape, wanted)
    if steps.log_prob.requires_grad and not losses.requires_grad:
        raise ValueError(
            f"{returns} returned a tensor without a gradient, from which nothing is learned: compute it from steps.log_ratio "
            "or steps.log_prob, without detach(), NumPy or torch.no_grad()."
        )
    return losses, marks


def cut_off(ratio: th.Tensor, advantages: th.Tensor, clip_low: float, clip_high: float) -> tuple[th.Tensor, th.Tensor]:
    """
    Find the steps whose gradient is cut off, below (A < 0, r < 1 - clip_low) and above (A > 0, r > 1 + clip_high). Unlike
    ratios outside of the interval, they do not include those on the side where clipping has no effect.

    :param ratio: (N,)
    :param advantages: (N,)
    :param clip_low: as in :func:`clipped_surrogate`
    :param clip_high: as in :func:`clipped_surrogate`
    :return: two (N,) bool tensors: cut off below, cut off above
    """
    return (advantages < 0) & (ratio < 1.0 - clip_low), (advantages > 0) & (ratio > 1.0 + clip_high)


def weighted_fractions(marks: Marks, weights: th.Tensor, of_batch: th.Tensor) -> dict[str, th.Tensor]:
    """
    :param marks: (M,) bool by name, for the steps of a minibatch
    :param weights: (M,) their weights in the loss
    :param of_batch: (N,) the weights of all steps of the batch
    :return: By name, the fraction of the steps that are marked, whose mean over the minibatches is that of the batch: scalars
        on the device, 0 if all weights are 0
    """
    total = of_batch.sum().clamp(min=th.finfo(of_batch.dtype).tiny)
    return {name: (weights * marked).sum() / total for name, marked in marks.items()}


def episode_log_ratio(log_ratio: th.Tensor, episode: th.Tensor, n_episodes: int) -> th.Tensor:
    """
    Log of the sequence-level ratio, [GSPO] eq. 7: the mean log ratio of an episode, assigned to each of its steps.

    The mean is over the given steps, which have to be whole episodes.

    :param log_ratio: (N,)
    :param episode: (N,) long, index of the episode of each step, below ``n_episodes``
    :param n_episodes: number of episodes (passed in because counting them would wait for the device)
    :return: (N,)
    """
    zeros = log_ratio.new_zeros(n_episodes)
    lengths = zeros.index_add(0, episode, th.ones_like(log_ratio))
    return (zeros.index_add(0, episode, log_ratio) / lengths.clamp(min=1.0))[episode]


def step_weights(
    episode: th.Tensor,
    n_episodes: int,
    mode: str | float | WeightFunction,
    kept: th.Tensor | None = None,
) -> th.Tensor:
    """
    Weight of each step in the loss of the whole batch.

    - "episode", [DeepSeekMath] eq. 3: mean over the steps of an episode, then over episodes. All episodes count the same.
    - "step", [DAPO] eq. 8: mean over all steps. All steps count the same, so long episodes count more.
    - A number, [Dr. GRPO]: sum over the steps of an episode divided by this constant, then mean over episodes.

    A step that is not kept counts in neither the numerator nor the denominator; an episode counts if any of its steps is
    kept. Episodes without advantage (dead groups) count: exclude them from the batch, or from ``kept``, if this is unwanted.

    :param episode: (N,) long, index of the episode of each step, below ``n_episodes``
    :param n_episodes: number of episodes (passed in because counting them would wait for the device)
    :param mode: "episode", "step" or a number of steps; or a function that is called with ``episode`` and ``n_episodes``, and
        with ``kept`` as a keyword argument
    :param kept: (N,) bool, False for the steps to exclude (overlong filtering); default: all are kept
    :return: (N,) non-negative weights, all 0 if no step is kept
    :raises ValueError: if ``mode`` is unknown or a number that is not positive, shapes differ, or a function does not return
        finite values of this shape
    """
    if callable(mode):
        weights = mode(episode, n_episodes, kept=kept)
        wanted = "(N,), the weight of each step"
        return check_tensor(f"{name_of(mode)}, given as loss_average,", weights, episode.shape, wanted)
    if mode not in LOSS_WEIGHTS and (isinstance(mode, str) or mode <= 0):
        raise ValueError(f"Unknown loss weights {mode!r}, must be one of {', '.join(LOSS_WEIGHTS)}, or a positive number")
    if kept is not None and kept.shape != episode.shape:
        raise ValueError(f"kept and episode must have the same shape, got {tuple(kept.shape)} and {tuple(episode.shape)}")
    one = th.ones_like(episode, dtype=th.get_default_dtype()) if kept is None else kept.to(th.get_default_dtype())
    if mode == "step":
        return one / one.sum().clamp(min=1.0)
    lengths = one.new_zeros(n_episodes).index_add(0, episode, one)
    n_kept = (lengths > 0).sum().clamp(min=1)
    if mode == "episode":
        return one / (lengths.clamp(min=1.0)[episode] * n_kept)
    return one / (n_kept * float(mode))
