"""Optimizer steps that are refused because they would break the policy."""

from collections.abc import Iterable

import torch as th
from torch import nn

# Give up after this many in a row
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
