"""A student's functions, called in a process of their own with a time limit."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch as th
from safetensors import SafetensorError

from sb3_grpo.classroom.homework import sandbox

FILE = "student.py"
# Seconds for the start of the process, for a call, and for all calls of a student
_START, _CALL, _TOTAL = 120.0, 5.0, 25.0


class StudentError(Exception):
    """A student's function raised an error, took too long, or ended its process."""

    def __str__(self) -> str:
        return str(self.args[0])


class Student:
    """
    Calls the functions in a file. The process that runs them is started when needed, and again after it has ended.

    :param path: the file
    :param quiet: whether to hide what they print
    """

    def __init__(self, path: Path, quiet: bool = True):
        self.path = path.resolve()
        self.quiet = quiet
        self._seconds_left = _TOTAL
        self._broken: StudentError | None = None  # why the file cannot be imported
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __enter__(self) -> "Student":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        self._folder.cleanup()

    def call(self, function: str, *arguments: Any, gradient_of: int | None = None) -> tuple[th.Tensor, th.Tensor | None]:
        """
        :param function: its name
        :param arguments: tensors and numbers
        :param gradient_of: the argument by which the sum of the values is to be differentiated
        :return: what it returns, and the gradient, ``None`` if there is none
        :raises NotImplementedError: if it is not written yet
        :raises StudentError: if it fails
        """
        if self._broken is not None:
            raise self._broken
        if self._process is None:
            self._start()
        tensors = {f"{place}": each for place, each in enumerate(arguments) if isinstance(each, th.Tensor)}
        names = [f"{place}" if f"{place}" in tensors else each for place, each in enumerate(arguments)]
        asked = {"function": function, "arguments": names, "gradient_of": gradient_of}
        answer, values = self._ask(asked, tensors)
        if answer.get("unwritten"):
            raise NotImplementedError
        if "error" in answer or "values" not in values:
            raise StudentError(f"{answer.get('error', 'it sent no values')}"[:500])
        gradient = values.get("gradient")
        if gradient is not None and (gradient_of is None or gradient.shape != arguments[gradient_of].shape):
            raise StudentError("its gradient has another shape than its argument")
        return values["values"], gradient

    def _ask(self, asked: dict[str, Any], tensors: dict[str, th.Tensor]) -> Any:
        if self._seconds_left <= 0:
            raise StudentError(f"not called: all functions together have taken {_TOTAL:g} s")
        limit, begin = min(_CALL, self._seconds_left), time.monotonic()
        try:
            self._connection.settimeout(limit)
            sandbox.send(self._connection, asked, tensors)
            return sandbox.receive(self._connection, limit)
        except TimeoutError:
            self._stop()
            raise StudentError(f"it did not finish within {limit:.0f} s: is there a loop that never ends?") from None
        except (EOFError, OSError):
            self._stop()
            raise StudentError("it ended its process") from None
        except (ValueError, TypeError, RecursionError, SafetensorError) as error:
            self._stop()
            raise StudentError(f"it sent what cannot be read ({error})") from None
        finally:
            self._seconds_left -= time.monotonic() - begin

    def _start(self) -> None:
        self._connection, other_end = socket.socketpair()
        output = subprocess.DEVNULL if self.quiet else None
        with other_end:
            self._process = subprocess.Popen(
                # -P: the folder of this package is not searched for modules
                [sys.executable, "-P", sandbox.__file__, str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder.name,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                # A group of its own, to end its children with it
                start_new_session=True,
            )
        try:
            sandbox.receive(self._connection, _START)
        except (EOFError, OSError) as error:
            self._stop()
            raise RuntimeError("The process for students' functions does not start") from error
        try:
            answer, _ = self._ask({"path": str(self.path)}, {})
            if "error" in answer:
                raise StudentError(str(answer["error"]))
        except StudentError as error:
            self._stop()
            self._broken = StudentError(f"{self.path.name} cannot be imported: {error}"[:500])
            raise self._broken from None

    def _stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._connection.close()
            self._process = None
