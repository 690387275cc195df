"""A run in a process of its own: ``python -m sb3_grpo.compare.worker FOLDER``, and how it is started and watched."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_grpo.compare.training import Progress

# Files in the folder of a run; the result is the last
RESULT, ERROR, _LOG, _PROGRESS = "result.json", "error.txt", "log.txt", "progress.json"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PATIENCE = 5.0


class RunProcess:
    """
    A process that makes one run. It ends with the process that started it, however that ends.

    :param settings: see :meth:`Experiment.settings`
    :param folder: where it leaves its results; what is there of an earlier attempt is removed
    """

    def __init__(self, settings: dict[str, Any], folder: Path):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with (folder / _LOG).open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sb3_grpo.compare.worker", str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **_ONE_THREAD},
                # Ctrl-C is for the process that started it
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            # It stays open: the process ends with it
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # poll() finds out why

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> bool:
        """
        Clean up when it has ended.

        :return: whether it has
        """
        code = self._process.poll()
        if code is None:
            return False
        assert self._process.stdin is not None
        self._process.stdin.close()
        (self.folder / _PROGRESS).unlink(missing_ok=True)
        if not (self.folder / RESULT).exists() and not (self.folder / ERROR).exists():
            # It had no chance to say why
            cause = f"signal {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"exit code {code}"
            log = (self.folder / _LOG).read_text(errors="replace")
            (self.folder / ERROR).write_text(f"{log}The process of this run was ended by {cause}\n")
        return True

    def progress(self) -> list[float]:
        """
        :return: what a ``Progress`` consists of; empty if it has not begun
        """
        try:
            return json.loads((self.folder / _PROGRESS).read_text())
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """End it now, and remove what it has written, unless it has just finished."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if (self.folder / RESULT).exists():
            self.poll()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def failure(folder: Path) -> str | None:
    """
    :param folder: of a run that has ended
    :return: its traceback, None if it did not fail
    """
    path = folder / ERROR
    return path.read_text() if path.exists() and not (folder / RESULT).exists() else None


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing comes any more
    os._exit(1)


def main() -> int:
    """
    :return: the exit code
    """
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1 << 16)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(sys.argv[1])
    try:
        # Only now: a parent that only starts processes need not wait for PyTorch
        import torch as th

        from sb3_grpo.compare.experiment import write_atomically
        from sb3_grpo.compare.training import train

        th.set_num_threads(1)

        def report(progress: "Progress") -> None:
            write_atomically(folder / _PROGRESS, json.dumps(progress), durable=False)

        train(json.loads(line), folder, report)
    except Exception:
        (folder / ERROR).write_text(traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
