"""Moving data between host and device, and the threads of the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch as th
from torch import nn

# PyTorch's own number of threads, which is the number at import unless an environment variable has set it
_DEFAULT_THREADS = None if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys() else th.get_num_threads()
# Multiplications of a layer up to which one thread is best. Two threads on two idle cores took 0.6 to 1.4 times as long,
# depending on the network. Where other work shares the cores, they wait for each other, and it is 2 to 400 times
_MAX_SMALL = 2**26
# Entries of the largest parameter of each network
_largest: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


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


@contextmanager
def suitable_threads(network: nn.Module, n_rows: int) -> Iterator[None]:
    """
    Compute with one thread of PyTorch if the network is small and on the CPU, unless the user has set the number of threads.

    :param network: The network
    :param n_rows: Number of rows that it processes at once
    """
    # Within the with block of another network, nothing is left to do
    if network not in _largest:
        # On a GPU, the threads of the CPU are left alone
        _largest[network] = max(each.numel() if each.is_cpu else _MAX_SMALL + 1 for each in network.parameters())
    if th.get_num_threads() != _DEFAULT_THREADS or n_rows * _largest[network] > _MAX_SMALL:
        yield
        return
    try:
        th.set_num_threads(1)
        yield
    finally:
        if th.get_num_threads() == 1:  # a callback may have set it
            th.set_num_threads(_DEFAULT_THREADS)
