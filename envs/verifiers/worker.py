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
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def as_score(value: Any) -> float:
    """
    :param value: Return value of a verifier
    :return: The score as a float
    """
    if value is None or isinstance(value, (str, bytes)):
        raise TypeError(f"the verifier returned {value!r:.100}, not a number")
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"the verifier returned {value!r:.100} of type {type(value).__name__}, not a number") from None
    if score - score != 0:
        raise ValueError(f"the verifier returned {score}, not a finite number")
    # Partial scores may add up to slightly more than 1
    if not -1e-6 <= score <= 1.0 + 1e-6:
        raise ValueError(
            f"the verifier returned {score}: scores are from 0 (wrong) to 1 (right). What they are worth is set with "
            "reward_wrong and reward_correct"
        )
    return min(max(score, 0.0), 1.0)


def as_reply(value: Any) -> str | None:
    """
    :param value: Return value of a task's ``reply``
    :return: The same value, a text without a class of its own: that of an enumeration may be unknown in the other process
    """
    if value is None:
        return None
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"the reply is {value!r:.100} of type {type(value).__name__}, not a text or None")


# Functions that a process can be asked to call, and the checks of their results
RESULTS: dict[str, Callable[[Any], Any]] = {"score": as_score, "reply": as_reply}


def _unpack(packed: bytes) -> tuple[Any, ...]:
    try:
        return pickle.loads(packed)
    except Exception as error:
        raise TypeError(
            f"what belongs to this item cannot be read in another process ({type(error).__name__}: {error}). Keep plain data "
            "in its metadata, or objects of classes that can be imported from a module"
        ) from None


_OURS = {function.__name__ for function in (as_score, as_reply, _unpack)}


def describe(error: BaseException) -> str:
    """
    :param error: Error raised by a user's function
    :return: The error in one line, and where it was raised
    """
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames and frames[-1].name not in _OURS:
        text += f" (in {frames[-1].name}, {frames[-1].filename}, line {frames[-1].lineno})"
    return text


def _end_with(parent: int) -> None:
    # If a verifier hangs, this process would not notice that its parent has ended
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
    Run the functions that are asked for. Results are pairs: the score or the reply, or None; and the error, or None.

    :param connection: Connection to the process that sends the answers
    """
    parent, sys.path[:], pickled, n_bytes = connection.recv()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        functions = pickle.loads(pickled)
    except BaseException as error:
        connection.send((None, describe(error)))
        return
    if n_bytes is not None:
        _limit_memory(n_bytes)
    connection.send((None, None))
    while True:
        name, calls = pickle.loads(connection.recv_bytes())
        for arguments in calls:
            result: tuple[Any, str | None]
            try:
                result = RESULTS[name](functions[name](*_unpack(arguments))), None
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
