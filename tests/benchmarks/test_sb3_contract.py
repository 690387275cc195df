"""Tests as Stable-Baselines3 and SB3-Contrib write them, run by the plugin with GRPO in place of PPO."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib")

ROOT = Path(__file__).resolve().parents[2]

LIKE_SB3 = """
import pytest
from stable_baselines3 import A2C, PPO


@pytest.mark.parametrize("model_class", [A2C, PPO])
@pytest.mark.parametrize("normalize_advantage", [False, True])
def test_arguments(model_class, normalize_advantage):
    assert model_class.__name__ == "GRPO"
    model = model_class("MlpPolicy", "CartPole-v1", n_steps=64, vf_coef=0.3, normalize_advantage=normalize_advantage)
    assert model.n_envs == 1 and model.learn(64).num_timesteps >= 64


def test_others():
    raise AssertionError("it uses neither algorithm")
"""
LIKE_CONTRIB = """
import pytest
from sb3_contrib import ARS, QRDQN, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable.evaluation import evaluate_policy


def test_masks():
    # Only the good action is allowed
    env = InvalidActionEnvDiscrete(dim=20, n_invalid_actions=19)
    model = MaskablePPO("MlpPolicy", env, n_steps=64, seed=8)
    evaluate_policy(model.learn(64), env, 2, reward_threshold=99, warn=False)
    with pytest.raises(AssertionError):
        evaluate_policy(model.learn(64, use_masking=False), env, 2, reward_threshold=99, warn=False, use_masking=False)


@pytest.mark.parametrize("model_class", [ARS, "ars_multi", QRDQN, MaskablePPO, RecurrentPPO])
def test_memory(model_class):
    kwargs = dict(enable_critic_lstm=True, lstm_hidden_size=8) if model_class is RecurrentPPO else {}
    policy = "MlpLstmPolicy" if model_class is RecurrentPPO else "MlpPolicy"
    model = model_class(policy, "CartPole-v1", n_steps=64, policy_kwargs=kwargs).learn(64)
    assert model.policy.is_recurrent == (model_class is RecurrentPPO)
"""


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"WHOLE_GROUPS": "1", "ACCEPT_AIDS": "1"}, marks=pytest.mark.slow)],
    ids=["steps", "groups"],
)
def test_grpo_takes_what_is_meant_for_ppo(options: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_like_sb3.py").write_text(LIKE_SB3)
    (tmp_path / "test_like_contrib.py").write_text(LIKE_CONTRIB)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "stress.sb3_contract", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **options}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "5 passed, 6 deselected" in done.stdout, done.stdout
