"""Environments that fail: which copy it was, and what is left."""

import multiprocessing
import re
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from toy_envs import ToyEnv

from sb3_grpo import GRPO, make_group_env
from sb3_grpo.groups.faults import EnvironmentFault
from stress.environment_faults import make_copies

SMALL: dict[str, Any] = {"n_steps": 32, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}, "seed": 0, "device": "cpu"}


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are forked (conftest.py) keep the pipes of the others open, so the end of one goes unnoticed."""
    multiprocessing.set_forkserver_preload(["stable_baselines3"])
    monkeypatch.setattr(SubprocVecEnv.__init__, "__defaults__", (None,))


def learn_until_it_fails(model: GRPO, error: type[Exception]) -> str:
    with pytest.raises(error) as info:
        model.learn(1_000)
    return str(info.value)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("raises", EnvironmentFault, "KeyError: 'no such place'"),
        ("wrong shape", EnvironmentFault, "not of the shape that the observation space says"),
        ("infinite reward", ValueError, "the reward is inf"),
        ("nan observation", ValueError, "the observation is not finite: [nan nan nan nan]"),
    ],
)
def test_a_fault_in_this_process_names_the_copy(how: str, error: type[Exception], said: str) -> None:
    env = make_copies(how, 40, DummyVecEnv, normalized=False)
    model = GRPO("MlpPolicy", env, **SMALL)
    before = model.policy.action_net.weight.clone()
    message = learn_until_it_fails(model, error)
    assert re.match(r"Environment copy 1 \(CartPole-v1\), step \d+ of its episode: ", message)
    assert said in message
    assert not th.equal(model.policy.action_net.weight, before)  # the update before is there
    assert th.isfinite(model.policy.action_net.weight).all()
    # The environment fails once: training goes on
    model.learn(200)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (np.ones(2), r"copy 0 \(.*Rewarding\), step 0 .*only .* arrays can be converted"),
        (None, "copy 0 .*: TypeError: .*NoneType"),
    ],
)
def test_a_reward_that_is_not_a_number(reward: Any, said: str) -> None:
    class Rewarding(ToyEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    with pytest.raises(EnvironmentFault, match=said):
        GRPO("MlpPolicy", make_group_env(Rewarding, n_envs=2, seed=0), **SMALL).learn(32)


class OldReset(ToyEnv):
    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(2, np.float32)  # not an observation and its info


class OldStep(ToyEnv):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldSeed(ToyEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (OldReset, r"reset\(\) must return \(observation, info\)"),
        (OldStep, r"step\(action\) returns \(observation, reward, terminated, truncated, info\)"),
        (OldSeed, r"reset\(\*, seed=None, options=None\)"),
    ],
)
def test_the_interface_of_gym(env: type[ToyEnv], said: str) -> None:
    for made in (env(), make_group_env(env, n_envs=2)):
        with pytest.raises(EnvironmentFault, match=rf"copy 0 \({env.__name__}\).*{said}"):
            GRPO("MlpPolicy", made, **SMALL).learn(32)


def test_a_reset_may_have_no_info() -> None:
    class NoInfo(ToyEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], None

    for made in (NoInfo(), make_group_env(NoInfo, n_envs=2)):
        assert GRPO("MlpPolicy", made, **SMALL).learn(64)._n_updates > 0


@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("exits", EnvironmentFault, "its process ended with exit status 3"),
        ("is killed", EnvironmentFault, "its process was ended by SIGKILL"),
        ("hangs", EnvironmentFault, "it has not come back after 3 s (step_timeout)"),
        ("nan observation", ValueError, "the observation is not finite"),
    ],
)
def test_a_fault_in_a_process_names_the_copy(how: str, error: type[Exception], said: str, tmp_path: Any) -> None:
    env = make_copies(how, 40, SubprocVecEnv, normalized=False)
    env.step_timeout = 3.0
    model = GRPO("MlpPolicy", env, **SMALL)
    message = learn_until_it_fails(model, error)
    assert re.match(r"Environment copy 1 \(CartPole-v1\), step \d+ of its episode: ", message)
    assert said in message
    env.close()
    assert not any(process.is_alive() for process in env.processes)
    model.save(tmp_path / "model")
    again = GRPO.load(tmp_path / "model", env=make_group_env("CartPole-v1", n_envs=3))
    again.learn(100)


def test_the_error_of_a_callback_stays_as_it_is() -> None:
    class Raises(BaseCallback):
        def _on_step(self) -> bool:
            raise KeyError("mine")

    model = GRPO("MlpPolicy", make_group_env("CartPole-v1", n_envs=2), **SMALL)
    with pytest.raises(KeyError, match="mine"):
        model.learn(100, callback=Raises())

    with pytest.raises(ValueError, match=r"step_timeout must be at least 0\.001, .* got 0"):
        make_group_env("CartPole-v1", step_timeout=0.0)
    with pytest.raises(ValueError, match=r"step_timeout=5 needs copies in processes of their own: vec_env_cls=SubprocVecEnv"):
        make_group_env("CartPole-v1", n_envs=2, step_timeout=5)
