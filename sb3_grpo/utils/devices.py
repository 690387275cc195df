"""Moving data between host and device."""

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
