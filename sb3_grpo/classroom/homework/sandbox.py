"""
The process that runs a student's functions: a script that needs PyTorch and nothing of this package, so that there is nothing
in it to look answers up in. It gets the arguments of a call, and sends what the function returns.

Messages are JSON and tensors in the format of safetensors: nothing that the student's code may send is ever unpickled.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from types import ModuleType
from typing import Any

import torch as th
from safetensors.torch import load, save

# Maximum size of a message, and memory that a student's functions may use (on Linux)
MAX_BYTES, MEMORY = 2**26, 2**31


def send(connection: socket.socket, content: dict[str, Any], tensors: dict[str, th.Tensor]) -> None:
    """
    :param connection: connection to the other process
    :param content: data for JSON
    :param tensors: tensors by name
    """
    packed = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    for part in (json.dumps(content).encode(), packed):
        connection.sendall(struct.pack(">I", len(part)) + part)


def receive(connection: socket.socket, seconds: float | None = None) -> tuple[dict[str, Any], dict[str, th.Tensor]]:
    """
    :param connection: connection to the other process
    :param seconds: how long to wait for the whole message
    :return: what was sent
    :raises EOFError: if the other process has ended
    :raises TimeoutError: if it took too long
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    content, packed = _part(connection, deadline), _part(connection, deadline)
    return dict(json.loads(content)), load(packed)


def _part(connection: socket.socket, deadline: float | None) -> bytes:
    [size] = struct.unpack(">I", _read(connection, 4, deadline))
    if size > MAX_BYTES:
        raise ValueError(f"{size:,} bytes are too many")
    return _read(connection, size, deadline)


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    read = bytearray()
    while len(read) < size:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(size - len(read))
        if not part:
            raise EOFError
        read += part
    return bytes(read)


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm") as statm:
            limit = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        pass


def _load(path: str) -> ModuleType:
    module = ModuleType("student")
    module.__file__ = path
    sys.path.insert(0, os.path.dirname(path))
    # What the exercises ask for
    sys.modules.update({"student": module, "sb3_grpo": None})  # type: ignore[dict-item]
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), vars(module))
    return module


def _call(module: ModuleType, asked: dict[str, Any], tensors: dict[str, th.Tensor]) -> dict[str, th.Tensor]:
    arguments = [tensors[each] if isinstance(each, str) else each for each in asked["arguments"]]
    by = asked["gradient_of"]
    if by is not None:
        arguments[by].requires_grad_()
    values = getattr(module, asked["function"])(*arguments)
    if not isinstance(values, th.Tensor):
        raise TypeError(f"it returns {'nothing' if values is None else type(values).__name__}, not a tensor")
    answer = {"values": values}
    if by is not None and values.requires_grad:
        [gradient] = th.autograd.grad(values.sum(), arguments[by], allow_unused=True)
        answer |= {} if gradient is None else {"gradient": gradient}
    return answer


def _describe(error: BaseException, path: str) -> str:
    if isinstance(error, ImportError) and "sb3_grpo" in str(error):
        return "sb3_grpo cannot be imported here: write the functions with PyTorch alone"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f" (line {lines[-1]} of {os.path.basename(path)})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def _serve(connection: socket.socket) -> None:
    send(connection, {}, {})
    asked, _ = receive(connection)
    path = asked["path"]
    _limit_memory()
    module = ModuleType("student")
    answer: dict[str, Any] = {}
    try:
        module = _load(path)
    except Exception as error:
        answer = {"error": _describe(error, path)}
    send(connection, answer, {})
    while True:
        asked, tensors = receive(connection)
        answer, values = {}, {}
        try:
            values = _call(module, asked, tensors)
        except NotImplementedError:
            answer = {"error": "not written yet", "unwritten": True}
        except Exception as error:
            answer = {"error": _describe(error, path)}
        send(connection, answer, values)


if __name__ == "__main__":
    # Ctrl-C is meant for the other process, which then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    th.set_num_threads(1)
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    except (EOFError, OSError):
        pass
