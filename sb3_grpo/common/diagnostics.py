"""Why an update was skipped, and why a step of the optimizer was refused."""

from collections.abc import Iterable
from typing import Any

import torch as th
from torch import nn

# Give up after this many refused steps in a row
MAX_REFUSED_STEPS = 10

# In the order of computation
_PARTS = {
    "ratio_max": "the ratio of the new to the old probability of an action",
    "entropy_loss": "the entropy of the policy",
    "kl_ref": "the KL divergence from the reference policy",
    "policy_gradient_loss": "the policy loss",
    "loss": "the loss",
}


def what_broke(
    advantages: th.Tensor, stats: list[dict[str, th.Tensor]], parameters: Iterable[tuple[str, nn.Parameter]]
) -> str:
    """
    Find the first quantity that was not finite, from the advantages to the gradient.

    :param advantages: (N,) advantages of the update
    :param stats: Statistics of the minibatches of an optimizer step
    :param parameters: Parameters of the policy, with their names and gradients
    :return: A description of it
    """
    broken = advantages[~th.isfinite(advantages)]
    if len(broken):
        return f"{len(broken)} of {len(advantages)} advantages are not finite ({broken[0].item()})"
    for key, name in _PARTS.items():
        for values in stats:
            if key in values and not th.isfinite(values[key]):
                return f"{name} is {values[key].item()}"
    for name, parameter in parameters:
        if parameter.grad is not None and not th.isfinite(parameter.grad).all():
            return f"the gradient of {name} is not finite"
    return "the norm of the gradient is too large for its type"


def refused_step_message(
    advantages: th.Tensor, stats: list[dict[str, th.Tensor]], policy: nn.Module, num_timesteps: int
) -> str:
    """
    :param advantages: (N,) advantages of the update
    :param stats: Statistics of the minibatches of the optimizer step
    :param policy: The policy, with its gradients
    :param num_timesteps: Number of steps of the training
    :return: Why the optimizer step was refused, and what may help
    """
    return (
        f"at {num_timesteps} steps: {what_broke(advantages, stats, policy.named_parameters())}. The policy is as it was "
        "before. A smaller learning_rate, a target_kl or policy_kwargs=dict(normalize_observations=True) may help."
    )


def dead_groups_message(model: Any) -> str:
    """
    :param model: The algorithm
    :return: Why an update had nothing to learn from
    """
    if model.n_steps is not None:
        return f"no step differed from the others of its group{_why_alike(model.batch)}."
    low, high = model._outcome_range
    outcome = f"outcome ({low:g})" if low == high else f"outcome (from {low:g} in one to {high:g} in another)"
    warm_start = "a warm start on worked examples (model.policy.pretrain([(prompt, answer), ...]) before learn), "
    return (
        f"in each of the groups drawn in {model._sampling_rounds} rounds all members had the same {outcome}. "
        "group/dead_fraction shows how often it happens. If it stays at 1, the task is solved, or no member ever "
        f"succeeds: {warm_start if model.policy.reads_texts else ''}more exploration (ent_coef), a larger group_size "
        "or a denser reward may help."
    )


def _why_alike(batch: Any) -> str:
    """
    :param batch: Steps of an update, which all have the same advantage
    :return: Why
    """
    rewards = batch.flatten(batch.rewards)
    more = "more exploration (ent_coef) or a denser reward"
    if rewards.min() != rewards.max():
        return f". The task is solved, or needs a larger n_steps, {more}"
    same = f": all rewards are {rewards[0].item():g}"
    has_steps = batch.lengths > 0
    if len(batch.unfinished) == has_steps.sum() and not batch.truncated[has_steps].any():
        n_steps = int(batch.lengths.max())
        return f"{same}, and no episode has ended in these {n_steps} steps of each copy. It takes a larger n_steps, {more}"
    return f"{same}, and no episode ended otherwise than the rest. The task is solved if that is the best, or needs {more}"
