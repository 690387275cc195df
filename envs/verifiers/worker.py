"""
The process that runs verifiers: a script that needs nothing but Python until it receives the functions to run.

As it is run as a script rather than with multiprocessing, it never imports the user's main script, which therefore needs no
``if __name__ == "__main__"``.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any


def describe(error: BaseException) -> str:
    """
    :param error: Error raised by a user's function
    :return: The error in one line, and where it was raised, except in this folder
    """
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames and os.path.dirname(frames[-1].filename) != os.path.dirname(__file__):
        text += f" (in {frames[-1].name}, {frames[-1].filename}, line {frames[-1].lineno})"
    return text


def _unpack(packed: bytes) -> tuple[Any, ...]:
    try:
        return pickle.loads(packed)
    except Exception as error:
        raise TypeError(
            f"what belongs to this item cannot be read in another process ({type(error).__name__}: {error}). Keep plain data "
            "in its metadata, or objects of classes that can be imported from a module"
        ) from None


def _end_with_parent() -> None:
    # If a verifier hangs, this process would not notice that its parent has ended
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _limit_memory(n_bytes: int) -> None:
    """
    :param n_bytes: Additional memory that this process may use from now on, if the system tells how much it uses already
    """
    try:
        import resource

        with open("/proc/self/statm") as statm:
            limit = int(statm.read().split()[0]) * resource.getpagesize() + n_bytes
    except (ImportError, OSError):
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _serve(connection: Connection) -> None:
    """
    Run the functions that are asked for. What is sent back are pairs: the result and None, or None and the error.

    :param connection: Connection to the process that sends the answers
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:], pickled, n_bytes = connection.recv()
    try:
        functions = pickle.loads(pickled)
    except BaseException as error:
        connection.send((None, describe(error)))
        return
    if n_bytes is not None:
        _limit_memory(n_bytes)
    connection.send((None, None))
    while True:
        name, calls = connection.recv()
        for packed in calls:
            result: tuple[Any, str | None]
            try:
                result = functions[name](*_unpack(packed)), None
            except Exception as error:
                result = None, describe(error)
            connection.send(result)


if __name__ == "__main__":
    # Ctrl-C is meant for the parent process, which then ends this one through the connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
