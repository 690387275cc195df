"""Warnings of a training point to where the user has begun it, and say what helps."""

import functools
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from toy_envs import TINY, TINY_TEXT, ToyEnv

from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import PairsTask, VerifierTextVecEnv
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env

SMALL: dict[str, Any] = {"group_size": 2, "n_groups": 2, "policy_kwargs": TINY, "device": "cpu", "seed": 0}
TEXT: dict[str, Any] = {"group_size": 2, "n_groups": 2, "max_sampling_rounds": 1, "policy_kwargs": TINY_TEXT, "device": "cpu"}


def dead_env() -> Any:
    return make_group_env(functools.partial(ToyEnv, reward=1.0), 2)


def text_env() -> VerifierTextVecEnv:
    return VerifierTextVecEnv(4, seed=0, task=PairsTask([("1+1=", "2"), ("1+2=", "3")]), verifier=lambda *_: 0.0)


class Trainer(DAPO):
    """A subclass with a method that SB3 calls in the middle of learn."""

    def train(self) -> None:
        super().train()


class Disturbing(BaseCallback):
    """Resets the training environment once."""

    def _on_step(self) -> bool:
        if self.n_calls == 3:
            self.training_env.reset()
        return True


def caught(run: Callable[[], Any], match: str) -> warnings.WarningMessage:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        run()
    (found,) = [each for each in record if match in str(each.message)]
    return found


@pytest.mark.parametrize("algo", [GRPO, DAPO, Trainer])
def test_a_skipped_update_points_to_learn(algo: type[GRPO]) -> None:
    model = algo("MlpPolicy", dead_env(), **{**SMALL, "dynamic_sampling": True, "max_sampling_rounds": 1})
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    found = caught(lambda: model.learn(40), "No update at")
    assert (found.filename, found.lineno) == (__file__, line)


def test_other_warnings_point_to_learn() -> None:
    model = GRPO("MlpPolicy", make_group_env(ToyEnv, 2), **SMALL)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    found = caught(lambda: model.learn(40, callback=Disturbing()), "reset in the middle of a rollout")
    assert (found.filename, found.lineno) == (__file__, line)


def test_the_command_line_shows_no_code(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(
        "import gymnasium, functools, toy_envs\n"
        "gymnasium.register('Dead-v0', functools.partial(toy_envs.ToyEnv, reward=0.0), max_episode_steps=4)\n"
    )
    command = [sys.executable, "-m", "sb3_grpo", "train", "--algo", "dapo", "--env", "dead:Dead-v0", "--timesteps", "40"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Note: No update at" in done.stderr and "UserWarning" not in done.stderr


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_texts_are_not_for_policies_of_numbers(algo: type[GRPO]) -> None:
    with pytest.raises(ValueError, match=rf'ActorPolicy would .* write {algo.__name__}\("TokenPolicy", env, \.\.\.\)'):
        algo("MlpPolicy", text_env())
    with pytest.raises(ValueError, match="The observations are texts"):
        algo("MlpPolicy", gym.make("sb3_grpo:sb3_grpo/VerifierText-v0"))


@pytest.mark.parametrize("texts", [False, True])
def test_a_warm_start_is_advised_first_for_texts(texts: bool) -> None:
    model = DAPO("TokenPolicy", text_env(), **TEXT) if texts else DAPO("MlpPolicy", dead_env(), **SMALL)
    said = str(caught(lambda: model.learn(40), "No update at").message)
    assert ("succeeds: a warm start on worked examples (model.policy.pretrain(" in said) == texts
    assert "more exploration (ent_coef), a larger group_size or a denser reward may help" in said
