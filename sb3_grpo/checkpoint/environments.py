"""Saving and loading the training environments, with their episodes in progress."""

import os
import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_grpo.starts.starts import StartMismatchError

# Attributes of a VecEnvWrapper that are not training state: references, metadata, files and clocks
_NOT_STATE = frozenset(
    {
        "class_attributes",
        "metadata",
        "num_envs",
        "render_mode",
        "results_writer",
        "t_start",
        "venv",
    }
)


class NotSavedError(Exception):
    """The environments cannot be saved in their current state. The message says why."""


def save_wrappers(env: VecEnv) -> tuple[dict[str, Any], str | None]:
    """
    :param env: The training environment
    :return: The state of its wrappers, as far as it can be pickled, and why it is not whole, ``None`` if it is
    """
    wrappers, problems = [], []
    for layer in _wrappers(env):
        state, problem = _wrapper_state(layer)
        wrappers.append((type(layer).__name__, state))
        problems += [problem] if problem is not None else []
    return {"class": type(env.unwrapped).__name__, "wrappers": wrappers}, " ".join(problems) or None


def load_wrappers(env: VecEnv, state: dict[str, Any]) -> None:
    """
    :param env: A training environment built like the saved one
    :param state: The state that ``save_wrappers`` returned
    :raises ValueError: if its class or its wrappers differ from those saved
    """
    layers = list(_wrappers(env))
    expected = [*(name for name, _ in state["wrappers"]), state["class"]]
    present = [*(type(layer).__name__ for layer in layers), type(env.unwrapped).__name__]
    if expected != present:
        raise ValueError(
            f"The checkpoint was written with {' around '.join(expected)}, and the environment is {' around '.join(present)}: "
            "give resume() an environment that is made in the same way."
        )
    for layer, (_, attributes) in zip(layers, state["wrappers"], strict=True):
        vars(layer).update(attributes)


def prepare_env(env: VecEnv) -> None:
    """
    Make the copies record what is needed to save them later.

    :param env: The training environment
    """
    copies = env.unwrapped
    if copies.has_attr("prepare_saving"):
        copies.env_method("prepare_saving")


def _wrappers(env: VecEnv) -> Iterator[VecEnvWrapper]:
    while isinstance(env, VecEnvWrapper):
        yield env
        env = env.venv


def _wrapper_state(layer: VecEnvWrapper) -> tuple[dict[str, Any], str | None]:
    state, problem = {}, None
    for name, value in vars(layer).items():
        if name in _NOT_STATE or isinstance(value, VecEnv | gym.Env | gym.Space):
            continue
        try:
            pickle.dumps(value)
        except Exception as error:
            problem = f"The attribute {name!r} of {type(layer).__name__} cannot be pickled ({error})."
        else:
            state[name] = value
    return state, problem


def save_copies(copies: VecEnv) -> Any:
    """
    :param copies: The training environment without its wrappers
    :return: Its episodes in progress, which can be pickled
    :raises NotSavedError: if one of them cannot be saved
    """
    if hasattr(copies, "state_dict"):
        return copies.state_dict()
    if not copies.has_attr("save_episode"):
        raise NotSavedError(
            f"The copies in this {type(copies).__name__} have no StartQueue, which saves episodes: build them with "
            "make_group_env(...)."
        )
    episodes = copies.env_method("save_episode", os.getpid())
    for idx, episode in enumerate(episodes):
        if isinstance(episode, str):
            raise NotSavedError(f"Environment copy {idx}: {episode}")
    state = list(zip(episodes, copies.reset_infos, strict=True))
    for idx, each in enumerate(state):
        try:
            cloudpickle.dumps(each)
        except Exception as error:
            raise NotSavedError(
                f"Environment copy {idx}: its state, or the info of its reset, cannot be pickled ({error})."
            ) from error
    return state


def load_copies(copies: VecEnv, state: Any) -> str | None:
    """
    :param copies: The training environment without its wrappers
    :param state: What ``save_copies`` returned
    :return: Why the episodes cannot be continued, None if they can
    :raises StartMismatchError: if the copies differ from those saved
    """
    if hasattr(copies, "load_state_dict"):
        copies.load_state_dict(state)
        return None
    problem = None
    for idx, (episode, info) in enumerate(state):
        (error,) = copies.env_method("load_episode", episode, info, indices=idx)
        if isinstance(error, StartMismatchError):
            raise error
        if error is not None:
            problem = f"Environment copy {idx}: {error}"
            break
    # This resets into the episodes just loaded
    copies.reset()
    return problem
