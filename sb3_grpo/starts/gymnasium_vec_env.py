"""Vector environments of Gymnasium as vectorized environments of Stable-Baselines3."""

import time
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_grpo.starts.start_queue import QueuedStart, StartQueue
from sb3_grpo.starts.starts import SeedStart, StartNotSupportedError

# What copies have here: some only if they can be reset by themselves
_OWN_STARTS = ("queue_start", "clear_starts", "cut_after")
_OWN = (*_OWN_STARTS, "env_name", "render_mode")


class GymnasiumVecEnv(VecEnv):
    """
    A vector environment of Gymnasium, such as ``gym.make_vec(...)`` or ale-py's ``AtariVectorEnv``, for the algorithms of
    Stable-Baselines3. Episodes are reported as by ``Monitor``. The infos of steps at which no episode ends are empty.

    If copies can be reset by themselves (``SyncVectorEnv`` and ``AsyncVectorEnv`` without wrappers around, unless they reset
    in the same step; others with ``AutoresetMode.DISABLED``, which take a list of seeds and ``options["reset_mask"]``), they
    begin from queued starts as in a :class:`StartQueue`, so groups can share starts; from seeds, not from snapshots.
    Otherwise, a copy that is reset by the step that follows the end of an episode (``AutoresetMode.NEXT_STEP``) has an episode
    of this one step in between. GRPO and DAPO never learn from it; other algorithms do.

    :param env: The vector environment
    """

    def __init__(self, env: VectorEnv):
        self.env = env
        mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        # Wrappers may not take partial resets; without shared memory, processes reset again in the next step
        knows_masks = isinstance(env, SyncVectorEnv) or (isinstance(env, AsyncVectorEnv) and env.shared_memory)
        self.resets_copies = mode is AutoresetMode.DISABLED or (knows_masks and mode is AutoresetMode.NEXT_STEP)
        self._mode = mode
        # The first copy to end its episode takes the next one
        self.queue: deque[QueuedStart] = deque()
        self._first: list[Any] = [None] * env.num_envs
        self._steps_left = np.zeros(env.num_envs, np.int64)  # 0: the episode is not cut
        self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self._is_between = np.zeros(env.num_envs, bool)  # copies that the next step resets
        self._actions = np.empty(0)
        self._t_start = time.time()
        self.num_envs, self.render_mode = env.num_envs, env.render_mode
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    @property
    def env_name(self) -> str:
        """The id of the environment."""
        return type(self.env.unwrapped).__name__ if self.env.spec is None else self.env.spec.id

    def reset(self) -> Any:
        """
        Begin an episode in every copy.

        :return: The observations
        """
        self._is_between[:] = False
        if self.resets_copies and self.queue:
            # Others than Gymnasium's own may need a whole reset first
            observations = None if isinstance(self.env, SyncVectorEnv | AsyncVectorEnv) else self.env.reset()[0]
            observations = self._begin(np.arange(self.num_envs), observations)
        else:
            seed = self._seeds[0]
            observations, infos = self.env.reset(seed=None if seed is None else int(seed), options=self._options[0] or None)
            self._note_resets(np.arange(self.num_envs), infos)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """
        :param actions: (num_envs, \\*action_shape)
        """
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: Observations, rewards, dones, infos
        """
        observations, rewards, terminations, truncations, infos = self.env.step(self._actions)
        was_between, self._is_between = self._is_between, np.zeros(self.num_envs, bool)
        self._returns += rewards
        self._lengths += 1
        ended = terminations | truncations
        is_cut = (self._steps_left == 1) & ~ended
        self._steps_left = np.maximum(self._steps_left - 1, 0)
        ended |= is_cut
        dones = ended | was_between
        reported: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if not dones.any():
            return observations, rewards.astype(np.float32), dones, reported
        same_step = self._mode is AutoresetMode.SAME_STEP
        final = infos.get("final_info", infos) if same_step else infos
        last = infos.get("final_obs") if same_step else observations
        seconds = round(time.time() - self._t_start, 6)
        for idx in ended.nonzero()[0].tolist():
            reported[idx] = {**_info_of(final, idx), "TimeLimit.truncated": bool(not terminations[idx])}
            if is_cut[idx]:
                reported[idx]["group_cut"] = True
            else:
                episode = {"r": round(float(self._returns[idx]), 6), "l": int(self._lengths[idx]), "t": seconds}
                reported[idx]["episode"] = episode
            if last is not None:
                reported[idx]["terminal_observation"] = _row(last, idx)
        indices = dones.nonzero()[0]
        if self.resets_copies:
            observations = self._begin(indices, observations)
        else:
            self._note_resets(indices, infos)
        if not self.resets_copies and not same_step:
            self._is_between = ended
            for idx in ended.nonzero()[0].tolist():
                self.reset_infos[idx] = {"between_episodes": True}
        return observations, rewards.astype(np.float32), dones, reported

    def _begin(self, indices: np.ndarray, observations: Any) -> Any:
        """
        Begin from the queued starts, or with ordinary resets where there are none.

        :param indices: Copies without an episode
        :param observations: Latest observations of all copies
        :return: The observations of all copies
        """
        queued = {idx: self.queue.popleft() for idx in indices.tolist()[: len(self.queue)]}
        # Copies with the same options are reset together
        together: list[tuple[dict[str, Any], list[int]]] = []
        for idx in indices.tolist():
            start = queued[idx].start if idx in queued else None
            if start is not None and not isinstance(start, SeedStart):
                raise StartNotSupportedError(
                    f"{self.env_name}: a vector environment begins from seeds, not from snapshots: use make_group_env."
                )
            options = (start.options if start is not None else None) or {}
            same = next((copies for known, copies in together if known == options), None)
            if same is None:
                together.append((options, same := []))
            same.append(idx)
        for options, copies in together:
            mask = np.zeros(self.num_envs, bool)
            mask[copies] = True
            seeds: Any = [queued[idx].start.seed if idx in queued else None for idx in range(self.num_envs)]  # type: ignore[union-attr]
            observations, infos = self.env.reset(seed=seeds, options={**options, "reset_mask": mask})
            self._note_resets(np.array(copies), infos)
        for idx, each in queued.items():
            self._first[idx] = _row(observations, idx)
            self.reset_infos[idx] = each.add_names(self.reset_infos[idx])
        return observations

    def _note_resets(self, indices: np.ndarray, infos: dict[str, Any]) -> None:
        self._returns[indices] = self._lengths[indices] = self._steps_left[indices] = 0
        for idx in indices.tolist():
            self.reset_infos[idx] = _info_of(infos, idx)

    def has_attr(self, attr_name: str) -> bool:
        """
        :param attr_name: Name of an attribute of the copies
        :return: Whether they have it
        """
        if attr_name in _OWN:
            return attr_name not in _OWN_STARTS or self.resets_copies
        if isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            # Its own get_attr calls methods, and an error would end the processes of an AsyncVectorEnv
            return all(self.env.unwrapped.call("has_wrapper_attr", attr_name))
        return hasattr(self.env, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        :param attr_name: Name of an attribute of the copies
        :param indices: Indices of the copies, ``None`` for all
        :return: The attribute of each of them
        """
        copies = [*self._get_indices(indices)]
        if attr_name == "first_observation":
            return [self._first[idx] for idx in copies]
        if not self.has_attr(attr_name):
            raise AttributeError(f"The copies of {self.env_name} have no attribute {attr_name!r}.")
        if isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv) and attr_name not in _OWN:
            values = self.env.unwrapped.get_attr(attr_name)
            return [values[idx] for idx in copies]
        value = getattr(self if attr_name in _OWN else self.env, attr_name, None)
        return [value for _ in copies]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        :param attr_name: Name of an attribute of the copies
        :param value: Its new value
        :param indices: Must be all copies
        """
        if len({*self._get_indices(indices)}) < self.num_envs:
            raise ValueError(f"{attr_name!r} can only be set for all copies of a vector environment.")
        unwrapped: Any = self.env.unwrapped
        unwrapped.set_attr(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        :param method_name: Name of a method of the copies
        :param method_args: Positional arguments
        :param indices: Indices of the copies, ``None`` for all
        :param method_kwargs: Keyword arguments
        :return: The result of each of them
        """
        copies = [*self._get_indices(indices)]
        if method_name == "cut_after":
            self._steps_left[copies] = method_args[0]
            return [None for _ in copies]
        if method_name == "clear_starts":
            self.queue.clear()
            return [None for _ in copies]
        if method_name == "queue_start":
            self.queue.append(QueuedStart(*method_args, **method_kwargs))
            return [None for _ in copies]
        if len({*copies}) < self.num_envs:
            raise ValueError(f"{method_name}() can only be called for all copies of a vector environment.")
        unwrapped: Any = self.env.unwrapped
        if hasattr(unwrapped, "call"):
            results = unwrapped.call(method_name, *method_args, **method_kwargs)
        else:
            results = getattr(self.env, method_name)(*method_args, **method_kwargs)
        return [None if results is None else results[idx] for idx in copies]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        :param wrapper_class: Class of a wrapper
        :param indices: Indices of the copies, ``None`` for all
        :return: Whether the copies act as if wrapped in it
        """
        acts = wrapper_class is Monitor or (wrapper_class is StartQueue and self.resets_copies)
        return [acts for _ in self._get_indices(indices)]

    def get_images(self) -> list[Any]:
        """
        :return: A picture of each copy
        """
        images = self.env.render()
        return [] if images is None else [*images]

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()


def _row(values: Any, idx: int) -> Any:
    """
    :param values: Values of all copies, or a dict of these
    :param idx: Index of a copy
    :return: A copy of its value
    """
    if isinstance(values, dict):
        return {key: _row(each, idx) for key, each in values.items()}
    value = values[idx]
    return {key: np.array(each) for key, each in value.items()} if isinstance(value, dict) else np.array(value)


def _info_of(infos: Any, idx: int) -> dict[str, Any]:
    """
    :param infos: Infos of all copies, as a vector environment returns them: arrays by name, or a list
    :param idx: Index of a copy
    :return: Its info
    """
    if isinstance(infos, list):
        return dict(infos[idx])
    found = {}
    for key, values in infos.items():
        is_there = infos.get(f"_{key}")
        if key.startswith("_") or key in ("final_obs", "final_info") or not (is_there is None or is_there[idx]):
            continue
        if isinstance(values, dict):
            found[key] = _info_of(values, idx)
        elif np.ndim(values) > 0:
            found[key] = values[idx]
    return found
