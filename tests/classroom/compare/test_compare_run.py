"""Comparisons from the command line: what they write, how they go on, and how they end."""

import functools
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch as th
from PIL import Image
from rich.console import Console
from stable_baselines3 import PPO

pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

import psutil
import yaml
from compare_data import SMALL_GROUPS, TINY, read, wait_for
from filelock import FileLock

from sb3_grpo import DAPO
from sb3_grpo.classroom.compare import running
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.experiment import Experiment
from sb3_grpo.classroom.compare.running import run_here, run_jobs
from sb3_grpo.classroom.compare.training import train
from sb3_grpo.cli import compare as cli_compare
from sb3_grpo.cli.main import main

pytestmark = pytest.mark.usefixtures("keep_threads")


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the runs, and is there in ``finished``."""
    monkeypatch.setattr(cli_compare, "write_report", lambda folder: 0)


def write_config(folder: Path, **changes: Any) -> str:
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return str(path)


def compare(folder: Path, *arguments: str, **changes: Any) -> int:
    config = write_config(folder, **changes)
    return main(["compare", "--config", config, "--output", str(folder / "out"), "--workers", "2", *arguments])


def results(folder: Path) -> dict[tuple[str, ...], int]:
    """When each result was made."""
    return {path.parts[-4:-1]: path.stat().st_mtime_ns for path in folder.rglob("result.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which a comparison has been made."""
    folder = tmp_path_factory.mktemp("compare")
    assert compare(folder) == 0
    return folder


def test_all_runs_are_evaluated_alike(finished: Path) -> None:
    out = finished / "out"
    runs = read(out / "runs.csv")
    assert [(run["variant"], run["seed"], run["status"]) for run in runs] == [
        (variant, seed, "done") for variant in ("ppo", "dapo") for seed in ("0", "1")
    ]
    for run in runs:
        assert int(run["steps"]) >= 400 and float(run["seconds"]) > 0 and float(run["peak_memory_mib"]) > 50
        assert run["net_arch"] == "64-64 Tanh" and run["provenance"]
        # Few pairs of episodes are equally long
        assert float(run["discarded_fraction"]) < 0.5 if run["variant"] == "dapo" else run["discarded_fraction"] == ""
    evaluations = read(out / "evaluations.csv")
    for run in runs:
        rows = [row for row in evaluations if (row["variant"], row["seed"]) == (run["variant"], run["seed"])]
        grid = [(float(row["target_steps"]), row["mode"], row["final"], row["n_episodes"]) for row in rows]
        assert grid == [
            *((steps, mode, "0", "2") for steps in (0, 100, 200, 300, 400) for mode in ("deterministic", "stochastic")),
            *((400.0, mode, "1", "3") for mode in ("deterministic", "stochastic")),
        ]
        assert all(float(row["target_steps"]) <= int(row["steps"]) <= int(run["steps"]) for row in rows)
        assert rows[-1]["steps"] == run["steps"]
        seconds = [float(row["seconds"]) for row in rows]
        assert seconds == sorted(seconds) and seconds[-1] <= float(run["seconds"]) + 0.1
    keys = {row["key"] for row in read(out / "diagnostics.csv") if row["variant"] == "dapo"}
    assert {"group/dead_fraction", "train/entropy", "train/clip_fraction_low", "train/approx_kl"} <= keys
    assert "<html" in (out / "report.html").read_text()


def test_runs_leave_clips_and_the_report_shows_them(finished: Path) -> None:
    clips = [*(finished / "out").rglob("clip.webp")]
    assert len(clips) == 4
    for path in clips:
        assert Image.open(path).n_frames > 5 and path.stat().st_size <= 100_000
    # The run in the middle of each variant, moving and still
    assert (finished / "out" / "report.html").read_text().count("data:image/webp;base64,") == 4


def test_config_says_what_was_run(finished: Path) -> None:
    folders = {variant: finished / "out" / "runs" / "CartPole-v1" / variant / "1" for variant in ("ppo", "dapo")}
    configs = {variant: json.loads((folder / "config.json").read_text()) for variant, folder in folders.items()}
    dapo = configs["dapo"]
    assert {"group_size": "2", "clip_range_high": "0.28", "policy": "MlpPolicy"}.items() <= dapo["hyperparameters"].items()
    assert dapo["seed"] == 1 and dapo["n_envs"] == 4 and dapo["machine"]["torch_threads"] == 1
    assert dapo["command"].startswith("sb3-grpo compare --") and dapo["versions"]["torch"] == th.__version__
    assert configs["ppo"]["hyperparameters"]["learning_rate"] == "lin_0.001", "the entry of the RL Zoo's file"
    # The same starts for all algorithms, others at the end
    assert dapo["evaluation"] == configs["ppo"]["evaluation"]
    assert dapo["evaluation"]["seed"] != dapo["evaluation"]["final_seed"]
    for variant, cls in (("ppo", PPO), ("dapo", DAPO)):
        assert cls.load(folders[variant] / "model.zip").num_timesteps >= 400


@pytest.mark.slow
def test_another_seed_is_added_and_nothing_repeated(
    finished: Path, no_report: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before = results(finished)
    assert compare(finished, "--seeds", "3") == 0
    printed = capfd.readouterr().out
    assert "4 of them already finished" in printed
    assert "CartPole-v1 dapo seed 2: final return" in printed, "lines, where there is no terminal"
    after = results(finished)
    assert len(after) == 6 and {run: after[run] for run in before} == before
    # Fewer seeds take nothing away
    assert compare(finished, "--seeds", "1") == 0
    experiment = Experiment.load(finished / "out")
    assert experiment.seeds == [0, 1, 2]
    # The page says how all of it came about, a run only what made it
    assert [command[-9:] for command in experiment.command.splitlines()][1:] == ["--seeds 3", "--seeds 1"]
    config = json.loads((finished / "out/runs/CartPole-v1/dapo/2/config.json").read_text())
    assert config["command"].endswith("--seeds 3") and "\n" not in config["command"]
    assert experiment.hyperparams["CartPole-v1"]["dapo"]["advantage"] == "gae", 'what "auto" has become'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timesteps": 500}, "timesteps of CartPole-v1: 400 before, 500 now"),
        ({"n_eval_episodes": 3}, "n_eval_episodes: 2 before, 3 now"),
        (
            {"variants": [{"algo": "dapo", "hyperparams": SMALL_GROUPS | {"gamma": 0.5}}]},
            "gamma of 'dapo' on CartPole-v1: 0.99 before, 0.5 now",
        ),
        (
            {"envs": ["Acrobot-v1"], "variants": [{"algo": "ppo", "hyperparams": {"gamma": 0.5}}]},
            "hyperparams of 'ppo': {} before, {'gamma': 0.5} now",
        ),
    ],
)
def test_changed_experiment_is_refused(
    finished: Path, changes: dict[str, Any], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "out" / "experiment.json").read_text()
    assert compare(finished, **changes) == 2
    printed = capfd.readouterr().err
    assert message in printed
    assert printed.count(" now") == 1, "once"
    assert (finished / "out" / "experiment.json").read_text() == before


def test_two_comparisons_do_not_work_in_one_folder(finished: Path, no_report: None, capfd: pytest.CaptureFixture[str]) -> None:
    before = results(finished)
    with FileLock(finished / "out" / ".lock"):
        assert compare(finished, seeds=5) == 2
    assert "Another comparison is at work in" in capfd.readouterr().err
    assert results(finished) == before and compare(finished) == 0


@pytest.mark.slow
def test_failed_run_is_shown_and_tried_again(tmp_path: Path, no_report: None, capfd: pytest.CaptureFixture[str]) -> None:
    # Its first update spoils the policy
    hyperparams = SMALL_GROUPS | {"learning_rate": 1e30, "policy_kwargs": "dict(activation_fn=nn.ReLU)"}
    spoiled = {"name": "spoiled", "algo": "grpo", "hyperparams": hyperparams}
    changes = {"variants": [spoiled, "ppo"], "seeds": 1}
    assert compare(tmp_path, **changes) == 1
    printed = capfd.readouterr().out
    folder = tmp_path / "out" / "runs" / "CartPole-v1" / "spoiled" / "0"
    assert "CartPole-v1 spoiled seed 0: failed: " in printed and f"the traceback is in {folder / 'error.txt'}" in printed
    assert "Traceback" in (folder / "error.txt").read_text() and not (folder / "result.json").exists()
    assert list(results(tmp_path)) == [("CartPole-v1", "ppo", "0")]
    runs = collect(tmp_path / "out").runs
    assert dict(zip(runs.variant, runs.status, strict=True)) == {"spoiled": "failed", "ppo": "done"}
    # No finished run depends on it: it can be mended
    spoiled["hyperparams"] = SMALL_GROUPS
    assert compare(tmp_path, **changes) == 0
    assert len(results(tmp_path)) == 2 and not (folder / "error.txt").exists()


def test_a_killed_run_and_ctrl_c(tmp_path: Path) -> None:
    """A run that the system kills fails alone, and Ctrl-C leaves no process behind."""
    experiment = make_experiment(TINY | {"timesteps": 10_000_000, "variants": ["ppo"]}, "test")
    pids: list[int] = []

    class Process(running.RunProcess):
        def start(self) -> None:
            super().start()
            pids.append(self.process.pid)

    def execute(runs: Any) -> Any:
        for ended, steps in run_here(runs, 2):
            if len(pids) == 2 and not ended:
                os.kill(pids[0], signal.SIGKILL)
            yield ended, steps
            if ended:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running, "RunProcess", Process)
        run_jobs(experiment, tmp_path, execute, Console())
    assert not psutil.pid_exists(pids[1])
    (error,) = tmp_path.rglob("error.txt")
    assert error.parent.name == "0" and "SIGKILL" in error.read_text()


def test_ctrl_c_right_after_the_start_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_experiment(TINY | {"timesteps": 10_000_000}, "test")
    pids: list[int] = []

    class Process(running.RunProcess):
        def start(self) -> None:
            super().start()
            pids.append(self.process.pid)
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "RunProcess", Process)
    with pytest.raises(KeyboardInterrupt):
        next(run_here({tmp_path / "run": experiment.settings(experiment.jobs()[0])}, 1))
    assert not psutil.pid_exists(pids[0])


def test_ctrl_c_while_everything_is_still_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sb3_grpo", "compare", "--env", "CartPole-v1", "--algo", "ppo", "--output", str(tmp_path)]
    printed = tmp_path / "printed"
    with printed.open("w") as file:
        # A shell lets the commands that it runs in the background ignore Ctrl-C, and the tests may be one of them
        listen = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(command, stderr=file, start_new_session=True, preexec_fn=listen)
    try:
        # The server that runs are forked from has only just been started. A terminal interrupts all processes
        wait_for(lambda: any("forkserver" in " ".join(each.cmdline()) for each in psutil.Process(process.pid).children()))
        os.killpg(process.pid, signal.SIGINT)
        # Not until the server ends, which finishes its imports first
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=180)
    finally:
        process.kill()
    assert (process.returncode, printed.read_text().split()) == (130, ["Interrupted"])


def test_runs_do_not_depend_on_what_ran_before(finished: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In this process, after other tests, a run is that of a new process, to the last bit."""
    experiment = make_experiment(TINY | {"seeds": 1}, "test")
    n_threads = th.get_num_threads()
    request.addfinalizer(lambda: th.set_num_threads(n_threads))
    th.set_num_threads(1)
    for job in experiment.jobs():
        here, new = job.folder(tmp_path), job.folder(finished / "out")
        here.mkdir(parents=True)
        train({**experiment.settings(job), "clips": False}, here, lambda n_steps: None)
        rows = [[{**row, "seconds": ""} for row in read(folder / "evaluations.csv")] for folder in (here, new)]
        assert rows[0] == rows[1] and len(rows[0]) == 12
        cls = {"ppo": PPO, "dapo": DAPO}[job.variant.algo]
        parameters = [cls.load(folder / "model.zip").policy.parameters() for folder in (here, new)]
        assert all(th.equal(one, other) for one, other in zip(*parameters, strict=True))


def test_impossible_and_unequal_variants_are_noticed_before_anything_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = {"name": "small", "algo": "ppo", "hyperparams": {"policy_kwargs": {"net_arch": [8]}}}
    lonely = {"name": "lonely", "algo": "grpo", "hyperparams": {"group_size": 1}}
    assert compare(tmp_path, variants=["ppo", small, lonely]) == 2
    printed = capfd.readouterr()
    assert "lonely on CartPole-v1 cannot be built: ValueError: group_size must be at least 2" in printed.err
    assert compare(tmp_path, variants=["ppo_mask"]) == 2
    assert "MaskablePPO on CartPole-v1 cannot be built: ValueError: the environment has no action" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    cli_compare._check(make_experiment(TINY | {"variants": ["ppo", small]}, "test"))
    printed = capfd.readouterr()
    assert "the networks on CartPole-v1 differ" in printed.out and "ppo: 64-64 Tanh; small: 8 Tanh" in printed.out
