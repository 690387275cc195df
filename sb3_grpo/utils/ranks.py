"""
One training in several processes, its ranks, which ``torchrun`` starts.

Each rank plays some of the groups. Before an update is judged, all ranks get the steps of all: from there on they do the
same with the same random numbers, and stay equal to the last bit. Without ``torchrun``, there is one rank.
"""

import atexit
import functools
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch as th
from torch import distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")

# Parameters of a network from which on ranks share the steps of a minibatch
MIN_SHARED = 2**19


class RolloutStopped(Exception):
    """
    Another rank has stopped the rollout.

    :param value: What it says
    """

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


class RankLost(SystemExit):
    """Another rank has ended, and has said why: no traceback of this one is of use."""


def n_ranks() -> int:
    """
    :return: Number of processes of this training
    """
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """
    :return: The number of this process, from 0. Rank 0 logs, calls callbacks, evaluates and saves
    """
    return int(os.environ["RANK"]) if n_ranks() > 1 else 0


def share(total: int, first: int = 0) -> int:
    """
    :param total: A number of groups
    :param first: The first of the ranks that get one more, if they cannot be shared equally
    :return: How many of them are this rank's
    """
    return total // n_ranks() + ((rank() - first) % n_ranks() < total % n_ranks())


def own_copies(n_envs: int, seed: int | None) -> tuple[int, int | None]:
    """
    :param n_envs: Number of environment copies
    :param seed: Seed of the first copy
    :return: How many of them this rank plays, and the seed of its first copy
    :raises ValueError: if ranks cannot play equally many
    """
    n_here, rest = divmod(n_envs, n_ranks())
    if rest:
        enough = (n_here + 1) * n_ranks()
        raise ValueError(f"{n_ranks()} processes cannot share {n_envs} copies equally: give n_envs={enough}, for example.")
    return n_here, None if seed is None else seed + rank() * n_here


def choose_gpu() -> None:
    """Make the GPU of this rank the current one."""
    if n_ranks() > 1 and th.cuda.is_available():
        th.cuda.set_device(int(os.environ["LOCAL_RANK"]) % th.cuda.device_count())


def _connect() -> None:
    if not dist.is_initialized():
        one_each = th.cuda.is_available() and th.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        store, number, size = next(rendezvous("env://"))
        # torchrun --standalone keeps the addresses of the processes that it restarts
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
        backend = "cpu:gloo,cuda:nccl" if one_each else "gloo"
        # One that ends is noticed at once; others may have to wait for an evaluation of the first
        dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=timedelta(hours=12))
        # Otherwise, its threads may abort the process as it ends
        atexit.register(dist.destroy_process_group)


@contextmanager
def _others() -> Iterator[None]:
    try:
        _connect()
        yield
    except RuntimeError as error:  # its connections are closed
        why = str(error).splitlines()[0]
        raise RankLost(f"Rank {rank()} ends, because another rank has ended: see what that one says. ({why})") from error


def gather(value: T, stop: bool = False) -> list[T]:
    """
    Exchange values. Must be called by all ranks.

    :param value: Value of this rank, which can be pickled. Tensors of a GPU arrive on the receiver's
    :param stop: Stop the rollout of all ranks, whatever they are about to exchange
    :return: The values of all ranks, in their order
    :raises RolloutStopped: if another rank stops the rollout
    :raises RankLost: if a rank has ended
    """
    if n_ranks() == 1:
        return [value]
    file, parts = io.BytesIO(), [b""] * n_ranks()
    th.save((stop, value), file)
    with _others():
        dist.all_gather_object(parts, file.getvalue())
    place = lambda storage, where: storage if where == "cpu" else storage.cuda()  # noqa: E731
    if stop:
        return []
    received: list[tuple[bool, T]] = [th.load(io.BytesIO(each), place, weights_only=False) for each in parts]
    for stops, said in received:
        if stops:
            raise RolloutStopped(said)
    return [each for _, each in received]


def share_parameters(network: nn.Module) -> None:
    """
    :param network: A network, which gets the parameters of rank 0
    """
    if n_ranks() == 1:
        return
    state = network.state_dict()
    with _others():
        for values in state.values():
            dist.broadcast(values, 0)
    network.load_state_dict(state)


def same_random_numbers(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """
    :param method: A method of an algorithm
    :return: The same method, in which all ranks, which play with different ones, use the same random numbers of PyTorch
    """

    @functools.wraps(method)
    def run(self: Any) -> None:
        if n_ranks() == 1:
            return method(self)
        with th.random.fork_rng([th.cuda.current_device()] if th.cuda.is_initialized() else []):
            th.manual_seed(int(np.random.SeedSequence([self.seed or 0, self.num_timesteps]).generate_state(1)[0]))
            method(self)

    return run


def shares_steps(policy: Any) -> bool:
    """
    :param policy: A policy
    :return: Whether ranks share the steps of a minibatch. For small networks, the message takes longer than the steps
    """
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in policy.modules()):
        return False  # its statistics would be those of a share
    return policy.reads_images or policy.reads_texts or sum(each.numel() for each in policy.parameters()) >= MIN_SHARED


def sum_gradients(network: nn.Module, stats: list[dict[str, th.Tensor]]) -> list[dict[str, th.Tensor]]:
    """
    Add up the gradients that the ranks have computed from their shares of minibatches, in one message.

    :param network: The network, whose gradients become the sums
    :param stats: Statistics of each minibatch: sums over its steps, and ``ratio_max``, a maximum
    :return: Those of the whole minibatches
    """
    learned = [each for each in network.parameters() if each.requires_grad]
    gradients = [th.zeros_like(each) if each.grad is None else each.grad for each in learned]
    numbers = th.stack([th.stack([*each.values()]) for each in stats])
    # A column for each rank: their sum holds the maxima of all
    maxima = numbers.new_zeros(len(stats), n_ranks())
    maxima[:, rank()] = th.stack([each["ratio_max"] for each in stats])
    parts = [*gradients, numbers, maxima]
    flat = th.cat([each.flatten() for each in parts])
    with _others():
        dist.all_reduce(flat)
    sums = [each.view_as(part) for each, part in zip(flat.split([each.numel() for each in parts]), parts, strict=True)]
    for parameter, gradient in zip(learned, sums, strict=False):
        parameter.grad = gradient.to(parameter.dtype)
    *_, numbers, maxima = sums
    largest = [{"ratio_max": each.max()} for each in maxima]
    return [dict(zip(each, row, strict=True)) | most for each, row, most in zip(stats, numbers, largest, strict=True)]
