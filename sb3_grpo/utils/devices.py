"""Moving data between host and device."""

import numpy as np
import torch as th


def to_device(array: np.ndarray, device: th.device) -> th.Tensor:
    """
    :param array: Array on the host
    :param device: PyTorch device
    :return: A tensor on the device. It is copied to a GPU from pinned memory, so that the host does not have to wait until the
        GPU has finished all its pending work
    """
    tensor = th.as_tensor(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
