"""Environments that fail: which copy it was, and what is left."""

import os
import re
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb3_grpo import GRPO, make_group_env
from sb3_grpo.groups.faults import EnvironmentFault

SMALL: dict[str, Any] = {"n_steps": 32, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}, "seed": 0, "device": "cpu"}


class Failing(gym.Wrapper):
    """
    Fails in one of its steps.

    :param env: The environment
    :param how: What happens
    :param at: In which step of its life
    """

    def __init__(self, env: gym.Env, how: str, at: int = 40):
        super().__init__(env)
        self.how, self.at, self.n_steps = how, at, 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if self.n_steps != self.at:
            return self.env.step(action)
        observation, reward, *rest = self.env.step(action)
        if self.how == "hangs":
            time.sleep(60)
        if self.how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exits":
            os._exit(3)
        if self.how == "raises":
            raise KeyError("no such place")
        if self.how == "wrong shape":
            observation = np.zeros(5, np.float32)
        if self.how == "infinite reward":
            reward = np.inf
        if self.how == "nan":
            observation = np.full(4, np.nan, np.float32)
        return observation, reward, *rest


def failing_env(how: str, vec_env_cls: Any, n_envs: int = 3) -> Any:
    def build(idx: int) -> Any:
        def make() -> gym.Env:
            env = gym.make("CartPole-v1")
            return Failing(env, how) if idx == 1 else env

        return lambda: make_group_env(make, n_envs=1).envs[0]  # type: ignore[attr-defined]

    return vec_env_cls([build(idx) for idx in range(n_envs)])


def learn_until_it_fails(model: GRPO, error: type[Exception]) -> str:
    with pytest.raises(error) as info:
        model.learn(1_000)
    return str(info.value)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("raises", EnvironmentFault, "KeyError: 'no such place'"),
        ("hangs", EnvironmentFault, "it has not come back after 0.5 s (step_timeout)"),
        ("wrong shape", EnvironmentFault, "could not broadcast input array from shape (5,)"),
        ("infinite reward", ValueError, "the reward is inf"),
        ("nan", ValueError, "the observation is not finite: [nan nan nan nan]"),
    ],
)
def test_a_fault_in_this_process_names_the_copy(how: str, error: type[Exception], said: str) -> None:
    model = GRPO("MlpPolicy", failing_env(how, DummyVecEnv), step_timeout=0.5, **SMALL)
    before = model.policy.action_net.weight.clone()
    message = learn_until_it_fails(model, error)
    assert re.match(r"Environment copy 1 \(CartPole-v1\), step \d+ of its episode: ", message)
    assert said in message
    assert not th.equal(model.policy.action_net.weight, before)  # the update before is there
    assert th.isfinite(model.policy.action_net.weight).all()
    # The environment fails once: training goes on
    model.learn(200)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("raises", EnvironmentFault, "its process ended with exit status 1"),
        ("exits", EnvironmentFault, "its process ended with exit status 3"),
        ("is killed", EnvironmentFault, "its process was ended by SIGKILL"),
        ("hangs", EnvironmentFault, "it has not come back after 1 s (step_timeout)"),
        ("wrong shape", EnvironmentFault, "not of the shape that the observation space says"),
        ("nan", ValueError, "the observation is not finite"),
    ],
)
def test_a_fault_in_a_process_names_the_copy(how: str, error: type[Exception], said: str, tmp_path: Any) -> None:
    env = failing_env(how, SubprocVecEnv)
    model = GRPO("MlpPolicy", env, step_timeout=1.0, **SMALL)
    message = learn_until_it_fails(model, error)
    assert re.match(r"Environment copy 1 \(CartPole-v1\), step \d+ of its episode: ", message)
    assert said in message
    env.close()
    assert not any(process.is_alive() for process in env.processes)
    model.save(tmp_path / "model")
    again = GRPO.load(tmp_path / "model", env=make_group_env("CartPole-v1", n_envs=3))
    again.learn(100)


def test_normalised_observations_are_checked_before_they_are_clipped() -> None:
    model = GRPO("MlpPolicy", VecNormalize(failing_env("nan", DummyVecEnv)), **SMALL)
    assert "step" in learn_until_it_fails(model, ValueError)


def test_the_error_of_a_callback_stays_as_it_is() -> None:
    class Raises(BaseCallback):
        def _on_step(self) -> bool:
            raise KeyError("mine")

    model = GRPO("MlpPolicy", make_group_env("CartPole-v1", n_envs=2), **SMALL)
    with pytest.raises(KeyError, match="mine"):
        model.learn(100, callback=Raises())


def test_a_time_limit_has_to_be_positive() -> None:
    with pytest.raises(ValueError, match=r"step_timeout must be positive, or None for .*, got 0"):
        GRPO("MlpPolicy", "CartPole-v1", step_timeout=0.0, n_envs=2)
