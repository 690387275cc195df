"""Models, starts and configurations of version 0.1, whose modules had other names."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

import sb3_grpo.envs
from sb3_grpo import DAPO, GRPO, StartQueue, make_group_env
from sb3_grpo.envs import HardPrompts

SAVED = Path(__file__).resolve().parents[1] / "data" / "v0_1"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*The old name will go with the next version:DeprecationWarning"),
    pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="NumPy 1 does not read pickles of NumPy 2"),
]


def test_a_model_predicts_and_learns_as_before() -> None:
    model = GRPO.load(SAVED / "grpo_cartpole", env=make_group_env("CartPole-v1", 4, seed=0))
    assert model.predict(np.linspace(-0.2, 0.2, 4).astype(np.float32), deterministic=True)[0] == 1
    before = model.num_timesteps
    assert model.learn(500, reset_num_timesteps=False).num_timesteps >= before + 500


def test_a_model_with_reference_and_visited_states() -> None:
    model = DAPO.load(SAVED / "dapo_pendulum", env=make_group_env("Pendulum-v1", 4, seed=0))
    action, _ = model.predict(np.array([0.5, 0.5, 0.1], np.float32), deterministic=True)
    assert action == pytest.approx(0.17508876, abs=1e-5)
    assert model.ref_policy is not None and model.kl_coef == 0.04 and model.vine_share == 0.5
    reference = model.ref_policy.action_net.weight.detach().clone()
    assert not (reference == model.policy.action_net.weight).all(), "the policy has learned since"
    model.learn(1000, reset_num_timesteps=False)
    assert (model.ref_policy.action_net.weight == reference).all(), "the reference is the saved one"


def test_a_model_of_texts_with_hard_prompts() -> None:
    env = make_vec_env("VerifierText-v0", 4, env_kwargs={"task": "capitals"}, wrapper_class=StartQueue)
    model: Any = DAPO.load(SAVED / "dapo_text", env=env)
    assert isinstance(model.start_sampler, HardPrompts)
    assert len(model.policy.generate(["France"])) == 1
    model.learn(300, reset_num_timesteps=False)


def test_snapshots() -> None:
    (start,) = pickle.loads((SAVED / "snapshots.pkl").read_bytes())
    assert type(start) is sb3_grpo.SnapshotStart
    env = make_group_env("CartPole-v1", 1)
    env.env_method("queue_start", 1, start)
    assert (env.reset()[0] == start.observation).all()
