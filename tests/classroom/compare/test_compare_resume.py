"""Runs of a comparison that were interrupted, and go on."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch as th

pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

import compare_data
import psutil
import yaml
from compare_data import SMALL_GROUPS as GROUPS
from compare_data import read, wait_for
from stable_baselines3 import PPO

from sb3_grpo import DAPO, GRPO
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.classroom.compare import training
from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.running import RunProcess, run_here
from sb3_grpo.cli import compare as cli_compare
from sb3_grpo.cli.main import main

ALGORITHMS: dict[str, Any] = {"grpo": GRPO, "dapo": DAPO, "ppo": PPO}
STEPS = {"n_envs": 4, "n_steps": 32, "n_epochs": 2}
PEER = {"algo": "ppo", "hyperparams": {"n_envs": 2, "n_steps": 32, "batch_size": 32}}
TINY = compare_data.TINY | {"variants": [{"algo": "dapo", "hyperparams": GROUPS}], "seeds": 1, "timesteps": 700}
TINY |= {"n_evaluations": 3, "n_eval_episodes": 1, "n_final_episodes": 1}
DAPO_RUN = Path("runs", "CartPole-v1", "dapo", "0")


pytestmark = pytest.mark.usefixtures("keep_threads")


class Killed(BaseException):
    """Ends a run without a word, as a signal does."""


def settings_of(**changes: Any) -> dict[str, Any]:
    experiment = make_experiment(TINY | changes, "test")
    return {**experiment.settings(experiment.jobs()[0]), "clips": False}


def train(settings: dict[str, Any], folder: Path, until: int | None = None) -> None:
    """Make a run, or go on with it, until it is killed after a number of steps."""

    def report(n_steps: int) -> None:
        if until is not None and n_steps >= until:
            raise Killed

    folder.mkdir(exist_ok=True)
    training.train(settings, folder, report, save_freq=1)


def killed(settings: dict[str, Any], folder: Path, at: int) -> None:
    with pytest.raises(Killed):
        train(settings, folder, until=at)


def tidy(folder: Path) -> dict[str, Any]:
    """All results of a run, but how long it took and what memory it held."""
    names = ("evaluations", "diagnostics")
    tables = {name: [{**row, "seconds": ""} for row in read(folder / f"{name}.csv")] for name in names}
    result = json.loads((folder / "result.json").read_text())
    for name in ("seconds", "steps_per_second", "peak_memory_mib"):
        assert result.pop(name) > 0
    return {**tables, "result": result}


def assert_same(one: Path, other: Path) -> None:
    results = [tidy(folder) for folder in (one, other)]
    assert results[0] == results[1] and len(results[0]["diagnostics"]) > 20
    algorithm = ALGORITHMS[results[0]["result"]["algo"]]
    first, second = (algorithm.load(folder / "model.zip", device="cpu").policy.state_dict() for folder in (one, other))
    assert all(th.equal(value, second[name]) for name, value in first.items())
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()} - {"log.txt"}


@pytest.mark.parametrize(
    ("env", "algo", "hyperparams"),
    [
        ("CartPole-v1", "dapo", GROUPS),
        ("Pendulum-v1", "grpo", {**STEPS, "n_groups": None, "loss_average": "step", "normalize": True, "use_sde": True}),
    ],
    ids=["groups", "steps"],
)
def test_a_run_goes_on_to_the_last_bit(
    env: str, algo: str, hyperparams: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(envs=[env], variants=[{"algo": algo, "hyperparams": hyperparams}])
    train(settings, tmp_path / "whole")
    for at in (300, 550):
        killed(settings, tmp_path / "cut", at)
        assert checkpoints_in(tmp_path / "cut" / "checkpoints")
    assert not (tmp_path / "cut" / "result.json").exists()
    capsys.readouterr()
    train(settings, tmp_path / "cut")
    assert re.search("Goes on after [45]..", capsys.readouterr().out), "not from the beginning"
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_checkpoints_stay_until_the_result_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of()
    original = training.replace_text

    def write(path: Path, text: str) -> None:
        if path.name == "result.json":
            raise Killed
        original(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(training, "replace_text", write)
        killed(settings, tmp_path, at=10**9)
    assert checkpoints_in(tmp_path / "checkpoints"), "or the whole run would be lost"
    train(settings, tmp_path)
    assert tidy(tmp_path)["result"]["status"] == "done" and not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PEER, PEER),
        ({"algo": "dapo", "hyperparams": {**GROUPS, "gamma": 0.9}}, TINY["variants"][0]),
        (TINY["variants"][0], TINY["variants"][0]),
    ],
    ids=["peers", "other settings", "damaged checkpoints"],
)
def test_what_begins_anew(before: Any, after: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(settings_of(variants=[before]), tmp_path / "cut", 400)
    checkpoints = checkpoints_in(tmp_path / "cut" / "checkpoints")
    assert bool(checkpoints) == (before is not PEER)
    if before is after:
        for path in checkpoints:
            path.write_bytes(b"")
    for name in ("whole", "cut"):
        train(settings_of(variants=[after]), tmp_path / name)
    assert "Goes on" not in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_killed_comparison_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_compare, "write_report", lambda folder: 0)
    (tmp_path / "tiny.yml").write_text(yaml.safe_dump(TINY | {"timesteps": 4000}))
    command = ["compare", "--config", str(tmp_path / "tiny.yml"), "--workers", "1", "--save-freq", "100", "--output"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    cut = tmp_path / "cut"
    for _ in range(2):
        before = checkpoints_in(cut / DAPO_RUN / "checkpoints")[-1:]
        process = subprocess.Popen([sys.executable, "-m", "sb3_grpo", *command, str(cut)], stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda before=before: checkpoints_in(cut / DAPO_RUN / "checkpoints")[-1:] not in ([], before))
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        # Nobody is left who would go on writing
        assert not psutil.wait_procs(children, timeout=20)[1]
    capfd.readouterr()
    assert main([*command, str(cut)]) == 0
    assert "1 runs (seed 0), 1 in progress" in capfd.readouterr().out
    assert "Goes on after" in (cut / DAPO_RUN / "log.txt").read_text()
    # Both have a log here
    (tmp_path / "whole" / DAPO_RUN / "log.txt").unlink()
    assert_same(tmp_path / "whole" / DAPO_RUN, cut / DAPO_RUN)


def test_ctrl_c_and_the_system_leave_checkpoints_and_errors_do_not(tmp_path: Path) -> None:
    settings, run = settings_of(timesteps=10_000_000), tmp_path / "run"
    for sign in (None, signal.SIGKILL):
        before = checkpoints_in(run / "checkpoints")[-1:]
        process = RunProcess(settings, run, 1)
        process.start()
        wait_for(lambda before=before: checkpoints_in(run / "checkpoints")[-1:] not in ([], before))
        if sign is not None:
            os.kill(process.process.pid, sign)
            wait_for(process.has_ended)
        process.stop()
        left = {path.name for path in run.iterdir()}
        assert left == {"checkpoints", "config.json", "log.txt"} | (set() if sign is None else {"error.txt"})
    # What raises an error would do so again, or go on with what was corrected in the middle
    wrong = settings | {"variant": {**settings["variant"], "algo": "none"}}
    for _ in run_here({run: wrong}, 1):
        pass
    assert "none" in (run / "error.txt").read_text() and not (run / "checkpoints").exists()
