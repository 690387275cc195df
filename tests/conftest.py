import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.vec_env import SubprocVecEnv

from tests.browser import chromium

# Tiny networks: more threads only get into each other's way
th.set_num_threads(1)
# By default each process of a SubprocVecEnv imports PyTorch anew, which takes longer than most tests
SubprocVecEnv.__init__.__defaults__ = ("fork",)


@pytest.fixture(autouse=True, scope="module")
def no_processes_left() -> Iterator[None]:
    """A forked process keeps what this one has opened, and the browser waits for it when the tests end."""
    yield
    for process in multiprocessing.active_children():
        process.terminate()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def keep_threads() -> Iterator[None]:
    """The command line and runs of a comparison set the number of threads, also for the tests that follow."""
    threads = th.get_num_threads()
    yield
    th.set_num_threads(threads)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_threads: None) -> None:
    """The test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In InvalidActionEnvDiscrete, what is not allowed is an error. The environments of all steps."""
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    def step(env: Any, action: int) -> Any:
        if not env.action_masks()[action]:
            raise ValueError(f"{action} is not allowed")
        acted_in.append(env)
        return original(env, action)

    acted_in: list[Any] = []
    original = InvalidActionEnvDiscrete.step
    monkeypatch.setattr(InvalidActionEnvDiscrete, "step", step)
    return acted_in
