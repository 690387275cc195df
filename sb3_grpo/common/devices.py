"""Moving data between host and device, and writing parameters there."""

import numpy as np
import torch as th


def to_device(array: np.ndarray, device: th.device) -> th.Tensor:
    """
    :param array: On the host
    :param device: PyTorch device
    :return: A tensor there. A GPU takes it from pinned memory while the host goes on; without that, the host would wait for
        everything that the GPU has still to do
    """
    tensor = th.as_tensor(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def fuse_adam(optimizer: th.optim.Optimizer) -> None:
    """
    Let Adam write all parameters in one operation, which takes a seventh off the updates of small networks, unless somebody
    has said how it is to write them (``optimizer_kwargs=dict(fused=False)``), or they are not of the kind that this is for.

    :param optimizer: Of a policy that is on its device already
    """
    if type(optimizer) not in (th.optim.Adam, th.optim.AdamW):
        return
    for group in optimizer.param_groups:
        said = group["fused"] is not None or group["foreach"] is not None or group["differentiable"]
        if not said and all(_can_be_fused(each) for each in group["params"]):
            group["fused"] = True


def _can_be_fused(parameter: th.Tensor) -> bool:
    # A view into a larger tensor would be updated wrongly, without an error
    return parameter.is_floating_point() and parameter.is_contiguous() and parameter.device.type in ("cpu", "cuda")
