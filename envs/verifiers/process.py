"""A separate process for verifiers, which may hang or crash without harming the training."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("worker.py")

# Time limit for importing everything that the verifier needs
_START_SECONDS = 120.0


class VerifierError(RuntimeError):
    """A verifier raised an exception, took too long, ended its process, or returned an invalid value."""


class VerifierProcess:
    """
    A worker process that runs functions. It is started when first needed, and after it has ended.

    :param functions: Dict of functions of an answer and a payload, pickled with cloudpickle
    :param n_bytes: Memory that the process may use in addition to what it starts with (on Linux). None: no limit
    """

    _process: subprocess.Popen[bytes] | None = None
    _connection: Any
    _finalizer: Any
    _owner: int

    def __init__(self, functions: bytes, n_bytes: int | None):
        self._functions = functions
        self._n_bytes = n_bytes
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None if there is no worker."""
        return None if self._process is None else self._process.pid

    def call(self, name: str, calls: list[bytes], time_limit: float, stop: bool) -> list[tuple[Any, str | None]]:
        """
        :param name: Key of the function
        :param calls: The arguments of each call, as a pickled tuple
        :param time_limit: Maximum seconds per call
        :param stop: Whether to stop after the first error
        :return: For each call, the result and None, or None and the error
        """
        results: list[tuple[Any, str | None]] = []
        with self._lock:
            try:
                while len(results) < len(calls):
                    self._start()
                    # If the worker has ended, _receive notices
                    with contextlib.suppress(OSError):
                        self._connection.send((name, calls[len(results) :]))
                    while len(results) < len(calls) and self._process is not None:
                        results.append(self._receive(time_limit))
                        if stop and results[-1][1] is not None:
                            return results
            finally:
                if len(results) < len(calls):
                    self._stop()
        return results

    def _receive(self, seconds: float) -> tuple[Any, str | None]:
        """
        :param seconds: How long to wait
        :return: The result and None, or None and the error
        """
        assert self._process is not None
        if not self._connection.poll(seconds):
            self._stop()
            return None, f"it did not finish within {seconds:g} s and was stopped"
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            process = self._process
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            code = process.returncode
            self._stop()
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
            return None, f"it ended its own process ({how})"

    def _start(self) -> None:
        # After a fork, the worker belongs to the other process
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        self._stop()
        self._connection, other_end = multiprocessing.Pipe()
        with other_end:
            # -I: do not search the script's folder for modules, as some there have the names of packages
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-u", str(_SCRIPT), str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection, self._owner)
        with contextlib.suppress(OSError):
            self._connection.send((sys.path, self._functions, self._n_bytes))
        _, error = self._receive(_START_SECONDS)
        if error is not None:
            self._stop()
            raise VerifierError(f"The verifier cannot run in a process of its own: {error}")

    def _stop(self) -> None:
        if self._process is not None:
            self._finalizer()
            self._process = None

    def close(self) -> None:
        """End the process. It is restarted when needed."""
        with self._lock:
            self._stop()


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    if owner == os.getpid():
        connection.close()
        process.kill()
        process.wait()
