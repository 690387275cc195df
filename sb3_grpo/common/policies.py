"""SB3's actor-critic policies without the critic network."""

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_grpo.common.buffers import Acted, GroupRolloutBuffer
from sb3_grpo.common.masks import masked
from sb3_grpo.common.normalization import ObservationNorm
from sb3_grpo.common.optimizers import Adam
from sb3_grpo.common.sampling import LOGITS, fast_sampler, is_plain_mlp, reads_channels_last
from sb3_grpo.common.values import MAX_PIXELS, StateFeatures, image_features
from sb3_grpo.utils.action_masks import checked_masks
from sb3_grpo.utils.devices import suitable_threads
from sb3_grpo.utils.parameters import did_you_mean
from sb3_grpo.utils.spaces import check_extractor, parts_of
from sb3_grpo.utils.user_warnings import warn_user


class NoCritic(nn.Module):
    """
    Stands where PPO's policies have their value network.

    :param policy: Name of the policy
    """

    def __init__(self, policy: str):
        super().__init__()
        self.policy = policy

    def forward(self, latent: th.Tensor) -> th.Tensor:
        """Not available: there is no critic."""
        raise AttributeError(
            f"{self.policy} has no critic: GRPO and DAPO estimate advantages from groups of episodes. Algorithms that "
            'need a critic take Stable-Baselines3\'s own policies: PPO("MlpPolicy", ...), for texts '
            "sb3_grpo.grpo.TokenActorCriticPolicy."
        )


def _channels_last(obs: PyTorchObs) -> PyTorchObs:
    """
    :param obs: Observations
    :return: The same, with images in the channels-last memory format
    """
    if isinstance(obs, dict):
        return {key: _channels_last(entry) for key, entry in obs.items()}  # type: ignore[misc]
    return obs.contiguous(memory_format=th.channels_last) if obs.dim() == 4 else obs


class ActorPolicy(ActorCriticPolicy):
    """
    Policy class for algorithms without a critic network (GRPO, DAPO): :class:`ActorCriticPolicy` without the value function.
    Advantages need no values of a network. With ``vf_coef``, a linear head predicts returns, only to train the features
    extractor, as in PPG (https://arxiv.org/abs/2009.04416).

    The arguments are those of :class:`ActorCriticPolicy`. For compatibility with configurations written for PPO,
    ``net_arch=dict(pi=[...], vf=[...])`` is accepted, with a warning: the ``vf`` layers are not created.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param net_arch: The layers of the policy network, as ``[64, 64]`` or ``dict(pi=[64, 64])``.
    :param use_sde: Whether to use State Dependent Exploration or not
    :param normalize_observations: Whether to normalise observations: subtract their mean and divide by their standard
        deviation, over all steps of groups before the current rollout (in the first one, they are only clipped). The
        statistics are part of the policy and saved with it, and take less time than those of ``VecNormalize``. Images are
        left unchanged. GRPO and DAPO enable it by default for continuous actions, unless ``VecNormalize`` normalises
        observations, or you use a custom policy or features extractor. Do not use it for a pretrained policy, whose inputs
        would change after the first rollout
    :param aux_value_head: Whether to create this head: GRPO and DAPO do so with ``vf_coef``
    :param has_masks: Whether it was trained with action masks: without them, it does what is forbidden. GRPO and DAPO say so
    :param optimizer_class: The optimizer to use, by default Adam without its ``torch.compile`` support
    :param optimizer_kwargs: Additional keyword arguments, excluding the learning rate, to pass to the optimizer
    :param kwargs: The other keyword arguments of :class:`ActorCriticPolicy`
    """

    # Whether the observations of an episode are one growing text, processed in one forward pass for all steps
    reads_texts: ClassVar[bool] = False
    # Whether actions depend on earlier observations of the episode, by states that the policy returns
    is_recurrent: ClassVar[bool] = False
    # What the names of policies have before "Policy", if they have a memory
    memory_name: ClassVar[str] = ""
    # Arguments of other policies of this kind, and what to do with them here
    foreign_arguments: ClassVar[dict[str, str]] = {"share_features_extractor": "leave it out, as there is no critic network."}
    # Rollout buffer used by GRPO and DAPO
    rollout_buffer_class: ClassVar[type[GroupRolloutBuffer]] = GroupRolloutBuffer

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        normalize_observations: bool = False,
        aux_value_head: bool = False,
        has_masks: bool = False,
        optimizer_class: type[th.optim.Optimizer] = Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self._refuse_unknown(kwargs)
        if optimizer_kwargs is None and optimizer_class is Adam:
            optimizer_kwargs = {"eps": 1e-5}  # as in ActorCriticPolicy for torch.optim.Adam
        kwargs |= {"optimizer_class": optimizer_class, "optimizer_kwargs": optimizer_kwargs}
        self.normalize_observations = normalize_observations
        self.aux_value_head = aux_value_head
        self.has_masks = has_masks
        super().__init__(observation_space, action_space, lr_schedule, net_arch, **kwargs)
        if aux_value_head:
            self._check_layers()

    def _check_layers(self) -> None:
        """
        :raises ValueError: if this policy does not have the layers that ``vf_coef`` trains
        """
        own = [name for name in ("get_distribution", "_latent") if getattr(type(self), name) is not getattr(ActorPolicy, name)]
        if own:
            raise ValueError(
                f"vf_coef is for the layers of a features extractor, and {type(self).__name__} has a {own[0]} of its own, "
                "which may not use one: write vf_coef=0."
            )
        if not self.is_recurrent and next(self.pi_features_extractor.parameters(), None) is None:
            raise ValueError(
                f"vf_coef is for the layers of a features extractor, and the {type(self.pi_features_extractor).__name__} of "
                'this policy has none: leave it out, or write "CnnPolicy" where the observations are images.'
            )

    @classmethod
    def _refuse_unknown(cls, kwargs: Mapping[str, Any]) -> None:
        """
        :param kwargs: Arguments left for :class:`ActorCriticPolicy`
        :raises TypeError: if it does not have one of them
        """
        known_to_sb3 = inspect.signature(ActorCriticPolicy).parameters.keys() - cls.foreign_arguments.keys()
        for name in kwargs.keys() - known_to_sb3:
            names = {known for each in cls.__mro__ for known in inspect.signature(each).parameters}
            advice = cls.foreign_arguments.get(name) or did_you_mean(name, names)
            raise TypeError(f"{cls.__name__} has no argument {name!r}: {advice}")

    @classmethod
    def default_arguments(cls, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """
        :param policy_kwargs: Arguments of the policy
        :return: The arguments of GRPO and DAPO whose default depends on the policy, with their values for this one
        """
        return {"learning_rate": 1e-3, "n_epochs": 10, "gamma": 0.99, "advantage": "gae"}

    @classmethod
    def portable_kwargs(cls, policy_kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        :param policy_kwargs: Arguments of the policy
        :return: The same, so that they mean the same in another working folder
        """
        return policy_kwargs

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = ("normalize_observations", "aux_value_head", "has_masks")
        return {**super()._get_constructor_parameters(), **{name: getattr(self, name) for name in own}}

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """
        Create the features extractor and the normalisation of its observations.

        :return: the features extractor
        """
        images = self._image_keys()
        check_extractor(self.features_extractor_class, self.observation_space, images, self.memory_name)
        parts = {key: part for key, part in parts_of(self.observation_space).items() if key not in images}
        self.observation_norm = ObservationNorm(parts if self.normalize_observations else {})
        return super().make_features_extractor()

    def _build_mlp_extractor(self) -> None:
        """Create the policy network only: without ``vf`` layers, SB3's extractor has no critic parameters."""
        actor_layers = self.net_arch.get("pi", []) if isinstance(self.net_arch, dict) else self.net_arch
        self.net_arch = dict(pi=actor_layers, vf=[])
        super()._build_mlp_extractor()

    def _build(self, lr_schedule: Schedule) -> None:
        """
        Create the network and the optimizer.

        :param lr_schedule: Learning rate schedule
            lr_schedule(1) is the initial learning rate
        """
        super()._build(lr_schedule)
        if any(isinstance(module, nn.Conv2d) for module in self.modules()):
            # For each minibatch size and layer, convolutions on the CPU cache a megabyte or two of compiled code, up to 1024
            # entries. Minibatches change size at each update: gigabytes. Read when a convolution first runs
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
        if self.aux_value_head:
            self.aux_vf_head = self.value_net
        self.value_net = NoCritic(type(self).__name__)  # type: ignore[assignment]
        # SB3's optimizer was built with the value network's parameters
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _read(self, obs: Any) -> th.Tensor:
        """
        :param obs: Observations
        :return: What the policy network sees of them
        """
        return self.extract_features(obs)

    def _latent(self, obs: Any) -> th.Tensor:
        return self.mlp_extractor.forward_actor(self._read(obs))

    def _rollout_layers(self) -> list[Callable[[Any], th.Tensor]]:
        """
        :return: Functions to apply in this order, from observations to the latent code, valid until the policy changes
        """
        if type(self)._latent is not ActorPolicy._latent:
            return [self._latent]
        if type(self).extract_features is ActorPolicy.extract_features and is_plain_mlp(self):
            # Not all at once: :func:`fast_sampler` calls them in NumPy
            return [th.Tensor.float, *self.observation_norm.norms, *self.mlp_extractor.policy_net]
        if not (reads_channels_last(self.device, self.pi_features_extractor) and self._image_keys()):
            return [self._latent]
        # Convert the weights once, not at each step: temporaries of this size fragment the heap by gigabytes
        extractor = copy.deepcopy(self.pi_features_extractor).to(memory_format=th.channels_last)  # type: ignore[call-overload]
        return [lambda obs: self.mlp_extractor.forward_actor(self.extract_features(obs, extractor))]

    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None) -> th.Tensor:
        """
        Preprocess and normalise the observation if needed and extract features.

        :param obs: Observation
        :param features_extractor: The features extractor to use. If ``None``, the one of the policy is used.
        :return: The extracted features
        """
        extractor = self.pi_features_extractor if features_extractor is None else features_extractor
        if reads_channels_last(self.device, extractor):
            obs = _channels_last(obs)
        entries = preprocess_obs(obs, self.observation_space, normalize_images=self.normalize_images)
        return extractor(self.observation_norm(entries))

    def get_distribution(self, obs: PyTorchObs, action_masks: th.Tensor | None = None) -> Distribution:
        """
        Get the current policy distribution given the observations.

        :param obs: Observation
        :param action_masks: (n, A) the actions that are allowed. ``None``: all
        :return: the action distribution.
        """
        return self._distribution(self._latent(obs), action_masks)

    def _distribution(self, latent: th.Tensor, action_masks: th.Tensor | None) -> Distribution:
        distribution = self._get_action_dist_from_latent(latent)
        if action_masks is None and self.has_masks:
            warn_user(
                "The policy was trained with action masks and is used without: it may do what the environment forbids. Write "
                "predict(..., action_masks=masks). SB3's evaluation passes none on: write evaluate_policy(Actor(model, env), "
                "env), with Actor from sb3_grpo.common.acting, and SB3-Contrib's MaskableEvalCallback for EvalCallback."
            )
        return distribution if action_masks is None else masked(distribution, action_masks, self.action_space)

    def distribution_and_values(self, obs: PyTorchObs, *action_masks: th.Tensor) -> tuple[Distribution, th.Tensor | None]:
        """
        Get the current policy distribution and, if there is an auxiliary value head, its predictions.

        :param obs: Observation
        :param action_masks: See ``get_distribution``, nothing if there are none
        :return: the action distribution; (n,) predicted returns, in units of their standard deviation, or ``None``
        """
        if not self.aux_value_head:
            return self.get_distribution(obs, *action_masks), None
        features = self._read(obs)
        latent = self.mlp_extractor.forward_actor(features)
        return self._distribution(latent, *(action_masks or [None])), self.aux_vf_head(features).squeeze(1)

    def state_features(self, obs: PyTorchObs) -> StateFeatures:
        """
        Get the inputs of a regression on the state.

        :param obs: Observation
        :return: downscaled images and, if the observation is a Dict, its other entries; without images, the output of the
            features extractor
        """
        images = self._image_keys()
        if not images:
            if next(self.pi_features_extractor.parameters(), None) is not None:
                numbers = self.extract_features(obs)
            else:
                # Not normalised: the statistics change after each rollout, but a regression remembers earlier states
                entries = preprocess_obs(obs, self.observation_space, normalize_images=self.normalize_images)
                numbers = self.pi_features_extractor(entries)
            numbers = numbers.flatten(1)
            return StateFeatures(numbers, numbers[:, :0])
        # Not the features of a network that is still learning to see, which say less about other episodes
        parts = obs if isinstance(obs, dict) else {"": obs}
        pictures = [image_features(parts[key], MAX_PIXELS // len(images)) for key in images]
        others = []
        if len(parts) > len(images):
            entries = preprocess_obs(obs, self.observation_space, normalize_images=False)
            others = [entry.float().flatten(1) for key, entry in entries.items() if key not in images]  # type: ignore[union-attr]
        return StateFeatures(th.cat([pictures[0][:, :0], *others], dim=1), th.cat(pictures, dim=1))

    @property
    def reads_images(self) -> bool:
        """Whether the observation is an image, or has one as an entry."""
        return bool(self._image_keys())

    def _image_keys(self) -> list[str]:
        """
        :return: The keys of the images in a Dict, ``""`` if the observation itself is an image
        """
        # As in SB3: only if the extractor is made for images, any array with three axes is an already normalised image
        scaled = not self.normalize_images and issubclass(self.features_extractor_class, (NatureCNN, CombinedExtractor))
        return [key for key, part in parts_of(self.observation_space).items() if is_image_space(part, normalized_image=scaled)]

    def frozen_parts(self) -> list[Any]:
        """
        :return: Parts that the reference policy can share with this one because training never changes them
        """
        return []

    def first_states(self, n_envs: int) -> np.ndarray | None:
        r"""
        :param n_envs: Number of environment copies
        :return: (n_envs, \*state_shape) zeros: what a policy with a memory remembers where an episode begins; ``None`` without
        """
        return None

    def action_sampler(self) -> Callable[..., Acted]:
        """
        The hot path of the rollout: get a function that samples actions, always for the same number of environment copies.
        It is valid until the policy changes.

        :return: function of observations (array, or dict of arrays) and, if there are any, ``action_masks`` and ``states``, by
            name. ``sampled_log_probs`` computes log probabilities from its ``dist_inputs``, which is cheaper for many steps
            at once. A subclass must override both methods or neither
        """
        if not self._has_own_distribution:
            return fast_sampler(self, self._rollout_layers())
        return lambda observations, action_masks=None: self._sample(obs_as_tensor(observations, self.device), action_masks)

    def _sample(self, obs: Any, action_masks: np.ndarray | None) -> Acted:
        """
        :param obs: What ``get_distribution`` takes, whatever a subclass makes of it
        :param action_masks: Masks, if there are any
        :return: Sampled actions, with their log probabilities
        """
        masks = () if action_masks is None else (obs_as_tensor(action_masks, self.device),)
        distribution = self.get_distribution(obs, *masks)
        actions = distribution.sample()
        log_prob = distribution.log_prob(actions)
        return Acted(actions.reshape((-1, *self.action_space.shape)).cpu().numpy(), log_prob)  # type: ignore[misc]

    def sampled_log_probs(self, dist_inputs: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param dist_inputs: (N, \\*) ``dist_inputs`` of the action sampler: what the action distribution is made from (logits,
            means or the latent code), or the log probabilities themselves
        :param actions: (N, \\*action_shape) actions returned by the action sampler
        :return: (N,) their log probabilities, provided that the policy has not changed since
        """
        if self._has_own_distribution:
            return dist_inputs
        if type(self.action_dist) in LOGITS:
            return self.action_dist.proba_distribution(action_logits=dist_inputs).log_prob(actions)
        if type(self.action_dist) is DiagGaussianDistribution:
            return self.action_dist.proba_distribution(dist_inputs, self.log_std).log_prob(actions)
        return self._get_action_dist_from_latent(dist_inputs).log_prob(actions)

    @property
    def _has_own_distribution(self) -> bool:
        """Whether a subclass overrides the distribution, for example with a temperature."""
        return (
            type(self.action_dist) not in (*LOGITS, DiagGaussianDistribution, StateDependentNoiseDistribution)
            or type(self).get_distribution is not ActorPolicy.get_distribution
            or type(self)._get_action_dist_from_latent is not ActorCriticPolicy._get_action_dist_from_latent
        )

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Get the policy action from an observation, see :meth:`BasePolicy.predict`.

        :param observation: the input observation
        :param state: the last hidden states, for a policy with a memory: a tuple of (n_layers, n, hidden_size), as those of
            RecurrentPPO. ``None`` where an episode begins
        :param episode_start: whether the observations are the first of their episodes: the states are then ignored
        :param deterministic: whether to return deterministic actions
        :param action_masks: the actions that are allowed, one row for each observation. ``None``: all
        :return: the model's action and the next hidden state
        """
        self.set_training_mode(False)
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            # SB3 says what is wrong with an observation that came with an info
            super().predict(observation)
        obs, is_vectorized = self.obs_to_tensor(observation)
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        # A subclass may not take any
        masks: tuple[th.Tensor, ...] = ()
        if action_masks is not None:
            masks = (th.as_tensor(checked_masks(action_masks, n, self.action_space), device=self.device),)
        with th.no_grad(), suitable_threads(self, n):
            chosen, state = self._choose(obs, n, masks, deterministic, state, episode_start)
        actions = self.env_actions(chosen.cpu().numpy().reshape((-1, *self.action_space.shape)))  # type: ignore[misc, arg-type]
        return actions if is_vectorized else actions.squeeze(axis=0), state

    def _choose(
        self, obs: Any, n: int, masks: tuple[th.Tensor, ...], deterministic: bool, state: Any, episode_start: Any
    ) -> tuple[th.Tensor, Any]:
        """
        :param obs: n observations
        :param n: Their number
        :param masks: Their action masks, if there are any
        :param deterministic: Whether to return deterministic actions
        :param state: the last hidden states, for a policy with a memory
        :param episode_start: whether the observations are the first of their episodes
        :return: the actions and the next hidden state
        """
        return self._predict(obs, deterministic, *masks), state

    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: Actions as sampled
        :return: The same within the bounds of the action space, and as its numbers: those of a ``Box`` of integers are rounded
        """
        space = self.action_space
        if isinstance(space, spaces.MultiDiscrete):
            return actions.astype(space.dtype, copy=False)
        if not isinstance(space, spaces.Box):
            return actions
        # Avoid out of bound error as we are sampling from an unbounded Gaussian distribution
        actions = self.unscale_action(actions) if self.squash_output else np.clip(actions, space.low, space.high)
        return (actions if np.issubdtype(space.dtype, np.floating) else np.rint(actions)).astype(space.dtype, copy=False)

    def _predict(
        self, observation: PyTorchObs, deterministic: bool = False, action_masks: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Get the action according to the policy for a given observation.

        :param observation: Observation
        :param deterministic: Whether to use stochastic or deterministic actions
        :param action_masks: (n, A) the actions that are allowed
        :return: Taken action according to the policy
        """
        masks = () if action_masks is None else (action_masks,)
        return self.get_distribution(observation, *masks).get_actions(deterministic=deterministic)

    def reset_noise(self, n_envs: int = 1) -> None:
        """
        Sample new weights for the exploration matrix (gSDE).

        :param n_envs: Number of environment copies
        """
        noise = self.action_dist
        if type(noise) is not StateDependentNoiseDistribution:
            super().reset_noise(n_envs)
            return
        # Same as its sample_weights, but without a distribution object and without a graph: a tenth of the time
        std = noise.get_std(self.log_std.detach())
        drawn = th.randn((n_envs + 1, *std.shape), device=std.device) * std
        noise.exploration_mat, noise.exploration_matrices = drawn[0], drawn[1:]

    def reset_noise_of(self, copies: list[int], n_envs: int) -> None:
        """
        Sample new weights for the exploration matrices of some environment copies (gSDE).

        :param copies: Indices of these copies
        :param n_envs: Number of environment copies
        """
        noise = self.action_dist
        assert isinstance(noise, StateDependentNoiseDistribution)
        before = noise.exploration_matrices.detach().clone()
        self.reset_noise(n_envs)
        rows = th.as_tensor(copies, device=before.device)
        before[rows] = noise.exploration_matrices.detach()[rows]
        noise.exploration_matrices = before


class ActorCnnPolicy(ActorPolicy):
    """
    CNN policy class for algorithms without a critic network.

    :param args: See :class:`ActorPolicy`
    :param features_extractor_class: Features extractor to use.
    :param kwargs: See :class:`ActorPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)

    @classmethod
    def default_arguments(cls, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`ActorPolicy.default_arguments`."""
        return {**super().default_arguments(policy_kwargs), "learning_rate": 5e-4, "n_epochs": 4}


class ActorMultiInputPolicy(ActorPolicy):
    """
    Policy class for algorithms without a critic network, with Dict observations.

    :param args: See :class:`ActorPolicy`
    :param features_extractor_class: Uses the CombinedExtractor
    :param kwargs: See :class:`ActorPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


def has_own_extractor(policy_kwargs: dict[str, Any]) -> bool:
    """
    :param policy_kwargs: ``policy_kwargs`` of a model
    :return: Whether it uses a custom features extractor
    """
    return policy_kwargs.get("features_extractor_class") not in (None, CombinedExtractor, FlattenExtractor, NatureCNN)


def why_not_for_images(policy: ActorPolicy) -> str | None:
    """
    :param policy: A policy
    :return: Why it is unsuitable for the images in the observation, and what to write instead; ``None`` if it is suitable
    """
    parts = parts_of(policy.observation_space)
    sizes = [int(np.prod(parts[key].shape)) for key in policy._image_keys()]  # type: ignore[arg-type]
    if type(policy.pi_features_extractor) is not FlattenExtractor or not sizes or max(sizes) <= MAX_PIXELS:
        return None
    return (
        f"{type(policy).__name__} (MlpPolicy) has weights of its own for each of {max(sizes):,} entries of an image, and "
        'learns next to nothing from images of this size. Write "CnnPolicy".'
    )
