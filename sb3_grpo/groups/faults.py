"""Steps of environments that may fail: limits their time, and names the copy that failed."""

import math
import re
import signal
import time
import traceback
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.utils.user_warnings import warn_user
from sb3_grpo.utils.vec_envs import copied, innermost, names_of, offers, overrides_step

# Default limit for copies in subprocesses, in seconds
PROCESS_TIMEOUT = 600.0

GYMNASIUM_SAYS = (
    "In Gymnasium, step(action) returns (observation, reward, terminated, truncated, info), and reset(*, seed=None, "
    "options=None) returns (observation, info)."
)
WHAT_IS_LEFT = (
    "The processes of all copies were ended; the last update is kept, and the model can be saved. To go on, give it new "
    "environments by set_env(...)."
)


class EnvironmentFault(RuntimeError):
    """A copy of the environment raised an error, exceeded the time limit of a step, or its process ended."""


class GuardedEnv:
    """
    The training environment, whose faults name the copy, the episode's step, and what to do.

    The time of a step of copies in subprocesses is limited by the ``step_timeout`` of the environment, see
    :func:`make_group_env`.

    :param env: The training environment
    """

    def __init__(self, env: VecEnv):
        self.env = env
        self._copies = innermost(env)
        self._processes = self._copies if isinstance(self._copies, SubprocVecEnv) else None
        # A layer with a step of its own has no time limit in subprocesses
        self._splits_steps = not overrides_step(env)
        # A copy that has failed can no longer be asked
        self._names = names_of(env)
        said = vars(self._copies).get("step_timeout")
        self.seconds: float = PROCESS_TIMEOUT if said is None else said

    @property
    def _late(self) -> str:
        return f"it has not come back after {self.seconds:g} s (step_timeout)"

    def step(self, actions: np.ndarray, times: np.ndarray) -> VecEnvStepReturn:
        """
        :param actions: (n_envs, \\*action_shape), which the environments may change
        :param times: (n_envs,) number of earlier steps of each episode
        :return: See ``VecEnv.step``
        :raises EnvironmentFault: if copies in subprocesses have not answered in time, or an observation has the wrong shape
        """
        try:
            if not self._splits_steps:
                return self.env.step(actions)
            self.env.step_async(actions)
            if self._processes is not None and not math.isinf(self.seconds):
                self._wait(self._processes, times)
            return self.env.step_wait()
        except (KeyError, ValueError) as error:
            fault = self.fault_of(error, times) or self._shape_fault(times)
            if fault is None:
                raise
            raise fault from error

    def _wait(self, processes: SubprocVecEnv, times: np.ndarray) -> None:
        """Wait until all copies in subprocesses have sent the result of their step, which stays in the pipe."""
        end = time.monotonic() + self.seconds
        if not all(remote.poll(max(end - time.monotonic(), 0.0)) for remote in processes.remotes):
            late = [idx for idx, remote in enumerate(processes.remotes) if not remote.poll(0.0)]
            if late:
                raise self._end_processes(dict.fromkeys(late, self._late), times)

    def where(self, idx: int, time: int) -> str:
        """
        :param idx: Index of an environment copy
        :param time: Number of a step of its episode
        :return: Description of the copy and the step, for messages
        """
        return f"Environment copy {idx} ({self._names[idx]}), step {time} of its episode"

    def fault_of(self, error: BaseException, times: np.ndarray) -> EnvironmentFault | None:
        """
        :param error: The error that was raised while groups were collected
        :param times: (n_envs,) number of steps of each episode
        :return: An error that says which copy of the environment failed, and how; ``None`` if no copy is known to have
            failed, or if ``error`` says so itself
        """
        if type(error).__module__.startswith("sb3_grpo.envs") or not isinstance(error, Exception):
            return None
        if self._processes is not None:
            ended = {} if self._processes.closed else _ended_processes(self._processes)
            return self._end_processes(ended, times) if ended else None
        # Left on the error by the StartQueue that passed it on
        failed = getattr(error, "failed_env", None)
        if not isinstance(self._copies, DummyVecEnv) or failed not in self._copies.envs:
            return None
        idx = self._copies.envs.index(failed)
        # Not raised within the environment itself
        *_, innermost = traceback.extract_tb(error.__traceback__)
        is_outside = any(package in innermost.filename for package in ("gymnasium", "stable_baselines3", "sb3_grpo"))
        says_old = re.search(r"to unpack \(expected [25]\b|unexpected keyword argument '(seed|options)'", str(error))
        is_old = says_old and is_outside
        advice = f". {GYMNASIUM_SAYS}" if is_old else ""
        return EnvironmentFault(f"{self.where(idx, times[idx])}: {type(error).__name__}: {error}{advice}")

    def _end_processes(self, failed: dict[int, str], times: np.ndarray) -> EnvironmentFault:
        """
        Kill the processes of all copies, some of which no longer answer. Afterwards, ``env.close()`` does nothing.

        :param failed: What happened to each copy that has failed
        :param times: (n_envs,) number of steps of each episode
        :return: An error that says so
        """
        assert self._processes is not None
        for process in self._processes.processes:
            process.kill()
        for process, remote in zip(self._processes.processes, self._processes.remotes, strict=True):
            process.join()
            remote.close()
        self._processes.waiting, self._processes.closed = False, True
        idx, *others = failed
        also = f" The same of copies {', '.join(map(str, others))}." if others else ""
        return EnvironmentFault(f"{self.where(idx, times[idx])}: {failed[idx]}.{also} {WHAT_IS_LEFT}")

    def _shape_fault(self, times: np.ndarray) -> EnvironmentFault | None:
        """
        :param times: (n_envs,) number of steps of each episode
        :return: An error that names the first copy whose last observation has the wrong shape, ``None`` if there is none, or
            if the copies cannot be asked: in the middle of a step, or without a ``StartQueue``
        """
        if (self._processes is not None and self._processes.waiting) or not offers(self._copies, "last_observation"):
            return None
        space = self._copies.observation_space
        for idx, observation in enumerate(self._copies.get_attr("last_observation")):
            if _shapes(observation) != _shapes(space):
                return EnvironmentFault(
                    f"{self.where(idx, times[idx])}: the observation is not of the shape that the observation space says "
                    f"({space}). Correct the environment."
                )
        return None


def _shapes(part: Any) -> Any:
    """Shapes of an observation, or of an observation space."""
    if isinstance(part, dict | spaces.Dict):
        return {key: _shapes(value) for key, value in part.items()}
    return part.shape if isinstance(part, spaces.Space) else np.shape(part)


class TerminalObservations:
    """
    Notices an environment that gives the observation after the reset as that of the end, as adapters of simulators do that
    keep a view of an array in which the reset then writes: values at time limits would be wrong.

    :param env: The training environment
    """

    # Ends of episodes in a row after which it is no coincidence
    N_ENDS = 4

    def __init__(self, env: VecEnv):
        self.env = env
        self._n_left = 0 if isinstance(innermost(env), GymnasiumVecEnv) else self.N_ENDS

    def check(self, indices: list[int], obs: Any, new_obs: Any, infos: list[dict[str, Any]]) -> None:
        """
        :param indices: Copies whose episodes have just ended
        :param obs: Observations before the last step, (n_envs, \\*obs_shape) or a dict of such arrays
        :param new_obs: First observations of the next episodes
        :param infos: Infos of all copies
        """
        for idx in indices if self._n_left > 0 else []:
            last, first = infos[idx].get("terminal_observation"), copied(new_obs, idx)
            if last is None or first_difference(last, first, "") is not None:
                self._n_left = 0  # one that is right is enough
                return
            # Where nothing ever changes, all observations are alike
            self._n_left -= first_difference(copied(obs, idx), first, "") is not None
            if self._n_left == 0:
                warn_user(
                    f"{names_of(self.env)[idx]}: infos[{idx}]['terminal_observation'] is the observation after the reset, so "
                    "values at time limits are wrong. The environment, or its adapter, has to store a copy of the last "
                    "observation before it resets."
                )


def _ended_processes(env: SubprocVecEnv) -> dict[int, str]:
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
    return f"its process ended with exit status {code}; see the traceback above"
