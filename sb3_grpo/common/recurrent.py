"""Policies with a memory: an LSTM between the features of the observation and the policy network."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from sb3_grpo.common.batch import RecurrentSteps
from sb3_grpo.common.buffers import Acted
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.sampling import fast_sampler
from sb3_grpo.common.values import StateFeatures
from sb3_grpo.utils.parameters import Whole
from sb3_grpo.utils.user_warnings import warn_user


class RecurrentActorPolicy(ActorPolicy):
    """
    Policy class with a memory for algorithms without a critic network: an LSTM reads the features of each observation, and
    the policy network its output. The memory is empty when an episode begins, also where that is in the middle of another
    one (``VisitedStates``).

    Methods that take observations take :class:`RecurrentSteps`, too. Observations alone are the first of their episodes.

    :param args: See :class:`ActorPolicy`
    :param lstm_hidden_size: Number of hidden units for each LSTM layer.
    :param n_lstm_layers: Number of LSTM layers.
    :param kwargs: See :class:`ActorPolicy`
    """

    is_recurrent = True
    memory_name = "Lstm"
    foreign_arguments: ClassVar[dict[str, str]] = {
        **ActorPolicy.foreign_arguments,
        "lstm_kwargs": "leave it out. The LSTM has lstm_hidden_size and n_lstm_layers.",
        "shared_lstm": "leave it out, as there is no critic network.",
        "enable_critic_lstm": "leave it out, as there is no critic network.",
    }
    memory_class: ClassVar[Callable[..., nn.RNNBase]] = nn.LSTM
    # Number of states of the memory: the hidden and the cell states of an LSTM
    n_states: ClassVar[int] = 2

    def __init__(self, *args: Any, lstm_hidden_size: int = 256, n_lstm_layers: int = 1, **kwargs: Any):
        self.lstm_hidden_size = Whole().check("lstm_hidden_size", lstm_hidden_size)
        self.n_lstm_layers = Whole().check("n_lstm_layers", n_lstm_layers)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"lstm_hidden_size": self.lstm_hidden_size, "n_lstm_layers": self.n_lstm_layers}
        return {**super()._get_constructor_parameters(), **own}

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the states of one episode: (n_states, n_layers, hidden_size)."""
        return self.n_states, self.n_lstm_layers, self.lstm_hidden_size

    def first_states(self, n_envs: int) -> np.ndarray:
        """See :meth:`ActorPolicy.first_states`."""
        return np.zeros((n_envs, *self.state_shape), np.float32)

    def _build_mlp_extractor(self) -> None:
        """Create the memory, and the policy network that reads its output."""
        super()._build_mlp_extractor()
        self.memory = self.memory_class(self.features_dim, self.lstm_hidden_size, self.n_lstm_layers)
        self.mlp_extractor = MlpExtractor(self.lstm_hidden_size, self.net_arch, self.activation_fn, self.device)

    def steps_of(self, obs: PyTorchObs | RecurrentSteps) -> RecurrentSteps:
        """
        :param obs: Observations
        :return: The same as first steps of their episodes, unless they come with states
        """
        if isinstance(obs, RecurrentSteps):
            return obs
        some = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return RecurrentSteps(obs, th.zeros((len(some), *self.state_shape), device=some.device))

    def _remember(self, steps: RecurrentSteps) -> tuple[th.Tensor, th.Tensor]:
        r"""
        :param steps: M steps of S sequences
        :return: (M, hidden_size) output of the memory, and (S, \*state_shape) its states after the sequences
        """
        features = self.extract_features(steps.observations)
        parts = tuple(each.contiguous() for each in steps.states.permute(1, 2, 0, 3))
        before = parts if self.n_states > 1 else parts[0]
        if steps.sequence is None or steps.time is None:
            output, after = self.memory(features[None], before)
            read = output[0]
        else:
            # Packed as PyTorch wants it: by time, and the longest sequences first. Nothing is computed for padding
            longest_first = th.bincount(steps.sequence).argsort(descending=True)
            rank = longest_first.argsort()
            order = (steps.time * len(rank) + rank[steps.sequence]).argsort()
            packed = PackedSequence(features[order], th.bincount(steps.time).cpu(), longest_first, rank)
            output, after = self.memory(packed, before)
            read = output.data[order.argsort()]
        return read, th.stack(after if self.n_states > 1 else [after]).movedim(2, 0)

    def _read(self, obs: PyTorchObs | RecurrentSteps) -> th.Tensor:
        return self._remember(self.steps_of(obs))[0]

    @property
    def _has_own_distribution(self) -> bool:
        # Otherwise, the distribution is made of what has just been read
        own = (
            getattr(type(self), name) is not getattr(RecurrentActorPolicy, name) for name in ("_read", "_latent", "_predict")
        )
        return super()._has_own_distribution or any(own)

    def action_sampler(self) -> Callable[..., Acted]:
        """See :meth:`ActorPolicy.action_sampler`."""
        act = None if self._has_own_distribution else fast_sampler(self, [])

        def sample(observations: Any, states: np.ndarray, action_masks: np.ndarray | None = None) -> Acted:
            steps = RecurrentSteps(obs_as_tensor(observations, self.device), th.as_tensor(states, device=self.device))
            read, after = self._remember(steps)
            if act is None:
                acted = self._sample(steps, action_masks)
            else:
                acted = act(self.mlp_extractor.forward_actor(read), action_masks)
            return acted._replace(states=after.cpu().numpy())

        return sample

    def state_features(self, obs: PyTorchObs | RecurrentSteps) -> StateFeatures:
        """
        Get the inputs of a regression on the state.

        :param obs: Observation
        :return: those of :class:`ActorPolicy`, and what the policy remembers of earlier observations
        """
        steps = self.steps_of(obs)
        seen = super().state_features(steps.observations)
        return StateFeatures(seen.numbers, th.cat([seen.pictures, steps.states[:, 0].flatten(1)], dim=1))

    def _choose(
        self, obs: Any, n: int, masks: tuple[th.Tensor, ...], deterministic: bool, state: Any, episode_start: Any
    ) -> tuple[th.Tensor, tuple[np.ndarray, ...]]:
        """See :meth:`ActorPolicy._choose`. The states are (n_layers, n, hidden_size) each, as RecurrentPPO has them."""
        states = th.zeros((n, *self.state_shape), device=self.device)
        if state is not None:
            given = th.as_tensor(np.stack(state), dtype=th.float32, device=self.device).movedim(2, 0)
            if given.shape != states.shape:
                n_states, *sizes = self.state_shape
                raise ValueError(
                    f"state has the shape {np.shape(state)}, and {n} observations need {(n_states, sizes[0], n, sizes[1])}: "
                    "the states, as predict() returned them for the observations before; None where episodes begin."
                )
            states = given
        if episode_start is not None:
            if np.size(episode_start) != n:
                raise ValueError(f"episode_start has the shape {np.shape(episode_start)}, and there are {n} observations.")
            if state is None and not np.all(episode_start):
                warn_user(
                    "predict() got no state in the middle of an episode: nothing of it is remembered. Pass on the state that "
                    "predict() returned. SB3-Contrib's evaluation with masks does not: write evaluate_policy(Actor(model, "
                    "env), env), with Actor from sb3_grpo.common.acting."
                )
            goes_on = ~th.as_tensor(np.ravel(episode_start), dtype=th.bool, device=self.device)
            states = states * goes_on[:, None, None, None]
        steps = RecurrentSteps(obs, states)
        read, after = self._remember(steps)
        if self._has_own_distribution:
            actions = self._predict(steps, deterministic, *masks)  # type: ignore[arg-type]
        else:
            distribution = self._distribution(self.mlp_extractor.forward_actor(read), *(masks or [None]))
            actions = distribution.get_actions(deterministic)
        return actions, tuple(after.movedim(0, 2).cpu().numpy())


class RecurrentActorCnnPolicy(RecurrentActorPolicy):
    """
    CNN policy class with a memory for algorithms without a critic network.

    :param args: See :class:`RecurrentActorPolicy`
    :param features_extractor_class: Features extractor to use.
    :param kwargs: See :class:`RecurrentActorPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class RecurrentActorMultiInputPolicy(RecurrentActorPolicy):
    """
    Policy class with a memory for algorithms without a critic network, with Dict observations.

    :param args: See :class:`RecurrentActorPolicy`
    :param features_extractor_class: Uses the CombinedExtractor
    :param kwargs: See :class:`RecurrentActorPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
