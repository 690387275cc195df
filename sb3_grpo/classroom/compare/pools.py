"""Where runs are executed: processes on this machine, or a Ray cluster."""

import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from sb3_grpo.classroom.compare.worker import ERROR, RESULT, RunProcess
from sb3_grpo.console import UsageError, missing_extra

# env, variant, seed
Key = tuple[str, str, int]

_INTERVAL = 0.5


class Pool(Protocol):
    """
    Executes runs in parallel.

    :param capacity: maximum number of runs that it accepts at a time
    """

    capacity: int

    def start(self, key: Key, settings: dict[str, Any], folder: Path) -> None:
        """
        :param key: key of the run
        :param settings: see :meth:`Experiment.settings`
        :param folder: folder for its results
        """

    def take_ended(self) -> list[Key]:
        """
        :return: runs that have ended since the last call; their files are in their folders
        """

    def progress(self) -> dict[Key, list[float]]:
        """
        :return: progress of each current run, see ``Progress``; an empty list if it is about to begin
        """

    def close(self) -> None:
        """Abort the runs that have not ended."""


class LocalPool:
    """
    Processes on this machine.

    :param n_workers: number of runs in parallel
    :param save_freq: number of steps between checkpoints of a run, see ``TrainingCheckpoint``
    """

    def __init__(self, n_workers: int, save_freq: int | None = None):
        self.capacity = n_workers
        self._save_freq = save_freq
        self._running: dict[Key, RunProcess] = {}

    def start(self, key: Key, settings: dict[str, Any], folder: Path) -> None:
        self._running[key] = RunProcess(settings, folder, self._save_freq)

    def take_ended(self) -> list[Key]:
        ended = [key for key, process in self._running.items() if process.poll()]
        for key in ended:
            del self._running[key]
        return ended

    def progress(self) -> dict[Key, list[float]]:
        return {key: process.progress() for key, process in self._running.items()}

    def close(self) -> None:
        for process in self._running.values():
            process.stop()
        self._running.clear()


class _Board:
    """An actor to which tasks report their progress."""

    def __init__(self) -> None:
        self._progress: dict[Key, list[float]] = {}

    def note(self, key: Key, progress: list[float] | None) -> None:
        """
        :param key: the run
        :param progress: its progress, None at its end
        """
        if progress is None:
            self._progress.pop(key, None)
        else:
            self._progress[key] = progress

    def read(self) -> dict[Key, list[float]]:
        """
        :return: progress of all runs
        """
        return self._progress


def _run(key: Key, settings: dict[str, Any], board: Any) -> dict[str, bytes]:
    """
    A task: one run in its own process, because only a fresh process can measure its memory.

    :param key: key of the run
    :param settings: see :meth:`Experiment.settings`
    :param board: the actor
    :return: the content of its files, because the machines may not have a shared folder
    """
    with tempfile.TemporaryDirectory() as folder:
        process = RunProcess(settings, Path(folder) / "run")
        while not process.poll():
            board.note.remote(key, process.progress())
            time.sleep(_INTERVAL)
        board.note.remote(key, None)
        return {path.name: path.read_bytes() for path in process.folder.iterdir() if path.is_file()}


class RayPool:
    """
    One task per run on a Ray cluster. Ray repeats a task whose worker or machine has died.

    :param address: address of the cluster, ``"auto"`` for the one that this machine belongs to
    :param n_workers: number of runs in parallel, None for as many as the cluster has room for
    :param device: device of the models
    """

    def __init__(self, address: str, n_workers: int | None, device: str):
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "--ray") from error
        self._ray: Any = ray
        try:
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
            raise UsageError(
                f"--ray {address}: cannot connect to a Ray cluster: {error}. To start one: ray start --head. "
                "One with Ray's token authentication also needs RAY_AUTH_MODE=token in the environment of this command."
            ) from error
        self.capacity = n_workers if n_workers is not None else 10**6
        # Ray's handles have methods that its type hints do not cover
        # If the machine with the board dies, another one takes over
        actor: Any = ray.remote(num_cpus=0, max_restarts=-1)(_Board)
        self._board = actor.remote()
        # An autoscaling cluster must see all waiting tasks: no limit except the user's
        self._task = ray.remote(num_cpus=1, num_gpus=int(device.startswith("cuda")), max_retries=3)(_run)
        self._tasks: dict[Any, tuple[Key, Path]] = {}

    def start(self, key: Key, settings: dict[str, Any], folder: Path) -> None:
        self._tasks[self._task.remote(key, settings, self._board)] = (key, folder)

    def take_ended(self) -> list[Key]:
        tasks = list(self._tasks)
        ready = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
        return [self._take(task) for task in ready]

    def _take(self, task: Any) -> Key:
        key, folder = self._tasks.pop(task)
        try:
            files = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            files = {ERROR: f"{error}\n".encode()}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in sorted(files, key=lambda name: name == RESULT):
            part = folder / f"{name}.part"
            part.write_bytes(files[name])
            os.replace(part, folder / name)
        return key

    def progress(self) -> dict[Key, list[float]]:
        try:
            return self._ray.get(self._board.read.remote())
        except self._ray.exceptions.RayError:
            # The board has died. The runs continue without it
            return {}

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._tasks.clear()
        self._ray.shutdown()
