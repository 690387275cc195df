"""
The process that runs a student's functions: a script that needs PyTorch and nothing of this package, so that there is nothing
in it to look answers up in. It gets the arguments of a call, and sends what the function returns.

Messages are JSON and tensors in the format of safetensors: nothing that the student's code may send is ever unpickled.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch as th
from safetensors.torch import load, save

# Maximum size of a message, and memory that a student's functions may use (on Linux)
MAX_BYTES, MEMORY = 2**26, 2**31
# Seconds of processor time, which end a process that nothing else has ended
_PROCESSOR_TIME = 120
# By platform and machine, the architecture of its system calls, and the numbers of kill, tkill, tgkill, rt_sigqueueinfo,
# rt_tgsigqueueinfo, pidfd_send_signal, setpgid, setsid, prlimit64 and ptrace
_FORBIDDEN = {
    "linux x86_64": (0xC000003E, 62, 200, 234, 129, 297, 424, 109, 112, 302, 101),
    "linux aarch64": (0xC00000B7, 129, 130, 131, 138, 240, 424, 154, 157, 261, 117),
}


def send(connection: Connection, content: dict[str, Any], tensors: dict[str, th.Tensor]) -> None:
    """
    :param connection: connection to the other process
    :param content: data for JSON
    :param tensors: tensors by name
    """
    connection.send_bytes(json.dumps(content).encode())
    connection.send_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, th.Tensor]]:
    """
    :param connection: connection to the other process
    :return: what was sent
    :raises EOFError: if the other process has ended
    """
    content, packed = connection.recv_bytes(MAX_BYTES), connection.recv_bytes(MAX_BYTES)
    return dict(json.loads(content)), load(packed)


def evaluate(
    function: Callable[..., th.Tensor], arguments: Sequence[Any], gradient_of: int | None = None
) -> dict[str, th.Tensor]:
    """
    :param function: the function to call
    :param arguments: its arguments
    :param gradient_of: the argument by which the sum of the values is to be differentiated
    :return: its "values", and their "gradient"
    """
    if gradient_of is not None:
        arguments[gradient_of].requires_grad_()
    values = function(*arguments)
    if not isinstance(values, th.Tensor):
        raise TypeError(f"it returns {'nothing' if values is None else type(values).__name__}, not a tensor")
    if gradient_of is None:
        return {"values": values}
    gradient = th.zeros_like(arguments[gradient_of])
    if values.requires_grad:
        [gradient] = th.autograd.grad(values.sum(), arguments[gradient_of], materialize_grads=True)
    return {"values": values, "gradient": gradient}


def _limit() -> None:
    """Limit what this process and its children can use and, on Linux, whom they can harm."""
    # A system may lack some of this, or have lower limits, which stay
    tolerant = contextlib.suppress(OSError, ValueError)
    with tolerant:
        resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_TIME, _PROCESSOR_TIME))
    with tolerant, open("/proc/self/statm") as statm:
        limit = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # If the machine has no memory left, they are ended first
    with tolerant, open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    if forbidden := _FORBIDDEN.get(f"{sys.platform} {os.uname().machine}"):
        _forbid_signals(*forbidden)


def _forbid_signals(architecture: int, *numbers: int) -> None:
    """From now on, the system calls with these numbers fail in this process and in its children."""
    # A program for seccomp: return EPERM if the architecture is another one, or the number of the system call is one of
    # these or of x86-64's second set (x32); otherwise, allow it
    deny = 0x06, 0, 0, 0x00050001
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), deny, (0x20, 0, 0, 0), (0x35, 0, 1, 0x40000000), deny]
    for number in numbers:
        steps += [(0x15, 0, 1, number), deny]
    steps += [(0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None).prctl
    # PR_SET_PDEATHSIG: this process ends with the one that asks. PR_SET_SECCOMP is not allowed without PR_SET_NO_NEW_PRIVS
    prctl(1, signal.SIGKILL)
    prctl(38, 1, 0, 0, 0)
    # A system that cannot do this, such as an emulated one, goes on without
    prctl(22, 2, struct.pack("HP", len(steps), ctypes.addressof(program)))


def _load(module: ModuleType, path: str) -> None:
    module.__file__ = path
    _limit()
    sys.path.insert(0, os.path.dirname(path))
    # What the exercises ask for
    sys.modules.update({"student": module, "sb3_grpo": None})  # type: ignore[dict-item]
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(module))


def _describe(error: BaseException, path: str | None) -> str:
    if isinstance(error, ImportError) and "sb3_grpo" in str(error):
        return "sb3_grpo cannot be imported here: write the functions with PyTorch alone"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f" (line {lines[-1]} of student.py)" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def _serve(connection: Connection) -> None:
    send(connection, {}, {})
    module = ModuleType("student")
    while True:
        asked, tensors = receive(connection)
        answer, values = {}, {}
        try:
            if "path" in asked:
                _load(module, asked["path"])
            else:
                arguments = [tensors[each] if isinstance(each, str) else each for each in asked["arguments"]]
                values = evaluate(getattr(module, asked["function"]), arguments, asked["gradient_of"])
        except NotImplementedError:
            answer = {"error": "not written yet", "unwritten": True}
        except Exception as error:
            answer = {"error": _describe(error, module.__file__)}
        send(connection, answer, values)


if __name__ == "__main__":
    # Ctrl-C is meant for the other process, which then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    th.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        _serve(Connection(int(sys.argv[1])))
