import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch as th
from torch import nn

from sb3_grpo import GRPO
from sb3_grpo.utils import devices

SHORT: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "device": "cpu", "seed": 0}


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch, keep_threads: None) -> Iterator[None]:
    """As on a machine with four cores where the user has set nothing."""
    monkeypatch.setattr(devices, "_DEFAULT_THREADS", 4)
    th.set_num_threads(4)
    yield


def threads_within(network: nn.Module) -> list[int]:
    """
    :param network: A network
    :return: The number of threads at each of its forward passes from now on
    """
    seen: list[int] = []
    network.register_forward_hook(lambda *args: seen.append(th.get_num_threads()))
    return seen


def threads_in_learn(model: Any) -> set[int]:
    seen: set[int] = set()
    model.learn(64, callback=lambda *args: seen.add(th.get_num_threads()) is None)
    return seen


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_a_small_network_learns_and_predicts_with_one_thread(policy: str) -> None:
    model = GRPO(policy, "CartPole-v1", **SHORT)
    assert threads_in_learn(model) == {1}
    assert th.get_num_threads() == 4
    seen = threads_within(model.policy.action_net)
    model.predict(np.zeros((3, 4), np.float32), episode_start=np.ones(3, bool))
    model.policy.predict(np.zeros(4, np.float32))
    assert seen == [1, 1]
    assert th.get_num_threads() == 4


def test_a_large_network_learns_and_predicts_many_observations_with_all() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [1100, 1100]}, **SHORT)
    assert threads_in_learn(model) == {4}
    seen = threads_within(model.policy.action_net)
    for n in (1, 100):
        model.predict(np.zeros((n, 4), np.float32))
    assert seen == [1, 4]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_number_is_back_after_an_error(error: type[BaseException]) -> None:
    def fail(*args: Any) -> bool:
        raise error

    model = GRPO("MlpPolicy", "CartPole-v1", **SHORT)
    with pytest.raises(error):
        model.learn(64, callback=fail)
    assert th.get_num_threads() == 4
    with pytest.raises(ValueError):
        model.predict(np.zeros((2, 5), np.float32))
    assert th.get_num_threads() == 4


def test_a_number_that_the_user_has_set_stays() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", **SHORT)
    th.set_num_threads(3)
    seen = threads_within(model.policy.action_net)
    model.predict(np.zeros(4, np.float32))
    assert threads_in_learn(model) == {3} == set(seen)
    assert th.get_num_threads() == 3


def test_a_callback_sets_the_number_for_what_follows() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", **SHORT)
    model.learn(64, callback=lambda *args: th.set_num_threads(3) is None)
    assert th.get_num_threads() == 3


def test_a_callback_trains_another_model() -> None:
    outer, inner = (GRPO("MlpPolicy", "CartPole-v1", **SHORT) for _ in range(2))
    seen: list[int] = []

    def train_other(*args: Any) -> bool:
        inner.learn(64)
        seen.append(th.get_num_threads())
        return True

    outer.learn(64, callback=train_other)
    assert set(seen) == {1}
    assert th.get_num_threads() == 4


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_environment_variables_are_respected(variable: str) -> None:
    program = """
import torch as th
from sb3_grpo import GRPO
seen = {th.get_num_threads()}
model = GRPO("MlpPolicy", "CartPole-v1", n_envs=4, n_steps=16, device="cpu")
model.learn(64, callback=lambda *args: seen.add(th.get_num_threads()) is None)
print(len(seen))
"""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", program], env={**env, variable: "2"}, capture_output=True, text=True)
    assert done.stdout.split() == ["1"], done.stderr
