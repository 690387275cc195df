"""Storage of grouped rollouts, and the batch that one update learns from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim

from sb3_grpo.common.frames import FrameStore, StackedImages
from sb3_grpo.common.normalization import ObservationNorm
from sb3_grpo.groups.group import Episode, Group, normalized_outcomes
from sb3_grpo.starts.starts import SnapshotStart
from sb3_grpo.utils.spaces import parts_of

_ROWS_AT_A_TIME = 1024


class Acted(NamedTuple):
    """
    What a policy has done in a step of n copies.

    :param actions: (n, \\*action_shape) as sampled, neither clipped nor rescaled
    :param dist_inputs: (n, \\*) what their log probabilities are computed from: logits, latent codes or log probabilities. It
        stays on the device and must not be modified afterwards
    :param states: (n, \\*state_shape) what the policy remembers from now on, ``None`` if it has no memory
    """

    actions: np.ndarray
    dist_inputs: th.Tensor
    states: np.ndarray | None = None


class ActingPolicy(Protocol):
    """What the buffer needs of a policy, see :class:`ActorPolicy`."""

    observation_norm: ObservationNorm

    def sampled_log_probs(self, dist_inputs: th.Tensor, actions: th.Tensor) -> th.Tensor: ...


class Minibatch(NamedTuple):
    """
    A part of the batch.

    :param steps: (M,) indices of its steps, in 0..N-1
    :param episodes: The episodes that they belong to, on the host; only if whole episodes stay together
    :param n_minibatches: Number of minibatches in the batch
    :param n_shared: Number of steps of the minibatch of which these are a share; ``None``: they are all of it
    """

    steps: th.Tensor
    episodes: np.ndarray | None
    n_minibatches: int
    n_shared: float | None = None

    def mean(self, values: th.Tensor) -> th.Tensor:
        """
        :param values: (M,)
        :return: Their mean; of a share, what it adds to the mean of the whole minibatch
        """
        return values.mean() if self.n_shared is None else values.sum() / self.n_shared

    def share(self, rank: int, n_ranks: int, episode: th.Tensor) -> "Minibatch":
        """
        :param rank: Number of a share, from 0
        :param n_ranks: Number of shares
        :param episode: (N,) the episode of each step of the batch
        :return: The share; if it is empty, steps that do not count
        """
        steps, episodes = self.steps[rank::n_ranks], None
        if self.episodes is not None:
            # Neighbours, which may begin with the same prompt
            episodes = np.array_split(self.episodes, n_ranks)[rank]
            steps = self.steps[th.isin(episode[self.steps], th.as_tensor(episodes, device=self.steps.device))]
        if len(steps):
            return Minibatch(steps, episodes, self.n_minibatches, len(self.steps))
        # A loss without steps is not defined
        return self._replace(n_minibatches=0, n_shared=math.inf)


class PackedObservations:
    """Observations stored in a policy's own format instead of one row per step, see ``rollout_buffer_class``."""

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> Any:
        """
        :param minibatch: Part of the batch
        :param episode: (N,) the episode of each step of the batch
        :return: The observations of its steps, as the policy takes them
        """
        raise NotImplementedError

    def begin_long(self, lengths: th.Tensor) -> bool:
        """
        :param lengths: (B, G) steps per episode
        :return: Whether what episodes begin with is long, so that those with the same beginning should be read together
        """
        return False


@dataclass(frozen=True)
class RecurrentSteps:
    """
    What a policy with a memory acts on: M steps of S sequences, and what it remembers of the time before them.

    :param observations: (M, \\*obs_shape) or a dict of these
    :param states: (S, \\*state_shape) state of the memory before the first step of each sequence
    :param sequence: (M,) the sequence 0..S-1 of each step; ``None``: each step is a sequence of its own
    :param time: (M,) index of each step in its sequence; ``None`` together with ``sequence``
    """

    observations: Any
    states: th.Tensor
    sequence: th.Tensor | None = None
    time: th.Tensor | None = None

    @staticmethod
    def joined(parts: Sequence["RecurrentSteps"]) -> "RecurrentSteps":
        """
        :param parts: Steps that are sequences of their own
        :return: All of them
        """
        return RecurrentSteps(joined([each.observations for each in parts]), joined([each.states for each in parts]))


def joined(parts: Sequence[Any]) -> Any:
    """
    :param parts: Tensors of the same kind; or dicts, or objects with a method ``joined``, of them
    :return: One after the other
    """
    first = parts[0]
    if isinstance(first, th.Tensor):
        return th.cat([*parts])
    if isinstance(first, dict):
        return {key: joined([each[key] for each in parts]) for key in first}
    return first.joined(parts)


def observations_in(observations: Any, rows: th.Tensor) -> Any:
    """
    :param observations: (n, \\*obs_shape) tensor or :class:`StackedImages`, or a dict of these
    :param rows: (M,) long
    :return: (M, \\*obs_shape) or a dict of these, the observations in these rows
    """
    # Not values[rows], which copies single numbers: a twentieth of the speed for images
    if isinstance(observations, dict):
        return {key: values.index_select(0, rows) for key, values in observations.items()}
    return observations.index_select(0, rows)


@dataclass(frozen=True)
class GroupBatch:
    """
    The groups of one update, until the next rollout begins: on a CPU, it shares memory with the rollout buffer.

    B groups of G members make E = B * G episodes with N steps in total. If an update does not wait for episodes to end, they
    consist of the steps since the last update. T is the length of the longest. Steps are ordered by (group, member, time).

    :param observations: (rows, \\*obs_shape) or a dict of these, for all steps of all copies; index with ``rows``.
        Images of stacked frames are :class:`StackedImages`. Or in the policy's own format
    :param actions: (rows, \\*action_shape), index with ``rows``
    :param old_log_prob: (rows,) log probability under the policy that chose the action, index with ``rows``
    :param rows: (N,) row of each step in the rollout
    :param episode: (N,) the episode 0..E-1 of each step
    :param time: (N,) index of the step in this part of its episode
    :param rewards: (B, G, T) the environment's own, zero-padded, in double precision: equal outcomes must compare equal
        regardless of the order of their rewards
    :param mask: (B, G, T) True where a step exists
    :param lengths: (B, G) steps per episode
    :param outcomes: (B, G) undiscounted sums of the environment's own rewards, so far or over the whole episode
    :param truncated: (B, G) True if a time limit truncated the episode
    :param elapsed: (B, G) steps that the time limit had counted before the first step
    :param unfinished: (M,) long, indices (0..E-1) of the episodes that continue after their last step
    :param next_observations: (M, \\*obs_shape) or a dict of these, the observations from which they continue; ``None`` if M
        is 0. Or in the policy's own format, and :class:`RecurrentSteps` if it has a memory
    :param action_masks: (rows, A) the actions that were allowed, index with ``rows``; ``None`` if there are no masks
    :param states: (rows, \\*state_shape) what the policy remembered before each step; ``None`` if it has no memory
    :param normalized_outcomes: (B, G) outcomes with each part of the last reward normalised, see :func:`normalized_outcomes`;
        NaN where there are no parts
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
    outcomes: th.Tensor
    truncated: th.Tensor
    elapsed: th.Tensor
    unfinished: th.Tensor
    next_observations: Any
    action_masks: th.Tensor | None = None
    states: th.Tensor | None = None
    normalized_outcomes: th.Tensor | None = None

    @property
    def has_sequences(self) -> bool:
        """Whether the policy reads the steps of an episode together."""
        return self.states is not None or isinstance(self.observations, PackedObservations)

    @property
    def n_together(self) -> int:
        """How many episodes stay next to each other in minibatches: those of a group, if prompts are long."""
        together = isinstance(self.observations, PackedObservations) and self.observations.begin_long(self.lengths)
        return self.lengths.shape[1] if together else 1

    @staticmethod
    def joined(batches: Sequence["GroupBatch"]) -> "GroupBatch":
        """
        :param batches: Batches of different groups, which other copies have played
        :return: The batch of all of them, in this order
        """
        longest = max(each.mask.shape[-1] for each in batches)
        n_rows = n_episodes = 0
        parts: list[dict[str, Any]] = []
        for each in batches:
            missing = 0, longest - each.mask.shape[-1]
            moved = {
                "rows": each.rows + n_rows,
                "episode": each.episode + n_episodes,
                "unfinished": each.unfinished + n_episodes,
                "rewards": th.nn.functional.pad(each.rewards, missing),
                "mask": th.nn.functional.pad(each.mask, missing),
            }
            parts.append(vars(each) | moved)
            n_rows, n_episodes = n_rows + len(each.actions), n_episodes + each.lengths.numel()
        found = {name: [part[name] for part in parts if part[name] is not None] for name in parts[0]}
        of_all: dict[str, Any] = {name: joined(values) if values else None for name, values in found.items()}
        return GroupBatch(**of_all)

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

    def inputs_at(self, minibatch: Minibatch) -> tuple[Any, ...]:
        """
        :param minibatch: Part of the batch
        :return: What ``get_distribution`` takes for its steps: the observations and, if there are any, the action masks
        """
        observations = self.observations_at(minibatch)
        return (observations,) if self.action_masks is None else (observations, self.action_masks[self.rows[minibatch.steps]])

    def observations_at(self, minibatch: Minibatch) -> Any:
        """
        :param minibatch: Part of the batch
        :return: The observations of its steps, as the policy takes them
        """
        if isinstance(self.observations, PackedObservations):
            return self.observations.at(minibatch, self.episode)
        steps = minibatch.steps
        observations = observations_in(self.observations, self.rows[steps])
        if self.states is None:
            return observations
        if minibatch.episodes is None:
            return RecurrentSteps(observations, self.states[self.rows[steps]])
        # Sequences of consecutive steps, through which gradients flow
        begins = th.ones_like(steps, dtype=th.bool)
        begins[1:] = (self.episode[steps].diff() != 0) | (self.time[steps].diff() != 1)
        first, sequence = begins.nonzero().squeeze(1), begins.cumsum(0) - 1
        time = th.arange(len(steps), device=steps.device) - first[sequence]
        return RecurrentSteps(observations, self.states[self.rows[steps[first]]], sequence, time)


class GroupRolloutBuffer:
    """
    The steps of all environment copies, laid out as in SB3: one row per step of the vectorized environment, one column per
    copy. The steps of an episode are consecutive rows of one column.

    With whole groups, episodes end at different times, and free copies begin the groups of the next update. Rows are kept as
    long as an episode that is not used yet has steps in them.

    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device that the batches live on
    :param n_envs: Number of environment copies
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device, n_envs: int = 1):
        self.device = device
        self.n_envs = n_envs
        self._obs_spaces = parts_of(observation_space)
        self._dict_obs = isinstance(observation_space, spaces.Dict)
        self._stacks = {key for key, space in self._obs_spaces.items() if FrameStore.is_for(space)}
        # Bernoulli log probabilities need floats
        indices = isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete))
        self._action_shape = () if isinstance(action_space, spaces.Discrete) else (get_action_dim(action_space),)
        # What is stored for each step besides the observation, and what the policy is given in addition
        self._columns: dict[str, tuple[tuple[int, ...], Any]] = {
            "actions": (self._action_shape, np.int64 if indices else np.float32),
            "rewards": ((), np.float32),
            "log_probs": ((), np.float32),
            "in_groups": ((), np.bool_),
        }
        self.reset()

    def reset(self) -> None:
        """Empty the buffer."""
        self.pos = 0
        self._capacity = 0
        self._n_evaluated = 0
        self._dist_inputs: list[th.Tensor] = []  # for the rows that are not evaluated yet
        self.dist_inputs_bytes = 0
        self._obs: dict[str, np.ndarray | FrameStore] = {}
        self._data = {name: np.empty((0, self.n_envs, *shape), dtype) for name, (shape, dtype) in self._columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """
        :return: All rows, whose log probabilities must have been computed
        """
        assert self._n_evaluated == self.pos
        obs = {key: each if isinstance(each, FrameStore) else each[: self.pos] for key, each in self._obs.items()}
        return {"_obs": obs, "_data": {name: values[: self.pos] for name, values in self._data.items()}, "pos": self.pos}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict``
        """
        self.reset()
        vars(self).update(state)
        self._n_evaluated = self._capacity = self.pos

    def _make_room(self, obs: dict[str, np.ndarray]) -> None:
        """
        Allocate more rows. Untouched pages of ``np.empty`` cost no memory, so doubling is cheap.

        :param obs: Observations to be stored
        """
        for key, space in self._obs_spaces.items():
            if key not in self._obs:
                # VecNormalize turns integers (as in MiniGrid) into floats, but changes the space only for images
                dtype = np.float32 if obs[key].dtype.kind == "f" and space.dtype.kind != "f" else space.dtype  # type: ignore[union-attr]
                is_stack = key in self._stacks and dtype == space.dtype
                empty = np.empty((0, self.n_envs, *space.shape), dtype)  # type: ignore[misc]
                self._obs[key] = FrameStore(space, self.n_envs) if is_stack else empty  # type: ignore[arg-type]
        if self.pos == self._capacity:
            self._capacity = max(2 * self._capacity, -(-1024 // self.n_envs))
        for arrays in (self._obs, self._data):
            for key, old in arrays.items():
                if isinstance(old, FrameStore):
                    old.grow(self._capacity)
                elif len(old) < self._capacity:
                    new = np.empty((self._capacity, *old.shape[1:]), old.dtype)
                    new[: self.pos] = old[: self.pos]
                    arrays[key] = new

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        acted: Acted,
        in_groups: np.ndarray,
        given: dict[str, np.ndarray] | None = None,
    ) -> None:
        r"""
        Add what the policy has seen and done in one step, before the environments may overwrite it.

        :param obs: (n_envs, \*obs_shape) or a dict of these
        :param acted: What it has done
        :param in_groups: (n_envs,) whether the step belongs to a group. The others are not learned from
        :param given: What it was given besides, see :meth:`GroupCollector.given`
        """
        by_key = obs if isinstance(obs, dict) else {"": obs}
        if self.pos == self._capacity or len(self._obs) < len(self._obs_spaces):
            self._make_room(by_key)
        for key, values in self._obs.items():
            if isinstance(values, FrameStore):
                values.add(self.pos, by_key[key], in_groups)
            else:
                values[self.pos] = by_key[key]
        actions = acted.actions.reshape(self.n_envs, *self._action_shape)
        for name, column in {"actions": actions, "in_groups": in_groups, **(given or {})}.items():
            if name not in self._data:
                self._data[name] = np.zeros((self._capacity, *column.shape), column.dtype)
            self._data[name][self.pos] = column
        self._dist_inputs.append(acted.dist_inputs)
        self.dist_inputs_bytes += acted.dist_inputs.nbytes

    def add_rewards(self, rewards: np.ndarray) -> None:
        """
        Complete the step that was added last.

        :param rewards: (n_envs,) the environment's own rewards
        """
        self._data["rewards"][self.pos] = rewards
        self.pos += 1

    def on_episode_ends(self, indices: list[int], episodes: list[Episode], obs: np.ndarray | dict[str, np.ndarray]) -> None:
        """
        Called when episodes have ended.

        :param indices: Environment copies whose episodes have ended
        :param episodes: Those of these episodes that belong to groups
        :param obs: (n_envs, \\*obs_shape) or a dict of these, the observations before the last step
        """

    @property
    def actions(self) -> np.ndarray:
        """(steps, n_envs, \\*action_shape) actions as sampled."""
        return self._data["actions"][: self.pos]

    @property
    def rewards(self) -> np.ndarray:
        """(steps, n_envs) the environment's own rewards."""
        return self._data["rewards"][: self.pos]

    @property
    def log_probs(self) -> np.ndarray:
        """(steps, n_envs) log probabilities under the policy that chose the actions, known at the end of the rollout."""
        return self._data["log_probs"][: self._n_evaluated]

    def _flat(self, values: np.ndarray, begin: int = 0) -> np.ndarray:
        """
        :param values: (capacity, n_envs, \\*shape)
        :param begin: The first row
        :return: ((pos - begin) * n_envs, \\*shape) the rows that are filled, without a copy
        """
        return values[begin : self.pos].reshape(-1, *values.shape[2:])

    def finish_steps(self, policy: ActingPolicy) -> None:
        """
        Compute the log probabilities of all actions added since the last call, and update the policy's normalisation
        statistics with the observations. Must be called before the policy that chose the actions changes.

        :param policy: The policy that chose the actions
        :raises ValueError: if a log probability is not finite, before an update can break the policy
        """
        begin = self._n_evaluated
        if begin == self.pos:
            return
        # An interrupted step has no reward, and is not in the buffer
        actions = self._tensor(self._flat(self._data["actions"], begin))
        with th.inference_mode():
            log_probs = policy.sampled_log_probs(th.cat(self._dist_inputs[: self.pos - begin]), actions).cpu().numpy()
        self._flat(self._data["log_probs"], begin)[:] = log_probs
        if not np.isfinite(log_probs).all():
            idx = int(np.argmin(np.isfinite(log_probs))) % self.n_envs
            raise ValueError(
                f"The policy gives an action in environment copy {idx} no finite log probability. Go on from an earlier "
                "checkpoint with a smaller learning_rate or a target_kl, or begin again with "
                "policy_kwargs=dict(normalize_observations=True)."
            )
        if policy.observation_norm.keys:
            learned = np.flatnonzero(self._flat(self._data["in_groups"], begin))
            for part in np.split(learned, range(_ROWS_AT_A_TIME, len(learned), _ROWS_AT_A_TIME)):
                seen = {key: self._flat(self._obs[key], begin)[part] for key in policy.observation_norm.keys}  # type: ignore[arg-type]
                policy.observation_norm.observe(seen)
        self._dist_inputs.clear()
        self.dist_inputs_bytes = 0
        self._n_evaluated = self.pos

    def batch(self, groups: list[Group]) -> GroupBatch:
        """
        Collect the steps of groups.

        :param groups: The groups, with all stored steps of their episodes
        :return: The batch of an update
        """
        episodes = [episode for group in groups for episode in group.episodes]
        shape = (len(groups), len(groups[0].episodes))
        n_used = np.array([episode.n_used for episode in episodes])
        n_steps = np.array([episode.length for episode in episodes]) - n_used
        first = np.array([episode.first_row * self.n_envs + episode.env for episode in episodes])
        number = np.repeat(np.arange(len(episodes)), n_steps)
        time = np.arange(len(number)) - (n_steps.cumsum() - n_steps)[number]
        rows = first[number] + time * self.n_envs
        rewards = np.zeros((len(episodes), n_steps.max()))
        rewards[number, time] = self._flat(self._data["rewards"])[rows]
        elapsed = [
            episode.group.start.elapsed if isinstance(episode.group.start, SnapshotStart) else 0 for episode in episodes
        ]
        unfinished = [i for i in np.flatnonzero(n_steps).tolist() if episodes[i].next_observation is not None]
        given = {name: self._tensor(self._flat(self._data[name])) for name in ("action_masks", "states") if name in self._data}
        return GroupBatch(
            observations=self._observations(episodes, rows),
            actions=self._tensor(self._flat(self._data["actions"])),
            old_log_prob=self._tensor(self._flat(self._data["log_probs"])),
            rows=self._tensor(rows),
            episode=self._tensor(number),
            time=self._tensor(time),
            rewards=self._tensor(rewards).view(*shape, -1),
            mask=self._tensor(np.arange(rewards.shape[1]) < n_steps[:, None]).view(*shape, -1),
            lengths=self._tensor(n_steps).view(shape),
            outcomes=self._tensor(np.array([episode.outcome for episode in episodes])).view(shape),
            normalized_outcomes=normalized_outcomes(groups).to(self.device),
            truncated=self._tensor(np.array([episode.truncated for episode in episodes])).view(shape),
            elapsed=self._tensor(elapsed + n_used).view(shape),
            unfinished=th.as_tensor(unfinished, dtype=th.long, device=self.device),
            next_observations=self._next_observations([episodes[i] for i in unfinished]),
            **given,
        )

    def _tensor(self, array: np.ndarray) -> th.Tensor:
        return th.as_tensor(array, device=self.device)

    def _observations(self, episodes: list[Episode], rows: np.ndarray) -> Any:
        """
        :param episodes: The episodes of a batch
        :param rows: (N,) the rows of their steps
        :return: The observations of the whole buffer, or of the batch if they are in the policy's own format
        """
        tensors = {
            key: each.images(self.pos, self.device) if isinstance(each, FrameStore) else self._tensor(self._flat(each))
            for key, each in self._obs.items()
        }
        return tensors if self._dict_obs else tensors[""]

    def _next_observations(self, episodes: list[Episode]) -> Any:
        """
        :param episodes: M episodes that go on
        :return: (M, \\*obs_shape) or a dict of these, the observations from which they do; ``None`` if M is 0
        """
        if not episodes:
            return None
        stacked: Any
        if self._dict_obs:
            entries = ((key, [each.next_observation[key] for each in episodes]) for key in self._obs)
            stacked = {key: self._tensor(np.stack(values)) for key, values in entries}
        else:
            stacked = self._tensor(np.stack([each.next_observation for each in episodes]))
        if "states" not in self._data:
            return stacked
        return RecurrentSteps(stacked, self._tensor(np.stack([each.next_state for each in episodes])))

    def keep(self, episodes: list[Episode]) -> None:
        """
        Drop the rows before the first step of the given episodes. Must be called after ``finish_steps``, which updates
        the policy's statistics with all rows.

        :param episodes: The episodes to keep, which have begun
        """
        first = min((episode.first_row for episode in episodes), default=self.pos)
        for episode in episodes:
            episode.first_row -= first
        n_kept = self.pos - first
        for values in (*self._obs.values(), *self._data.values()):
            if isinstance(values, FrameStore):
                values.keep(first, self.pos)
                continue
            # In parts, as images of all rows would be in memory twice. No row overwrites one that is still to be read.
            step = max(first, 1)
            for begin in range(0, n_kept if first else 0, step):
                part = values[first + begin : first + min(begin + step, n_kept)]
                values[begin : begin + len(part)] = part
        self.pos = self._n_evaluated = n_kept
        if n_kept == 0:
            # Observations may have another type from now on
            self._obs = {key: each for key, each in self._obs.items() if isinstance(each, FrameStore)}


def minibatches(
    episode: th.Tensor, kept: th.Tensor, batch_size: int | None, whole_episodes: bool = False, n_together: int = 1
) -> Iterator[Minibatch]:
    """
    Split the steps of a batch randomly into minibatches of nearly equal size (for whole episodes, as equal as possible).

    :param episode: (N,) the episode of each step
    :param kept: (N,) long, indices of the steps that take part in the loss
    :param batch_size: Maximum number of steps in a minibatch (exceeded only by a single longer episode), ``None`` for a
        single minibatch
    :param whole_episodes: Keep the steps of an episode together, for ratios per episode and for texts
    :param n_together: Number of neighbouring whole episodes that stay next to each other
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
    permutation = th.randperm(len(lengths))
    if n_together > 1:
        runs_of_episodes = th.randperm(-(-len(lengths) // n_together))
        permutation = permutation[runs_of_episodes[permutation // n_together].argsort(stable=True)]
    order = [index for index in permutation.tolist() if lengths[index] > 0]
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
