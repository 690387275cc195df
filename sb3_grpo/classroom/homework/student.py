"""A student's functions, called in a process of their own with a time limit."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch as th
from safetensors import SafetensorError

from sb3_grpo.classroom.homework import sandbox

FILE = "student.py"
# Seconds for the start of the process, for a call, and for all calls of a student
_START, _CALL, _TOTAL = 120.0, 5.0, 25.0
# What the process needs of the environment: to start, and to use the same instructions of the processor as this one
# (MKL_CBWR for MKL). Threads do not come from there: it is one in both
_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "ATEN_CPU_CAPABILITY",
    "OPENBLAS_CORETYPE",
    "MKL_CBWR",
)


class StudentError(Exception):
    """A student's function raised an error, took too long, or ended its process."""


class Student(contextlib.AbstractContextManager["Student"]):
    """
    Calls the functions in a file. The process that runs them is started when needed, and again after it has ended.

    :param path: the file
    :param quiet: whether to hide what they print
    :param problem: why none of them can be called, empty if they can
    """

    def __init__(self, path: Path, quiet: bool = True, problem: str = ""):
        self.path = path.resolve()
        self.quiet = quiet
        self._seconds_left = _TOTAL
        self._broken = StudentError(problem) if problem else None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._folder.cleanup()

    def call(self, function: str, *arguments: Any, gradient_of: int | None = None) -> dict[str, th.Tensor]:
        """
        :param function: its name
        :param arguments: tensors and numbers
        :param gradient_of: the argument by which the sum of the values is to be differentiated
        :return: its "values", and their "gradient"
        :raises NotImplementedError: if it is not written yet
        :raises StudentError: if it fails
        """
        if self._broken is not None:
            raise self._broken
        if self._process is None:
            self._start()
        tensors = {f"{place}": each for place, each in enumerate(arguments) if isinstance(each, th.Tensor)}
        names = [f"{place}" if f"{place}" in tensors else each for place, each in enumerate(arguments)]
        sent = self._ask({"function": function, "arguments": names, "gradient_of": gradient_of}, tensors)
        if sent.keys() != ({"values"} if gradient_of is None else {"values", "gradient"}):
            raise StudentError("it sent no values")
        return sent

    def _ask(self, asked: dict[str, Any], tensors: dict[str, th.Tensor]) -> dict[str, th.Tensor]:
        if self._seconds_left <= 0:
            raise StudentError(f"not called: all functions together have taken {_TOTAL:g} s")
        limit, begin = min(_CALL, self._seconds_left), time.monotonic()
        try:
            with self._limited(limit):
                sandbox.send(self._connection, asked, tensors)
                answer, sent = sandbox.receive(self._connection)
        except (EOFError, OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            self._stop()
            if time.monotonic() - begin >= limit:
                raise StudentError(f"it did not finish within {limit:.0f} s: is there a loop that never ends?") from None
            if isinstance(error, EOFError | ConnectionError):
                raise StudentError("it ended its process") from None
            raise StudentError(f"it sent what cannot be read ({error})") from None
        finally:
            self._seconds_left -= time.monotonic() - begin
        if answer.get("unwritten"):
            raise NotImplementedError
        if "error" in answer:
            raise StudentError(str(answer["error"])[:500])
        return sent

    def _start(self) -> None:
        self._connection, other_end = Pipe()
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
                env={"OMP_NUM_THREADS": "1", **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}},
                # A group of its own, to end its children with it
                start_new_session=True,
            )
        try:
            with self._limited(_START):
                sandbox.receive(self._connection)
        except (EOFError, OSError) as error:
            self._stop()
            raise RuntimeError("The process for students' functions does not start") from error
        try:
            self._ask({"path": str(self.path)}, {})
        except (StudentError, NotImplementedError) as error:
            self._stop()
            self._broken = StudentError(f"{self.path.name} cannot be imported: {error}")
            raise self._broken from None

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # A child with another process group may keep the other end open
        with socket.socket(fileno=os.dup(self._connection.fileno())) as connection, contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _stop(self) -> None:
        if self._process is not None:
            self._kill()
            self._process.wait()
            self._connection.close()
            self._process = None
