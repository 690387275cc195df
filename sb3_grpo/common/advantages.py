"""
Group-relative advantages: each episode is compared with the episodes that started from the same state.

Shapes: B groups of G members, the longest episode has T steps. ``rewards`` and ``mask`` are (B, G, T), and ``mask`` is True
for the steps that exist (``t < length``). Advantages are (B, G, T), 0 where ``mask`` is False. Padding values of ``rewards``
are ignored. References: [DeepSeekMath] arXiv:2402.03300, [DAPO] arXiv:2503.14476, [Dr. GRPO] arXiv:2503.20783,
[MaxRL] arXiv:2602.02710.
"""

from collections.abc import Callable
from typing import Any

import torch as th

from sb3_grpo.utils.plugins import check_tensor, name_of

SCALES = ("group", "batch", "none")


def discounted_returns_to_go(rewards: th.Tensor, mask: th.Tensor, gamma: float) -> th.Tensor:
    """
    Discounted return from each step on, ``sum_{k >= t} gamma^(k - t) r_k``, in log2(T) tensor operations.

    After the pass with stride s, entry t holds the discounted sum of the 2s rewards from t on. There is no division by powers
    of gamma, so long episodes do not overflow, and pairwise summation keeps the rounding error of order log2(T).

    :param rewards: (B, G, T)
    :param mask: (B, G, T), True for existing steps
    :param gamma: discount factor in [0, 1]
    :return: (B, G, T), 0 where ``mask`` is False
    :raises ValueError: if gamma is outside [0, 1]
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    returns = th.where(mask, rewards, 0.0)
    stride = 1
    while stride < returns.shape[-1]:
        # The right-hand side is a new tensor: no entry is read after it was updated
        returns[..., :-stride] += gamma**stride * returns[..., stride:]
        stride *= 2
    return returns


def _deviations(values: th.Tensor, mask: th.Tensor, dim: int | tuple[int, int]) -> th.Tensor:
    """``values`` minus their mean over ``dim`` where ``mask`` is True; exactly 0 (no rounding) where they are all equal."""
    mean = th.where(mask, values, 0.0).sum(dim, keepdim=True) / mask.sum(dim, keepdim=True).clamp(min=1)
    lowest = th.where(mask, values, th.inf).amin(dim, keepdim=True)
    highest = th.where(mask, values, -th.inf).amax(dim, keepdim=True)
    return th.where(mask & (lowest < highest), values - mean, 0.0)


def scale_advantages(
    advantages: th.Tensor, deviations: th.Tensor, mask: th.Tensor, scale: str, eps: float = 1e-8
) -> th.Tensor:
    """
    Divide by the sample standard deviation of the group ([DeepSeekMath] sec. 4.1.2), of the batch, or not at all ([Dr. GRPO]).

    The standard deviation is computed from ``deviations``: with (B, G) outcomes, an episode counts once regardless of its
    length; with (B, G, T), once per step. Deviations sum to 0 within a group, so "batch" measures the spread around the group
    means, and differences between starts have no effect. Dead groups count in it, with deviations of 0.

    :param advantages: (B, G) or (B, G, T)
    :param deviations: same shape, deviations from the plain mean (leave-one-out deviations are larger), 0 where masked
    :param mask: same shape, True for existing entries
    :param scale: "group", "batch" or "none"
    :param eps: added to the standard deviation
    :return: same shape
    :raises ValueError: if ``scale`` is unknown
    """
    if scale not in SCALES:
        raise ValueError(f"Unknown scale {scale!r}, must be one of {', '.join(SCALES)}")
    if scale == "none":
        return advantages
    dims = tuple(range(0 if scale == "batch" else 1, advantages.ndim))
    variance = deviations.square().sum(dims, keepdim=True) / (mask.sum(dims, keepdim=True) - 1).clamp(min=1)
    return advantages / (variance.sqrt() + eps)


def outcome_advantages(
    rewards: th.Tensor, mask: th.Tensor, gamma: float, leave_one_out: bool, scale: str, eps: float
) -> th.Tensor:
    """
    Outcome supervision, [DeepSeekMath] sec. 4.1.2: ``(R_i - mean(R)) / std(R)``, shared by all steps of episode i.

    R_i is the return from the first step (gamma = 1: the papers' outcome). Leave-one-out takes the mean over the other
    members, which is equivalent to multiplying by G / (G - 1); the standard deviation is still over all members. See
    :func:`group_advantages` for parameters, return value and errors.
    """
    outcomes, everyone = discounted_returns_to_go(rewards, mask, gamma)[..., 0], mask[..., 0]
    advantages = deviations = _deviations(outcomes, everyone, dim=1)
    if leave_one_out:
        advantages = deviations * (outcomes.shape[1] / (outcomes.shape[1] - 1))
    advantages = scale_advantages(advantages, deviations, everyone, scale, eps)
    return th.where(mask, advantages.unsqueeze(-1), 0.0)


def _without_own_steps(deviations: th.Tensor, mask: th.Tensor) -> th.Tensor:
    """
    :param deviations: (B, G, T) deviations from the mean over all steps of all members, 0 where ``mask`` is False
    :param mask: (B, G, T)
    :return: (B, G, T) deviations from the mean over the steps of the other members
    """
    # They sum to 0, so the mean over the others is minus the member's own sum divided by their count
    n_others = mask.sum((1, 2), keepdim=True) - mask.sum(2, keepdim=True)
    return deviations + deviations.sum(2, keepdim=True) / n_others.clamp(min=1)


def process_advantages(
    rewards: th.Tensor, mask: th.Tensor, gamma: float, leave_one_out: bool, scale: str, eps: float
) -> th.Tensor:
    """
    Process supervision, [DeepSeekMath] sec. 4.1.3: rewards are normalised, then summed from each step on.

    Mean and standard deviation are over all steps of all members, so a constant reward per step (such as 1 for each step
    survived) carries no signal here, regardless of the episode lengths. gamma = 1 gives the paper's sum. Leave-one-out takes
    the mean over the steps of the other members. See :func:`group_advantages` for parameters, return value and errors.
    """
    normalised = deviations = _deviations(rewards, mask, dim=(1, 2))
    if leave_one_out:
        normalised = _without_own_steps(deviations, mask)
    normalised = scale_advantages(normalised, deviations, mask, scale, eps)
    return discounted_returns_to_go(normalised, mask, gamma)


def return_to_go_advantages(
    rewards: th.Tensor, mask: th.Tensor, gamma: float, leave_one_out: bool, scale: str, eps: float
) -> th.Tensor:
    """
    Return from step t on, minus its mean at the same t over the members that are still alive at t.

    The baseline depends on time only, not on the state that a member has reached by then. Members that have ended
    are excluded rather than counted as 0, so surviving is not rewarded at late steps, only (through the larger return)
    at early ones; the last member alive gets 0. With n members alive, the expected gradient of a step is (n - 1) / n
    of the unbiased one (all of it with leave-one-out, if n > 1): late steps of long episodes weigh less. When scaling,
    the standard deviation is over all existing steps of the group. See :func:`group_advantages` for parameters, return
    value and errors.
    """
    advantages = deviations = _deviations(discounted_returns_to_go(rewards, mask, gamma), mask, dim=1)
    if leave_one_out:
        n_alive = mask.sum(1, keepdim=True)
        advantages = deviations * (n_alive / (n_alive - 1).clamp(min=1))
    return scale_advantages(advantages, deviations, mask, scale, eps)


def maxrl_advantages(
    rewards: th.Tensor, mask: th.Tensor, gamma: float, leave_one_out: bool, scale: str, eps: float
) -> th.Tensor:
    """
    [MaxRL]: ``(R_i - mean(R)) / mean(R)``, shared by all steps of episode i. Where R is 0 or 1, the rarer a success the more
    it counts: in the mean, this is the gradient of the log of the probability of success, as a series of G terms.

    ``scale`` has no effect. See :func:`group_advantages` for parameters, return value and errors.

    :raises ValueError: if the mean of a group is not positive, unless all members are equal
    """
    mean = discounted_returns_to_go(rewards, mask, gamma)[..., 0].mean(1, keepdim=True)
    deviations = outcome_advantages(rewards, mask, gamma, leave_one_out, "none", eps)
    refused = (mean <= 0.0) & deviations[..., 0].any(1, keepdim=True)
    if refused.any():
        raise ValueError(
            f'advantage="maxrl" divides by the mean return of each group, and one has {mean[refused][0].item():g}: it is for '
            "rewards that are not negative, such as 0 and 1."
        )
    return th.where(mean > 0.0, 1.0 / mean, 0.0)[..., None] * deviations


def td_residuals(
    rewards: th.Tensor, values: th.Tensor, mask: th.Tensor, gamma: float, last_values: th.Tensor | None = None
) -> th.Tensor:
    """
    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, arXiv:1506.02438, eq. 10. Their sums discounted by ``gamma * lambda`` are
    the generalised advantage estimates (eq. 16); with lambda = 1, this is the return to go minus the value.

    After the last step of an episode, the value is 0 unless given by ``last_values``, even if a time limit truncated the
    episode: the values are fitted to returns that end there, too, and a larger value would look like a reward for the last
    steps.

    :param rewards: (B, G, T)
    :param values: (B, G, T) values of the states in which the actions were chosen
    :param mask: (B, G, T), True for existing steps
    :param gamma: discount factor in [0, 1]
    :param last_values: (B, G) values of the states after the last steps, 0 where the episode has ended
    :return: (B, G, T), 0 where ``mask`` is False
    """
    values = th.where(mask, values, 0.0)
    after = th.cat([values[..., 1:], th.zeros_like(values[..., :1])], dim=-1)
    if last_values is not None:
        is_last = mask & ~th.cat([mask[..., 1:], th.zeros_like(mask[..., :1])], dim=-1)
        after = th.where(is_last, last_values[..., None], after)
    return th.where(mask, rewards + gamma * after - values, 0.0)


def gae_advantages(
    rewards: th.Tensor, mask: th.Tensor, gamma: float, leave_one_out: bool, scale: str, eps: float
) -> th.Tensor:
    """
    Generalised advantage estimates (arXiv:1506.02438, eq. 16) minus their mean over all steps of all members of the group.

    The ``rewards`` are :func:`td_residuals`, from which the part explained by state and time has already been removed;
    ``gamma`` is the product of the discount factor and lambda. What remains for the group mean to remove is what the members
    share through their start but no observation shows. One number per group is enough: the mean over the members alive at
    each step, as for returns to go, would leave the last one alive without any signal. Leave-one-out takes the mean over the
    steps of the other members. See :func:`group_advantages` for parameters, return value and errors.
    """
    advantages = deviations = _deviations(discounted_returns_to_go(rewards, mask, gamma), mask, dim=(1, 2))
    if leave_one_out:
        advantages = th.where(mask, _without_own_steps(deviations, mask), 0.0)
    return scale_advantages(advantages, deviations, mask, scale, eps)


# Estimates advantages from rewards and mask; see the functions of this module for the other arguments
AdvantageFunction = Callable[..., th.Tensor]

KINDS: dict[str, AdvantageFunction] = {
    "outcome": outcome_advantages,
    "process": process_advantages,
    "return_to_go": return_to_go_advantages,
    "gae": gae_advantages,
    "maxrl": maxrl_advantages,
}


def group_advantages(
    rewards: th.Tensor,
    mask: th.Tensor,
    *,
    kind: str | AdvantageFunction = "outcome",
    gamma: float = 1.0,
    leave_one_out: bool = False,
    scale: str = "group",
    eps: float = 1e-8,
) -> th.Tensor:
    """
    Compute the advantages of a batch of groups, after checking the input (once per rollout: the checks wait for the device).

    :param rewards: (B, G, T), floating point; for "gae", the :func:`td_residuals`
    :param mask: (B, G, T) bool, True for existing steps
    :param kind: "outcome", "process", "return_to_go", "gae" or "maxrl": see the function of that name. Or a function that is
        called like these, with all but ``rewards`` and ``mask`` as keyword arguments
    :param gamma: discount factor in [0, 1]
    :param leave_one_out: compute the baseline from the other members only
    :param scale: "group", "batch" or "none", see :func:`scale_advantages`
    :param eps: added to the standard deviation
    :return: (B, G, T), 0 where ``mask`` is False and, except with "gae", exactly 0 in groups whose members do not differ
    :raises ValueError: if the name is unknown, tensors are malformed, there are fewer than 2 members, an episode has no steps
        or a gap, a reward is not finite, or a function does not return finite values of this shape
    """
    if isinstance(kind, str) and kind not in KINDS:
        raise ValueError(f"Unknown kind of advantage {kind!r}, must be one of {', '.join(KINDS)}")
    if rewards.ndim != 3 or rewards.shape != mask.shape:
        raise ValueError(f"rewards and mask must both be (B, G, T), got {tuple(rewards.shape)} and {tuple(mask.shape)}")
    if not rewards.is_floating_point() or mask.dtype != th.bool:
        raise ValueError(f"rewards must be floating point and mask bool, got {rewards.dtype} and {mask.dtype}")
    if rewards.shape[1] < 2:
        raise ValueError(f"A group needs at least 2 members to compare, got {rewards.shape[1]}")
    has_steps = mask[..., :1].any(dim=-1)
    if (mask[..., 1:] & ~mask[..., :-1]).any() or not (has_steps.any(dim=1) if kind == "gae" else has_steps).all():
        raise ValueError(
            "mask must be True from the first to the last step of each episode, which has at least one step (with gae: one of "
            "the group has)"
        )
    if not th.where(mask, rewards, 0.0).isfinite().all():
        raise ValueError("rewards must be finite: one infinite or missing reward would poison its whole group")
    settings: dict[str, Any] = dict(gamma=gamma, leave_one_out=leave_one_out, scale=scale, eps=eps)
    if isinstance(kind, str):
        return KINDS[kind](rewards, mask, **settings)
    wanted = "(B, G, T), an entry for each step, as in rewards (one for each episode: values[..., None].expand_as(rewards))"
    return check_tensor(f"{name_of(kind)}, given as advantage,", kind(rewards, mask, **settings), mask.shape, wanted, mask)
