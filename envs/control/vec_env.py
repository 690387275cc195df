"""Vectorized classic control tasks."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_grpo.envs.control.dynamics import DYNAMICS
from sb3_grpo.starts.batched_vec_env import BatchedVecEnv
from sb3_grpo.starts.starts import Start
from sb3_grpo.utils.parameters import Whole


class _Start(NamedTuple):
    """
    The start of an episode.

    :param state: (d,) the state
    :param observation: the first observation
    :param length: number of steps of the episode before this start
    :param episode_return: sum of the rewards of these steps
    :param info: info returned by ``reset``
    """

    state: np.ndarray
    observation: np.ndarray
    length: int
    episode_return: float
    info: dict[str, Any]


class ControlVecEnv(BatchedVecEnv[_Start]):
    """
    Equivalent to ``make_group_env(env_id, num_envs, seed)`` for Acrobot-v1, CartPole-v0 and -v1, MountainCar-v0 and
    Pendulum-v1, to the last bit, but faster with about four copies or more: see :class:`BatchedVecEnv`. Rendered images of
    Pendulum lack the arrow that shows the torque.

    :param env_id: Id of the environment
    :param num_envs: Number of copies
    :param seed: Copy i begins with ``reset(seed=seed + i)``. None: use a seed from the system
    :param render_mode: ``"rgb_array"`` or None
    :param env_kwargs: Arguments for ``gym.make``
    """

    _single: Monitor
    not_state = BatchedVecEnv.not_state | {"_dynamics"}

    def __init__(
        self, env_id: str, num_envs: int, seed: int | None = None, *, render_mode: str | None = None, **env_kwargs: Any
    ):
        num_envs = Whole().check("num_envs", num_envs)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} has to be 'rgb_array' (with which render() opens a window) or None")
        single = gym.make(env_id, render_mode=render_mode, **env_kwargs)
        # Has the attributes of the task
        self._base = cast(Any, single.unwrapped)
        # The RL Zoo has its own TimeLimit class
        unusual = [layer for layer in _wrappers(single) if not isinstance(layer, OrderEnforcing | PassiveEnvChecker)]
        limits = [layer for layer in unusual if "_max_episode_steps" in vars(layer)]
        if type(self._base) not in DYNAMICS or len(limits) != 1 or len(unusual) != 1:
            names = ", ".join(sorted(cls.__name__ for cls in DYNAMICS))
            raise ValueError(
                f"There is no batched form of {single}, only of {names} with the wrappers that they are registered with. "
                f"Use make_group_env({env_id!r}, n_envs={num_envs})."
            )
        self._time_limit = cast(Any, limits[0])
        self._dynamics = DYNAMICS[type(self._base)]
        self.render_mode = render_mode
        observation, _ = single.reset()
        # (d, n): one row per quantity, not per copy
        self._states = np.empty((len(self._base.state), num_envs))
        self._observed = np.empty((num_envs, *observation.shape), observation.dtype)
        self._lengths = np.zeros(num_envs, np.int64)
        # Number of steps after which each episode is cut
        self._limits = np.full(num_envs, self._time_limit._max_episode_steps, np.int64)
        self._returns = np.zeros(num_envs)
        self._t_start = time.time()
        super().__init__(num_envs, Monitor(single), seed)
        self.metadata = single.metadata

    def _observations(self) -> np.ndarray:
        return self._observed.copy()

    def _step(self, actions: np.ndarray) -> VecEnvStepReturn:
        self._states, rewards, terminated = self._dynamics.step(self._base, self._states, actions)
        self._observed = self._dynamics.observe(self._states)
        self._returns += rewards
        self._lengths += 1
        truncated = ~terminated & (self._lengths >= self._limits)
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        seconds = round(time.time() - self._t_start, 6)
        for idx in np.flatnonzero(dones).tolist():
            infos[idx] = {
                "TimeLimit.truncated": bool(truncated[idx]),
                "terminal_observation": self._observed[idx].copy(),
            }
            if truncated[idx] and self._lengths[idx] < self._time_limit._max_episode_steps:
                infos[idx]["group_cut"] = True
            else:
                episode = {"r": round(float(self._returns[idx]), 6), "l": int(self._lengths[idx]), "t": seconds}
                infos[idx]["episode"] = episode
            self._begin(idx)
        return self._observations(), rewards.astype(np.float32), dones, infos

    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        shape = (self.num_envs, *(self.action_space.shape or ()))
        if actions.shape != shape:
            raise ValueError(f"Expected actions of shape {shape}, one for each copy, got {actions.shape}")
        space = self.action_space
        if isinstance(space, spaces.Discrete) and (
            actions.dtype.kind not in "iu" or actions.min() < 0 or actions.max() >= space.n
        ):
            raise ValueError(f"Expected whole numbers from 0 to {space.n - 1} as actions, got {actions.tolist()!r:.200}")
        return actions

    def _reset_copy(self, idx: int, options: dict[str, Any] | None) -> dict[str, Any]:
        self._base.np_random = self._generator(idx)
        start = self._make_start(*self._single.reset(options=options or None))
        return self._begin_start(idx, start)[1]

    def _prepare_start(self, start: Start) -> _Start:
        return self._make_start(*self._begin_single(start))

    def _make_start(self, observation: np.ndarray, info: dict[str, Any]) -> _Start:
        observation.setflags(write=False)  # shared by all members of a group
        rewards = self._single.rewards
        return _Start(np.array(self._base.state, np.float64), observation, len(rewards), sum(rewards), info)

    def _begin_start(self, idx: int, start: _Start) -> tuple[np.ndarray, dict[str, Any]]:
        self._states[:, idx] = start.state
        self._observed[idx] = start.observation
        self._lengths[idx], self._returns[idx] = start.length, start.episode_return
        self._limits[idx] = self._time_limit._max_episode_steps
        return start.observation, dict(start.info)

    def _load(self, idx: int) -> np.ndarray:
        self._base.state = self._states[:, idx].copy()
        self._base.last_u = None
        length = self._time_limit._elapsed_steps = int(self._lengths[idx])
        # Any rewards with the same sum
        self._single.rewards = [float(self._returns[idx])] * min(length, 1) + [0.0] * (length - 1)
        self._single.needs_reset = False
        return self._observed[idx]

    def cut_after(self, idx: int, n_steps: int) -> None:
        """
        Cut the current episode of a copy, as at a time limit.

        :param idx: Index of the copy
        :param n_steps: Maximum number of steps left, at least 1
        """
        self._limits[idx] = min(self._limits[idx], self._lengths[idx] + n_steps)

    def get_images(self) -> list[np.ndarray | None]:
        """
        :return: An image of each copy
        """
        return [self._render(idx) for idx in range(self.num_envs)]

    def _render(self, idx: int) -> Any:
        self._check_ready()
        if self.render_mode is None:
            return None
        self._load(idx)
        return self._single.render()

    def _own_methods(self) -> dict[str, Callable[..., Any]]:
        return {**super()._own_methods(), "cut_after": self.cut_after, "render": self._render}


def _wrappers(env: gym.Env) -> Iterator[gym.Wrapper]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
