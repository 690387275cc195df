"""The patches in docs/rl_zoo3_patches: each fault of rl_zoo3 is there before, and gone after."""

import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rl_zoo3")

import numpy as np
import optuna
import rl_zoo3
import yaml

PATCHES = Path(__file__).resolve().parents[2] / "docs" / "rl_zoo3_patches"
MADE_FOR = "2.9.2"
CARTPOLE = ("--algo", "ppo", "--env", "CartPole-v1", "--device", "cpu")
BRIEF = ("-n", "16", "--eval-freq", "-1", "-params", "n_envs:1", "n_steps:8", "batch_size:8")
RUN = Path("logs/ppo/CartPole-v1_1")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(version("rl_zoo3") != MADE_FOR, reason=f"the patches are for rl_zoo3 {MADE_FOR}"),
    pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch"),
]


def command(name: str, *arguments: str) -> None:
    sys.argv = [name, *CARTPOLE, *arguments]
    getattr(importlib.import_module(f"rl_zoo3.{name}"), name)()


def saved_config() -> dict[str, Any]:
    return yaml.load((RUN / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)


def trial_0_is_ignored() -> bool:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("trials.log"))
    study = optuna.create_study(storage=storage, study_name="study", sampler=optuna.samplers.RandomSampler(seed=0))
    trial = study.ask()
    sampled = importlib.import_module("rl_zoo3.hyperparams_opt").HYPERPARAMS_SAMPLER["ppo"](trial, 0, 1, {})
    study.tell(trial, 0.0)
    command("train", *BRIEF, "--storage", "trials.log", "--study-name", "study", "--trial-id", "0")
    return saved_config()["gamma"] != sampled["gamma"]


def a_search_trains_instead() -> bool:
    command("train", *BRIEF)
    model = str(RUN / "CartPole-v1.zip")
    try:
        command("train", *BRIEF, "-i", model, "--optimize", "--n-trials", "1", "--no-optim-plots")
    except SystemExit:
        pass
    return Path("logs/ppo/CartPole-v1_2/CartPole-v1.zip").exists()


def enjoy_takes_a_run_without_a_model() -> bool:
    command("train", *BRIEF)
    Path("logs/ppo/CartPole-v1_2").mkdir()
    try:
        command("enjoy", "-f", "logs", "--no-render", "-n", "8")
    except ValueError as error:
        return "No model found" in str(error)
    return False


def config_has_the_steps_of_the_file() -> bool:
    command("train", *BRIEF)
    return saved_config()["n_timesteps"] != 16


def evaluation_is_of_another_task() -> bool:
    # An episode of it returns -1
    entry = {"n_timesteps": 16, "policy": "MlpPolicy", "env_kwargs": {"sutton_barto_reward": True}}
    Path("own.yml").write_text(yaml.dump({"CartPole-v1": entry}))
    command("train", *BRIEF, "--conf-file", "own.yml", "--eval-freq", "8", "--eval-episodes", "1")
    return bool((np.load(RUN / "evaluations.npz")["results"] > 0).all())


FAULTS: dict[str, Callable[[], bool]] = {
    "load_trial_0": trial_0_is_ignored,
    "search_without_trained_agent": a_search_trains_instead,
    "latest_run_with_a_model": enjoy_takes_a_run_without_a_model,
    "n_timesteps_in_config": config_has_the_steps_of_the_file,
    "env_kwargs_in_evaluation": evaluation_is_of_another_task,
}


def copied(folder: Path, patches: Sequence[str]) -> Path:
    """A copy of the installed rl_zoo3, in a folder of its own."""
    shutil.copytree(Path(rl_zoo3.__file__).parent, folder / "rl_zoo3", ignore=shutil.ignore_patterns("__pycache__"))
    for name in patches:
        apply = ["patch", "-p1", "--fuzz=0", "-i", str(PATCHES / f"{name}.patch")]
        subprocess.run(apply, cwd=folder, check=True, capture_output=True)
    return folder


def with_copy(folder: Path, fault: str) -> bool:
    """In a process of its own: what imports the copy has registered nothing, and forgets nothing."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rl_zoo3"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    found = FAULTS[fault]()
    assert sys.modules["rl_zoo3"].__file__ == str(folder / "rl_zoo3" / "__init__.py")
    return found


def is_there(folder: Path, fault: str) -> bool:
    # A fork has PyTorch in memory already
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        return process.submit(with_copy, folder, fault).result()


def test_every_patch_has_a_test() -> None:
    assert {path.stem for path in PATCHES.glob("*.patch")} == {*FAULTS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_patch_mends_its_fault(name: str, tmp_path: Path) -> None:
    assert is_there(copied(tmp_path / "before", []), name)
    assert not is_there(copied(tmp_path / "after", [name]), name)


def test_all_patches_go_together(tmp_path: Path) -> None:
    assert not any(is_there(copied(tmp_path / name, [*FAULTS]), name) for name in FAULTS)
