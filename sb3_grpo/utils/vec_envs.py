"""What an environment may offer beyond what PPO needs. Not every one can be asked: all questions are asked here."""

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.vec_env import (
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecNormalize,
    VecTransposeImage,
)

T = TypeVar("T")


def ask(default: T, question: Callable[..., T], *args: Any) -> T:
    """
    :param default: What stands for the answer of an environment that cannot be asked
    :param question: Function of an environment, or about one
    :param args: Its arguments
    :return: The answer. Other errors are those of the environment's own code
    """
    try:
        return question(*args)
    except (AttributeError, KeyError, NotImplementedError, RecursionError):
        return default


def spec_of(env: gym.Env) -> EnvSpec | None:
    """
    :param env: An environment
    :return: How it was registered, ``None`` if it was not
    """
    spec = ask(None, getattr, env, "spec")
    return spec if isinstance(spec, EnvSpec) else None


def innermost(env: VecEnv) -> VecEnv:
    """
    :param env: A vectorized environment
    :return: The layer that holds the copies, below all wrappers
    """
    while isinstance(env, VecEnvWrapper) and isinstance(env.venv, VecEnv):
        env = env.venv
    return env


def offers(env: VecEnv, name: str) -> bool:
    """
    :param env: A vectorized environment
    :param name: Name of an attribute or a method of its copies
    :return: Whether they have it; ``False`` if this kind of environment cannot be asked
    """
    return ask(False, env.has_attr, name)


def ask_all(env: VecEnv, name: str, default: Any) -> list[Any]:
    """
    :param env: A vectorized environment
    :param name: Name of an attribute of its copies
    :param default: What stands for a copy that cannot be asked
    :return: The attribute of each copy
    """
    others = [default] * env.num_envs
    return ask(others, env.get_attr, name) if offers(env, name) else others


def names_of(env: VecEnv) -> list[str]:
    """
    :param env: A vectorized environment
    :return: The name of each copy, for messages
    """
    inner = innermost(env)
    return ask_all(inner, "env_name", type(inner).__name__)


def call(env: VecEnv, name: str, *args: Any, indices: Any = None) -> list[Any]:
    """
    :param env: A vectorized environment
    :param name: Name of a method of its copies
    :param args: Its arguments
    :param indices: Copies to call, ``None`` for all
    :return: The result of each copy
    :raises ValueError: if this kind of environment passes no calls on to its copies, or the method is not implemented
    """
    try:
        return env.env_method(name, *args, indices=indices)
    except (NotImplementedError, RecursionError) as error:
        raise ValueError(
            f"The copies in this {type(env).__name__} have a method {name}(), and its env_method({name!r}) raises "
            f"{type(error).__name__}: {error}"
        ) from error


def overrides_step(env: VecEnv) -> bool:
    """
    :param env: A vectorized environment
    :return: Whether a layer has a ``step`` of its own, in place of ``step_async`` and ``step_wait``
    """
    while type(env).step is VecEnv.step:
        if not isinstance(env, VecEnvWrapper) or not isinstance(env.venv, VecEnv):
            return False
        env = env.venv
    return True


def own_observations(env: VecEnv, observations: Any) -> Any:
    """
    :param env: A vectorized environment
    :param observations: Its latest observations, (n_envs, \\*obs_shape) or a dict of such arrays
    :return: The observations as the environments returned them, before VecNormalize and VecTransposeImage
    """
    extracted = None
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            observations = env.get_original_obs()
        elif isinstance(env, VecTransposeImage) and not env.skip:
            if isinstance(observations, dict):
                images = {key: np.moveaxis(observations[key], 1, -1) for key in env.image_space_keys}
                observations = {**observations, **images}
            elif extracted is None or extracted in env.image_space_keys:
                observations = np.moveaxis(observations, 1, -1)
        elif isinstance(env, VecExtractDictObs):
            extracted = env.key
        env = env.venv
    # A VecNormalize inside of VecExtractDictObs returns all keys
    return observations if extracted is None or not isinstance(observations, dict) else observations[extracted]


def copied(observations: Any, idx: Any = slice(None)) -> Any:
    """
    :param observations: (n_envs, \\*obs_shape) or a dict of such arrays
    :param idx: Index of an environment copy, all of them by default
    :return: A copy of its observation, which later steps do not overwrite
    """
    if isinstance(observations, dict):
        return {key: values[idx].copy() for key, values in observations.items()}
    return observations[idx].copy()
