"""Adam as policies use it, and the last layer before it has learned anything."""

import inspect
from typing import Any

import torch as th


class Adam(th.optim.Adam):
    """
    ``torch.optim.Adam`` with the same results, but without its wrappers for ``torch.compile``: they import the compiler at
    their first call, which takes 70 MiB of memory and a second per process.
    """

    step = th.no_grad()(inspect.unwrap(th.optim.Adam.step))
    zero_grad = inspect.unwrap(th.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(th.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(th.optim.Adam.load_state_dict)
    add_param_group = inspect.unwrap(th.optim.Adam.add_param_group)


def fuse_adam(optimizer: th.optim.Optimizer) -> None:
    """
    Let Adam update all parameters in one operation, which makes training of small networks 3 to 5% faster, unless
    ``optimizer_kwargs`` chooses an implementation (``dict(fused=False)``) or the parameters are not suited to it.

    :param optimizer: Optimizer of a policy that is already on its device
    """
    if type(optimizer) not in (Adam, th.optim.Adam, th.optim.AdamW):
        return
    for group in optimizer.param_groups:
        said = group["fused"] is not None or group["foreach"] is not None or group["differentiable"]
        # A non-contiguous view into a larger tensor would be updated wrongly, without an error
        suited = [p.is_floating_point() and p.is_contiguous() and p.device.type in ("cpu", "cuda") for p in group["params"]]
        if all(suited) and not said:
            group["fused"] = True


def draw_head(head: Any) -> None:
    """
    Draw the weights of a last layer anew, with gain 1. SB3 draws them with gain 0.01, so a new policy takes each action
    independently of the state, with equal probabilities: a random walk, which hardly gets anywhere.

    :param head: Last layer of a policy. It stays as it is if it has learned anything: its bias is zero until then
    """
    bias = getattr(head, "bias", None)
    if bias is not None and not bias.any():
        th.nn.init.orthogonal_(head.weight)
