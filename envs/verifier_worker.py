"""
The process that runs verifiers: a script, which needs nothing but Python until it is told what to run.

Run as a script rather than with multiprocessing, it never imports the user's main script, so that this one needs no
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


def as_score(value: Any) -> float:
    """
    :param value: What a verifier returned
    :return: The same as a float
    """
    if isinstance(value, str | bytes | None):
        raise TypeError(f"the verifier returned {value!r:.100}, not a number")
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"the verifier returned {value!r:.100} of type {type(value).__name__}, not a number") from None
    if score - score != 0:
        raise ValueError(f"the verifier returned {score}, not a finite number")
    return score


def describe(error: BaseException) -> str:
    """
    :param error: What a verifier raised
    :return: It in one line, and where it was raised
    """
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames and frames[-1].name != as_score.__name__:
        text += f" (in {frames[-1].name}, {frames[-1].filename}, line {frames[-1].lineno})"
    return text


def _end_with(parent: int) -> None:
    # A verifier that hangs would not notice that there is nobody left to read its result
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _serve(connection: Connection) -> None:
    """
    Results are pairs: the score or None, and what went wrong or None.

    :param connection: Where answers come from
    """
    parent, sys.path[:], function = connection.recv()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        verifier = pickle.loads(function)
    except BaseException as error:
        connection.send((None, describe(error)))
        return
    connection.send((0.0, None))
    while True:
        for answer, payload in pickle.loads(connection.recv_bytes()):
            result: tuple[float | None, str | None]
            try:
                result = as_score(verifier(answer, payload)), None
            except Exception as error:
                result = None, describe(error)
            connection.send(result)


if __name__ == "__main__":
    # Ctrl-C is for the process that started this one, and ends this one through the connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
