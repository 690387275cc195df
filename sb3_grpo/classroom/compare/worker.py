"""A run in its own process: start it, watch it, and end it together with the process that started it."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.classroom.compare.runs import is_done
from sb3_grpo.utils.files import no_room, replace_text

if TYPE_CHECKING:
    from sb3_grpo.classroom.compare.recorder import Progress

# Files in the folder of a run; the result is written last
RESULT, ERROR, CONFIG, _LOG, _PROGRESS = "result.json", "error.txt", "config.json", "log.txt", "progress.json"
# A folder there while the run is in progress
CHECKPOINTS = "checkpoints"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PATIENCE = 5.0
# PyTorch imports the second one when the first optimizer is created; this takes longer than importing PyTorch itself
_IMPORTED = ["sb3_grpo.classroom.compare.training", "torch._dynamo"]
# A server imports what runs need once and forks for each run: every run begins in the same state, regardless of earlier runs,
# and leaves no memory behind. Libraries on macOS may not survive a fork, so there, each run does its own imports
_PROCESSES: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes started in the ``with`` block to one thread. Libraries read this when they are loaded."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def prepare_runs() -> None:
    """Start the imports of the first run while this process has other things to do."""
    if _PROCESSES.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        _PROCESSES.set_forkserver_preload(_IMPORTED)
        with _one_thread():
            forkserver.ensure_running()


class RunProcess:
    """
    A process that executes one run, or records the clip of a finished one. It ends with the process that started it, however
    that ends.

    :param settings: see :meth:`Experiment.settings`
    :param folder: folder for its results; of an earlier attempt, only checkpoints to continue from are kept
    :param save_freq: number of steps between checkpoints, see ``TrainingCheckpoint``
    """

    def __init__(self, settings: dict[str, Any], folder: Path, save_freq: int | None = None):
        self.folder = folder
        if not is_done(folder):
            _remove_results(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOG).touch()
        prepare_runs()
        self._process = _PROCESSES.Process(target=_run, args=(settings, folder, save_freq))
        with _one_thread():
            self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> bool:
        """
        Clean up if the process has ended.

        :return: whether it has ended
        """
        code = self._process.exitcode
        if code is None:
            return False
        (self.folder / _PROGRESS).unlink(missing_ok=True)
        if not (self.folder / RESULT).exists() and not (self.folder / ERROR).exists():
            # The process had no chance to report the cause
            cause = f"signal {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"exit code {code}"
            log = (self.folder / _LOG).read_text(errors="replace")
            # If the disk is full, the other runs continue
            with suppress(OSError):
                (self.folder / ERROR).write_text(f"{log}The process of this run was ended by {cause}\n")
        return True

    def progress(self) -> list[float]:
        """
        :return: the entries of a ``Progress``; empty if it has not begun
        """
        try:
            return json.loads((self.folder / _PROGRESS).read_text())
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """End the process now and remove its files except for checkpoints, unless it has just finished."""
        self._process.terminate()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if (self.folder / RESULT).exists():
            self.poll()
        else:
            _remove_results(self.folder)


def is_under_way(folder: Path) -> bool:
    """
    :param folder: folder of a run
    :return: whether it has checkpoints but no result yet
    """
    return not (folder / RESULT).exists() and bool(checkpoints_in(folder / CHECKPOINTS))


def _remove_results(folder: Path) -> None:
    """
    :param folder: folder of a run; only checkpoints to continue from are kept, with their configuration
    """
    if not is_under_way(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name not in (CHECKPOINTS, CONFIG):
            path.unlink()


def failure(folder: Path) -> str | None:
    """
    :param folder: folder of a run that has ended
    :return: its traceback, or whatever else it has printed; None if it did not fail
    """
    if (folder / RESULT).exists():
        return None
    # A full disk has no room for the traceback either
    texts = [path.read_text(errors="replace") for name in (ERROR, _LOG) if (path := folder / name).exists()]
    return next((text for text in texts if text.strip()), "It has left no message. Is the disk full?")


def note_progress(folder: Path, progress: "Progress") -> None:
    """
    :param folder: folder of a run
    :param progress: its progress to show. If the disk is full, the training continues
    """
    with suppress(OSError):
        replace_text(folder / _PROGRESS, json.dumps(progress), durable=False)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(settings: dict[str, Any], folder: Path, save_freq: int | None) -> None:
    """
    Main function of the process.

    :param settings: see :meth:`Experiment.settings`
    :param folder: folder for its results
    :param save_freq: number of steps between checkpoints
    """
    # Ctrl-C is handled by the process that started this one
    os.setsid()
    log = os.open(folder / _LOG, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        # Imported only here: a parent that only starts processes need not wait for PyTorch
        import torch as th

        from sb3_grpo.classroom.compare.training import make_clip, train

        th.set_num_threads(1)
        if is_done(folder):
            make_clip(settings, folder)
            return
        train(settings, folder, lambda progress: note_progress(folder, progress), save_freq)
    except Exception as error:
        # Continuing would lead to the same error, or mix in corrections made since then halfway through the run. A full disk
        # is not the fault of the run
        if no_room(error) is None:
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        # The message may quote text that cannot be encoded, such as a file name
        (folder / ERROR).write_text(traceback.format_exc(), "utf-8", errors="backslashreplace")
        sys.exit(1)
