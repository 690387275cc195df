"""Storage of grouped rollouts, and the batch that one update learns from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.type_aliases import TensorDict

from sb3_grpo.common.frames import FrameStore, StackedImages, take_rows
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.groups.queue import NO_EPISODE
from sb3_grpo.starts.starts import SnapshotStart

if TYPE_CHECKING:
    from sb3_grpo.common.policies import ActorPolicy

_ROWS_AT_A_TIME = 1024


class Minibatch(NamedTuple):
    """
    A part of the batch.

    :param steps: (M,) indices of its steps, in 0..N-1
    :param episodes: The episodes that they belong to, on the host; only if whole episodes stay together
    :param n_minibatches: Number of minibatches in the batch
    """

    steps: th.Tensor
    episodes: np.ndarray | None
    n_minibatches: int


class PackedObservations:
    """Observations stored in a policy's own format instead of one row per step, see ``rollout_buffer_class``."""

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> Any:
        """
        :param minibatch: Part of the batch
        :param episode: (N,) the episode of each step of the batch
        :return: The observations of its steps, as the policy takes them
        """
        raise NotImplementedError


@dataclass
class GroupBatch:
    """
    The groups of one update. B groups of G members make E = B * G episodes with N steps in total. If an update does not wait
    for episodes to end, they consist of the steps since the last update. T is the length of the longest.
    Steps are ordered by (group, member, time).

    :param observations: (rows, \\*obs_shape) or a dict of these, for the whole rollout; index with ``rows``.
        Images of stacked frames are :class:`StackedImages`. Or in the policy's own format
    :param actions: (rows, \\*action_shape), index with ``rows``
    :param old_log_prob: (rows,) log probability under the policy that chose the action, index with ``rows``
    :param rows: (N,) row of each step in the rollout
    :param episode: (N,) the episode 0..E-1 of each step
    :param time: (N,) index of the step in its episode
    :param rewards: (B, G, T) zero-padded, in double precision: equal outcomes must compare equal
        regardless of the order of their rewards
    :param mask: (B, G, T) True where a step exists
    :param lengths: (B, G) steps per episode
    :param truncated: (B, G) True if a time limit truncated the episode
    :param elapsed: (B, G) steps that the time limit had counted before the first step
    :param going_on: (M,) long, indices (0..E-1) of the episodes that continue after their last step
    :param next_observations: (M, \\*obs_shape) or a dict of these, the observations from which they continue; ``None`` if M
        is 0
    """

    observations: th.Tensor | StackedImages | dict[str, th.Tensor | StackedImages] | PackedObservations
    actions: th.Tensor
    old_log_prob: th.Tensor
    rows: th.Tensor
    episode: th.Tensor
    time: th.Tensor
    rewards: th.Tensor
    mask: th.Tensor
    lengths: th.Tensor
    truncated: th.Tensor
    elapsed: th.Tensor
    going_on: th.Tensor
    next_observations: th.Tensor | TensorDict | None

    def flatten(self, padded: th.Tensor) -> th.Tensor:
        """
        :param padded: (B, G, T)
        :return: (N,) the entries of existing steps, in the order of ``rows``
        """
        return padded.flatten(0, 1)[self.episode, self.time]

    def pad(self, flat: th.Tensor) -> th.Tensor:
        """
        :param flat: (N,) in the order of ``rows``
        :return: (B, G, T) the same values, with zeros where there is no step
        """
        padded = flat.new_zeros(self.mask.shape)
        padded[self.mask] = flat
        return padded

    def observations_at(self, minibatch: Minibatch) -> Any:
        """
        :param minibatch: Part of the batch
        :return: The observations of its steps, as the policy takes them
        """
        if isinstance(self.observations, PackedObservations):
            return self.observations.at(minibatch, self.episode)
        rows = self.rows[minibatch.steps]
        if isinstance(self.observations, dict):
            return {key: take_rows(value, rows) for key, value in self.observations.items()}
        return take_rows(self.observations, rows)


class GroupRolloutBuffer:
    """
    The transitions of grouped episodes: one row per step of an environment copy, in chronological order.

    Episodes end at different times, and idle copies start the groups of the next update while the last episodes
    of this one finish. So each row has the ticket of its episode, and is kept until the episode has been used or dropped.

    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device that the batches live on
    :raises NotImplementedError: if SB3 does not support the observation space (``Tuple``, ``Text``)
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device):
        get_obs_shape(observation_space)
        self.device = device
        self._dict_obs = isinstance(observation_space, spaces.Dict)
        self._obs_spaces: dict[str, spaces.Space] = (
            observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        )
        action_shape = () if isinstance(action_space, spaces.Discrete) else (get_action_dim(action_space),)
        # Bernoulli log probabilities need floats
        indices = isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete))
        self._columns: dict[str, tuple[tuple[int, ...], Any]] = {
            "actions": (action_shape, np.int64 if indices else np.float32),
            "rewards": ((), np.float32),
            "ticket": ((), np.int64),
            "time": ((), np.int32),
            "log_prob": ((), np.float32),
        }
        self.reset()

    def reset(self) -> None:
        """Clear the buffer."""
        self.size = 0
        self._n_evaluated = 0
        self._forwarded: list[th.Tensor] = []  # for the rows that are not evaluated yet
        self.forwarded_bytes = 0
        self._capacity = 0
        self._obs: dict[str, np.ndarray | FrameStore] = {
            key: FrameStore(space) if FrameStore.is_for(space) else np.empty((0, *space.shape), space.dtype)  # type: ignore[misc]
            for key, space in self._obs_spaces.items()
        }
        self._data = {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in self._columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """
        :return: All rows, whose log probabilities must have been computed
        """
        assert self._n_evaluated == self.size
        return {name: {key: values[: self.size] for key, values in getattr(self, name).items()} for name in ("_obs", "_data")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict``
        """
        self.reset()
        vars(self).update({name: value for name, value in state.items() if name != "_obs"})
        self.size = self._n_evaluated = self._capacity = len(self._data["ticket"])
        for key, values in state["_obs"].items():
            store = self._obs[key]
            if isinstance(store, FrameStore) and values.dtype == store.dtype:
                store.grow(self.size)
                store.add(0, values, self._data["ticket"])
            else:
                self._obs[key] = values

    def _grow(self, n_rows: int) -> None:
        """Allocate more rows. Untouched pages of ``np.empty`` cost no memory, so doubling is cheap."""
        self._capacity = max(2 * self._capacity, n_rows, 1024)
        for arrays in (self._obs, self._data):
            for key, old in arrays.items():
                if isinstance(old, FrameStore):
                    old.grow(self._capacity)
                else:
                    arrays[key] = self._grown(old, old.dtype)

    def _grown(self, old: np.ndarray | FrameStore, dtype: Any) -> np.ndarray:
        new = np.empty((self._capacity, *old[:0].shape[1:]), dtype)
        new[: self.size] = old[: self.size]
        return new

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        actions: np.ndarray,
        forwarded: th.Tensor,
        rewards: np.ndarray,
        ticket: np.ndarray,
        time: np.ndarray,
    ) -> None:
        """
        Add one step of all environment copies.

        :param obs: (n_envs, \\*obs_shape) or a dict of these
        :param actions: (n_envs, \\*action_shape) as sampled, neither clipped nor rescaled
        :param forwarded: (n_envs, \\*) logits, latent codes or log probabilities, as needed by ``evaluate_log_probs``. It
            stays on the device and must not be modified afterwards
        :param rewards: (n_envs,) the environment's own rewards
        :param ticket: (n_envs,) ticket of each copy's episode, ``NO_EPISODE`` if its steps are not used for training
        :param time: (n_envs,) number of earlier steps of the episode
        """
        actions = actions.reshape(len(actions), *self._data["actions"].shape[1:])
        columns = {"actions": actions, "rewards": rewards, "ticket": ticket, "time": time}
        self._store(obs if isinstance(obs, dict) else {"": obs}, columns, forwarded)

    def _store(self, obs: dict[str, np.ndarray], columns: dict[str, np.ndarray], forwarded: th.Tensor) -> None:
        """
        :param obs: Observations of one step of all copies
        :param columns: The other columns of this step, by name
        :param forwarded: See ``add``
        """
        ticket = columns["ticket"]
        if ticket.min() == NO_EPISODE:
            # During one long episode, the steps of idle copies would fill the memory
            wanted = np.flatnonzero(ticket != NO_EPISODE)
            obs = {key: values[wanted] for key, values in obs.items()}
            columns = {name: values[wanted] for name, values in columns.items()}
            forwarded = forwarded[th.as_tensor(wanted, device=forwarded.device)]
        end = self.size + len(columns["ticket"])
        for key, old in self._obs.items():
            # VecNormalize turns integers (as in MiniGrid) into floats, but changes the space only for images
            if obs[key].dtype.kind == "f" and old.dtype.kind != "f":
                self._obs[key] = self._grown(old, np.float32)
        if end > self._capacity:
            self._grow(end)
        step = slice(self.size, end)
        for key, values in self._obs.items():
            if isinstance(values, FrameStore):
                values.add(self.size, obs[key], columns["ticket"])
            else:
                values[step] = obs[key]
        for name, values in columns.items():
            self._data[name][step] = values
        self._forwarded.append(forwarded)
        self.forwarded_bytes += forwarded.nbytes
        self.size = end

    def _tensor(self, array: np.ndarray, rows: slice | np.ndarray) -> th.Tensor:
        return th.as_tensor(array[rows], device=self.device)

    def _observations(self, rows: slice) -> Any:
        tensors = {
            key: values.images(rows, self.device) if isinstance(values, FrameStore) else self._tensor(values, rows)
            for key, values in self._obs.items()
        }
        return tensors if self._dict_obs else tensors[""]

    @property
    def actions(self) -> np.ndarray:
        """The actions of the rollout as sampled. Like ``rewards`` and ``log_probs``, one row per step of a copy."""
        return self._data["actions"][: self.size]

    @property
    def rewards(self) -> np.ndarray:
        """The environment's own rewards."""
        return self._data["rewards"][: self.size]

    @property
    def log_probs(self) -> np.ndarray:
        """Log probabilities of the actions under the policy that chose them, known at the end of the rollout."""
        return self._data["log_prob"][: self.size]

    def evaluate_log_probs(self, policy: "ActorPolicy") -> None:
        """
        Compute the log probabilities of all actions added since the last call, and update the policy's normalisation
        statistics with the observations. Must be called before the policy that chose the actions changes.

        :param policy: The policy that chose the actions
        :raises ValueError: if a log probability is not finite, before an update can break the policy
        """
        begin, rows = self._n_evaluated, slice(self._n_evaluated, self.size)
        if begin == self.size:
            return
        with th.inference_mode():
            log_prob = policy.sampled_log_probs(th.cat(self._forwarded), self._tensor(self._data["actions"], rows))
        # Copied to the host, where they are checked and stored with the other columns: four bytes per step
        self._data["log_prob"][rows] = log_prob.cpu().numpy()
        for first in range(begin, self.size, _ROWS_AT_A_TIME):
            part = slice(first, min(first + _ROWS_AT_A_TIME, self.size))
            self._check_finite(part)
            policy.observation_norm.observe({key: self._obs[key][part] for key in policy.observation_norm.keys})
        self._forwarded.clear()
        self.forwarded_bytes = 0
        self._n_evaluated = self.size

    def _check_finite(self, rows: slice) -> None:
        finite = np.isfinite(self._data["log_prob"][rows])
        if not finite.all():
            time = self._data["time"][rows.start + int(np.argmin(finite))]
            raise ValueError(
                f"The policy gives its action at step {time} of an episode no finite log probability. Go on from an earlier "
                "checkpoint with a smaller learning_rate or a target_kl, or begin again with "
                "policy_kwargs=dict(normalize_observations=True)."
            )

    def batch(self, groups: list[Group]) -> GroupBatch:
        """
        Collect the steps of groups.

        :param groups: The groups, with all stored steps of their episodes
        :return: The batch of an update
        """
        episodes = [episode for group in groups for episode in group.episodes]
        shape = (len(groups), len(groups[0].episodes))
        tickets = self._data["ticket"][: self.size]
        wanted = np.array([episode.ticket for episode in episodes])  # ascending, as groups were drawn
        episode_of_row = np.searchsorted(wanted, tickets).clip(max=len(wanted) - 1)
        rows = np.flatnonzero(wanted[episode_of_row] == tickets)
        # Rows are in chronological order: a stable sort preserves it within each episode
        rows = rows[np.argsort(episode_of_row[rows], kind="stable")]

        n_steps = np.bincount(episode_of_row[rows], minlength=len(episodes))
        has_steps = n_steps > 0
        # Earlier updates have already used the first steps of episodes that had not ended
        n_before = np.zeros(len(episodes), dtype=np.int64)
        n_before[has_steps] = self._data["time"][rows[(n_steps.cumsum() - n_steps)[has_steps]]]
        elapsed = np.repeat(
            [group.start.elapsed if isinstance(group.start, SnapshotStart) else 0 for group in groups], shape[1]
        )
        going_on = [i for i in np.flatnonzero(has_steps).tolist() if episodes[i].next_observation is not None]

        episode_index = th.as_tensor(episode_of_row[rows], device=self.device)
        time = self._tensor(self._data["time"], rows).long() - th.as_tensor(n_before, device=self.device)[episode_index]
        lengths = th.as_tensor(n_steps, device=self.device)
        longest = int(n_steps.max())
        rewards = th.zeros((len(episodes), longest), dtype=th.float64, device=self.device)
        rewards[episode_index, time] = self._tensor(self._data["rewards"], rows).double()
        mask = th.arange(longest, device=self.device) < lengths[:, None]
        return GroupBatch(
            observations=self._batch_observations(episodes, rows),
            actions=self._tensor(self._data["actions"], slice(0, self.size)),
            old_log_prob=self._tensor(self._data["log_prob"], slice(0, self.size)),
            rows=th.as_tensor(rows, device=self.device),
            episode=episode_index,
            time=time,
            rewards=rewards.view(*shape, longest),
            mask=mask.view(*shape, longest),
            lengths=lengths.view(shape),
            truncated=th.as_tensor([episode.truncated for episode in episodes], device=self.device).view(shape),
            elapsed=th.as_tensor(elapsed + n_before, device=self.device).view(shape),
            going_on=th.as_tensor(going_on, dtype=th.long, device=self.device),
            next_observations=self._stacked([episodes[i].next_observation for i in going_on]),
        )

    def _stacked(self, observations: list[Any]) -> th.Tensor | TensorDict | None:
        """
        :param observations: M observations, each an array or a dict of arrays
        :return: (M, \\*obs_shape) or a dict of these, ``None`` if M is 0
        """
        if not observations:
            return None
        if self._dict_obs:
            return {key: self._tensor(np.stack([each[key] for each in observations]), slice(None)) for key in self._obs}
        return self._tensor(np.stack(observations), slice(None))

    def _batch_observations(self, episodes: list[Episode], rows: np.ndarray) -> Any:
        """
        :param episodes: The episodes of a batch
        :param rows: The rows of their steps
        :return: The observations of the batch
        """
        return self._observations(slice(0, self.size))

    def keep(self, tickets: list[int]) -> None:
        """
        Drop all rows except those of the given episodes. Must be called after ``evaluate_log_probs``, which updates the
        policy's statistics with all rows.

        :param tickets: The tickets of the episodes to keep
        """
        kept = np.flatnonzero(np.isin(self._data["ticket"][: self.size], tickets))
        for arrays in (self._obs, self._data):
            for values in arrays.values():
                if isinstance(values, FrameStore):
                    values.keep(kept)
                    continue
                # In parts, as images of all rows would be in memory twice. No row overwrites one that is still to be read.
                for begin in range(0, len(kept), _ROWS_AT_A_TIME):
                    part = kept[begin : begin + _ROWS_AT_A_TIME]
                    values[begin : begin + len(part)] = values[part]
        self.size = self._n_evaluated = len(kept)


def minibatches(
    episode: th.Tensor, kept: th.Tensor, batch_size: int | None, whole_episodes: bool = False
) -> Iterator[Minibatch]:
    """
    Split the steps of a batch randomly into minibatches of nearly equal size (for whole episodes, as equal as possible).

    :param episode: (N,) the episode of each step
    :param kept: (N,) long, indices of the steps that take part in the loss
    :param batch_size: Maximum number of steps in a minibatch (exceeded only by a single longer episode), ``None`` for a
        single minibatch
    :param whole_episodes: Keep the steps of an episode together, for ratios per episode and for texts
    :return: The minibatches
    """
    batch_size = len(kept) if batch_size is None else batch_size
    if not whole_episodes:
        n_minibatches = -(-len(kept) // batch_size)
        for steps in th.tensor_split(kept[th.randperm(len(kept), device=kept.device)], n_minibatches):
            yield Minibatch(steps, None, n_minibatches)
        return
    # Steps are ordered by episode: each episode is a contiguous run. One transfer per epoch, none per minibatch.
    lengths = th.bincount(episode[kept]).tolist()
    runs = th.split(kept, lengths)
    order = [index for index in th.randperm(len(lengths)).tolist() if lengths[index] > 0]
    n_episodes = _n_episodes(np.array([lengths[index] for index in order]), batch_size)
    for episodes in th.tensor(order).split(n_episodes):
        steps = th.cat([runs[index] for index in episodes.tolist()])
        yield Minibatch(steps, episodes.numpy(), len(n_episodes))


def _n_episodes(lengths: np.ndarray, batch_size: int) -> list[int]:
    """
    :param lengths: (E,) number of steps of each episode, in order
    :param batch_size: Maximum number of steps in a minibatch with more than one episode
    :return: Number of episodes in each minibatch
    """
    ends = lengths.cumsum()
    total = int(ends[-1])
    n_minibatches = -(-total // batch_size)
    while True:
        # Divide the steps into equal parts and assign each episode to the part that contains its middle
        part = (2 * ends - lengths) * n_minibatches // (2 * total)
        counts, sizes = np.bincount(part), np.bincount(part, weights=lengths)
        if ((sizes <= batch_size) | (counts <= 1)).all():
            return counts[counts > 0].tolist()
        n_minibatches += 1
