"""Runs of the command line that are stopped or killed, and go on."""

import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch as th

from sb3_grpo import DAPO
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.cli.main import main
from sb3_grpo.cli.text import LESSONS
from sb3_grpo.cli.train import EpisodeReturns
from sb3_grpo.text.callbacks import TextEvalCallback

TRAIN = ["train", "--algo", "dapo", "--env", "CartPole-v1", "--timesteps", "3000", "--n-envs", "4", "--eval-episodes", "2"]
TRAIN += ["--set", "n_steps=64", "--save-freq", "1", "--no-clip"]


pytestmark = pytest.mark.usefixtures("empty_folder")


def config(folder: str) -> dict[str, Any]:
    return json.loads((Path(folder) / "config.json").read_text())


def assert_same_model(one: str, other: str) -> None:
    first, second = (DAPO.load(f"{folder}/model.zip", device="cpu").policy.state_dict() for folder in (one, other))
    assert all(th.equal(value, second[name]) for name, value in first.items())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, callback: Any, steps: int, error: type[BaseException]) -> None:
    original = callback._on_step

    def on_step(self: Any) -> bool:
        if self.num_timesteps >= steps:
            monkeypatch.setattr(callback, "_on_step", original)
            raise error("a defect")
        return original(self)

    monkeypatch.setattr(callback, "_on_step", on_step)


def train_slowly(arguments: list[str], checkpoints: Path) -> None:
    """Train, but hardly get on after three checkpoints: the test that waits for them may be slow, too."""
    original = EpisodeReturns._on_step

    def on_step(self: Any) -> bool:
        time.sleep(0.05 if len(checkpoints_in(checkpoints)) >= 3 else 0.0)
        return original(self)

    EpisodeReturns._on_step = on_step  # type: ignore[method-assign]
    sys.exit(main(arguments))


def test_a_killed_training_goes_on_as_if_it_had_not_been() -> None:
    assert main([*TRAIN, "--output", "whole"]) == 0
    assert sorted(os.listdir("whole")) == ["config.json", "curve.png", "model.zip"], "no checkpoints of a complete run"
    for sign, left in ((signal.SIGKILL, ["checkpoints", "config.json"]), (signal.SIGTERM, None)):
        arguments, checkpoints = [*TRAIN, "--output", sign.name], Path(sign.name, "checkpoints")
        process = multiprocessing.get_context("fork").Process(target=train_slowly, args=(arguments, checkpoints))
        process.start()
        while len(checkpoints_in(checkpoints)) < 3 and process.is_alive():
            time.sleep(0.02)
        os.kill(process.pid, sign)
        process.join()
        assert process.exitcode == (-sign if left else 130)
        assert sorted(os.listdir(sign.name)) == (left or ["checkpoints", "config.json", "curve.png", "model.zip"])
        assert config(sign.name)["arguments"]["env"] == "CartPole-v1"
        assert main(["train", "--resume", sign.name]) == 0
        assert_same_model("whole", sign.name)
        whole, resumed = config("whole"), config(sign.name)
        for name in ("evaluation", "hyperparameters"):
            assert whole[name] == resumed[name]
        for name in ("steps", "episodes", "interrupted"):
            assert whole["training"][name] == resumed["training"][name]


def test_a_text_training_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = LESSONS[1]
    settings = {**lesson.settings, "group_size": 8, "n_groups": 8}
    monkeypatch.setitem(LESSONS, 1, lesson._replace(settings=settings, passes=2))
    monkeypatch.setattr("sb3_grpo.cli.text.N_ENVS", 64)
    text = ["text", "--timesteps", "3000", "--save-freq", "1"]
    assert main([*text, "--output", "whole"]) == 0
    interrupt_at(monkeypatch, TextEvalCallback, 2500, KeyboardInterrupt)
    assert main([*text, "--output", "out"]) == 130
    assert config("out")["training"]["interrupted"]
    capsys.readouterr()
    assert main(["text", "--resume", "out"]) == 0
    assert re.search(r"from step [1-9]", " ".join(capsys.readouterr().out.split()))
    assert_same_model("whole", "out")
    assert config("out")["training"]["right_answers"] == config("whole")["training"]["right_answers"]
    assert config("out")["evaluation"] == config("whole")["evaluation"]


def test_a_defect_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, EpisodeReturns, 1000, RuntimeError)
    with pytest.raises(RuntimeError, match="a defect"):
        main([*TRAIN, "--output", "out"])
    assert sorted(os.listdir("out")) == ["checkpoints", "config.json", "curve.png", "model.zip"]
    assert config("out")["training"]["error"] == "a defect" and config("out")["training"]["steps"] == 1000
    assert main(["train", "--resume", "out"]) == 0
    assert "error" not in config("out")["training"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "--algo and --env must be given"),
        (["train", "--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["train", "--re", "nowhere"], "nowhere is not the folder of a run"),
        (["train", "--resume", "out", "--env", "CartPole-v1"], "takes all options but --device from the run: leave out --env"),
        (["text", "--resume", "out"], "not a run of text, but of train"),
        (["train", "--resume", "out"], "has no checkpoints: the run is complete"),
        ([*TRAIN, "--output", "a part"], "go on with --resume 'a part'"),
    ],
)
def test_what_cannot_go_on(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("out", "part/checkpoints", "a part/checkpoints"):
        Path(name).mkdir(parents=True)
    Path("out/config.json").write_text(json.dumps({"arguments": {"command": "train"}}))
    Path("part/config.json").write_text(json.dumps({"arguments": []}))
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
