"""
Sample actions of small policies faster than ``torch.distributions`` and ``nn.Module`` would, with the same result: for a
handful of rows, PyTorch spends most of its time on call overhead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_grpo.common.normalization import CLIP, EPSILON, RunningNorm

if TYPE_CHECKING:
    from sb3_grpo.common.policies import ActorPolicy

# Number of steps for which noise is drawn at once
NOISE_STEPS = 64
# Multiplications of a layer, for all environment copies: up to this number, NumPy's BLAS uses a single thread
_MAX_NUMPY_WORK = 2**18


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """
    Turn off the argument checks of ``torch.distributions`` inside the ``with`` block.

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


def _on_host(values: np.ndarray | th.Tensor) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def latent_sampler(policy: "ActorPolicy") -> Callable[[Any], tuple[np.ndarray, th.Tensor]]:
    """
    :param policy: A policy whose distribution is computed from the latent code as in SB3
    :return: See :meth:`ActorPolicy.action_sampler`
    """
    forward, small_forward, max_rows = _latent_functions(policy)
    sample_from = _sampling_function(policy)
    actions_shape: tuple[int, ...] = (-1, *policy.action_space.shape)  # type: ignore[misc]

    def sample(observations: Any) -> tuple[np.ndarray, th.Tensor]:
        if len(observations) <= max_rows:
            latent = small_forward(observations)
            return sample_from(latent).reshape(actions_shape), th.from_numpy(latent)
        forwarded = forward(observations)
        # Without layers, the latent code is the array of observations itself, which the environment may overwrite
        return sample_from(forwarded).reshape(actions_shape), forwarded.clone()

    return sample


def _sampling_function(policy: "ActorPolicy") -> Callable[[np.ndarray | th.Tensor], np.ndarray]:
    """
    Sample without creating ``torch.distributions`` objects, which takes longer than a small network.

    :param policy: The policy
    :return: Function that maps the output of one of the ``_latent_functions`` to sampled actions
    """
    drawn: list[Any] = []  # noise drawn in advance, one entry per step

    def like(latent: np.ndarray | th.Tensor, noise: th.Tensor) -> Any:
        return noise.numpy() if isinstance(latent, np.ndarray) else noise

    def gumbel_max(logits: np.ndarray | th.Tensor) -> np.ndarray:
        # argmax of log-probability minus log of an exponential variable has the distribution of a categorical sample
        if not drawn:
            noise = th.as_tensor(logits).new_empty((NOISE_STEPS, *logits.shape)).exponential_().log_()
            drawn.extend(like(logits, noise))
        return _on_host((logits - drawn.pop()).argmax(axis=-1))

    def gaussian(means: np.ndarray | th.Tensor) -> np.ndarray:
        if not drawn:
            noise = th.randn((NOISE_STEPS, *means.shape), device=policy.device) * policy.log_std.detach().exp()
            drawn.extend(like(means, noise))
        return _on_host(means + drawn.pop())

    in_numpy_means = _to_numpy_layer(policy.action_net)

    def state_dependent(latent: np.ndarray | th.Tensor) -> np.ndarray:
        assert isinstance(policy.action_dist, StateDependentNoiseDistribution)
        if in_numpy_means is not None:
            # As in SB3's get_noise: one matrix per copy if there is more than one
            noise = policy.action_dist
            each = len(latent) == len(noise.exploration_matrices) > 1
            matrices = (noise.exploration_matrices if each else noise.exploration_mat).detach().numpy()
            array = _on_host(latent)
            samples = in_numpy_means(array) + (array[:, np.newaxis] @ matrices)[:, 0]
            if noise.bijector is None:
                return samples
            actions = th.from_numpy(samples)
        else:
            latent = th.as_tensor(latent)
            actions = policy.action_net(latent) + policy.action_dist.get_noise(latent)
        if policy.action_dist.bijector is not None:
            actions = policy.action_dist.bijector.forward(actions)
        return _on_host(actions)

    def of_any_kind(latent: np.ndarray | th.Tensor) -> np.ndarray:
        with unchecked_distributions():
            return _on_host(policy._get_action_dist_from_latent(th.as_tensor(latent)).sample())

    functions: dict[type[Distribution], Callable[[np.ndarray | th.Tensor], np.ndarray]] = {
        CategoricalDistribution: gumbel_max,
        DiagGaussianDistribution: gaussian,
        StateDependentNoiseDistribution: state_dependent,
    }
    return functions.get(type(policy.action_dist), of_any_kind)


def _latent_functions(policy: "ActorPolicy") -> tuple[Callable[[Any], th.Tensor], Callable[[Any], np.ndarray], int]:
    """
    :param policy: The policy
    :return: Function that maps observations to the latent code of the policy, or to the logits or means if these are
        sufficient; the same in NumPy, for a few environment copies; the maximum number of rows for the latter, 0 if it cannot
        be used
    """
    layers = _actor_layers(policy)
    plain_mlp = policy.is_plain_mlp
    # Bypass nn.Module.__call__, which takes half of the time of a small layer
    in_torch = [layer.forward if isinstance(layer, nn.Module) and not _has_hooks(layer) else layer for layer in layers]
    as_numpy = [_to_numpy_layer(layer) for layer in layers]
    work = max((layer.in_features * layer.out_features for layer in layers if isinstance(layer, nn.Linear)), default=1)
    # Not if the first layer would overwrite the observations
    possible = all(as_numpy) and any(isinstance(first, (nn.Linear, RunningNorm)) for first in layers[:1])

    def forward(observations: Any) -> th.Tensor:
        if plain_mlp:
            # A SubprocVecEnv passes on what the environment sends, regardless of its observation space
            observations = np.asarray(observations, np.float32)
        latent: Any = obs_as_tensor(observations, policy.device)
        for layer in in_torch:
            latent = layer(latent)
        return latent

    def small_forward(observations: Any) -> np.ndarray:
        array = np.asarray(observations, np.float32)
        for function in as_numpy:
            array = function(array)  # type: ignore[misc]
        return array

    return forward, small_forward, _MAX_NUMPY_WORK // max(work, 1) if possible else 0


def _actor_layers(policy: "ActorPolicy") -> list[Callable[[Any], th.Tensor]]:
    """
    :param policy: The policy
    :return: Functions to apply in this order, from observations to the latent code of the policy,
        or to the logits or means if these are sufficient
    """
    layers: list[Callable[[Any], th.Tensor]] = [policy.rollout_latent()]
    if policy.is_plain_mlp:
        layers = [*policy.observation_norm.norms, *_layers_of(policy.mlp_extractor.policy_net)]
    if type(policy.action_dist) in (CategoricalDistribution, DiagGaussianDistribution):
        layers += _layers_of(policy.action_net)
    return layers


def _layers_of(module: nn.Module) -> list[nn.Module]:
    """
    :param module: A network
    :return: Its layers, to be called in this order
    """
    if type(module) is nn.Sequential and not _has_hooks(module):
        return [layer for child in module for layer in _layers_of(child)]
    return [module]


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _to_numpy_layer(layer: Callable[[Any], th.Tensor]) -> Callable[[np.ndarray], np.ndarray] | None:
    """
    Convert a layer to a function of NumPy arrays.

    :param layer: The layer
    :return: The function, which may overwrite its argument unless the layer is linear or normalises;
        ``None`` if there is no such function
    """
    if not isinstance(layer, nn.Module) or _has_hooks(layer):
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
