import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

import psutil
import yaml
from filelock import FileLock

from sb3_grpo import DAPO, presets
from sb3_grpo.classroom.clips.recording import Pair
from sb3_grpo.classroom.clips.stored import load_played
from sb3_grpo.classroom.compare import recorder, training, worker
from sb3_grpo.classroom.compare.build import build, count_parameters, describe_network
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.evaluation import Evaluator
from sb3_grpo.classroom.compare.experiment import Experiment, merge
from sb3_grpo.classroom.compare.pools import LocalPool
from sb3_grpo.classroom.compare.ready import ready_path
from sb3_grpo.classroom.compare.runs import run_row
from sb3_grpo.classroom.compare.schedule import Board, run_jobs
from sb3_grpo.cli import compare as cli_compare
from sb3_grpo.cli.main import _make_parser, main
from sb3_grpo.console import UsageError

SMALL_GROUPS = {"group_size": 2, "n_groups": 2, "n_envs": 4}
TINY: dict[str, Any] = {
    "name": "tiny",
    "envs": ["CartPole-v1"],
    "variants": ["ppo", {"algo": "dapo", "hyperparams": SMALL_GROUPS}],
    "seeds": 2,
    "timesteps": 400,
    "n_evaluations": 4,
    "n_eval_episodes": 2,
    "n_final_episodes": 3,
}


pytestmark = pytest.mark.usefixtures("keep_threads")


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the runs, and is there in ``finished``."""
    monkeypatch.setattr(cli_compare, "_make_report", lambda folder: 0)


def write_config(folder: Path, **changes: Any) -> str:
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return str(path)


def compare(folder: Path, *arguments: str, **changes: Any) -> int:
    config = write_config(folder, **changes)
    return main(["compare", "--config", config, "--output", str(folder / "out"), "--workers", "2", *arguments])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
        assert run["samples_per_start"] == ("2" if run["variant"] == "dapo" else "1")
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
    out = finished / "out"
    assert len([*out.rglob("clip.webp")]) == 4
    for run in ("ppo/0", "dapo/1"):
        pair = load_played(out / "runs" / "CartPole-v1" / run)
        assert isinstance(pair, Pair)
        assert pair.trained.ended and pair.trained.total == pair.trained.length > 5
    assert (out / "report.html").read_text().count("data:image/webp;base64,") == 6


def test_no_clip(tmp_path: Path) -> None:
    assert _make_parser().parse_args(["compare", "--no-clip"]).no_clip
    experiment = make_experiment(TINY | {"variants": ["ppo"], "seeds": 1, "n_evaluations": 1, "timesteps": 64}, "test")
    experiment.clips = False
    training.train(experiment.settings(experiment.jobs()[0]), tmp_path, lambda progress: None)
    assert (tmp_path / "result.json").exists() and not [*tmp_path.glob("clip*")]


def test_config_says_what_was_run(finished: Path) -> None:
    folders = {variant: finished / "out" / "runs" / "CartPole-v1" / variant / "1" for variant in ("ppo", "dapo")}
    configs = {variant: json.loads((folder / "config.json").read_text()) for variant, folder in folders.items()}
    dapo = configs["dapo"]
    assert {"group_size": "2", "clip_range_high": "0.28", "policy": "MlpPolicy"}.items() <= dapo["hyperparameters"].items()
    assert dapo["seed"] == 1 and dapo["n_envs"] == 4 and dapo["machine"]["torch_threads"] == 1
    assert dapo["command"].startswith("python -m sb3_grpo compare --") and dapo["versions"]["torch"] == th.__version__
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
        ({"variants": [{"name": "dapo", "algo": "grpo"}]}, "algorithm of 'dapo': dapo before, grpo now"),
        (
            {"envs": ["Acrobot-v1"], "variants": [{"name": "dapo", "algo": "grpo"}]},
            "algorithm of 'dapo': dapo before, grpo now",
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


def test_parameter_that_an_earlier_version_did_not_have(
    finished: Path, no_report: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path = finished / "out" / "experiment.json"
    experiment = json.loads(path.read_text())
    assert experiment["hyperparams"]["CartPole-v1"]["dapo"].pop("leave_one_out") == "False"
    path.write_text(json.dumps(experiment))
    before = results(finished)
    changed = [{"algo": "dapo", "hyperparams": SMALL_GROUPS | {"leave_one_out": True}}]
    assert compare(finished, variants=changed) == 2
    assert "leave_one_out of 'dapo' on CartPole-v1: False before, True now" in capfd.readouterr().err
    assert compare(finished) == 0 and results(finished) == before


def test_an_experiment_that_only_a_newer_version_can_go_on_with(tmp_path: Path) -> None:
    make_experiment(TINY, "test").save(tmp_path)
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"curriculum": "hard"}))
    with pytest.raises(UsageError, match=r"curriculum.*damaged, or a newer version of this package has written it"):
        Experiment.load(tmp_path)


@pytest.mark.slow
def test_killed_comparison_goes_on(tmp_path: Path, no_report: None) -> None:
    changes = {"variants": ["ppo"], "seeds": 2, "timesteps": 3000}
    arguments = ["--config", write_config(tmp_path, **changes), "--output", str(tmp_path / "out"), "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-m", "sb3_grpo", "compare", *arguments])
    try:
        # The second run, in addition to what starts it
        wait_for(lambda: results(tmp_path) and len(list(tmp_path.rglob("log.txt"))) == 2)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
        # Nobody is left who would go on writing
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    finally:
        process.kill()
        process.wait()
    before = results(tmp_path)
    assert len(before) == 1
    assert compare(tmp_path, **changes) == 0
    after = results(tmp_path)
    assert len(after) == 2 and before.items() <= after.items()


def test_two_comparisons_do_not_work_in_one_folder(finished: Path, no_report: None, capfd: pytest.CaptureFixture[str]) -> None:
    before = results(finished)
    with FileLock(finished / "out" / ".lock"):
        assert compare(finished, seeds=5) == 2
    assert "Another comparison is at work in" in capfd.readouterr().err
    assert results(finished) == before and compare(finished) == 0


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_finished_runs_of_unknown_origin_are_refused(env: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out" / "runs" / env / "ppo" / "0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    assert compare(tmp_path) == 2
    assert "has finished runs, but no experiment.json that says what they are" in capfd.readouterr().err


def wait_for(condition: Any, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_failed_run_is_shown_and_tried_again(tmp_path: Path, no_report: None, capfd: pytest.CaptureFixture[str]) -> None:
    # Its first update spoils the policy
    hyperparams = SMALL_GROUPS | {"learning_rate": 1e30, "policy_kwargs": "dict(activation_fn=nn.ReLU)"}
    spoiled = {"name": "spoiled", "algo": "grpo", "hyperparams": hyperparams}
    changes = {"variants": [spoiled, "ppo"], "seeds": 1}
    assert compare(tmp_path, **changes) == 1
    printed = capfd.readouterr().out
    assert "CartPole-v1 spoiled seed 0: failed: " in printed and "Traceback (most recent call last)" in printed
    folder = tmp_path / "out" / "runs" / "CartPole-v1" / "spoiled" / "0"
    assert "Traceback" in (folder / "error.txt").read_text() and not (folder / "result.json").exists()
    assert list(results(tmp_path)) == [("CartPole-v1", "ppo", "0")]
    runs = collect(tmp_path / "out").runs
    assert dict(zip(runs.variant, runs.status, strict=True)) == {"spoiled": "failed", "ppo": "done"}
    # No finished run depends on it: it can be mended
    spoiled["hyperparams"] = SMALL_GROUPS
    assert compare(tmp_path, **changes) == 0
    assert len(results(tmp_path)) == 2 and not (folder / "error.txt").exists()


def test_of_a_seed_the_longest_runs_are_the_first(tmp_path: Path) -> None:
    """From the second seed on: how long they take is known from the first."""
    seconds = {"grpo": 1.0, "ppo": 9.0, "dapo": 2.0}
    experiment = make_experiment(TINY | {"variants": [*seconds], "seeds": 3}, "test")
    order: list[tuple[str, int]] = []

    class OneAtATime:
        capacity = 1

        def start(self, key: Any, settings: dict[str, Any], folder: Path) -> None:
            order.append(key[1:])
            self.key = key

        def take_ended(self) -> list[Any]:
            return [self.key]

        def progress(self) -> dict[Any, list[float]]:
            return {}

        def close(self) -> None:
            pass

    class Known(Board):
        def end(self, job: Any, key: Any) -> None:
            self._rows[key[:2]].ended.append([400, seconds[key[1]], seconds[key[1]]])

    run_jobs(experiment, tmp_path, OneAtATime(), Known(experiment, tmp_path, Console()))
    later = ["ppo", "dapo", "grpo"]
    assert order == [(name, 0) for name in seconds] + [(name, seed) for seed in (1, 2) for name in later]


def test_run_without_a_word_and_interrupt(tmp_path: Path) -> None:
    """What happens to a run that is killed, and to one that takes place when somebody presses Ctrl-C."""
    experiment = make_experiment(TINY | {"timesteps": 10_000_000, "variants": ["ppo"]}, "test")
    pool = LocalPool(2)
    pids: list[int] = []

    class KillThenInterrupt(Board):
        def update(self, progress: Any) -> None:
            if len(pids) == 0 and len(pool._running) == 2:
                pids.extend(process.pid for process in pool._running.values())
                os.kill(pids[0], signal.SIGKILL)

        def end(self, *arguments: Any) -> str | None:
            errors.append(super().end(*arguments))
            raise KeyboardInterrupt

    errors: list[str | None] = []
    with pytest.raises(KeyboardInterrupt):
        run_jobs(experiment, tmp_path, pool, KillThenInterrupt(experiment, tmp_path, Console()))
    assert errors[0] is not None and "SIGKILL" in errors[0]
    assert not psutil.pid_exists(pids[1])
    assert [path.parent.name for path in tmp_path.rglob("error.txt")] == ["0"]
    assert not (tmp_path / "runs" / "CartPole-v1" / "ppo" / "1").exists()


def test_an_error_that_cannot_be_encoded_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no such file: caf\udce9.xml")

    monkeypatch.setattr(training, "train", fail)
    # The test is not a process of its own
    for name in ("setsid", "dup2"):
        monkeypatch.setattr(worker.os, name, lambda *arguments: None)
    monkeypatch.setattr(worker, "_end_with_parent", lambda: None)
    (tmp_path / "log.txt").touch()
    with pytest.raises(SystemExit):
        worker._run({}, tmp_path, None)
    assert run_row(tmp_path) == {"status": "failed", "error": "OSError: no such file: caf\\udce9.xml"}


def test_a_full_disk_ends_no_other_run(tmp_path: Path) -> None:
    """It has no room for a traceback, either."""
    experiment = make_experiment(TINY | {"seeds": 1}, "test")
    board = Board(experiment, tmp_path, Console())
    said = []
    for job, log in zip(experiment.jobs(), ["OSError: [Errno 28] No space left on device", ""], strict=True):
        folder = job.folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(log)
        (folder / "error.txt").touch()
        said.append(board.end(job, (job.env, job.variant.name, job.seed)))
    assert said == ["OSError: [Errno 28] No space left on device", "It has left no message. Is the disk full?"]


def test_a_full_disk_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_room_for_a_folder(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalPool, "start", no_room_for_a_folder)
    assert compare(tmp_path) == 2
    assert "No space left on device. Finished runs are kept: make room" in capfd.readouterr().err
    monkeypatch.setattr("sb3_grpo.classroom.compare.report.make_report", no_room_for_a_folder)
    assert main(["compare", "report", str(tmp_path)]) == 2
    assert "No space left on device. Finished runs are kept: make room" in capfd.readouterr().err


def test_runs_do_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    """The second run of a worker is that of a new process, to the last bit, and begins without an import."""
    experiment = make_experiment(TINY | {"seeds": 1}, "test")
    pool = LocalPool(1)
    parents = []
    for job in experiment.jobs():
        key = (job.env, job.variant.name, job.seed)
        pool.start(key, experiment.settings(job), job.folder(tmp_path / "pool"))
        parents.append(psutil.Process(pool._running[key].pid).ppid())
        wait_for(lambda key=key: pool.take_ended() == [key])  # type: ignore[misc]
    assert parents[0] == parents[1]
    assert sys.platform == "darwin" or parents[0] != os.getpid()
    for job in experiment.jobs():
        alone, pooled = job.folder(tmp_path / "alone"), job.folder(tmp_path / "pool")
        alone.mkdir(parents=True)
        code = (
            "import json, sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
            "from sb3_grpo.classroom.compare.training import train\n"
            "train(json.loads(sys.argv[1]), Path(sys.argv[2]), lambda progress: None)"
        )
        subprocess.run([sys.executable, "-c", code, json.dumps(experiment.settings(job)), str(alone)], check=True)
        rows = [[{**row, "seconds": ""} for row in read(folder / "evaluations.csv")] for folder in (alone, pooled)]
        assert rows[0] == rows[1] and len(rows[0]) == 12
        cls = {"ppo": PPO, "dapo": DAPO}[job.variant.algo]
        parameters = [cls.load(folder / "model.zip").policy.parameters() for folder in (alone, pooled)]
        assert all(th.equal(one, other) for one, other in zip(*parameters, strict=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "log.txt"}


def test_the_same_command_makes_the_clips_that_are_missing(
    no_report: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"seeds": 1}
    assert compare(tmp_path, **changes) == 0
    runs = [tmp_path / "out" / "runs" / "CartPole-v1" / variant / "0" for variant in ("ppo", "dapo")]
    before = [contents(run) for run in runs]
    made = results(tmp_path)
    # As Ctrl-C leaves them before a clip, and in the middle of one
    for name in ("clip.json", "clip.webp"):
        (runs[0] / name).unlink()
    (runs[1] / "clip.json").unlink()
    assert compare(tmp_path, "--no-clip", **changes) == 0
    assert not any((run / "clip.json").exists() for run in runs)
    capsys.readouterr()
    assert compare(tmp_path, **changes) == 0
    assert "Making the missing clips of 2 finished runs" in capsys.readouterr().out
    assert [contents(run) for run in runs] == before and results(tmp_path) == made
    assert compare(tmp_path, **changes) == 0
    assert "Making" not in capsys.readouterr().out


def test_run_that_has_just_finished_survives_an_interrupt(tmp_path: Path) -> None:
    experiment = make_experiment(TINY | {"variants": ["ppo"]}, "test")
    job = experiment.jobs()[0]
    pool = LocalPool(1)
    pool.start((job.env, job.variant.name, job.seed), experiment.settings(job), job.folder(tmp_path))
    # Nobody has asked yet whether it has ended
    wait_for(lambda: job.is_done(tmp_path))
    pool.close()
    # The clip comes later
    names = {path.name for path in job.folder(tmp_path).iterdir()} - {"clip.json", "clip.webp"}
    assert names == {"config.json", "diagnostics.csv", "evaluations.csv", "log.txt", "model.zip", "result.json"}


@pytest.mark.parametrize(
    ("env", "algo", "hyperparams"),
    [
        ("CartPole-v1", "dapo", SMALL_GROUPS),
        ("Pendulum-v1", "ppo", {"n_envs": 2, "n_steps": 64, "normalize": True, "use_sde": True, "sde_sample_freq": 4}),
        ("Pendulum-v1", "grpo", {**SMALL_GROUPS, "use_sde": True}),
        ("CartPole-v1", "trpo", {"n_envs": 2, "n_steps": 64, "batch_size": 128}),
    ],
)
def test_evaluations_do_not_disturb_the_training(env: str, algo: str, hyperparams: dict[str, Any], tmp_path: Path) -> None:
    experiment = make_experiment(
        TINY
        | {"envs": [env], "variants": [{"algo": algo, "hyperparams": hyperparams}], "n_eval_episodes": 1, "timesteps": 1000},
        "test",
    )
    settings = experiment.settings(experiment.jobs()[0])
    training.train(settings, tmp_path, lambda progress: None)
    assert len(read(tmp_path / "evaluations.csv")) == 12
    with build(settings) as built:
        # No policy has learned from more steps than the budget: what is left of it is not enough for another rollout
        alone = built.model.learn(1000, callback=lambda *_: built.model.num_timesteps <= 1000)
        evaluated = type(alone).load(tmp_path / "model.zip")
        assert evaluated.num_timesteps == alone.num_timesteps <= 1000 + alone.n_envs
        for one, other in zip(alone.policy.parameters(), evaluated.policy.parameters(), strict=True):
            assert th.equal(one, other)


@pytest.mark.parametrize(
    ("env", "policy_kwargs", "noted"),
    [
        ("CartPole-v1", None, None),
        ("Pendulum-v1", None, "True"),
        ("Pendulum-v1", "dict(net_arch=[8])", "True"),
        ("Pendulum-v1", "dict(normalize_observations=False)", None),
    ],
)
def test_what_the_environment_decides_is_noted(env: str, policy_kwargs: str | None, noted: str | None) -> None:
    hyperparams = {**SMALL_GROUPS, "policy_kwargs": policy_kwargs, "loss_average": "auto"}
    definition = TINY | {"envs": [env], "variants": [{"algo": "grpo", "hyperparams": hyperparams}]}
    experiment = make_experiment(definition, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        used = built.hyperparams()
    assert used.get("normalize_observations") == noted
    assert used["loss_average"] == "step"


def test_seconds_are_those_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    def evaluate(*arguments: Any) -> list[dict[str, Any]]:
        clock.now += 1000.0
        return original(*arguments)

    original = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    monkeypatch.setattr(recorder, "time", clock)
    experiment = make_experiment(TINY, "test")
    training.train(experiment.settings(experiment.jobs()[0]), tmp_path, lambda progress: None)
    assert 0 < json.loads((tmp_path / "result.json").read_text())["seconds"] < 1000
    assert 0 < float(read(tmp_path / "evaluations.csv")[-1]["seconds"]) < 1000


def test_evaluation_sees_what_the_policy_is_used_to_and_repeats_itself() -> None:
    hyperparams = {"normalize": True, "use_sde": True, "n_envs": 2, "n_steps": 64}
    content = TINY | {"envs": ["Pendulum-v1"], "variants": [{"algo": "ppo", "hyperparams": hyperparams}]}
    experiment = make_experiment(content, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        built.model.learn(200)
        envs: list[Any] = []

        def make_envs(n_envs: int) -> Any:
            envs.append(built.evaluation_envs(n_envs))
            return envs[-1]

        evaluator = Evaluator(built.model, make_envs)
        first = evaluator.evaluate(2, False)
        th.rand(1)  # somebody else draws random numbers
        assert evaluator.evaluate(2, False) == first
        assert first[0]["return_mean"] != first[1]["return_mean"], "stochastic actions are others"
        assert evaluator.evaluate(2, True)[0]["return_mean"] != first[0]["return_mean"], "other starts at the end"
        normalizer = built.model.get_vec_normalize_env()
        assert isinstance(envs[0], VecNormalize) and normalizer is not None and not envs[0].norm_reward
        assert (envs[0].obs_rms.mean == normalizer.obs_rms.mean).all()
        assert normalizer.obs_rms.count > 100  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    "env, module, hyperparams",
    [
        ("BreakoutNoFrameskip-v4", "ale_py", {"n_steps": 8}),  # after a lost life, a reset goes on with the same game
        ("BipedalWalker-v3", "Box2D", {"n_envs": 2, "n_steps": 8}),  # a used environment differs from a new one
    ],
)
def test_each_evaluation_begins_with_new_episodes(env: str, module: str, hyperparams: dict[str, Any]) -> None:
    pytest.importorskip(module)
    content = TINY | {"envs": [env], "variants": [{"algo": "ppo", "hyperparams": hyperparams}]}
    experiment = make_experiment(content, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        evaluator = Evaluator(built.model, built.evaluation_envs)
        assert evaluator.evaluate(3, False) == evaluator.evaluate(3, False)


def test_all_runs_are_evaluated_on_the_same_starts() -> None:
    """Or their scores would depend on each other through the starts, and with them on the seed."""
    starts = []

    class Seen(VecEnvWrapper):
        def reset(self) -> Any:
            starts.append(self.venv.reset())
            return starts[-1]

        def step_wait(self) -> Any:
            return self.venv.step_wait()

    experiment = make_experiment(TINY | {"variants": ["ppo"]}, "test")
    for job in experiment.jobs():
        with build(experiment.settings(job)) as built:
            envs = Seen(built.evaluation_envs(3))
            Evaluator(built.model, lambda n_envs, envs=envs: envs).evaluate(3, True)  # type: ignore[misc]
    assert len(starts) == 4 and all(np.array_equal(each, starts[0]) for each in starts)
    assert len(np.unique(starts[0], axis=0)) == 3


def test_returns_that_are_not_finite_end_the_run() -> None:
    class Spoiled(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            result = self.venv.step_wait()
            for info in result[3]:
                if "episode" in info:
                    info["episode"]["r"] = np.nan
            return result

    experiment = make_experiment(TINY, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        evaluator = Evaluator(built.model, lambda n_envs: Spoiled(built.evaluation_envs(n_envs)))
        with pytest.raises(ValueError, match=r"returns of an evaluation are \[nan, nan\].* rewards must be finite"):
            evaluator.evaluate(2, False)


@pytest.mark.filterwarnings("ignore:No update at")
def test_dropped_steps_are_counted(tmp_path: Path) -> None:
    # Nobody falls within 5 steps: all returns are equal, and all groups dropped
    content = TINY | {"variants": [{"algo": "dapo", "hyperparams": SMALL_GROUPS | {"env_kwargs": {"max_episode_steps": 5}}}]}
    experiment = make_experiment(content, "test")
    training.train(experiment.settings(experiment.jobs()[0]), tmp_path, lambda progress: None)
    result = json.loads((tmp_path / "result.json").read_text())
    assert 0.9 < result["discarded_fraction"] <= 1.0 and result["steps"] >= 400


def test_an_update_of_n_steps_drops_nothing(tmp_path: Path) -> None:
    experiment = make_experiment(TINY | {"variants": [{"algo": "dapo", "hyperparams": {"n_envs": 4, "n_steps": 50}}]}, "test")
    training.train(experiment.settings(experiment.jobs()[0]), tmp_path, lambda progress: None)
    assert json.loads((tmp_path / "result.json").read_text())["discarded_fraction"] is None


def test_networks_and_parameters() -> None:
    normalized = {"algo": "grpo", "hyperparams": {"policy_kwargs": "dict(normalize_observations=True)"}}
    cases = ("ppo", 9155, 4545), ("trpo", 9155, 4545), ("grpo", 4610, 0), (normalized, 4610, 0)
    for variant, n_parameters, n_critic in cases:
        experiment = make_experiment(TINY | {"variants": [variant]}, "test")
        with build(experiment.settings(experiment.jobs()[0])) as built:
            assert count_parameters(built.model.policy) == (n_parameters, n_critic)
            assert describe_network(built.model.policy) == "64-64 Tanh"


@pytest.mark.parametrize(
    ("algo", "env", "acts"),
    [("dqn", "CartPole-v1", "q_net"), ("qrdqn", "CartPole-v1", "quantile_net"), ("td3", "Pendulum-v1", "actor")],
)
def test_target_networks_do_not_act(algo: str, env: str, acts: str) -> None:
    experiment = make_experiment(TINY | {"envs": [env], "variants": [algo]}, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        n_parameters, n_critic = count_parameters(built.model.policy)
        acting = sum(parameter.numel() for parameter in getattr(built.model.policy, acts).parameters())
    assert n_parameters - n_critic == acting > 0


def test_impossible_and_unequal_variants_are_noticed_before_anything_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = {"name": "small", "algo": "ppo", "hyperparams": {"policy_kwargs": {"net_arch": [8]}}}
    lonely = {"name": "lonely", "algo": "grpo", "hyperparams": {"group_size": 1}}
    assert compare(tmp_path, variants=["ppo", small, lonely]) == 2
    printed = capfd.readouterr()
    assert "lonely on CartPole-v1 cannot be built: ValueError: group_size must be at least 2" in printed.err
    assert not (tmp_path / "out").exists()
    cli_compare._check(make_experiment(TINY | {"variants": ["ppo", small]}, "test"))
    printed = capfd.readouterr()
    assert "the networks on CartPole-v1 differ" in printed.out and "ppo: 64-64 Tanh; small: 8 Tanh" in printed.out


class Room(gym.Env):
    """Observations of any space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space):
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("space", "policy"),
    [(spaces.Dict(door=spaces.Discrete(2)), "MultiInput"), (spaces.Box(0, 255, (36, 36, 3), np.uint8), "Cnn")],
)
def test_the_policy_suits_the_observations(space: spaces.Space, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Room-v0", entry_point=lambda: Room(space), max_episode_steps=10)  # type: ignore[arg-type]
    monkeypatch.setitem(gym.registry, "Room-v0", spec)
    experiment = make_experiment(TINY | {"envs": ["Room-v0"], "variants": ["ppo", "dapo"]}, "test")
    cli_compare._check(experiment)
    chosen = experiment.hyperparams["Room-v0"]
    assert {name: values["policy"] for name, values in chosen.items()} == dict.fromkeys(("ppo", "dapo"), f"{policy}Policy")


def test_a_variant_stays_as_it_was_written(tmp_path: Path) -> None:
    # YAML's aliases (*name) are one object; A2C puts its optimizer into the policy_kwargs that it gets
    shared = {"policy_kwargs": {"net_arch": [8]}}
    variants = [{"algo": algo, "hyperparams": shared} for algo in ("a2c", "ppo")]
    experiment = make_experiment(TINY | {"variants": variants}, "test")
    cli_compare._check(experiment)
    assert [hyperparams for _, _, hyperparams in experiment.variants] == [{"policy_kwargs": {"net_arch": [8]}}] * 2
    assert "RMSprop" not in experiment.hyperparams["CartPole-v1"]["ppo"]["policy_kwargs"]
    experiment.save(tmp_path)
    assert Experiment.load(tmp_path).variants == experiment.variants


def test_numbers_that_yaml_takes_for_text_are_numbers_at_any_depth() -> None:
    hyperparams = yaml.safe_load(
        "{policy_kwargs: {optimizer_kwargs: {eps: 1e-5, betas: [9e-1, 0.99]}}, learning_rate: lin_1e-3}"
    )
    experiment = make_experiment(TINY | {"variants": [{"algo": "ppo", "hyperparams": hyperparams}]}, "test")
    assert experiment.variants[0].hyperparams == {
        "policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5, "betas": [0.9, 0.99]}},
        "learning_rate": "lin_1e-3",
    }


def test_factors_make_variants() -> None:
    variants = [
        {
            "algo": "dapo",
            "hyperparams": {"gamma": 1.0},
            "factors": {"group_size": [4, 8], "learning_rate": ["3e-4", "lin_1e-3"]},
        },
        {"name": "without clip-higher", "algo": "dapo", "hyperparams": {"clip_range_high": None}},
        "ppo",
    ]
    experiment = make_experiment(TINY | {"variants": variants, "timesteps": {"CartPole-v1": "1e3"}, "seeds": [5, 3]}, "test")
    assert [(name, hyperparams) for name, _, hyperparams in experiment.variants] == [
        ("dapo, group_size=4, learning_rate=3e-4", {"gamma": 1.0, "group_size": 4, "learning_rate": 3e-4}),
        ("dapo, group_size=4, learning_rate=lin_1e-3", {"gamma": 1.0, "group_size": 4, "learning_rate": "lin_1e-3"}),
        ("dapo, group_size=8, learning_rate=3e-4", {"gamma": 1.0, "group_size": 8, "learning_rate": 3e-4}),
        ("dapo, group_size=8, learning_rate=lin_1e-3", {"gamma": 1.0, "group_size": 8, "learning_rate": "lin_1e-3"}),
        ("without clip-higher", {"clip_range_high": None}),
        ("ppo", {}),
    ]
    assert experiment.timesteps == {"CartPole-v1": 1000} and experiment.seeds == [3, 5]
    assert len(experiment.jobs()) == 12


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("0-1", [0, 1]), ("7-9", [7, 8, 9]), ("5-5", [5])])
def test_seeds_of_the_command_line(text: str, seeds: list[int]) -> None:
    args = _make_parser().parse_args(["compare", "--env", "CartPole-v1", "--algo", "ppo", "--seeds", text])
    assert cli_compare._experiment(args).seeds == seeds


def test_small_budgets_have_fewer_evaluations_and_each_experiment_one_number() -> None:
    content = {key: value for key, value in TINY.items() if not key.startswith("n_")}

    def numbers(**changes: Any) -> tuple[int, int, int]:
        experiment = make_experiment(content | changes, "test")
        return experiment.n_evaluations, experiment.n_eval_episodes, experiment.n_final_episodes

    assert numbers(timesteps=30_000) == (10, 5, 20)
    assert numbers(timesteps=100_000) == (20, 10, 20)
    assert numbers(timesteps=30_000, n_eval_episodes=7) == (10, 7, 20)
    both = {"envs": ["CartPole-v1", "Acrobot-v1"], "timesteps": {"CartPole-v1": 30_000, "Acrobot-v1": 300_000}}
    assert numbers(**both) == (20, 10, 20)


def test_which_returns_count_is_written_down_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("minigrid")
    by_mode = {
        "deterministic": ["CartPole-v1", "Pendulum-v1"],
        "stochastic": ["KungFuMasterNoFrameskip-v4", "ALE/Pong-v5", "MiniGrid-Empty-Random-5x5-v0"],
    }
    envs = [env for each in by_mode.values() for env in each]
    # Of the environment alone: DQN learns from the most likely actions, PPO from sampled ones
    for variants in (["ppo"], ["dqn", "ppo"]):
        experiment = make_experiment(TINY | {"envs": envs[:1] + envs[2:], "variants": variants}, "test")
        assert experiment.main_modes == {env: mode for mode, each in by_mode.items() for env in each if env != "Pendulum-v1"}
    # And of environments that are added later
    more = make_experiment(TINY | {"envs": ["Pendulum-v1"], "variants": ["ppo"]}, "test")
    merge(experiment, more).save(tmp_path)
    assert Experiment.load(tmp_path).main_modes == {env: mode for mode, each in by_mode.items() for env in each}


def test_runs_that_there_are_keep_the_rule_by_which_they_were_scored() -> None:
    now = make_experiment(TINY | {"envs": ["CartPole-v1", "Acrobot-v1"], "variants": ["ppo"]}, "test")
    for rule in ({"CartPole-v1": "stochastic"}, {}):  # {}: from before there was a rule
        before = replace(now, envs=["CartPole-v1"], main_modes=rule)
        assert merge(before, now).main_modes == rule | {"Acrobot-v1": "deterministic"}


def test_presets_make_variants() -> None:
    variants = [
        "grpo",
        {"algo": "grpo", "preset": "grpo-paper"},
        {"name": "no KL", "algo": "grpo", "preset": "grpo-paper", "hyperparams": {"kl_coef": 0}},
        {"algo": "dapo", "preset": "gspo", "factors": {"group_size": [4, 8]}},
    ]
    experiment = make_experiment(TINY | {"variants": variants}, "test")
    found = {name: (algo, hyperparams) for name, algo, hyperparams in experiment.variants}
    assert list(found) == ["grpo", "grpo-paper", "no KL", "gspo, group_size=4", "gspo, group_size=8"]
    assert found["grpo-paper"] == ("grpo", presets.GRPO_PAPER)
    assert found["no KL"] == ("grpo", {**presets.GRPO_PAPER, "kl_coef": 0})
    assert found["gspo, group_size=8"] == ("dapo", {**presets.GSPO, "group_size": 8})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": ["CartPol-v1"]}, "CartPole-v1"),
        ({"variants": ["dapoo"]}, "there is no algorithm 'dapoo'. Did you mean dapo"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"group_size": 4}}]}, "'ppo': there is no hyperparameter 'group_size'"),
        ({"variants": [{"algo": "dapo", "factors": {"groupsize": [4]}}]}, "'groupsize'. Did you mean group_size"),
        ({"variants": [{"algo": "dapo", "factors": {"group_size": 4}}]}, "the factor group_size must be a list"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"n_timesteps": 5}}]}, "set timesteps instead"),
        ({"variants": [{"algo": "ppo", "hyperparam": {}}]}, "Did you mean hyperparams"),
        ({"variants": [{"algo": "grpo", "preset": "grpo"}]}, "Unknown preset 'grpo', must be one of vpg, grpo-paper"),
        ({"variants": [{"algo": "ppo", "preset": "gspo"}]}, "presets are for dapo and grpo, not for ppo"),
        ({"variants": ["ppo", "ppo"]}, "'ppo' is there 2 times"),
        ({"variants": ["ppo", {"name": "PPO", "algo": "ppo"}]}, "'ppo' and 'PPO' would have one folder where capitals do not"),
        ({"variants": [{"name": "../ppo", "algo": "ppo"}]}, "becomes the name of a folder"),
        ({"variants": [{"name": "ж" * 150, "algo": "ppo"}]}, "it has 300 bytes, use at most 255"),
        ({"variants": [{"algo": "grpo", "factors": {"gamma": ["9" * 250]}}]}, "it has 262 bytes, use at most 255"),
        ({"variants": "ppo"}, "variants must be a list"),
        ({"timesteps": {"Acrobot-v1": 100}}, "there is no environment 'Acrobot-v1'"),
        ({"timesteps": {"CartPole-v1": 0}}, "must be a whole number above 0, not 0"),
        ({"timesteps": None}, "timesteps is missing"),
        ({"timesteps": 0}, "timesteps must be a whole number above 0, not 0"),
        ({"variants": [{"algo": ["grpo"], "preset": "gspo"}]}, "algo must be text, not ['grpo']"),
        ({"variants": [{"algo": "grpo", "preset": ["gspo"]}]}, "preset must be text, not ['gspo']"),
        ({"variants": [{"algo": "grpo", "name": None}]}, "name must be text, not None"),
        ({"n_evaluations": float("inf")}, "my.yml: n_evaluations must be a whole number above 0, not inf"),
        ({"seeds": float("nan")}, "my.yml: seeds must be a whole number above 0, not nan"),
        ({"envs": [1]}, "my.yml: each of the envs must be the id of an environment, such as CartPole-v1, not 1"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"n_envs": 0}}]}, "n_envs must be a whole number above 0, not 0"),
        ({"variants": [{"algo": "ppo", "factors": {"n_envs": [8, 0.5]}}]}, "n_envs must be a whole number above 0, not 0.5"),
        ({"seeds": [-1]}, "each of the seeds must be a whole number"),
        ({"n_evals": 3}, "there is no key 'n_evals'. Did you mean n_evaluations"),
    ],
)
def test_mistakes_are_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        make_experiment(TINY | changes, "my.yml")
    assert message in str(error.value)


def test_command_line_without_a_file() -> None:
    args = _make_parser().parse_args(
        ["compare", "--env", "CartPole-v1", "Acrobot-v1", "--algo", "ppo", "dapo", "--seeds", "3"]
    )
    experiment = cli_compare._experiment(args)
    assert experiment.name == "CartPole-v1_Acrobot-v1_ppo_dapo"
    assert experiment.timesteps == {"CartPole-v1": 100_000, "Acrobot-v1": 100_000}
    assert len(experiment.jobs()) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9-7", "must be a number of seeds, or a range such as 10-19 or 4-4, not '9-7'"),
        ("0,1", "must be a number of seeds, or a range such as 10-19 or 4-4, not '0,1'"),
        ("0", "must be a number of seeds, or a range such as 10-19 or 4-4, not '0'"),
    ],
)
def test_seeds_that_are_none(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--env", "CartPole-v1", "--algo", "ppo", "--seeds", text])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "package", "n_runs", "variants"),
    [
        ("class", "minatar", 24, ["ppo", "GRPO as in the paper", "grpo", "dapo"]),
        ("homework", "gymnasium", 120, ["ppo", "GRPO as in the paper", "grpo", "dapo"]),
        ("lunch", "ale_py", 8, ["ppo", "trpo", "grpo", "dapo"]),
    ],
)
def test_comparisons_that_are_ready(name: str, package: str, n_runs: int, variants: list[str]) -> None:
    pytest.importorskip(package)
    parser = _make_parser()
    experiment = cli_compare._experiment(parser.parse_args(["compare", "--preset", name]))
    assert experiment.name == name and len(experiment.jobs()) == n_runs
    assert [variant.name for variant in experiment.variants] == variants
    path = str(ready_path(name))
    assert cli_compare._experiment(parser.parse_args(["compare", "--config", path])) == experiment
    fewer = cli_compare._experiment(parser.parse_args(["compare", "--preset", name, "--seeds", "1"]))
    assert fewer.seeds == [0]


def test_list_of_comparisons_that_are_ready(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--list-presets"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    firsts = {row[0]: row[1:] for row in rows if len(row) > 3}
    assert firsts["class"][:3] == ["3", "compare,", "minatar"] and {"lunch", "homework"} <= firsts.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--env is missing"),
        (["--preset", "clas"], "--preset clas: comparisons that are ready are class, homework, lunch"),
        (["--preset", "gspo"], "write {algo: grpo, preset: gspo} in a file for --config"),
        (["--seeds", "3", "report", "folder"], "compare report runs nothing, so that --seeds 3 has no effect: leave it out"),
        (
            ["--env", "CartPole-v1", "--algo", "ppo", "--save-freq", "9"],
            "--save-freq has no effect here: of all algorithms, only dapo and grpo",
        ),
        (["--preset", "class", "--timesteps", "5"], "--timesteps and --preset exclude each other: copy"),
        (["--preset", "class", "--config", "no.yml"], "--config and --preset exclude each other"),
        (["--config", "no.yml"], "Cannot read no.yml"),
        (["--config", "no.yml", "--algo", "ppo"], "--algo and --config exclude each other"),
        (["--preset", "homework", "--seeds", f"0-{10**30}"], "the number of seeds must be a whole number above 0, and not"),
        (["--preset", "homework", "--seeds", "9999999999-9999999999"], "each of the seeds must be a whole number from 0 to"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err
