"""
The runs of a comparison, each in a process of its own, which alone can measure its memory. ``run_here`` executes them on
this machine, ``run_on_ray`` on a cluster, one of the processes for each task.
"""

import csv
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from ctypes import c_longlong
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.classroom.compare.experiment import Experiment
from sb3_grpo.classroom.compare.runs import CHECKPOINTS, CONFIG, ERROR, LOG, RESULT, is_done
from sb3_grpo.console import UsageError, missing_extra
from sb3_grpo.utils.files import no_room

# Settings of each run by its folder, see :meth:`Experiment.settings`
Runs = Mapping[Path, dict[str, Any]]
# Folders of the runs that have just ended, and the steps of the current ones
Update = tuple[list[Path], dict[Path, int]]
Execute = Callable[[Runs], Iterator[Update]]

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# PyTorch imports the second one when the first optimizer is created; this takes longer than importing PyTorch itself
_IMPORTED = ["sb3_grpo.classroom.compare.training", "torch._dynamo"]
# Seconds between updates, and for a process to end
_INTERVAL, _PATIENCE = 0.5, 5.0
# A server imports what runs need once and forks for each run: every run begins in the same state, regardless of earlier runs,
# and leaves no memory behind. Elsewhere, libraries may not survive a fork, and each run does its own imports
_PROCESSES: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def prepare_runs() -> None:
    """Start the imports of the first run while this process has other things to do."""
    if sys.platform == "linux":
        from multiprocessing import forkserver, resource_tracker

        # Started by the server otherwise, which would let Ctrl-C through again
        resource_tracker.ensure_running()
        _PROCESSES.set_forkserver_preload(_IMPORTED)
        with _starting():
            forkserver.ensure_running()


@contextmanager
def _starting() -> Iterator[None]:
    """
    Limit processes started in the ``with`` block to one thread (libraries read this when they are loaded), and keep Ctrl-C
    from them until they ignore it: it is handled by this process.
    """
    before = dict(os.environ)
    os.environ.update(_ONE_THREAD)
    # Not on Windows. Processes inherit what is blocked in the thread that starts them
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def is_under_way(folder: Path) -> bool:
    """
    :param folder: folder of a run
    :return: whether it has checkpoints but no result yet
    """
    return not is_done(folder) and bool(checkpoints_in(folder / CHECKPOINTS))


class RunProcess:
    """
    A process that executes one run once it is started. It ends with the process that started it, however that ends.

    :param settings: see :meth:`Experiment.settings`
    :param folder: folder for its results; of an earlier attempt, only checkpoints to continue from are kept
    :param save_freq: number of steps between checkpoints, see ``TrainingCheckpoint``
    """

    def __init__(self, settings: dict[str, Any], folder: Path, save_freq: int | None = None):
        self.folder = folder
        if is_under_way(folder):
            for path in folder.iterdir():
                if path.name not in (CHECKPOINTS, CONFIG):
                    path.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.steps = _PROCESSES.RawValue(c_longlong, 0)
        self.process = _PROCESSES.Process(target=_run, args=(settings, folder, save_freq, self.steps))

    def start(self) -> None:
        """Start the process."""
        prepare_runs()
        with _starting():
            self.process.start()

    def has_ended(self) -> bool:
        """
        :return: whether it has ended. If it had no chance to report the cause of a failure, this is written now
        """
        code = self.process.exitcode
        if code is not None and not is_done(self.folder) and not (self.folder / ERROR).exists():
            cause = f"signal {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"exit code {code}"
            # If the disk is full, the other runs continue
            with suppress(OSError):
                (self.folder / ERROR).write_text(f"The process of this run was ended by {cause}, see {LOG}\n")
        return code is not None

    def stop(self) -> None:
        """End the process now. What remains are checkpoints, or its results if it has just finished."""
        if self.process.pid is None:
            return
        self.process.terminate()
        self.process.join(_PATIENCE)
        self.process.kill()
        self.process.join()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(settings: dict[str, Any], folder: Path, save_freq: int | None, steps: Any) -> None:
    """
    Main function of the process.

    :param settings: see :meth:`Experiment.settings`
    :param folder: folder for its results
    :param save_freq: number of steps between checkpoints
    :param steps: shared number of steps so far
    """
    # Ctrl-C is handled by the process that started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        # Imported only here: a parent that only starts processes need not wait for PyTorch
        import torch as th

        from sb3_grpo.classroom.compare.training import train

        # The same for all algorithms: a process for each core
        th.set_num_threads(1)
        train(settings, folder, lambda n_steps: setattr(steps, "value", n_steps), save_freq)
    except Exception as error:
        # Continuing would lead to the same error, or mix in corrections made since then halfway through the run. A full disk
        # is not the fault of the run
        if no_room(error) is None:
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        # The message may quote text that cannot be encoded, such as a file name
        (folder / ERROR).write_text(traceback.format_exc(), "utf-8", errors="backslashreplace")
        sys.exit(1)


def run_here(runs: Runs, n_workers: int, save_freq: int | None = None) -> Iterator[Update]:
    """
    :param runs: runs to execute on this machine
    :param n_workers: number of runs in parallel
    :param save_freq: number of steps between checkpoints of a run, see ``TrainingCheckpoint``
    :return: updates, until all runs have ended
    """
    waiting = list(runs.items())
    running: dict[Path, RunProcess] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n_workers:
                folder, settings = waiting.pop(0)
                # Ctrl-C may come at any time, and must find what it has to stop
                running[folder] = RunProcess(settings, folder, save_freq)
                running[folder].start()
            connection.wait([each.process.sentinel for each in running.values()], _INTERVAL)
            ended = [folder for folder, process in running.items() if process.has_ended()]
            for folder in ended:
                del running[folder]
            yield ended, {folder: process.steps.value for folder, process in running.items()}
    finally:
        for process in running.values():
            process.stop()


def _task(settings: dict[str, Any]) -> dict[str, bytes]:
    """
    A task of Ray.

    :param settings: see :meth:`Experiment.settings`
    :return: the content of the run's files, because the machines may not have a shared folder
    """
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        for _ in run_here({folder: settings}, n_workers=1):
            pass
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def run_on_ray(runs: Runs, address: str, n_workers: int | None, device: str) -> Iterator[Update]:
    """
    :param runs: runs to execute as tasks of a Ray cluster, which repeats a task whose worker or machine has died
    :param address: address of the cluster, ``"auto"`` for the one that this machine belongs to
    :param n_workers: number of runs in parallel, None for as many as the cluster has room for
    :param device: device of the models
    :return: updates, until all runs have ended
    """
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "--ray") from error
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"--ray {address}: cannot connect to a Ray cluster: {error}. To start one: ray start --head. "
            "One with Ray's token authentication also needs RAY_AUTH_MODE=token in the environment of this command."
        ) from error
    task: Any = ray.remote(num_cpus=1, num_gpus=int(device.startswith("cuda")), max_retries=3)(_task)
    waiting = list(runs.items())
    running: dict[Any, Path] = {}
    try:
        while waiting or running:
            # An autoscaling cluster must see all waiting tasks: no limit except the user's
            while waiting and (n_workers is None or len(running) < n_workers):
                folder, settings = waiting.pop(0)
                running[task.remote(settings)] = folder
            ended = ray.wait(list(running), timeout=_INTERVAL)[0]
            for each in ended:
                try:
                    files = ray.get(each)
                except ray.exceptions.RayError as error:
                    files = {ERROR: f"{error}\n".encode()}
                _write(files, running[each])
            yield [running.pop(each) for each in ended], {}
    finally:
        for each in running:
            ray.cancel(each, force=True)
        ray.shutdown()


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in sorted(files, key=lambda name: name == RESULT):
        part = folder / f"{name}.part"
        part.write_bytes(files[name])
        part.replace(folder / name)


def _failure(folder: Path) -> str:
    """The last line of the traceback. A full disk may have had no room for it."""
    path = folder / ERROR
    lines = path.read_text("utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return f"failed: {lines[-1]} (the traceback is in {path})" if lines else f"failed without a message, see {folder / LOG}"


def _outcome(folder: Path) -> str:
    with (folder / "evaluations.csv").open(newline="") as file:
        last = [row for row in csv.DictReader(file) if row["final"] == "1"]
    returns = ", ".join(f"{float(row['return_mean']):.1f} ({row['mode']})" for row in last)
    seconds = json.loads((folder / RESULT).read_text())["seconds"]
    return f"final return {returns}, {seconds:.1f} s of training"


def run_jobs(experiment: Experiment, folder: Path, execute: Execute, console: Console) -> int:
    """
    Execute all runs that have no results yet, and show their progress: a line for each that has ended, and a bar in a
    terminal. If this is interrupted, finished runs are kept.

    :param experiment: the experiment
    :param folder: folder of the experiment
    :param execute: ``run_here`` or ``run_on_ray``
    :param console: console that shows the progress
    :return: number of failed runs
    """
    everything = experiment.jobs()
    jobs = {job.folder(folder): job for job in everything if not job.is_done(folder)}
    n_ended, n_failed = len(everything) - len(jobs), 0
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeRemainingColumn()
    bars = Progress(*columns, console=console, disable=not console.is_terminal)
    bar = bars.add_task("", total=sum(experiment.timesteps[job.env] for job in everything))
    n_steps = sum(experiment.timesteps[job.env] for job in everything if job.folder(folder) not in jobs)
    updates = execute({path: experiment.settings(job) for path, job in jobs.items()})
    with bars, closing(updates):  # type: ignore[type-var]
        for ended, steps in updates:
            for path in ended:
                n_ended += 1
                n_steps += experiment.timesteps[jobs[path].env]
                failed = not is_done(path)
                n_failed += failed
                said = (f"{jobs[path]}: {_failure(path) if failed else _outcome(path)}", "bold red" if failed else "")
                line = Text.assemble(f"[{n_ended}/{len(everything)}] ", said)
                console.print(line, soft_wrap=True, highlight=False)
            bars.update(bar, completed=n_steps + sum(steps.values()), description=f"{n_ended} of {len(everything)} runs")
    return n_failed
