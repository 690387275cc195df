"""Policies with a memory: an LSTM between the features of the observation and the policy network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from sb3_grpo.common.buffers import GroupRolloutBuffer, Minibatch, PackedObservations, observations_in
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.sampling import fast_sampler
from sb3_grpo.common.values import StateFeatures
from sb3_grpo.groups.group import Episode
from sb3_grpo.utils.parameters import Whole
from sb3_grpo.utils.user_warnings import warn_user


@dataclass
class RecurrentSteps:
    """
    What a recurrent policy acts on: M steps of S sequences, and what it remembers of the time before them.

    :param observations: (M, \\*obs_shape) or a dict of these
    :param states: (S, 2, n_layers, hidden_size) hidden and cell states of the LSTM before the first step of each sequence
    :param sequence: (M,) the sequence 0..S-1 of each step; ``None``: each step is a sequence of its own
    :param time: (M,) index of each step in its sequence; ``None`` together with ``sequence``
    :param after: Hidden and cell states, each (n_layers, S, hidden_size), after the last steps: set by the policy
    """

    observations: Any
    states: th.Tensor
    sequence: th.Tensor | None = None
    time: th.Tensor | None = None
    after: tuple[th.Tensor, th.Tensor] | None = None


@dataclass
class RecurrentPieces(PackedObservations):
    """
    The observations of a batch, with the states that the policy had before each of its steps.

    :param observations: (rows, \\*obs_shape) or a dict of these, for all steps of all copies
    :param states: (rows, 2, n_layers, hidden_size)
    :param rows: (N,) the row of each step of the batch
    :param n_envs: Number of environment copies: the rows of consecutive steps are this far apart
    """

    observations: Any
    states: th.Tensor
    rows: th.Tensor
    n_envs: int

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> RecurrentSteps:
        """
        :param minibatch: Minibatch of whole episodes (or of the steps that an update has of them), or of single steps
        :param episode: (N,) the episode of each step of the batch
        :return: Sequences of consecutive steps, through which gradients flow; or each of the single steps
        """
        rows = self.rows[minibatch.steps]
        observations = observations_in(self.observations, rows)
        if minibatch.episodes is None:
            return RecurrentSteps(observations, self.states[rows])
        of_step = episode[minibatch.steps]
        begins = th.ones_like(of_step, dtype=th.bool)
        begins[1:] = (of_step.diff() != 0) | (rows.diff() != self.n_envs)
        first, sequence = begins.nonzero().squeeze(1), begins.cumsum(0) - 1
        time = th.arange(len(rows), device=rows.device) - first[sequence]
        return RecurrentSteps(observations, self.states[rows[first]], sequence, time)


class RecurrentRolloutBuffer(GroupRolloutBuffer):
    """
    :class:`GroupRolloutBuffer` that also stores the states of the LSTM before each step, and keeps those with which the
    copies go on: zeros where an episode begins.

    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device of the batches
    :param n_envs: Number of environment copies
    """

    states: np.ndarray | None  # (n_envs, 2, n_layers, hidden_size); None: all copies begin

    def reset(self) -> None:
        """Empty the buffer, and forget what came before."""
        super().reset()
        self.states = None

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`GroupRolloutBuffer.state_dict`."""
        return {**super().state_dict(), "states": self.states}

    def action_sampler(self, policy: Any) -> Callable[..., tuple[np.ndarray, th.Tensor]]:
        """
        :param policy: The policy
        :return: See :meth:`ActorPolicy.action_sampler`; ``add`` has to follow before it is called again
        """

        def read(observations: PyTorchObs) -> RecurrentSteps:
            if self.states is None:
                self.states = np.zeros((self.n_envs, *policy.lstm_state_shape), np.float32)
            self._steps = RecurrentSteps(observations, th.as_tensor(self.states, device=policy.device))
            return self._steps

        return policy.action_sampler(read)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """See :meth:`GroupRolloutBuffer.add`. The policy has just read these observations."""
        assert self.states is not None and self._steps.after is not None
        if "states" not in self._data:
            self._data["states"] = np.empty((self._capacity, *self.states.shape), np.float32)
        super().add(*args, **kwargs)
        self._data["states"][self.pos] = self.states
        self.states = np.stack([each.cpu().numpy().swapaxes(0, 1) for each in self._steps.after], axis=1)

    def note_ends(self, indices: list[int], episodes: list[Episode], obs: Any) -> None:
        """See :meth:`GroupRolloutBuffer.note_ends`."""
        assert self.states is not None
        for episode in episodes:
            if episode.next_observation is not None:
                episode.memory = self.states[episode.env].copy()
        self.states[indices] = 0.0

    def _observations(self, episodes: list[Episode], rows: np.ndarray) -> RecurrentPieces:
        states = self._tensor(self._flat(self._data["states"]))
        return RecurrentPieces(super()._observations(episodes, rows), states, self._tensor(rows), self.n_envs)

    def _next_observations(self, episodes: list[Episode]) -> Any:
        observations = super()._next_observations(episodes)
        if observations is None:
            return None
        assert self.states is not None
        states = [self.states[each.env] if each.memory is None else each.memory for each in episodes]
        return RecurrentSteps(observations, self._tensor(np.stack(states)))


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
    foreign_arguments: ClassVar[dict[str, str]] = {
        "lstm_kwargs": "leave it out. The LSTM has lstm_hidden_size and n_lstm_layers.",
        "shared_lstm": "leave it out, as there is no critic network.",
        "enable_critic_lstm": "leave it out, as there is no critic network.",
    }
    rollout_buffer_class = RecurrentRolloutBuffer

    def __init__(self, *args: Any, lstm_hidden_size: int = 256, n_lstm_layers: int = 1, **kwargs: Any):
        self.lstm_hidden_size = Whole().check("lstm_hidden_size", lstm_hidden_size)
        self.n_lstm_layers = Whole().check("n_lstm_layers", n_lstm_layers)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"lstm_hidden_size": self.lstm_hidden_size, "n_lstm_layers": self.n_lstm_layers}
        return {**super()._get_constructor_parameters(), **own}

    @property
    def lstm_state_shape(self) -> tuple[int, int, int]:
        """Shape of the hidden and cell states of one episode: (2, n_layers, hidden_size)."""
        return 2, self.n_lstm_layers, self.lstm_hidden_size

    def _build_mlp_extractor(self) -> None:
        """Create the LSTM, and the policy network that reads its output."""
        super()._build_mlp_extractor()
        self.lstm_actor = nn.LSTM(self.features_dim, self.lstm_hidden_size, self.n_lstm_layers)
        self.mlp_extractor = MlpExtractor(self.lstm_hidden_size, self.net_arch, self.activation_fn, self.device)

    def steps_of(self, obs: PyTorchObs | RecurrentSteps) -> RecurrentSteps:
        """
        :param obs: Observations
        :return: The same as first steps of their episodes, unless they come with states
        """
        if isinstance(obs, RecurrentSteps):
            return obs
        some = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return RecurrentSteps(obs, th.zeros((len(some), *self.lstm_state_shape), device=some.device))

    def _read(self, obs: PyTorchObs | RecurrentSteps) -> th.Tensor:
        steps = self.steps_of(obs)
        features = self.extract_features(steps.observations)
        hidden, cell = (each.contiguous() for each in steps.states.permute(1, 2, 0, 3))
        if steps.sequence is None or steps.time is None:
            output, steps.after = self.lstm_actor(features[None], (hidden, cell))
            return output[0]
        # Packed as PyTorch wants it: by time, and the longest sequences first. Nothing is computed for padding
        longest_first = th.bincount(steps.sequence).argsort(descending=True)
        rank = longest_first.argsort()
        order = (steps.time * len(rank) + rank[steps.sequence]).argsort()
        packed = PackedSequence(features[order], th.bincount(steps.time).cpu(), longest_first, rank)
        output, steps.after = self.lstm_actor(packed, (hidden, cell))
        return output.data[order.argsort()]

    def action_sampler(
        self, read: Callable[[PyTorchObs], RecurrentSteps] | None = None
    ) -> Callable[..., tuple[np.ndarray, th.Tensor]]:
        """
        :param read: Adds the states to observations, by default those of first steps
        :return: See :meth:`ActorPolicy.action_sampler`
        """
        read = self.steps_of if read is None else read
        if self._has_own_distribution:
            return self._slow_sampler(read)
        return fast_sampler(self, [lambda obs: self._latent(read(obs))])

    def state_features(self, obs: PyTorchObs | RecurrentSteps) -> StateFeatures:
        """
        Get the inputs of a regression on the state.

        :param obs: Observation
        :return: those of :class:`ActorPolicy`, and what the policy remembers of earlier observations
        """
        steps = self.steps_of(obs)
        seen = super().state_features(steps.observations)
        return StateFeatures(seen.numbers, th.cat([seen.pictures, steps.states[:, 0].flatten(1)], dim=1))

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Get the policy action from an observation and hidden state.

        :param observation: the input observation
        :param state: the last hidden states, each (n_layers, n_envs, hidden_size): the hidden and the cell states of the LSTM.
            ``None`` where an episode begins
        :param episode_start: whether the observations are the first of their episodes: the states are then ignored
        :param deterministic: whether to return deterministic actions
        :param action_masks: the actions that are allowed, see :meth:`ActorPolicy.predict`
        :return: the model's action and the next hidden state
        """
        self.set_training_mode(False)
        obs, is_vectorized = self.obs_to_tensor(observation)
        steps = self.steps_of(obs)
        if state is not None:
            states = th.as_tensor(np.stack(state), dtype=th.float32, device=self.device).movedim(2, 0)
            if states.shape != steps.states.shape:
                n, _, *sizes = steps.states.shape
                raise ValueError(
                    f"state has the shape {np.shape(state)}, and {n} observations need {(2, sizes[0], n, sizes[1])}: hidden "
                    "and cell states, as predict() returned them for the observations before; None where episodes begin."
                )
            steps.states = states
        if episode_start is not None:
            if np.size(episode_start) != len(steps.states):
                raise ValueError(
                    f"episode_start has the shape {np.shape(episode_start)}, and there are {len(steps.states)} observations."
                )
            if state is None and not np.all(episode_start):
                warn_user(
                    "predict() got no state in the middle of an episode: nothing of it is remembered. Pass on the state that "
                    "predict() returned. SB3-Contrib's evaluation with masks does not: write evaluate_policy(Actor(model, "
                    "env), env), with Actor from sb3_grpo.common.acting."
                )
            goes_on = ~th.as_tensor(np.ravel(episode_start), dtype=th.bool, device=self.device)
            steps.states = steps.states * goes_on[:, None, None, None]
        n = len(steps.states)
        actions = self._predicted(steps, n, deterministic, action_masks)
        assert steps.after is not None
        after = tuple(each.cpu().numpy() for each in steps.after)
        return actions if is_vectorized else actions.squeeze(axis=0), after


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
