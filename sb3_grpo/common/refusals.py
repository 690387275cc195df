"""Steps of the optimizer that are refused, because they would spoil the policy."""

from collections.abc import Iterable

import torch as th
from torch import nn

# In a row. After that there is no hope
MAX_REFUSED_STEPS = 10

# In the order in which they are computed
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
    What was the first not to be finite, from the advantages to the gradient.

    :param advantages: (N,) of the update
    :param stats: Of the minibatches of a step of the optimizer
    :param parameters: Of the policy, with their names and gradients
    :return: It in words
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
