"""Environment processes that are restarted when they end, and brought back to where they were."""

import math
import multiprocessing as mp
import signal
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.subproc_vec_env import _worker

from sb3_grpo.groups.faults import (
    PROCESS_TIMEOUT,
    WHAT_IS_LEFT,
    EnvironmentFault,
    Watchdog,
    close_processes,
    describe_late,
    how_ended,
)
from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.start_queue import MAX_RECORDED
from sb3_grpo.starts.starts import SEE_CHECK_STARTS
from sb3_grpo.utils.parameters import Whole
from sb3_grpo.utils.user_warnings import warn_user

# Methods of StartQueue that leave a copy as it was
_WITHOUT_TRACE = frozenset({"__dir__", "capture_start", "why_not_captured", "save_episode"})
# Methods of StartQueue whose effect ends with the next queued start
_UNTIL_NEXT_START = frozenset({"queue_start", "clear_starts", "cut_after", "load_episode"})
# Ending a training asks all of its processes to end, perhaps also the fork server, which knows how the others ended (255)
_WAS_ASKED_TO_END = (0, -signal.SIGINT, -signal.SIGTERM, 255)
# Calls of the environment's own methods that a new process repeats
MAX_METHODS = 10_000
# Seconds that a process may take to end after closing its pipe
_MAX_ENDING = 10.0


class _Call(NamedTuple):
    """
    A command that was sent to a copy.

    :param message: The pickled command
    :param lasts_as: ``None`` if its effect ends with the next queued start. Otherwise, a later call with the same value
        replaces it, unless it is a ``_Method``
    :param given: What a step returned besides the observation: reward and done. Empty for a reset, ``None`` for other calls
    """

    message: bytes
    lasts_as: Any = None
    given: tuple[Any, ...] | None = None


class _Method:
    """Marks a call of the environment's own method, after which no earlier call can be left out."""


def _lasting(calls: Sequence[_Call]) -> list[_Call]:
    """
    :param calls: Calls in the order in which they were made
    :return: The calls whose effect outlasts the next queued start. Of several that set the same attribute, with no method
        called in between, only the last one
    """
    kept: list[_Call] = []
    places: dict[Any, int] = {}
    for each in calls:
        if each.lasts_as is None:
            continue
        if isinstance(each.lasts_as, _Method):
            places.clear()
        if each.lasts_as in places:
            kept[places[each.lasts_as]] = each
            continue
        places[each.lasts_as] = len(kept)
        kept.append(each)
    return kept


class _Queued(NamedTuple):
    """
    A start that is queued for the next reset.

    :param ticket: Ticket of its episode
    :param call: The call that queued it
    :param seeds: State of the copy's seeds for ordinary resets, as resets before this start are not replayed
    """

    ticket: int
    call: _Call
    seeds: Any


def _pickled(command: str, data: Any) -> bytes:
    return bytes(ForkingPickler.dumps((command, data)))


def _ordinary_reset() -> _Call:
    return _Call(_pickled("reset", (None, {})), given=())


class _RestartingRemote:
    """
    The connection to a copy. It records the commands sent since the start of the copy's episode, and restarts the process
    when it has ended.

    :param env: The vectorized environment
    :param copy: Index of the copy
    :param connection: Connection to its process
    :param env_fn: Function that creates the environment
    """

    def __init__(self, env: "RestartingSubprocVecEnv", copy: int, connection: Any, env_fn: Callable[[], gym.Env]):
        self._env: RestartingSubprocVecEnv = weakref.proxy(env)
        self._copy, self._connection, self._env_fn = copy, connection, env_fn
        # Commands without an answer yet: more than one only after an interruption
        self._pending: deque[tuple[str, Any, bytes]] = deque()
        # Replayed in order by a new process, they lead to where the copy is
        self._calls: list[_Call] = []
        self._too_many = False
        self._n_methods, self._too_many_methods = 0, False
        self._queued: deque[_Queued] = deque()
        self._observation: Any = None
        self._n_steps = 0
        self._n_restarts = 0

    def send(self, message: tuple[str, Any]) -> None:
        pickled = _pickled(*message)
        self._pending.append((*message, pickled))
        try:
            self._connection.send_bytes(pickled)
        except OSError:
            """``recv`` finds out."""

    def recv(self) -> Any:
        if not self._pending:
            return None  # close() after an interruption: the answer was already read
        try:
            reply = self._connection.recv()
        except (EOFError, OSError):
            if self._env.closing and not self._env.closed:
                return None
            reply = self._restart()
        except Exception:
            # An answer arrived, but it cannot be unpickled here
            self._pending.popleft()
            raise
        self._note(*self._pending.popleft(), reply)
        return reply

    def poll(self, timeout: float | None = 0.0) -> bool:
        return self._connection.poll(timeout)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def _note(self, command: str, data: Any, message: bytes, reply: Any) -> None:
        if command == "step":
            self._observation, *given = reply[:3]
            self._calls.append(_Call(message, given=tuple(given)))
            self._n_steps += 1
            if reply[2]:
                self._begin(reply[-1], _ordinary_reset())
            elif len(self._calls) > MAX_RECORDED:
                self._too_many = True
                self._calls = [each for each in self._calls if each.lasts_as is not None]
        elif command == "reset":
            self._observation = reply[0]
            self._calls.append(_Call(message, given=()))
            self._begin(reply[-1], self._calls[-1])
        elif command == "set_attr":
            self._calls.append(_Call(message, lasts_as=data[0]))
        elif command == "env_method":
            self._note_method(data, message, reply)

    def _note_method(self, data: tuple[str, tuple[Any, ...], dict[str, Any]], message: bytes, reply: Any) -> None:
        name, args, kwargs = data
        if name in _WITHOUT_TRACE:
            return
        lasts_as: Any = None if name in _UNTIL_NEXT_START else name
        if lasts_as is not None and name != "prepare_saving":
            if self._too_many_methods or self._n_methods == MAX_METHODS:
                self._give_up(name)
                return
            self._n_methods += 1
            # Other methods may have another effect when called twice
            lasts_as = _Method()
        call = _Call(message, lasts_as)
        self._calls.append(call)
        if name == "queue_start":
            self._queued.append(_Queued(args[0] if args else kwargs["ticket"], call, reply))
        elif name == "clear_starts":
            self._queued.clear()

    def _give_up(self, name: str) -> None:
        """
        Do not restart this copy any more, as too many methods were called.

        :param name: Name of the environment's method that exceeded the limit
        """
        if not self._too_many_methods:
            warn_user(
                f"Environment copy {self._copy} is not started again from now on: its methods have been called "
                f"{MAX_METHODS:,} times, now env_method({name!r}), and a new process would have to do it all again. What is "
                "only to be read needs no method: get_attr leaves no trace."
            )
        self._too_many_methods = True
        self._calls = [each for each in self._calls if not isinstance(each.lasts_as, _Method)]

    def _begin(self, info: dict[str, Any], reset: _Call) -> None:
        """
        Handle a reset. If it began a queued start, drop all earlier calls except those with a lasting effect.

        :param info: Info of the reset
        :param reset: The call that repeats it
        """
        self._n_steps = 0
        if not self._queued or info.get("group_start") != self._queued[0].ticket:
            return
        begun = self._queued.popleft()
        lasting = _lasting(self._calls)
        # They may need an environment that has been reset
        before = [_ordinary_reset(), *lasting] if lasting else []
        seeds = [] if begun.seeds is None else [_Call(_pickled("set_attr", ("_ordinary_seeds", begun.seeds)))]
        self._calls = [*before, *seeds, begun.call, reset, *(each.call for each in self._queued)]
        self._too_many = False

    def _restart(self) -> Any:
        """
        Restart the process. To be called while the connection's error is being handled, which is raised again if the process
        must not be restarted.

        :return: The answer to the first command that has none yet
        """
        done_again = False
        # If the process ends a second time in the same call, it is no accident
        while (how := self._how_ended()) is not None and not done_again and self._n_restarts < self._env.max_restarts:
            self._n_restarts += 1
            counted = f"restart {self._n_restarts} of at most {self._env.max_restarts} of this copy"
            warn_user(f"{self._where()}: {how}. It is started again and put back there ({counted}).")
            with suppress(EOFError, OSError):
                self._start()
                self._replay()
                done_again = True
                first, *others = [message for _, _, message in self._pending]
                reply = self._ask(first)
                for message in others:
                    self._connection.send_bytes(message)
                return reply
        raise

    def _how_ended(self) -> str | None:
        """
        :return: How the process ended, ``None`` if it must not be restarted
        """
        if self._env.closed:
            return None
        process = self._env.processes[self._copy]
        process.join(_MAX_ENDING)
        process.kill()
        process.join()
        late = describe_late(process, self._env.watchdog)
        if self._too_many or self._too_many_methods or (late is None and process.exitcode in _WAS_ASKED_TO_END):
            return None
        return late or how_ended(process)

    def _where(self) -> str:
        return f"Environment copy {self._copy}, step {self._n_steps} of its episode"

    def _start(self) -> None:
        # Imports may take longer than a step
        self._env.watchdog.count_anew(PROCESS_TIMEOUT)
        connection, work_remote = mp.Pipe()
        args = (work_remote, connection, CloudpickleWrapper(self._env_fn))
        # The class determines the start method
        process = type(self._env.processes[self._copy])(target=_worker, args=args, daemon=True)
        process.start()
        work_remote.close()
        # The previous ones are closed with their last reference: the watchdog's thread may be using them
        self._env.processes[self._copy], self._connection = process, connection
        connection.send(("get_spaces", None))
        connection.recv()

    def _ask(self, message: bytes) -> Any:
        self._env.watchdog.count_anew()
        self._connection.send_bytes(message)
        return self._connection.recv()

    def _replay(self) -> None:
        """
        Repeat all recorded calls.

        :raises EnvironmentFault: if they do not lead to where the copy was
        """
        observation = None
        difference = None
        for call in self._calls:
            reply = self._ask(call.message)
            if call.given is not None:
                observation, *given = reply[: 1 + len(call.given)]
                difference = difference or self._compare(call.given, tuple(given), "(reward, end)")
        difference = difference or self._compare(self._observation, observation, "the observation")
        if difference is not None:
            close_processes(self._env)
            raise EnvironmentFault(
                f"{self._where()}: its process has ended and was started again, but the same start and the same actions did "
                f"not lead there: {difference}. The environment is not exact from its start: something in it depends on more, "
                f"such as a clock or a random generator other than self.np_random.{SEE_CHECK_STARTS} {WHAT_IS_LEFT}"
            )

    @staticmethod
    def _compare(known: Any, replayed: Any, name: str) -> str | None:
        return first_difference(known, replayed, name, ("before", "now"))


class RestartingSubprocVecEnv(SubprocVecEnv):
    """
    A ``SubprocVecEnv`` that goes on when the process of a copy ends: killed by the system, by a fault in compiled code, by an
    error, or because a step exceeded ``step_timeout``. The process is restarted, begins at the start of the current episode
    and repeats the same actions. An environment that is exact from its starts is then back where it was, to the last bit;
    otherwise an ``EnvironmentFault`` is raised. Each restart issues a warning.

    It requires queued starts, which all groups have except those with ``unrelated_starts=True``. The result of any other
    reset depends on everything before it: a copy is not restarted more than 100,000 steps after its last queued start, nor if
    SIGINT, SIGTERM or exit status 0 or 255 indicates that it was meant to end.

    ``set_attr`` and calls of the environment's methods are repeated, too, in their original order: for values that are set
    for good, such as a difficulty. A copy whose methods were called more than 10,000 times is not restarted, and neither is
    one with such calls whose ``Monitor`` has ``allow_early_resets=False``.

    :param env_fns: See ``SubprocVecEnv``
    :param start_method: See ``SubprocVecEnv``; ``"fork"`` is not supported
    :param max_restarts: Maximum number of restarts per copy, 0 for none
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env]], start_method: str | None = None, max_restarts: int = 3):
        self.max_restarts = Whole(0).check("max_restarts", max_restarts)
        if start_method == "fork":
            raise ValueError(
                "start_method='fork' hides the end of a process, whose pipe is open in the others, too: leave it out, or "
                "write 'forkserver' or 'spawn'."
            )
        self.watchdog = Watchdog(self, math.inf)  # replaced during training
        self.closing = False
        super().__init__(env_fns, start_method)
        self.remotes = tuple(
            _RestartingRemote(self, idx, remote, env_fn)
            for idx, (remote, env_fn) in enumerate(zip(self.remotes, env_fns, strict=True))
        )

    def close(self) -> None:
        # From now on, no process is restarted
        self.closing = True
        super().close()
