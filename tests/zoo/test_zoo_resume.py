"""Trainings of the RL Zoo's command line that were interrupted, and go on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common import callbacks

pytest.importorskip("rl_zoo3")

from sb3_grpo import DAPO, TrainingCheckpoint
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.zoo.cli import main

COMMAND = ["train", "--algo", "dapo", "--env", "CartPole-v1", "--num-threads", "1", "--device", "cpu"]
COMMAND += ["--eval-freq", "200", "--eval-episodes", "2", "--save-freq", "100"]
BEGIN = ["-n", "900", "--seed", "3", "-params", "n_envs:4", "group_size:2", "n_groups:2", "normalize:True", "frame_stack:2"]
RUN = Path("logs", "dapo", "CartPole-v1_1")
CHECKPOINTS = RUN / "checkpoints"


class Killed(BaseException):
    """Ends a training without a word, as a signal does."""


pytestmark = pytest.mark.usefixtures("empty_folder")


def end_at(monkeypatch: pytest.MonkeyPatch, steps: int, error: type[BaseException]) -> None:
    original = TrainingCheckpoint._on_step

    def on_step(self: TrainingCheckpoint) -> bool:
        if self.model.num_timesteps >= steps:
            monkeypatch.setattr(TrainingCheckpoint, "_on_step", original)
            raise error
        return original(self)

    monkeypatch.setattr(TrainingCheckpoint, "_on_step", on_step)


def killed(monkeypatch: pytest.MonkeyPatch, *arguments: str, at: int = 500) -> None:
    end_at(monkeypatch, at, Killed)
    with pytest.raises(Killed):
        main([*COMMAND, *arguments])


def assert_same(one: Path, other: Path) -> None:
    first, second = (DAPO.load(run / "CartPole-v1.zip", device="cpu").policy.state_dict() for run in (one, other))
    assert all(th.equal(value, second[name]) for name, value in first.items())
    evaluations = [np.load(run / "evaluations.npz") for run in (one, other)]
    for name in ("timesteps", "results", "ep_lengths"):
        assert (evaluations[0][name] == evaluations[1][name]).all()
    assert not (one / "checkpoints").exists() and not (other / "checkpoints").exists()


@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_a_training_goes_on_to_the_last_bit(vec_env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = ("--vec-env", vec_env)
    assert main([*COMMAND, *BEGIN, *copies, "-f", "whole"]) == 0
    killed(monkeypatch, *BEGIN, *copies)
    assert not (RUN / "CartPole-v1.zip").exists()
    # Neither the seed, the hyperparameters nor the number of episodes need to be given again. The newest one, by its name, in
    # the next run
    killed(monkeypatch, *copies, "--eval-episodes", "3", "-i", str(CHECKPOINTS), at=700)
    newest = checkpoints_in(RUN.with_name("CartPole-v1_2") / "checkpoints")[-1]
    assert main([*COMMAND, *copies, "-P", "-i", str(newest)]) == 0
    assert_same(Path("whole", *RUN.parts[1:]), RUN.with_name("CartPole-v1_3"))


def test_the_best_model_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse_and_worse(model: Any, *arguments: Any, **named: Any) -> tuple[list[float], list[int]]:
        return [-model.num_timesteps] * 2, [1, 1]

    monkeypatch.setattr(callbacks, "evaluate_policy", worse_and_worse)
    killed(monkeypatch, *BEGIN)
    best = (RUN / "best_model.zip").read_bytes()
    assert main([*COMMAND, "-i", str(CHECKPOINTS)]) == 0
    assert (RUN.with_name("CartPole-v1_2") / "best_model.zip").read_bytes() == best


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    end_at(monkeypatch, 500, KeyboardInterrupt)
    assert main([*COMMAND, *BEGIN]) == 0
    printed = capsys.readouterr().out.replace("\n", "")
    assert f"To resume: run the same command with -i {CHECKPOINTS}" in printed and (RUN / "CartPole-v1.zip").exists()
    # To a larger budget, and from within the folder
    logs = Path("logs").absolute()
    monkeypatch.chdir(RUN)
    assert main([*COMMAND, "-n", "1200", "-f", str(logs), "-i", "."]) == 0
    monkeypatch.chdir(logs.parent)
    assert "Resuming after" in capsys.readouterr().out
    assert 1200 <= DAPO.load(RUN.with_name("CartPole-v1_2") / "CartPole-v1.zip").num_timesteps < 1700


def test_what_does_not_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    killed(monkeypatch, *BEGIN)
    Path("empty").mkdir()
    for arguments, message in (
        (["-i", "empty"], "-i empty: There is no checkpoint in empty to go on from"),
        (["-i", "nowhere"], "-i nowhere: There is no nowhere."),
        (["-i", str(CHECKPOINTS), "-params", "gamma:0.9"], "Leave out --preset, --set, -params, --conf-file and --trial-id"),
        (["-i", str(CHECKPOINTS), "--algo", "grpo"], "a checkpoint of DAPO: write --algo dapo"),
        (["-i", str(CHECKPOINTS), "--algo", "ppo"], "a checkpoint of DAPO: write --algo dapo"),
        (["-i", str(CHECKPOINTS), "--env", "Acrobot-v1"], "The environment is not that of the run"),
        (["-i", str(CHECKPOINTS), "--optimize"], "and --optimize exclude each other"),
    ):
        capsys.readouterr()
        assert main([*COMMAND, *arguments]) == 2
        assert message in capsys.readouterr().err
    # A model that is in no checkpoint is trained on as before, with other hyperparameters
    model = str(next(RUN.glob("rl_model_*_steps.zip")))
    options: list[Any] = ["-i", model, "-n", "100", *BEGIN[4:], "gamma:0.9"]
    assert main([*COMMAND, *options]) == 0
    latest = max(RUN.parent.iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
    assert DAPO.load(latest / "CartPole-v1.zip").gamma == 0.9
