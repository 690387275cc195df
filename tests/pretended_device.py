"""
A device for machines without a GPU. It computes on the CPU, but like a GPU it refuses operations on tensors of both, and NumPy
cannot read it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch as th
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

# The only device without hardware that PyTorch computes gradients on
NAME = "meta"
BETWEEN_DEVICES = (th.ops.aten._to_copy.default, th.ops.aten.copy_.default)


class Elsewhere(th.Tensor):
    """
    A tensor on the pretended device.

    :param values: Its values, on the CPU
    """

    values: th.Tensor

    def __new__(cls, values: th.Tensor) -> "Elsewhere":
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = th.Tensor._make_wrapper_subclass(cls, values.shape, device=NAME, **layout)
        tensor.values = values
        return tensor

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.cpu().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{func} outside of the mode")


class Dispatch(TorchDispatchMode):
    """Computes on the pretended device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, th.Tensor)]
        there = [each for each in tensors if isinstance(each, Elsewhere)]
        # As on a GPU, a single number may come from the CPU
        if there and func not in BETWEEN_DEVICES and any(each.ndim > 0 for each in tensors if not isinstance(each, Elsewhere)):
            described = [(type(each).__name__, tuple(each.shape)) for each in tensors]
            raise RuntimeError(f"{func} got tensors on two devices: {described}")
        device = kwargs.get("device")
        goes_there = bool(there) if device is None else device.type == NAME
        here = {**kwargs, "device": th.device("cpu")} if goes_there and device is not None else kwargs
        args_here, here = tree_map(lambda each: each.values if isinstance(each, Elsewhere) else each, (args, here))
        result = func(*args_here, **here)
        if goes_there:
            result = tree_map(lambda each: Elsewhere(each) if isinstance(each, th.Tensor) else each, result)
        return return_and_correct_aliasing(func, args, kwargs, result) if there else result


@contextmanager
def pretended_device() -> Iterator[None]:
    """PyTorch has the pretended device within this context, under the name of ``NAME``."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tensor", "as_tensor"):
            # They would make an empty tensor out of a list
            make = getattr(th, name)
            patch.setattr(th, name, lambda *args, make=make, device=None, **kwargs: make(*args, **kwargs).to(device))
        # Neither knows this device
        patch.setattr(th, "autocast", lambda *args, **kwargs: nullcontext())
        patch.setattr(th._C, "_InferenceMode", lambda mode: th.no_grad() if mode else nullcontext())
        th.__future__.set_swap_module_params_on_conversion(True)
        try:
            with Dispatch():
                yield
        finally:
            th.__future__.set_swap_module_params_on_conversion(False)
