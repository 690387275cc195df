"""Atari games with the usual preprocessing."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_grpo.starts.group_env import importable_id, make_group_env
from sb3_grpo.utils.vec_envs import ask, ask_all

# AtariWrapper and Gymnasium's AtariPreprocessing resize frames to 84 by 84
_RAW_SIZE = 160
_HOW_TO_MAKE = (
    "env = sb3_grpo.make_atari_group_env({name!r}, n_envs=8) makes copies with the usual preprocessing, and so does the id in "
    "the place of env."
)


def is_atari_id(env_id: str) -> bool:
    """
    :param env_id: the id of an environment
    :return: whether it is an Atari game whose observations are coloured frames. Imports the module that registers it
    :raises ModuleNotFoundError: if ``ale_py`` is not installed
    """
    module, _, name = importable_id(env_id).rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != "ale_py":
                raise
            raise ModuleNotFoundError(f'{env_id} needs ale_py: pip install "sb3-grpo[atari]"', name="ale_py") from error
    spec = gym.registry.get(name)
    return spec is not None and _is_ale(spec) and spec.kwargs.get("obs_type", "rgb") == "rgb"


def _is_ale(spec: EnvSpec) -> bool:
    return str(spec.entry_point).startswith("ale_py")


def make_atari_group_env(
    env_id: str,
    n_envs: int = 16,
    seed: int | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """
    SB3's ``make_atari_env`` with a ``StartQueue`` around each copy, and four stacked frames.

    As in ``make_atari_env``, an episode is a life: all members of a group play it from the same state on, and a later group
    the next life of the first of them. Only ``AtariWrapper`` skips frames, even if the id does so too, as ``ALE/Pong-v5``.

    :param env_id: the id of an Atari game
    :param n_envs: number of copies
    :param seed: see ``make_vec_env``
    :param wrapper_kwargs: keyword arguments for ``AtariWrapper``
    :param env_kwargs: keyword arguments for the environment
    :param vec_env_cls: ``DummyVecEnv`` (default) or ``SubprocVecEnv``
    :param vec_env_kwargs: keyword arguments for ``vec_env_cls``
    :return: the vectorized environment
    """
    env = make_group_env(
        env_id,
        n_envs=n_envs,
        seed=seed,
        wrapper_class=AtariWrapper,
        wrapper_kwargs=wrapper_kwargs,
        env_kwargs={"frameskip": 1, **(env_kwargs or {})},
        vec_env_cls=vec_env_cls,
        vec_env_kwargs=vec_env_kwargs,
    )
    return VecFrameStack(env, n_stack=4)


def maker_of(env_id: str) -> Callable[..., VecEnv]:
    """
    :param env_id: the id of an environment
    :return: the function that makes copies of it, preprocessed as usual if it is an Atari game
    """
    return make_atari_group_env if is_atari_id(env_id) else make_group_env


def make_env_of(env_id: str, n_envs: int, seed: int | None, render_mode: str | None = None) -> VecEnv:
    """
    :param env_id: the id of an environment
    :param n_envs: number of copies
    :param seed: see ``make_vec_env``
    :param render_mode: render mode of the copies, None for no rendering
    :return: the vectorized environment, preprocessed as usual if it is an Atari game
    """
    env_kwargs = None if render_mode is None else {"render_mode": render_mode}
    return maker_of(env_id)(env_id, n_envs=n_envs, seed=seed, env_kwargs=env_kwargs)


def why_not_learnable(env: VecEnv) -> str | None:
    """
    :param env: vectorized environment, with or without wrappers
    :return: for Atari games, what is wrong with the preprocessing and what to write instead; ``None`` if nothing is wrong
    """
    spec: Any = ask_all(env, "spec", None)[0]
    shape = env.observation_space.shape
    if not isinstance(spec, EnvSpec) or not _is_ale(spec) or shape is None or len(shape) < 2:
        return None
    frameskip = ask_all(env, "_frameskip", 1)[0]
    how = _HOW_TO_MAKE.format(name=spec.id)
    if sorted(shape)[-2] >= _RAW_SIZE:
        return f"{spec.id}: the frames are {shape}, as they come from the game: too large to learn from. {how}"
    if min(shape) == 1:
        return f"{spec.id}: one frame does not show what moves where, and four are not stacked. {how}"
    if frameskip != 1 and ask([False], env.env_is_wrapped, MaxAndSkipEnv, 0)[0]:
        return f"{spec.id}: frames are skipped twice, by the game (frameskip={frameskip}) and by AtariWrapper. {how}"
    return None
