"""Saving of episodes in progress, with everything a copy knows about them, to continue in another process."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from sb3_grpo.starts.known_envs import DESCRIPTIVE, base_state, wrapper_stack
from sb3_grpo.starts.snapshots import begin, check_identity, identity, play_replay, restore
from sb3_grpo.starts.starts import (
    Replay,
    ReplayPiece,
    SeedStart,
    SnapshotStart,
    StartMismatchError,
    StartNotSupportedError,
    UnequalStartError,
)
from sb3_grpo.utils.chance import process_state, set_process_state, set_space_states, space_states

if TYPE_CHECKING:
    from sb3_grpo.starts.start_queue import StartQueue

# Attributes of a StartQueue that do not belong to the episode: queued starts, which their owner queues again, and its own step
_NOT_OF_THE_EPISODE = DESCRIPTIVE | {"queue", "step", "_last"}


@dataclass(frozen=True)
class EpisodeState:
    """
    An episode in progress of one copy.

    :param identity: description of the copy's environment and wrappers
    :param observation: the last observation
    :param reached: the state of the environment, or how to reach it again if it cannot be captured
    :param attributes: attributes of the ``StartQueue``
    :param spaces: the states of the generators of all spaces, layer by layer
    :param process: the states of the global generators in the copy's process; ``None`` if it is the process of the model
    """

    identity: tuple[str, ...]
    observation: Any = field(repr=False)
    reached: SnapshotStart | Replay = field(repr=False)
    attributes: dict[str, Any] = field(repr=False)
    spaces: list[list[dict[str, Any] | None]] = field(repr=False)
    process: tuple[Any, Any, Any] | None = field(repr=False)


def must_be_recorded(env: "StartQueue") -> bool:
    """
    :param env: a copy
    :return: whether its current state can only be reached again by replaying its episode
    """
    return isinstance(_capture(env), str)


def _capture(env: "StartQueue") -> SnapshotStart | str:
    """
    :return: the current state, or why it cannot be captured
    """
    reason = base_state(env.unwrapped).not_captured(env.unwrapped)
    if reason is not None:
        return reason
    try:
        return env.capture_start()
    except StartNotSupportedError as error:
        return str(error)


def save_episode(env: "StartQueue", process_id: int) -> EpisodeState | str:
    """
    :param env: a copy
    :param process_id: id of the process of the model
    :return: its episode, or why it cannot be saved. This is not an error, because an error would end the process of a copy
    """
    if env._last is None:
        return "no episode has begun"
    reached: SnapshotStart | Replay | str = _capture(env)
    if isinstance(reached, str):
        if not (env._recorded and isinstance(env._origin, SeedStart)):
            return f"{reached} {env._origin or ''}" if env._recorded else reached
        reached = Replay(env._origin, (ReplayPiece(env._noise_seed, tuple(env._actions)),))
    return EpisodeState(
        identity=identity(env.env),
        observation=env._last[0],
        reached=reached,
        attributes={name: value for name, value in vars(env).items() if name not in _NOT_OF_THE_EPISODE},
        spaces=[space_states(space) for space in _spaces_of(env)],
        process=None if os.getpid() == process_id else process_state(),
    )


def load_episode(
    env: "StartQueue", state: EpisodeState, info: dict[str, Any]
) -> StartMismatchError | UnequalStartError | None:
    """
    Put a copy into a saved episode. Its next ``reset`` only returns the last observation and the info.

    :param env: a copy with the same wrappers
    :param state: the result of ``save_episode``
    :param info: info dict of the reset with which the episode began
    :return: a mismatch if it is the episode of another environment, another error if the state is not reached, None if it is.
        It is not raised, because that would end the process of a copy
    """
    try:
        check_identity(env.env, state.identity)
    except StartMismatchError as error:
        return error
    try:
        _reach(env, state)
    except (StartMismatchError, UnequalStartError) as error:
        return UnequalStartError(str(error))
    vars(env).update(state.attributes)
    if env._recorded:
        env.step = env._step_and_record  # type: ignore[method-assign]
    env._last = (state.observation, 0.0, False, False, info)
    env._continued = True
    for space, states in zip(_spaces_of(env), state.spaces, strict=True):
        set_space_states(space, states)
    if state.process is not None:
        set_process_state(state.process)
    return None


def _reach(env: "StartQueue", state: EpisodeState) -> None:
    origin = state.attributes["_origin"]
    if isinstance(state.reached, Replay):
        play_replay(env.env, state.reached, state.observation)
        return
    if isinstance(origin, SeedStart):
        # Sets what snapshots leave out, such as a MuJoCo model that each reset changes
        begin(env.env, origin)
    else:
        env.reset_if_new()
    restore(env.env, state.reached)


def _spaces_of(env: gym.Env) -> list[gym.Space]:
    spaces = [value for layer in wrapper_stack(env) for value in vars(layer).values() if isinstance(value, gym.Space)]
    return list({id(space): space for space in spaces}.values())
