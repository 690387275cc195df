"""Moving data between host and device, and the threads of the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch as th
from torch import nn

_N_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# PyTorch's own number of threads: one for each core, or for each two that share one. Another number at import is the user's
_DEFAULT_THREADS = None if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys() else th.get_num_threads()
if _DEFAULT_THREADS not in (_N_CORES, _N_CORES // 2):
    _DEFAULT_THREADS = None
# Entries of the largest parameter, times rows, up to which one thread is best. Two threads on two idle cores took 0.6 to 1.4
# times as long, depending on the network. Where other work shares the cores, they wait for each other, for 2 to 400 times
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
    Compute with one thread of PyTorch if the network is small and on the CPU, unless the user has set another number of
    threads than PyTorch's own.

    :param network: The network
    :param n_rows: Number of rows that it processes at once
    """
    # Within the with block of another network, nothing is left to do
    if network not in _largest:
        # On a GPU, the threads of the CPU are left alone
        _largest[network] = max((each.numel() if each.is_cpu else _MAX_SMALL + 1 for each in network.parameters()), default=0)
    if th.get_num_threads() != _DEFAULT_THREADS or n_rows * _largest[network] > _MAX_SMALL:
        yield
        return
    try:
        th.set_num_threads(1)
        yield
    finally:
        if th.get_num_threads() == 1:  # a callback may have set it
            th.set_num_threads(_DEFAULT_THREADS)
