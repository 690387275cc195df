"""Failures of environment copies: finds out which copy failed, and cleans up the others."""

import math
import signal
import threading
import time
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

# Default limit for copies in subprocesses, in seconds
PROCESS_TIMEOUT = 600.0
# The longest alarm that every system accepts, in seconds
MAX_ALARM = 1e8

WHAT_IS_LEFT = (
    "The processes of all copies were ended; the model is as after its last update and can be saved. To go on, give it new "
    "ones by set_env(...)."
)


class EnvironmentFault(RuntimeError):
    """A copy of the environment raised an error, exceeded the time limit of a step, or its process ended."""


class StepTimeout(Exception):
    """A step of an environment in this process took too long."""


class Watchdog:
    """
    Limits the duration of a step. For copies in this process, it is a context manager that interrupts the step by an alarm,
    which only works in the main thread; for copies in subprocesses, ``late_copies`` waits for their answers.

    :param env: The vectorized environment, without wrappers
    :param seconds: Maximum duration of a step in seconds. ``None``: 600 s for copies in subprocesses, no limit in this process
    :raises ValueError: if an alarm is needed, and this is not the main thread or the system has no alarms
    """

    def __init__(self, env: VecEnv, seconds: float | None):
        self.processes = env if isinstance(env, SubprocVecEnv) else None
        if seconds is None:
            seconds = math.inf if self.processes is None else PROCESS_TIMEOUT
        self.seconds = seconds
        self._needs_alarm = self.processes is None and not math.isinf(seconds)
        if self._needs_alarm and not (hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()):
            raise ValueError(
                f"step_timeout={seconds:g} in this process needs the main thread, and a system that has alarms (not "
                "Windows). Build the copies in processes, make_group_env(..., vec_env_cls=SubprocVecEnv), or leave "
                "step_timeout=None."
            )

    @property
    def message(self) -> str:
        """Message that a copy took too long."""
        return f"it has not come back after {self.seconds:g} s (step_timeout)"

    def __enter__(self) -> None:
        if self._needs_alarm:
            self._before = signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, min(self.seconds, MAX_ALARM))

    def __exit__(self, *error: object) -> None:
        if self._needs_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        raise StepTimeout(self.message)

    def late_copies(self) -> list[int]:
        """
        Wait until all copies in subprocesses have sent the result of their step, which stays in the pipe.

        :return: Copies that have not answered within the limit
        """
        if self.processes is None or math.isinf(self.seconds):
            return []
        end = time.monotonic() + self.seconds
        if all(remote.poll(max(end - time.monotonic(), 0.0)) for remote in self.processes.remotes):
            return []
        return [idx for idx, remote in enumerate(self.processes.remotes) if not remote.poll(0.0)]


def failed_copy(error: BaseException, env: VecEnv) -> int | None:
    """
    :param error: The error that was raised
    :param env: The vectorized environment, without wrappers
    :return: The copy of a ``DummyVecEnv`` whose ``StartQueue`` passed it on, ``None`` if none did
    """
    failed = getattr(error, "failed_env", None)
    return env.envs.index(failed) if isinstance(env, DummyVecEnv) and failed in env.envs else None


def misshapen_copy(env: VecEnv) -> int | None:
    """
    :param env: The vectorized environment
    :return: The first copy whose last observation does not have the shape of the observation space, ``None`` if there is none
        or if the copies cannot be asked: in the middle of a step, or without a ``StartQueue``
    """
    if (isinstance(env, SubprocVecEnv) and env.waiting) or not env.has_attr("last_observation"):
        return None
    right = _shapes(env.observation_space)
    wrong = [idx for idx, last in enumerate(env.get_attr("last_observation")) if _shapes(last) != right]
    return wrong[0] if wrong else None


def _shapes(part: Any) -> Any:
    """Shapes of an observation, or of an observation space."""
    if isinstance(part, dict | spaces.Dict):
        return {key: _shapes(value) for key, value in part.items()}
    return part.shape if isinstance(part, spaces.Space) else np.shape(part)


def ended_processes(env: SubprocVecEnv) -> dict[int, str]:
    """
    :param env: The vectorized environment, without wrappers
    :return: For each copy whose process has ended, how it ended
    """
    for process in env.processes:
        process.join(0.1)  # a process that has just closed its pipe is about to end
        if not process.is_alive():
            break
    return {idx: _how_ended(process.exitcode) for idx, process in enumerate(env.processes) if not process.is_alive()}


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0:
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-code, f"signal {-code}")  # most real-time signals have no name
        why = " (by the system, where memory ran out, or by a person)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{why}"
    return f"its process ended with exit status {code}; what was raised in there stands above"


def close_processes(env: SubprocVecEnv) -> None:
    """
    Kill all processes, some of which no longer answer. Afterwards, ``env.close()`` does nothing.

    :param env: The vectorized environment
    """
    for process in env.processes:
        process.kill()
    for process, remote in zip(env.processes, env.remotes, strict=True):
        process.join()
        remote.close()
    env.waiting, env.closed = False, True


def not_finite(values: Any) -> int | None:
    """
    :param values: (n_envs, \\*shape)
    :return: The first copy with a non-finite value, ``None`` if there is none
    """
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argwhere(~finite)[0, 0])
