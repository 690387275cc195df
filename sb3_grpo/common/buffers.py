"""Storage of grouped rollouts."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim

from sb3_grpo.common.batch import GroupBatch, RecurrentSteps
from sb3_grpo.common.frames import FrameStore
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
