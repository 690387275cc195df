"""A separate process for verifiers, which may hang or crash without harming the training."""

import contextlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("worker.py")

# Time limit for importing everything that the verifier needs
_START_SECONDS = 120.0


class VerifierStartError(RuntimeError):
    """The verifier's process could not start."""


class VerifierProcess:
    """
    A worker process that runs functions. It is started when first needed.

    :param functions: Dict of functions, pickled with cloudpickle. Its keys are those of ``RESULTS``.
    :param n_bytes: Memory that the process may use in addition to what it starts with (on Linux). None: no limit
    """

    def __init__(self, functions: bytes, n_bytes: int | None = None):
        self._functions = functions
        self._n_bytes = n_bytes
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None if there is no worker."""
        return None if self._process is None else self._process.pid

    def call(self, name: str, calls: list[bytes], time_limit: float) -> Generator[tuple[Any, str | None], None, None]:
        """
        :param name: Key of the function
        :param calls: The arguments of each call, as a pickled tuple
        :param time_limit: Maximum seconds per call
        :return: Generator of pairs, one per call as soon as it is available: the result and None, or None and the error
        """
        with self._lock:
            n_done = 0
            try:
                while n_done < len(calls):
                    self._start()
                    # If the worker has ended, _receive notices
                    with contextlib.suppress(OSError):
                        self._connection.send_bytes(pickle.dumps((name, calls[n_done:])))
                    while n_done < len(calls) and self._process is not None:
                        result = self._receive(time_limit)
                        n_done += 1
                        yield result
            finally:
                if n_done < len(calls):
                    self._stop()

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
        if self._owner != os.getpid():
            # Forked: the worker belongs to the other process
            self._forget()
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it has ended while it was idle
        if self._process is not None:
            return
        self._connection, other_end = multiprocessing.Pipe()
        with other_end:
            # -I: do not search the script's folder for modules, as some there have the names of packages
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_SCRIPT), str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection, os.getpid())
        with contextlib.suppress(OSError):
            self._connection.send((os.getpid(), sys.path, self._functions, self._n_bytes))
        _, error = self._receive(_START_SECONDS)
        if error is not None:
            self._stop()
            raise VerifierStartError(error)

    def _stop(self) -> None:
        finalizer = self._finalizer
        self._forget()
        if finalizer is not None:
            finalizer()

    def close(self) -> None:
        """End the process. It is restarted when needed."""
        with self._lock:
            self._stop()


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    if owner == os.getpid():
        connection.close()
        process.kill()
        process.wait()


_processes: "weakref.WeakValueDictionary[tuple[bytes, int | None], VerifierProcess]" = weakref.WeakValueDictionary()


def shared_process(functions: bytes, n_bytes: int | None = None) -> VerifierProcess:
    """
    :param functions: See :class:`VerifierProcess`
    :param n_bytes: See :class:`VerifierProcess`
    :return: The worker shared by all environments of this process that use these functions
    """
    process = _processes.get((functions, n_bytes))
    if process is None:
        process = _processes[functions, n_bytes] = VerifierProcess(functions, n_bytes)
    return process
