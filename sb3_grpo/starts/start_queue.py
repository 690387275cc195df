"""The wrapper that makes episodes begin from queued starts."""

import copy
import os
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from sb3_grpo.starts.known_envs import DESCRIPTIVE, base_state, env_name, is_known, wrapper_stack
from sb3_grpo.starts.seeding import begin_from_seed, clean_reset
from sb3_grpo.starts.starts import (
    NextLife,
    OrdinaryReset,
    Replay,
    ReplayPiece,
    SeedStart,
    SnapshotStart,
    Start,
    StartMismatchError,
    StartNotSupportedError,
    UnequalStartError,
)
from sb3_grpo.utils.random_states import process_state, set_process_state, set_space_states, space_states

if TYPE_CHECKING:
    from sb3_grpo.starts.probes import Probe, Trace

# Maximum number of recorded steps of an episode that can only be restored by replaying them
MAX_RECORDED = 100_000

# Attributes of a StartQueue that do not belong to the episode: queued starts, which their owner queues again, its own step, a
# wrapper
_NOT_OF_THE_EPISODE = DESCRIPTIVE | {"queue", "step", "_last", "_lives"}


class QueuedStart(NamedTuple):
    """
    A start that waits for the next reset.

    :param episode_id: number chosen by the caller to identify the episode
    :param start: where the episode begins
    :param noise_seed: see ``begin``
    :param group: number of the episode's group
    :param member: number of the episode within the group
    :param probe: what to play from the start before the episode begins, to check that it is the same in all copies
    """

    episode_id: int
    start: Start
    noise_seed: int | None = None
    group: int | None = None
    member: int | None = None
    probe: "Probe | None" = None

    def add_names(self, info: dict[str, Any]) -> dict[str, Any]:
        """
        :param info: info dict of the reset
        :return: the same with id, group and member of the episode
        """
        return {**info, "group_start": self.episode_id} | (
            {} if self.group is None else {"group": self.group, "group_member": self.member}
        )


@dataclass(frozen=True)
class EpisodeState:
    """
    An episode in progress of one copy, with everything that the copy knows about it, to continue in another process.

    :param identity: description of the copy's environment and wrappers
    :param observation: the last observation
    :param reached: the state of the environment, or how to reach it again if it cannot be captured
    :param attributes: attributes of the ``StartQueue``
    :param spaces: the states of the generators of all spaces
    :param process: the states of the global generators in the copy's process; ``None`` if it is the process of the model
    """

    identity: tuple[str, ...]
    observation: Any = field(repr=False)
    reached: SnapshotStart | Replay = field(repr=False)
    attributes: dict[str, Any] = field(repr=False)
    spaces: list[dict[str, Any] | None] = field(repr=False)
    process: tuple[Any, ...] | None = field(repr=False)


class OrdinarySeeds:
    """
    Seeds for the ordinary resets of a copy that has played queued starts. A start leaves its generator behind, the same one in
    all copies that played its group: without their own seeds, they would play identical episodes from then on.
    """

    def __init__(self) -> None:
        self._given: int | None = None
        self._generator: np.random.Generator | None = None

    def note(self, seed: int | None) -> None:
        """
        :param seed: seed passed to ``reset``
        """
        if seed is not None:
            self._given, self._generator = seed, None

    def draw_from_now_on(self) -> None:
        """Call this when no more starts will follow."""
        if self._generator is None:
            self._generator = np.random.default_rng(self._given)

    def ordinary(self, seed: int | None) -> int | None:
        """
        :param seed: seed passed to ``reset``
        :return: seed to use instead
        """
        self.note(seed)
        return seed if self._generator is None else int(self._generator.integers(2**31))


class StartQueue(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """
    Begin the next episodes from queued starts; with an empty queue, ``reset`` is the ordinary one.

    It has to be the outermost wrapper: a wrapper outside of it would keep its own state from the previous episode.
    ``queue`` may be replaced by a deque that several copies of the environment (in one process) share.

    If an episode began from a queued start, the info returned by ``reset`` contains its id as ``info["group_start"]``
    and, if known, the numbers of its group and of the member (from 0) as ``info["group"]`` and ``info["group_member"]``.
    ``first_observation`` is a copy of its first observation, ``start_trace`` is the trace of the last probe.
    If the episode is cut by ``cut_after``, the info of its last step contains ``info["group_cut"]``.
    If a lost life ends the episode of the first member of a group (``EpisodicLifeEnv``), it contains the beginning of the next
    life as ``info["next_life"]``.

    :param env: the environment with all its other wrappers
    """

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self.queue: deque[QueuedStart] = deque()
        # Not in the info: a SubprocVecEnv sends the info of the last reset along with every step
        self.first_observation: Any = None
        self.start_trace: Trace | str | None = None
        self._last: tuple[Any, ...] | None = None
        self._origin: Start | OrdinaryReset | StartNotSupportedError | None = None
        self._noise_seed: int | None = None
        self._actions: list[Any] = []
        self._steps_left: int | None = None
        # EpisodicLifeEnv, or a wrapper like it
        self._lives: Any = next((each for each in wrapper_stack(env) if "was_real_done" in vars(each)), None)
        self._is_first_member = False
        self._next_life: NextLife | None = None
        self._ordinary_seeds = OrdinarySeeds()
        self._continued = False
        self._is_new = True
        base = wrapper_stack(env)[-1]
        _separate_spaces(base)
        self._replayed = self._recorded = base_state(base).replayed
        if self._recorded:
            # Bound here, because most environments do not need to record actions and should not pay for a check
            self.step = self._step_and_record  # type: ignore[method-assign]

    @property
    def env_name(self) -> str:
        """The id of the environment, or its class if it has none."""
        return env_name(self)

    @property
    def last_observation(self) -> Any:
        """The observation that the last ``reset`` or ``step`` returned, ``None`` before the first."""
        return None if self._last is None else self._last[0]

    def queue_start(self, episode_id: int, start: Start, noise_seed: int | None = None, *more: Any, **named: Any) -> None:
        """
        Append a start to the queue.

        :param episode_id: number that identifies the episode
        :param start: where the episode begins
        :param noise_seed: see ``begin``
        :param more: further fields of ``QueuedStart``
        :param named: further fields by name
        """
        self.queue.append(QueuedStart(episode_id, start, noise_seed, *more, **named))

    def clear_starts(self) -> None:
        """
        Drop all queued starts. The current episode continues to its end or cut, followed by ordinary ones with their own
        seeds.
        """
        self.queue.clear()
        self._ordinary_seeds.draw_from_now_on()

    def cut_after(self, n_steps: int) -> None:
        """
        Cut the current episode, as at a time limit. The next ones are whole again.

        :param n_steps: maximum number of steps it has left, at least 1
        """
        self._steps_left = n_steps

    def capture_start(self) -> SnapshotStart:
        """
        Capture the current state of the episode without changing it.

        :return: a start for this environment or others of its kind
        """
        if self._last is None:
            raise gym.error.ResetNeeded("There is nothing to capture before the first reset() through StartQueue")
        if self._last[2] or self._last[3]:
            raise ValueError("There is nothing to begin from: the episode has ended. Capture before, or after reset().")
        from sb3_grpo.starts.snapshots import capture

        return capture(self.env, self._last[0], self._replay() if self._replayed else None)

    def _replay(self) -> Replay:
        if isinstance(self._origin, StartNotSupportedError):
            raise self._origin
        origin: Any = self._origin
        pieces: tuple[ReplayPiece, ...] = ()
        if isinstance(origin, SnapshotStart):
            # Of the same environment, so it was reached by a replay itself
            origin, pieces = origin.replay.origin, origin.replay.pieces  # type: ignore[union-attr]
        return Replay(origin, (*pieces, ReplayPiece(self._noise_seed, tuple(self._actions))))

    def why_not_captured(self) -> str | None:
        """
        :return: why the current state cannot be captured, None if it can. This is not an error, because an error would end
            the process of a copy in a ``SubprocVecEnv``.
        """
        try:
            self.capture_start()
        except StartNotSupportedError as error:
            return str(error)
        return None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """
        :param action: the action
        :return: the result of the wrapped environment, also truncated where the episode is cut
        """
        try:
            result = self.env.step(action)
            if result[2] and self._is_first_member:
                result = self._with_next_life(result)
        except Exception as error:
            error.failed_env = self  # type: ignore[attr-defined]  # see GuardedEnv.fault_of
            raise
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left == 0 and not (result[2] or result[3]):
                observation, reward, _, _, info = result
                result = (observation, reward, False, True, {**info, "group_cut": True})
        if result[2] or result[3]:
            # A DummyVecEnv passes it on after the next reset, which may write into the same array
            result = (copy.deepcopy(result[0]), *result[1:])
        self._last = result
        return result

    def _with_next_life(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """
        Begin the next life already now, because the next start may be another one.

        :param result: the last step of an episode
        :return: the same, with the beginning of the next life in the info if the game goes on
        """
        if self._lives is None or self._lives.was_real_done:
            return result
        from sb3_grpo.starts.snapshots import capture

        # A reset may write into the same array
        last = copy.deepcopy(result[0])
        observation, _ = clean_reset(self.env, None, None)
        try:
            self._next_life = NextLife(**vars(capture(self.env, observation)))
        except StartNotSupportedError as error:
            warnings.warn(
                f"{self.env_name}: groups see only the first life of each game, because the next ones cannot be captured: "
                f"{error} Write wrapper_kwargs=dict(terminal_on_life_loss=False), or unrelated_starts=True."
            )
            return last, *result[1:]
        return last, *result[1:4], {**result[4], "next_life": self._next_life}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Begin from the next queued start, or reset the wrapped environment if there is none.

        :param seed: seed for the ordinary reset
        :param options: options for the ordinary reset
        :return: the first observation and the info dict
        """
        if self._continued and self._last is not None:
            self._continued = False
            return self._last[0], self._last[4]
        self._last = self._steps_left = None
        next_life, self._next_life, self._is_first_member = self._next_life, None, False
        try:
            if self.queue:
                self._ordinary_seeds.note(seed)
                queued = self.queue.popleft()
                self._is_first_member = queued.member == 0
                observation, info = self._begin_queued(queued)
            elif next_life is not None:
                observation, info = self._begin_start(next_life, None)
            else:
                observation, info = self._begin_ordinary(self._ordinary_seeds.ordinary(seed), options)
        except Exception as error:
            error.failed_env = self  # type: ignore[attr-defined]  # see GuardedEnv.fault_of
            raise
        self._is_new = False
        self._last = (observation, 0.0, False, False, info)
        return observation, info

    def reset_if_new(self) -> None:
        """Call this before restoring a state: some environments create their generators in ``reset``, or only with a seed."""
        if self._is_new:
            self._is_new = False
            self.env.reset(seed=1)  # some take 0 for None

    def _begin_queued(self, queued: QueuedStart) -> tuple[Any, dict[str, Any]]:
        self.start_trace = None
        if isinstance(queued.start, SnapshotStart):
            self.reset_if_new()
            if queued.probe is not None:
                from sb3_grpo.starts.probes import play_probe

                self.start_trace = play_probe(self.env, queued.start, queued.probe)
        if isinstance(self.start_trace, str):
            # Left to the caller to raise: an error here would end the process of the copy
            observation, info = clean_reset(self.env, None, None)
        else:
            observation, info = self._begin_start(queued.start, queued.noise_seed)
        self.first_observation = copy.deepcopy(observation)
        return observation, queued.add_names(info)

    def _begin_start(self, start: Start, noise_seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._origin, self._noise_seed, self._actions = start, noise_seed, []
        if isinstance(start, SeedStart) and noise_seed is None:
            return begin_from_seed(self.env, start)
        from sb3_grpo.starts.snapshots import begin

        return begin(self.env, start, noise_seed)

    def _begin_ordinary(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._origin, self._noise_seed, self._actions = None, None, []
        if self._replayed:
            from sb3_grpo.starts.snapshots import capture_wrappers

            try:
                self._origin = OrdinaryReset(seed, copy.deepcopy(options), capture_wrappers(self.env))
            except StartNotSupportedError as error:
                # No reason to refuse the reset, only capturing is impossible
                self._origin = error
        return clean_reset(self.env, seed, options)

    def _step_and_record(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # A copy, because the caller or the environment may change it
        self._actions.append(copy.deepcopy(action))
        if not self._replayed and len(self._actions) > MAX_RECORDED:
            self._origin, self._actions = StartNotSupportedError(f"The episode has more than {MAX_RECORDED} steps."), []
        return StartQueue.step(self, action)

    def prepare_saving(self) -> None:
        """
        From now on, record the actions of episodes if the state of the environment cannot be captured, so that it can replay
        an episode from the seed that it began with.
        """
        if self._recorded or isinstance(self._capture_whole(), SnapshotStart):
            return
        self._recorded = True
        self.step = self._step_and_record  # type: ignore[method-assign]
        if self._last is not None and "group_start" not in self._last[4]:
            self._origin = StartNotSupportedError("The episode had already begun when its actions began to be recorded.")

    def _capture_whole(self) -> SnapshotStart | str:
        """
        :return: the current state, with all that the episode depends on, or why it cannot be captured
        """
        base = wrapper_stack(self)[-1]
        reason = base_state(base).not_captured(base)
        try:
            return self.capture_start() if reason is None else reason
        except StartNotSupportedError as error:
            return str(error)

    def save_episode(self, process_id: int) -> EpisodeState | str:
        """
        :param process_id: id of the process of the model
        :return: the episode, or why it cannot be saved. This is not an error, because an error would end the process of a copy
        """
        from sb3_grpo.starts.snapshots import identity

        if self._last is None:
            return "no episode has begun"
        reached: SnapshotStart | Replay | str = self._capture_whole()
        if isinstance(reached, str):
            if not self._recorded:
                return reached
            if not isinstance(self._origin, (SeedStart, SnapshotStart)):
                return f"{reached} {self._origin}" if isinstance(self._origin, StartNotSupportedError) else reached
            reached = Replay(self._origin, (ReplayPiece(self._noise_seed, tuple(self._actions)),))
        return EpisodeState(
            identity=identity(self.env),
            observation=self._last[0],
            reached=reached,
            attributes={name: value for name, value in vars(self).items() if name not in _NOT_OF_THE_EPISODE},
            spaces=space_states(_spaces_of(self)),
            process=None if os.getpid() == process_id else process_state(),
        )

    def load_episode(self, state: EpisodeState, info: dict[str, Any]) -> StartMismatchError | UnequalStartError | None:
        """
        Continue a saved episode. The next ``reset`` only returns its last observation and the info.

        :param state: the result of ``save_episode`` of a copy with the same wrappers
        :param info: info dict of the reset with which the episode began
        :return: a mismatch if it is the episode of another environment, another error if the state is not reached, None if it
            is. It is not raised, because that would end the process of a copy
        """
        from sb3_grpo.starts.snapshots import begin, check_identity, play_replay, restore

        try:
            check_identity(self.env, state.identity)
        except StartMismatchError as error:
            return error
        origin = state.attributes["_origin"]
        try:
            if isinstance(state.reached, Replay):
                self.reset_if_new()
                play_replay(self.env, state.reached, state.observation)
            else:
                if isinstance(origin, SeedStart):
                    # Sets what snapshots leave out, such as a MuJoCo model that each reset changes
                    begin(self.env, origin)
                else:
                    self.reset_if_new()
                restore(self.env, state.reached)
        except (StartMismatchError, UnequalStartError) as error:
            return UnequalStartError(str(error))
        vars(self).update(state.attributes)
        if self._recorded:
            self.step = self._step_and_record  # type: ignore[method-assign]
        self._last = (state.observation, 0.0, False, False, info)
        self._continued = True
        set_space_states(_spaces_of(self), state.spaces)
        if state.process is not None:
            set_process_state(state.process)
        return None


def _spaces_of(env: gym.Env) -> list[gym.Space]:
    spaces = [value for each in wrapper_stack(env) for value in vars(each).values() if isinstance(value, gym.Space)]
    return list({id(space): space for space in spaces}.values())


def _separate_spaces(base: gym.Env) -> None:
    """Copy spaces that belong to the class: otherwise, all copies of the environment would sample from the same generators."""
    for name in ("observation_space", "action_space"):
        space = getattr(type(base), name, None)
        if isinstance(space, gym.Space) and name not in vars(base) and not is_known(base):
            setattr(base, name, copy.deepcopy(space))
