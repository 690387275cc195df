"""
Sample actions of small policies faster than ``torch.distributions`` and ``nn.Module`` would, with the same result: for a
handful of rows, PyTorch spends most of its time on call overhead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_grpo.common.buffers import Acted
from sb3_grpo.common.masks import mask_logits
from sb3_grpo.common.normalization import CLIP, EPSILON, RunningNorm

# Number of steps for which noise is drawn at once
NOISE_STEPS = 64
# Distributions that are made from the output of the last layer, which can be masked
LOGITS = (CategoricalDistribution, MultiCategoricalDistribution, BernoulliDistribution)
# Multiplications of a layer, for all environment copies: up to this number, NumPy's BLAS uses a single thread
_MAX_NUMPY_WORK = 2**18


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """
    Turn off the argument checks of ``torch.distributions``, for a whole training or evaluation.

    Each check reads a tensor back from the device, which takes a third of the time for choosing an action on CPU
    and a host synchronisation per minibatch on GPU. GRPO checks for non-finite values itself.
    """
    checked = th.distributions.Distribution._validate_args
    th.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        th.distributions.Distribution.set_default_validate_args(checked)


def renew_noise(model: BaseAlgorithm, n_steps: int, n_envs: int) -> None:
    """
    With gSDE, sample a new noise matrix if it is due. Call this before sampling an action outside of a rollout.

    :param model: The model that acts
    :param n_steps: Number of steps so far
    :param n_envs: Number of environment copies
    """
    frequency = getattr(model, "sde_sample_freq", -1)
    if getattr(model, "use_sde", False) and (n_steps == 0 or (frequency > 0 and n_steps % frequency == 0)):
        model.policy.reset_noise(n_envs)  # type: ignore[operator]


def is_plain_mlp(policy: Any) -> bool:
    """
    :param policy: An :class:`ActorPolicy`
    :return: Whether observations need no preprocessing and no flattening before an MLP, whose layers have no hooks
    """
    return (
        type(policy.pi_features_extractor) is FlattenExtractor
        and type(policy.mlp_extractor) is MlpExtractor
        and isinstance(policy.observation_space, spaces.Box)
        and policy.observation_space.dtype == np.float32
        and len(policy.observation_space.shape) == 1
        and not any(module._forward_hooks or module._forward_pre_hooks for module in policy.modules())
    )


def reads_channels_last(device: th.device, extractor: nn.Module) -> bool:
    """
    :param device: Device of a policy
    :param extractor: Its features extractor
    :return: Whether it gets images in the channels-last memory format, with which convolutions on the CPU are fast
    """
    return device.type == "cpu" and type(extractor) in (NatureCNN, CombinedExtractor)


def fast_sampler(policy: Any, layers: list[Callable[[Any], th.Tensor]]) -> Callable[..., Acted]:
    """
    :param policy: An :class:`ActorPolicy` whose distribution is computed from the latent code as in SB3
    :param layers: Functions to apply in this order, from observations to the latent code. None: it is given the latent code
    :return: See :meth:`ActorPolicy.action_sampler`
    """
    dist: Any = policy.action_dist
    kind = type(dist)
    actions_shape: tuple[int, ...] = (-1, *policy.action_space.shape)
    all_layers: list[Any] = [*layers, policy.action_net]
    # Bypass nn.Module.__call__, which takes half of the time of a small layer
    in_torch: list[Any] = [layer.forward if isinstance(layer, nn.Module) else layer for layer in layers]
    in_numpy: list[Any] = [_numpy_layer(layer) if policy.device.type == "cpu" else None for layer in all_layers]
    largest = max((layer.weight.numel() for layer in all_layers if isinstance(layer, nn.Linear)), default=1)
    max_numpy_rows = _MAX_NUMPY_WORK // largest if all(in_numpy) else 0
    numpy_action_net = in_numpy.pop()
    noise: list[Any] = []  # drawn in advance, one entry per step

    def next_noise(like: Any) -> Any:
        if not noise:
            drawn = th.empty((NOISE_STEPS, *like.shape), device=policy.device)
            if kind is CategoricalDistribution:
                # argmax of log-probability minus log of an exponential variable has the distribution of a categorical sample
                drawn.exponential_().log_()
            else:
                drawn.normal_().mul_(policy.log_std.detach().exp())
            noise.extend(drawn.numpy() if isinstance(like, np.ndarray) else drawn)
        return noise.pop()

    def sample(observations: Any, action_masks: np.ndarray | None = None) -> Acted:
        latent: Any
        if isinstance(observations, th.Tensor):
            latent, hidden_layers, action_net = observations, in_torch, policy.action_net
        elif len(observations) <= max_numpy_rows:
            latent, hidden_layers, action_net = observations, in_numpy, numpy_action_net
        else:
            latent, hidden_layers, action_net = obs_as_tensor(observations, policy.device), in_torch, policy.action_net
        for layer in hidden_layers:
            latent = layer(latent)
        dist_inputs = latent
        if kind in LOGITS:
            dist_inputs = action_net(latent)
            if action_masks is not None:
                on_host = isinstance(dist_inputs, np.ndarray)
                masks: Any = action_masks if on_host else obs_as_tensor(action_masks, policy.device)
                dist_inputs = mask_logits(dist_inputs, masks, policy.action_space)
        if kind is CategoricalDistribution:
            actions = (dist_inputs - next_noise(dist_inputs)).argmax(-1)
        elif kind in LOGITS:
            actions = dist.proba_distribution(action_logits=th.as_tensor(dist_inputs)).sample()
        elif kind is DiagGaussianDistribution:
            dist_inputs = action_net(latent)
            actions = dist_inputs + next_noise(dist_inputs)
        else:
            # As in SB3's get_noise: one matrix per copy if there is more than one
            has_own_noise = len(latent) == len(dist.exploration_matrices) > 1
            matrices = (dist.exploration_matrices if has_own_noise else dist.exploration_mat).detach()
            matrices = matrices.numpy() if isinstance(latent, np.ndarray) else matrices
            actions = action_net(latent) + (latent[:, None] @ matrices)[:, 0]
            if dist.bijector is not None:
                actions = dist.bijector.forward(th.as_tensor(actions))
        actions = actions if isinstance(actions, np.ndarray) else actions.detach().cpu().numpy()
        kept = th.from_numpy(dist_inputs) if isinstance(dist_inputs, np.ndarray) else dist_inputs
        return Acted(actions.reshape(actions_shape), kept)

    return sample


def _numpy_layer(layer: Callable[[Any], th.Tensor]) -> Callable[[np.ndarray], np.ndarray] | None:
    """
    :param layer: A layer of a policy on the CPU
    :return: The same function of NumPy arrays, ``None`` if there is none
    """
    if layer is th.Tensor.float:
        return lambda x: np.asarray(x, np.float32)
    if type(layer) is nn.Linear and layer.bias is not None:
        # Views, so they follow changes of the parameters
        weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
        return lambda x: x @ weight + bias
    if type(layer) is RunningNorm:
        mean, scale = layer.mean.numpy(), (layer.var + EPSILON).rsqrt().numpy()
        return lambda x: ((x - mean) * scale).clip(-CLIP, CLIP)
    if type(layer) is nn.Tanh:
        return np.tanh
    if type(layer) is nn.ReLU:
        return lambda x: np.maximum(x, 0.0)
    return None
