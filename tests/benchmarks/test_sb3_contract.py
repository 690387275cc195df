"""Tests as Stable-Baselines3 writes them, run by the plugin with GRPO in place of PPO."""

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


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"WHOLE_GROUPS": "1", "ACCEPT_AIDS": "1"}, marks=pytest.mark.slow)],
    ids=["steps", "groups"],
)
def test_grpo_takes_what_is_meant_for_ppo(options: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_like_sb3.py").write_text(LIKE_SB3)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "stress.sb3_contract", "test_like_sb3.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **options}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 passed, 3 deselected" in done.stdout, done.stdout
