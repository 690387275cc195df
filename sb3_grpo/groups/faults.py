"""Failures of environment copies: finds out which copy failed, and cleans up the others."""

import math
import signal
import sys
import threading
import time
import weakref
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

# Default limit for copies in subprocesses, in seconds
PROCESS_TIMEOUT = 600.0
# Interval between two looks at the duration of a step: a share of its limit, and the maximum in seconds
_PERIOD_SHARE, _MAX_PERIOD = 0.1, 1.0

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
    Context manager that interrupts a step of the environments when it takes too long. For copies in subprocesses, a thread
    kills the process; for copies in this process, an alarm interrupts the step, which only works in the main thread.

    :param env: The vectorized environment, without wrappers
    :param seconds: Maximum duration of a step in seconds. ``None``: 600 s for copies in subprocesses, no limit in this process
    """

    def __init__(self, env: VecEnv, seconds: float | None):
        # The environment may hold a reference to its watchdog, and a cycle would keep the handles of processes open
        self.processes: SubprocVecEnv | None = weakref.proxy(env) if isinstance(env, SubprocVecEnv) else None
        if seconds is None:
            seconds = math.inf if self.processes is None else PROCESS_TIMEOUT
        self.seconds = seconds
        self.late: set[int | None] = set()  # ids of the processes that were killed
        self._since: float | None = None
        self._thread: int | None = None
        self._over: threading.Event | None = None  # ends the watching thread

    def start(self) -> None:
        """
        Start watching, until ``stop``.

        :raises ValueError: if an alarm is needed, and this is not the main thread or the system has no alarms
        """
        if math.isinf(self.seconds) or self._over is not None:
            return
        if self.processes is not None:
            self._over = threading.Event()
            threading.Thread(target=self._look, args=(self._over,), daemon=True).start()
        elif not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"step_timeout={self.seconds:g} in this process needs the main thread, and a system that has alarms (not "
                "Windows). Build the copies in processes, make_group_env(..., vec_env_cls=SubprocVecEnv), or leave "
                "step_timeout=None."
            )

    def stop(self) -> None:
        """Stop watching."""
        if self._over is not None:
            self._over.set()
            self._over = None

    def __enter__(self) -> None:
        if math.isinf(self.seconds):
            return
        if self.processes is not None:
            self._since, self._thread = time.monotonic(), threading.get_ident()
            return
        self._before = signal.signal(signal.SIGALRM, self._alarm)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error: object) -> None:
        self._since = None
        if self.processes is None and not math.isinf(self.seconds):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)

    def count_anew(self, more: float = 0.0) -> None:
        """
        Restart the timer for a new task.

        :param more: Seconds that it may take in addition to the limit of a step
        """
        if self._since is not None:
            self._since = time.monotonic() + more

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        raise StepTimeout(_too_long(self.seconds))

    def _look(self, over: threading.Event) -> None:
        period = min(self.seconds * _PERIOD_SHARE, _MAX_PERIOD)
        while not over.wait(period):
            since = self._since
            if since is not None and time.monotonic() - since > self.seconds:
                self._end_late()

    def _end_late(self) -> None:
        assert self.processes is not None
        # Answers are read one copy after the other: those before the awaited one were read, later ones may be waiting
        first = self._awaited()
        copies = zip(self.processes.processes, self.processes.remotes, strict=True)
        # Not by process id, which may be reused as soon as a process has ended
        late = [process for idx, (process, remote) in enumerate(copies) if idx >= first and not remote.poll(0)]
        self.late |= {process.pid for process in late if process.is_alive()}
        for process in late:
            process.kill()

    def _awaited(self) -> int:
        """
        :return: The copy whose answer is awaited, found in the local variables of the other thread; 0 if they do not tell
        """
        assert self.processes is not None and self._thread is not None
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            remote = frame.f_locals.get("remote")
            if remote in self.processes.remotes:
                return self.processes.remotes.index(remote)
            frame = frame.f_back
        return 0


def copy_of(error: BaseException, env: VecEnv) -> int | None:
    """
    :param error: The error that was raised
    :param env: The vectorized environment, without wrappers
    :return: The copy of a ``DummyVecEnv`` that raised it, ``None`` if no copy did
    """
    trace = error.__traceback__
    while trace is not None:
        variables = trace.tb_frame.f_locals
        if isinstance(env, DummyVecEnv) and variables.get("self") is env and "env_idx" in variables:
            return variables["env_idx"]
        trace = trace.tb_next
    return None


def not_a_number(error: BaseException) -> str | None:
    """
    :param error: The error that was raised
    :return: A message that ``Monitor`` was given a reward that is not a number, ``None`` if that was not the cause
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not Monitor.step.__code__ or not isinstance(error, TypeError | ValueError):
        return None
    reward = trace.tb_frame.f_locals.get("reward", 0.0)
    if isinstance(reward, float | int | np.number):
        return None
    what = f"an array of shape {np.shape(reward)}" if isinstance(reward, np.ndarray) else f"of type {type(reward).__name__}"
    return f"the reward is {what} and must be one number. Correct the environment, or combine several rewards in a wrapper."


def misshapen_copy(error: BaseException, env: SubprocVecEnv) -> int | None:
    """
    :param error: The error that was raised
    :param env: The vectorized environment
    :return: The first copy whose observation does not have the shape of the observation space, ``None`` if that was not the
        cause
    """
    trace = error.__traceback__
    while trace is not None:
        observations = trace.tb_frame.f_locals.get("obs_list")
        if trace.tb_frame.f_code.co_name == "_stack_obs" and isinstance(observations, list | tuple):
            right = _shapes(env.observation_space)
            wrong = [idx for idx, each in enumerate(observations) if _shapes(each) != right]
            return wrong[0] if wrong else None
        trace = trace.tb_next
    return None


def _shapes(part: Any) -> Any:
    """Shapes of an observation, or of an observation space."""
    if isinstance(part, dict | spaces.Dict):
        return {key: _shapes(value) for key, value in part.items()}
    return part.shape if isinstance(part, spaces.Space) else np.shape(part)


def ended_processes(env: VecEnv) -> dict[int, str]:
    """
    :param env: The vectorized environment, without wrappers
    :return: For each copy whose process has ended, how it ended
    """
    if not isinstance(env, SubprocVecEnv):
        return {}
    for process in env.processes:
        process.join(0.1)  # a process that has just closed its pipe is about to end
        if not process.is_alive():
            break
    return {idx: how_ended(process) for idx, process in enumerate(env.processes) if not process.is_alive()}


def how_ended(process: BaseProcess) -> str:
    """
    :param process: A process that has ended
    :return: How it ended, as text
    """
    code = process.exitcode
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


def _too_long(seconds: float) -> str:
    return f"it has not come back after {seconds:g} s (step_timeout)"


def describe_late(process: BaseProcess, watchdog: Watchdog) -> str | None:
    """
    :param process: The ended process of a copy
    :param watchdog: The watchdog of the training
    :return: A message that it took too long, ``None`` if it did not
    """
    return _too_long(watchdog.seconds) if process.pid in watchdog.late else None


def not_finite(values: Any) -> int | None:
    """
    :param values: (n_envs, \\*shape)
    :return: The first copy with a non-finite value, ``None`` if there is none
    """
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argwhere(~finite)[0, 0])
