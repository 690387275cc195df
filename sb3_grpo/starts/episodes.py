"""Episodes under way: saved with all that a copy knows of them, to go on in another process."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from sb3_grpo.starts.base_states import base_state
from sb3_grpo.starts.holdings import DESCRIPTIVE, layers_of
from sb3_grpo.starts.snapshots import play_replay, restore
from sb3_grpo.starts.starts import Replay, ReplayPiece, SeedStart, SnapshotStart, StartNotSupportedError
from sb3_grpo.utils.chance import process_state, set_process_state, set_space_states, space_states

if TYPE_CHECKING:
    from sb3_grpo.starts.start_queue import StartQueue

# What a StartQueue has in addition to the episode: the starts that wait, which their owner queues again, and its own step
_NOT_OF_THE_EPISODE = DESCRIPTIVE | {"queue", "step", "_last"}


@dataclass(frozen=True)
class EpisodeState:
    """
    An episode of one copy that is under way.

    :param observation: the last one
    :param reached: the state of the environment; how to come there again where it cannot be captured
    :param attributes: of the ``StartQueue``
    :param spaces: the states of the generators of all spaces, layer by layer
    :param process: those that the process of the copy has one of; ``None`` if it is that of the model
    """

    observation: Any = field(repr=False)
    reached: SnapshotStart | Replay = field(repr=False)
    attributes: dict[str, Any] = field(repr=False)
    spaces: list[list[dict[str, Any] | None]] = field(repr=False)
    process: tuple[Any, Any, Any] | None = field(repr=False)


def must_be_recorded(env: "StartQueue") -> bool:
    """
    :param env: a copy
    :return: whether it can only come back to where it is by playing its episode again
    """
    return isinstance(_capture(env), str)


def _capture(env: "StartQueue") -> SnapshotStart | str:
    """
    :return: the present state, or why it cannot be captured
    """
    state = base_state(env.unwrapped)
    reason = None if state is None else state.not_captured(env.unwrapped)
    if reason is not None:
        return reason
    try:
        return env.capture_start()
    except StartNotSupportedError as error:
        return str(error)


def save_episode(env: "StartQueue", process_id: int) -> EpisodeState | str:
    """
    :param env: a copy
    :param process_id: of the process that has the model
    :return: its episode, or why it cannot be saved: not an error, which would end the process of a copy
    """
    if env._last is None:
        return "no episode has begun"
    reached: SnapshotStart | Replay | str = _capture(env)
    if isinstance(reached, str) and env._recorded:
        if isinstance(env._origin, SeedStart):
            reached = Replay(env._origin, (ReplayPiece(env._noise_seed, tuple(env._actions)),))
        else:
            reached = f"{reached} {env._origin or ''}"
    if isinstance(reached, str):
        return reached
    return EpisodeState(
        observation=env._last[0],
        reached=reached,
        attributes={name: value for name, value in vars(env).items() if name not in _NOT_OF_THE_EPISODE},
        spaces=[space_states(space) for space in _spaces_of(env)],
        process=None if os.getpid() == process_id else process_state(),
    )


def load_episode(env: "StartQueue", state: EpisodeState, info: dict[str, Any]) -> None:
    """
    Put a copy into a saved episode. Its next ``reset`` does nothing but to say where it is.

    :param env: a copy with the same wrappers
    :param state: what ``save_episode`` returned
    :param info: of the reset with which the episode began
    """
    if isinstance(state.reached, Replay):
        play_replay(env.env, state.reached, state.observation)
    else:
        env.reset_if_new()
        restore(env.env, state.reached, compare=True)
    vars(env).update(state.attributes)
    if env._recorded:
        env.step = env._step_and_record  # type: ignore[method-assign]
    env._last = (state.observation, 0.0, False, False, info)
    env._continued = True
    for space, states in zip(_spaces_of(env), state.spaces, strict=True):
        set_space_states(space, states)
    if state.process is not None:
        set_process_state(state.process)


def _spaces_of(env: gym.Env) -> list[gym.Space]:
    spaces = [value for layer in layers_of(env) for value in vars(layer).values() if isinstance(value, gym.Space)]
    return list({id(space): space for space in spaces}.values())
