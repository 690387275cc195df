"""Policies for text: a causal transformer reads the tokens written so far and chooses the next one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.text.buffer import TokenRolloutBuffer
from sb3_grpo.text.decoding import CachedReader
from sb3_grpo.text.generation import GenerationMixin
from sb3_grpo.text.network import check_dtype
from sb3_grpo.text.pretraining import PretrainingMixin
from sb3_grpo.utils.devices import to_device


class TokenPolicy(GenerationMixin, PretrainingMixin, ActorPolicy):
    """
    Policy class for text without a critic (GRPO, DAPO): a causal transformer, small by default.

    :param observation_space: Observation space, a :class:`TokenSpace`
    :param action_space: Action space, one action per token
    :param lr_schedule: Learning rate schedule (could be constant)
    :param n_layers: Number of transformer blocks
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    :param context: Maximum length of a text in tokens, by default the length of the observations
    :param autocast: Whether to compute in bfloat16 on a GPU. No effect on CPU
    :param kwargs: Other keyword arguments of :class:`ActorPolicy`, except those for other kinds of networks
    """

    reads_texts = True
    rollout_buffer_class = TokenRolloutBuffer
    default_advantage = "return_to_go"

    def action_sampler(self) -> Callable[[Any], tuple[np.ndarray, th.Tensor]]:
        """
        Create a function that samples the next tokens of N texts. It reads each token once (unless a subclass overrides
        ``get_distribution``), and must be discarded when the weights change.

        :return: Function from observations to actions and their log probabilities
        """
        read = None if self._has_own_distribution else CachedReader(self.read, self.device)

        def sample(observations: np.ndarray) -> tuple[np.ndarray, th.Tensor]:
            check_dtype(str(observations.dtype), observations.dtype.kind == "f")
            if read is None:
                tokens, log_probs = self._sample_uncached(to_device(observations, self.device))
            else:
                tokens, log_probs = self._sample(read(observations))
            return tokens.cpu().numpy(), log_probs

        return sample

    def sampled_log_probs(self, dist_inputs: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param dist_inputs: (N,) log probabilities that the action sampler returned with the tokens
        :param actions: (N,) the tokens
        :return: (N,) their log probabilities
        """
        return dist_inputs


class TokenActorCriticPolicy(GenerationMixin, PretrainingMixin, ActorCriticPolicy):
    """
    Policy class for text with a critic (PPO, A2C): :class:`TokenPolicy` with a value head on the same transformer.

    :param args: See :class:`TokenPolicy`
    :param kwargs: See :class:`TokenPolicy`
    """

    _reader: CachedReader | None = None
    _reader_state: Any = None

    def _build_critic(self) -> None:
        """Create the value head."""
        self.value_net = nn.Linear(self.action_net.in_features, 1)  # type: ignore[arg-type]
        # A random critic would undo a warm start: rare rewards would be lost in the noise of its values
        nn.init.zeros_(self.value_net.weight)
        nn.init.zeros_(self.value_net.bias)

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        Forward pass in all the networks (actor and critic), for the new tokens only.

        :param obs: Observation
        :param deterministic: Whether to sample or use deterministic actions
        :return: action, value and log probability of the action
        """
        hidden = self._hidden(obs) if th.is_grad_enabled() else self._read_new_tokens(obs)
        if self._has_own_distribution:
            actions, log_prob = self._sample_uncached(obs, deterministic)
        else:
            actions, log_prob = self._sample(hidden, deterministic)
        return actions, self.value_net(hidden), log_prob

    def _read_new_tokens(self, obs: th.Tensor) -> th.Tensor:
        check_dtype(str(obs.dtype), obs.is_floating_point())
        # Weights hardly ever change between calls of set_training_mode(), but if they do, the cache is invalid.
        # load_state_dict and in-place changes increment the version, a move to other memory changes the address
        state = (th.is_inference_mode_enabled(), [(each._version, each.data_ptr()) for each in self.parameters()])
        if self._reader is None or self._reader_state != state:
            self._reader, self._reader_state = CachedReader(self.read, self.device), state
        return self._reader(obs.cpu().numpy())

    def set_training_mode(self, mode: bool) -> None:
        """
        Put the policy in either training or evaluation mode, as SB3 does before each rollout and each update.

        :param mode: if true, set to training mode, else set to evaluation mode
        """
        self._reader = None  # some optimizers, such as fused ones, do not increment the version of the weights
        super().set_training_mode(mode)

    def load_from_vector(self, vector: np.ndarray) -> None:
        """
        Load parameters from a 1D vector.

        :param vector:
        """
        self._reader = None  # does not increment it either
        super().load_from_vector(vector)

    def evaluate_actions(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """
        Evaluate actions according to the current policy, given the observations.

        :param obs: Observation
        :param actions: Actions
        :return: estimated value, log likelihood of taking those actions
            and entropy of the action distribution.
        """
        hidden = self._hidden(obs)  # type: ignore[arg-type]
        own = self._has_own_distribution
        distribution = self.get_distribution(obs) if own else self._get_action_dist_from_latent(hidden)
        return self.value_net(hidden), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        Get the estimated values according to the current policy given the observations.

        :param obs: Observation
        :return: the estimated values.
        """
        return self.value_net(self._hidden(obs))  # type: ignore[arg-type]
