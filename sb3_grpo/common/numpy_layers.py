"""Layers of a network as plain functions: for a handful of rows, PyTorch spends most of its time on call overhead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from torch import nn

from sb3_grpo.common.normalization import CLIP, EPSILON, RunningNorm


def layers_of(module: nn.Module) -> list[nn.Module]:
    """
    :param module: A network
    :return: Its layers, to be called in this order
    """
    if type(module) is nn.Sequential and not has_hooks(module):
        return [layer for child in module for layer in layers_of(child)]
    return [module]


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def to_numpy_layer(layer: Callable[[Any], th.Tensor]) -> Callable[[np.ndarray], np.ndarray] | None:
    """
    Convert a layer to a function of NumPy arrays.

    :param layer: The layer
    :return: The function, which may overwrite its argument unless the layer is linear or normalises;
        ``None`` if there is no such function
    """
    if not isinstance(layer, nn.Module) or has_hooks(layer):
        return None
    if type(layer) is nn.Linear and layer.bias is not None:
        if layer.weight.device.type != "cpu" or layer.weight.dtype != th.float32:
            return None
        # Views, so they follow changes of the parameters
        weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()

        def linear(x: np.ndarray) -> np.ndarray:
            y = x @ weight
            y += bias
            return y

        return linear
    if type(layer) is RunningNorm:
        if layer.mean.device.type != "cpu":
            return None
        mean, scale = layer.mean.numpy(), (layer.var + EPSILON).rsqrt().numpy()

        def normalize(x: np.ndarray) -> np.ndarray:
            y = x - mean
            y *= scale
            return np.clip(y, -CLIP, CLIP, out=y)

        return normalize
    if type(layer) is nn.Tanh:
        return lambda x: np.tanh(x, out=x)
    if type(layer) is nn.ReLU:
        return lambda x: np.maximum(x, 0.0, out=x)
    return None
