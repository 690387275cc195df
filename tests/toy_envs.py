"""Small environments whose every detail the tests know."""

import dataclasses
from collections.abc import Callable
from itertools import count
from random import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from sb3_grpo.common.batch import Minibatch
from sb3_grpo.envs import Item, Task

TINY = {"net_arch": [8]}
TINY_TEXT = {"n_layers": 1, "width": 16, "n_heads": 1}


def parameters_of(model: Any) -> th.Tensor:
    """
    :param model: A model
    :return: A copy of all parameters of its policy, one after the other
    """
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


def judged(model: Any, values: Any = None) -> Any:
    """
    :return: The batch of the last update with its rewards, and how its steps are judged
    """
    batch = dataclasses.replace(model.batch, rewards=model._rewards(model.batch))
    if model.advantage == "gae" and values is None:
        values = model._fit_values(batch)
    return model._judge(batch, values)


def same(a: Any, b: Any) -> bool:
    """
    :return: Whether two observations, or lists of what episodes have shown, are the same to the last bit
    """
    return data_equivalence(a, b, exact=True)


def actions_for(env: gym.Env, n: int, seed: int = 0) -> list[Any]:
    """
    :return: Random actions for an environment
    """
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(n)]


def roll(env: gym.Env, actions: list[Any]) -> list[Any]:
    """
    :return: All that an episode shows after these actions, up to its end, without the clock
    """
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        statistics = [info[key][name] for key in ("episode", "statistics") if key in info for name in "rl"]
        seen.append((np.array(observation), float(reward), terminated, truncated, statistics))
        if terminated or truncated:
            break
    return seen


def observations_of(batch: Any, steps: th.Tensor | None = None) -> Any:
    """
    :param batch: A batch
    :param steps: Some of its steps, ``None`` for all
    :return: Their observations
    """
    return batch.observations_at(Minibatch(th.arange(len(batch.rows)) if steps is None else steps, None, 1))


def without_time(info: dict[str, Any]) -> dict[str, Any]:
    """
    :param info: The info of a step
    :return: The same without the seconds that Monitor notes
    """
    info = dict(info)
    if "episode" in info:
        info["episode"] = {key: info["episode"][key] for key in ("r", "l")}
    return info


def step_both(copies: Any, batch: Any, actions: np.ndarray) -> int:
    """
    Make a step with ordinary copies and with those in one object, and see that it is the same, to the last bit.

    :param copies: The ordinary copies
    :param batch: The others
    :param actions: For both
    :return: How many episodes have ended
    """
    expected, got = copies.step(actions), batch.step(actions)
    for one, other in zip(expected[:3], got[:3], strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype
    for idx, done in enumerate(got[2]):
        if done:
            assert data_equivalence(without_time(expected[3][idx]), without_time(got[3][idx]), exact=True)
        else:
            assert got[3][idx] == {}
    assert copies.reset_infos == batch.reset_infos
    return int(got[2].sum())


class ToyEnv(gym.Env):
    """
    Action 1 is right, action 0 is wrong. The start and the length of an episode come from the seed.

    :param length: Number of steps of an episode; None: 3 to 11, drawn at each reset, and one less for each wrong action
    :param reward: The reward of each step; None: 1 for the right action and 0 for the wrong one
    :param time_limit: Whether the end of an episode is a truncation
    """

    observation_space: spaces.Space = spaces.Box(-100.0, 100.0, (2,), np.float64)
    action_space: spaces.Space = spaces.Discrete(2)

    def __init__(self, length: int | None = 4, reward: float | None = None, time_limit: bool = False):
        self.length, self.reward, self.time_limit = length, reward, time_limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.options = options
        self.start = self.np_random.random()
        self.end = self.length or int(self.np_random.integers(3, 12))
        self.t = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.start, self.t], dtype=np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        right = bool(np.all(action == 1))
        reward = float(right) if self.reward is None else self.reward
        if self.length is None and not right:
            self.end -= 1
        ended = self.t >= self.end
        return self.observe(), reward, ended and not self.time_limit, ended and self.time_limit, {}


class NoisyEnv(ToyEnv):
    """Later observations are noise from the environment's own generator."""

    def observe(self) -> Any:
        return np.array([self.start, self.np_random.random() if self.t else 0.0])


class RecordingEnv(ToyEnv):
    """
    No two observations are the same, except for the first ones of the members of a group.
    ``history`` has, for each episode that has begun, a list of (observation, action, reward).
    """

    _ids: ClassVar = count(1)
    observation_space: spaces.Space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, number: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.number = number
        self.history: list[list[tuple[Any, int, float]]] = []

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        self.history.append([])
        self.last, info = super().reset(**kwargs)
        return self.last, info

    def observe(self) -> Any:
        unique = 1e6 * self.number + next(self._ids) if self.t else 0.0
        return np.array([self.start, unique])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.history[-1].append((tuple(self.last), int(action), result[1]))
        self.last = result[0]
        return result


class UnseededEnv(ToyEnv):
    """``reset(seed=...)`` does not determine the start."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        super().reset(**kwargs)
        self.start = random()
        return self.observe(), {}


class SpacesEnv(ToyEnv):
    """
    Any observation and action space. The reward is larger for larger actions.

    :param observation_space: Observations are sampled from it
    :param action_space: Actions are checked against it
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_space, self.action_space = observation_space, action_space
        self.actions: list[Any] = []

    def observe(self) -> Any:
        self.observation_space.seed(int(1e6 * self.start) + self.t)
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.actions.append(action)
        observation, _, *rest = super().step(action)
        return observation, float(np.sum(action)), *rest


class Numbered(Task):
    """Its items are made by a function of their index."""

    def __init__(self, function: Callable[[int], tuple[str, str]], n_items: int | None = None):
        self.function = function
        self.n_items = n_items

    def item(self, index: int) -> Item:
        return Item(*self.function(index))
