"""A training that goes on from a checkpoint learns the same, to the last bit, as one that was not interrupted."""

import errno
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize
from toy_envs import TINY, NoisyEnv, ToyEnv

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, make_atari_group_env, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in, newest_checkpoint
from stress.resume import digest, try_settings

STEPS: dict[str, Any] = {"n_steps": 16, "n_epochs": 2, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No update at")
        yield


def cart_pole() -> VecEnv:
    return make_group_env("CartPole-v1", n_envs=3, seed=0)


def unknown() -> VecEnv:
    """Nothing says how its state is captured."""
    return make_group_env(NoisyEnv, n_envs=3, seed=0, env_kwargs={"length": None})


def plain() -> VecEnv:
    return DummyVecEnv([ToyEnv] * 2)


def train(folder: Path, make_env: Any = cart_pole, algorithm: type[GRPO] = GRPO, steps: int = 300, **kwargs: Any) -> GRPO:
    model = algorithm("MlpPolicy", make_env(), **{**STEPS, **kwargs})
    return model.learn(steps, callback=TrainingCheckpoint(folder, save_freq=1, keep=100))


@pytest.mark.slow
def test_in_new_processes() -> None:
    names = ["DAPO, Dummy, groups", "DAPO, Subproc, NumPy's own generator", "GRPO, VerifierTextVecEnv, HardPrompts"]
    for row in try_settings(names):
        assert row["same_with_checkpoints"], f"{row}: checkpoints must not change a training"
        assert row["identical"] == [True] * 3, row


def test_budget_is_that_of_the_interrupted_training(tmp_path: Path) -> None:
    train(tmp_path, steps=300)
    path = checkpoints_in(tmp_path)[2]
    assert GRPO.resume(path, cart_pole()).learn().num_timesteps == 336
    assert GRPO.resume(path, cart_pole()).learn(300).num_timesteps == 336
    longer = GRPO.resume(path, cart_pole()).learn(600)
    assert longer.num_timesteps == 624
    # And afterwards it is a model like any other
    assert longer.learn(100, reset_num_timesteps=False).num_timesteps == 624 + 144
    assert longer.learn(100).num_timesteps == 144


def test_a_resumed_training_writes_on_and_is_resumed(tmp_path: Path) -> None:
    expected = digest(train(tmp_path))
    for path in checkpoints_in(tmp_path)[3:]:
        path.unlink()
    again = TrainingCheckpoint(tmp_path, save_freq=1, keep=2)
    assert digest(GRPO.resume(tmp_path, cart_pole()).learn(callback=again)) == expected
    paths = checkpoints_in(tmp_path)
    assert len(paths) == 2 and paths[-1].name.endswith("_288_steps.zip")
    assert digest(GRPO.resume(tmp_path, cart_pole()).learn()) == expected


@pytest.mark.parametrize("how", ["set_env", "load"])
def test_the_id_is_not_that_of_another_environment(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_grpo.common.on_group_algorithm.DEFAULT_N_ENVS", 3)
    model = GRPO("MlpPolicy", "Pendulum-v1", **STEPS)
    heavy = make_group_env("Pendulum-v1", n_envs=3, seed=0, env_kwargs={"g": 20.0})
    if how == "set_env":
        model.set_env(heavy)
    else:
        model.save(tmp_path / "model")
        model = GRPO.load(tmp_path / "model", env=heavy, device="cpu")
    model.learn(40, callback=TrainingCheckpoint(tmp_path / "checkpoints", save_freq=1))
    with pytest.raises(ValueError, match=r"needs env=.* of 3 copies"):
        GRPO.resume(tmp_path / "checkpoints")


class Stop(BaseCallback):
    """Interrupts a training, and counts what it has seen."""

    def __init__(self, at: int):
        super().__init__()
        self.at, self.seen = at, 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]

    def _on_step(self) -> bool:
        self.seen += 1
        if self.num_timesteps >= self.at:
            raise KeyboardInterrupt
        return True


def test_interrupted_in_the_middle_of_a_rollout_with_callbacks(tmp_path: Path) -> None:
    evaluate = EvalCallback(cart_pole(), eval_freq=20, n_eval_episodes=1, verbose=0)
    expected = digest(GRPO("MlpPolicy", cart_pole(), **STEPS).learn(300, callback=evaluate))
    first, second = Stop(at=170), Stop(at=10_000)
    with pytest.raises(KeyboardInterrupt):
        GRPO("MlpPolicy", cart_pole(), **STEPS).learn(
            300, callback=[first, TrainingCheckpoint(tmp_path, save_freq=1, also={"stop": first})]
        )
    assert checkpoints_in(tmp_path)[-1].name.endswith("_144_steps.zip")
    resumed = GRPO.resume(tmp_path, cart_pole())
    resumed.learn(callback=[second, TrainingCheckpoint(tmp_path, also={"stop": second})])
    assert digest(resumed) == expected
    assert second.seen == 336 / 3, "what was seen before the interruption is counted"


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "ALE/Breakout-v5"])
def test_lives_that_groups_are_to_play_are_kept(tmp_path: Path, env_id: str) -> None:
    pytest.importorskip("ale_py")

    def breakout() -> VecEnv:
        return make_atari_group_env(env_id, 2, seed=0)

    settings: dict[str, Any] = {**STEPS, "n_steps": 64, "n_epochs": 1, "policy_kwargs": None, "group_size": 2}
    model = GRPO("CnnPolicy", breakout(), **settings)
    model.learn(768, callback=TrainingCheckpoint(tmp_path, save_freq=1, keep=100))
    for path in checkpoints_in(tmp_path)[2:5]:
        assert digest(GRPO.resume(path, breakout()).learn()) == digest(model)


def test_a_resumed_training_in_another_folder(tmp_path: Path) -> None:
    expected = digest(train(tmp_path / "first"))
    begun = checkpoints_in(tmp_path / "first")[2]
    # Before it has gone far, it can already be resumed from there
    with pytest.raises(KeyboardInterrupt):
        GRPO.resume(begun, cart_pole()).learn(callback=[Stop(at=1), TrainingCheckpoint(tmp_path / "second")])
    assert digest(GRPO.resume(tmp_path / "second", cart_pole()).learn()) == expected
    train(tmp_path / "other", seed=1)
    before = checkpoints_in(tmp_path / "other")
    with pytest.raises(ValueError, match="other has checkpoints of another training"):
        GRPO.resume(begun, cart_pole()).learn(callback=TrainingCheckpoint(tmp_path / "other"))
    assert checkpoints_in(tmp_path / "other") == before


class Connected(ToyEnv):
    """Its infos have what cannot be pickled."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return observation, {**info, "connection": threading.Lock()}


def test_what_cannot_be_pickled_ends_no_training(tmp_path: Path) -> None:
    def make_env() -> VecEnv:
        return make_group_env(Connected, n_envs=2, seed=0)

    train(tmp_path, make_env, steps=100)
    assert "cannot be pickled" in newest_checkpoint(tmp_path).manifest["differs"]
    with pytest.warns(UserWarning, match="cannot be pickled .* goes on with new episodes"):
        GRPO.resume(tmp_path, make_env()).learn()


def test_environments_that_cannot_be_saved_begin_anew(tmp_path: Path) -> None:
    train(tmp_path, plain, unrelated_starts=True)
    assert "make_group_env" in newest_checkpoint(tmp_path).manifest["differs"]
    with pytest.warns(UserWarning, match=r"no StartQueue.* goes on with new episodes"):
        model = GRPO.resume(tmp_path, plain())
    assert model.learn().num_timesteps == 320


class GlobalNoise(ToyEnv):
    """Its state cannot be captured, and a replay of its actions meets other noise."""

    def observe(self) -> Any:
        return np.array([self.start, np.random.normal() if self.t else 0.0])


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_episodes_that_replays_do_not_reach_begin_anew(vec_env_cls: type[VecEnv], tmp_path: Path) -> None:
    def make_env() -> VecEnv:
        return make_group_env(GlobalNoise, n_envs=2, seed=0, env_kwargs={"length": None}, vec_env_cls=vec_env_cls)

    env = make_env()
    model = train(tmp_path, lambda: env, steps=100)
    env.close()
    env = make_env()
    with pytest.warns(UserWarning, match=r"copy 0: GlobalNoise: replaying .* actions .* goes on with new episodes"):
        resumed = GRPO.resume(checkpoints_in(tmp_path)[1], env)
    assert resumed.learn().num_timesteps == model.num_timesteps
    env.close()


def test_damaged_checkpoints_are_passed_over(tmp_path: Path) -> None:
    expected = digest(train(tmp_path))
    paths = checkpoints_in(tmp_path)
    content = bytearray(paths[-1].read_bytes())
    content[len(content) // 2] ^= 1
    paths[-1].write_bytes(content)
    paths[-2].write_bytes(paths[-2].read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"older checkpoint, .* damaged: the checksum of its .* damaged: File is not a zip"):
        model = GRPO.resume(tmp_path, cart_pole())
    assert digest(model.learn()) == expected
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .* damaged: File is not a zip file"):
        GRPO.resume(tmp_path, cart_pole())


def test_a_model_is_no_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, steps=40).save(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*model\.zip .* 'checkpoint\.json' in the archive"):
        GRPO.resume(tmp_path / "model.zip", cart_pole())


def test_a_checkpoint_is_a_model(tmp_path: Path) -> None:
    train(tmp_path, steps=100)
    path = checkpoints_in(tmp_path)[1]
    assert GRPO.load(path, device="cpu").num_timesteps == 48
    with pytest.raises(ValueError, match="may run any program"):
        GRPO.load(path, trusted=False)


@pytest.mark.parametrize(
    ("algorithm", "env", "message"),
    [
        (DAPO, cart_pole, r"checkpoint of GRPO: write GRPO\.resume"),
        (GRPO, lambda: None, "needs env=.*: DummyVecEnv of 3 copies"),
        (GRPO, lambda: make_group_env("CartPole-v1", n_envs=2), "written with DummyVecEnv of 3 copies, .* is .* of 2 copies"),
        (GRPO, lambda: VecNormalize(cart_pole()), "written with DummyVecEnv of .* is VecNormalize around DummyVecEnv of 3"),
        (GRPO, lambda: make_group_env("CartPole-v1", n_envs=3, env_kwargs={"max_episode_steps": 9}), "another environment"),
    ],
    ids=["algorithm", "none", "copies", "wrappers", "kwargs"],
)
def test_what_does_not_fit(algorithm: type[GRPO], env: Any, message: str, tmp_path: Path) -> None:
    train(tmp_path, steps=40)
    with pytest.raises(ValueError, match=message):
        algorithm.resume(tmp_path, env())


def test_a_folder_is_of_one_training(tmp_path: Path) -> None:
    train(tmp_path, steps=40)
    with pytest.raises(ValueError, match="checkpoints of another training"):
        train(tmp_path, steps=40)
    with pytest.raises(FileNotFoundError, match=r"There is no \S*elsewhere\.$"):
        GRPO.resume(tmp_path / "elsewhere", cart_pole())
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(FileNotFoundError, match="TrainingCheckpoint"):
        GRPO.resume(tmp_path / "elsewhere", cart_pole())
    with pytest.raises(ValueError, match="for GRPO and DAPO, not for PPO"):
        PPO("MlpPolicy", ToyEnv(), device="cpu").learn(1, callback=TrainingCheckpoint(tmp_path / "ppo"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"keep": 2.0}, r"keep must be a whole number, got 2.0 \(float\): write keep=2"),
        ({"save_freq": 1.5}, "save_freq must be a whole number or None"),
        ({"also": {"mine": 3}}, r"also\['mine'\] must have state_dict\(\)"),
    ],
)
def test_arguments_of_the_callback(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingCheckpoint(tmp_path, **wrong)


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Fill(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 150:
                monkeypatch.setattr(os, "fsync", full)
            return True

    model = GRPO("MlpPolicy", cart_pole(), **STEPS)
    with pytest.warns(UserWarning, match=r"No checkpoint after 192 steps .*No space left .*goes on"):
        model.learn(300, callback=[Fill(), TrainingCheckpoint(tmp_path, save_freq=1)])
    assert sorted(os.listdir(tmp_path)) == [path.name for path in checkpoints_in(tmp_path)], "nothing unfinished is left"
    assert digest(GRPO.resume(tmp_path, cart_pole()).learn()) == digest(model)
