"""Vectorized environments whose copies have a ``StartQueue``."""

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from stable_baselines3.common.env_util import is_wrapped, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, is_vecenv_wrapped

from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SnapshotStart, StartNotSupportedError
from sb3_grpo.utils.parameters import Number, Whole
from sb3_grpo.utils.spaces import check_spaces
from sb3_grpo.utils.vec_envs import call, innermost, offers

# More copies than any machine can step
MAX_ENVS = 2**16
# The highest seed that NumPy's global generator accepts
MAX_SEED = 2**32 - 1

_HOW_TO_ADD = (
    "build it with make_group_env(env_id, ...) or "
    "make_vec_env(env_id, ..., wrapper_class=StartQueue, vec_env_cls=SubprocVecEnv)"
)


def ensure_start_queues(vec_env: VecEnv) -> None:
    """
    Make sure that every copy of the environment has a ``StartQueue`` as its outermost wrapper.

    In a ``DummyVecEnv``, missing ones are added, below any ``VecEnvWrapper``. Copies in other processes
    cannot be wrapped from here.

    :param vec_env: the vectorized environment, with or without wrappers
    """
    inner = innermost(vec_env)
    if isinstance(inner, DummyVecEnv):
        if any(is_wrapped(env, StartQueue) and not isinstance(env, StartQueue) for env in inner.envs):
            raise _not_outermost()
        inner.envs = [env if isinstance(env, StartQueue) else StartQueue(env) for env in inner.envs]
        return
    if isinstance(inner, GymnasiumVecEnv) and not inner.resets_copies:
        raise ValueError(
            f"The copies of {inner.env_name} cannot be reset one by one: make them with "
            'gym.make_vec(..., vectorization_mode="sync") and without wrappers around, or opt in to groups of unrelated '
            "starts with unrelated_starts=True."
        )
    if not offers(inner, "queue_start"):
        raise ValueError(
            f"The environments in this {type(inner).__name__} have no StartQueue: {_HOW_TO_ADD}; "
            "or opt in to groups of unrelated starts with unrelated_starts=True"
        )
    # The only way to inspect the outermost wrapper without sending its class through the pipe
    if isinstance(inner, SubprocVecEnv) and any("queue_start" not in names for names in inner.env_method("__dir__")):
        raise _not_outermost()


def _check_spaces_of(make: Callable[[], gym.Env], wrap: Callable[[gym.Env], gym.Env]) -> None:
    # A DummyVecEnv has no arrays for some observations
    made = None
    with contextlib.suppress(Exception):
        made = wrap(make())
    if made is not None:
        made.close()
        check_spaces(made.observation_space, made.action_space)


def refuse_frame_stack(vec_env: VecEnv) -> None:
    """
    :param vec_env: the vectorized environment whose states are to be captured
    :raises StartNotSupportedError: if part of the state is outside of the copies
    """
    if is_vecenv_wrapped(vec_env, VecFrameStack):
        raise StartNotSupportedError(
            "VecFrameStack keeps the past frames outside of the copies of the environment, where they cannot be "
            "captured. Use gymnasium.wrappers.FrameStackObservation in the wrapper_class instead."
        )


def capture_starts(vec_env: VecEnv, indices: list[int] | None = None) -> list[SnapshotStart]:
    """
    Capture the current state of copies of the environment.

    :param vec_env: the vectorized environment; its copies must have a ``StartQueue``
    :param indices: indices of the copies, None for all
    :return: one start per copy
    """
    refuse_frame_stack(vec_env)
    inner = innermost(vec_env)
    if not offers(inner, "queue_start"):
        raise ValueError(f"The environments in this {type(inner).__name__} have no StartQueue: {_HOW_TO_ADD}")
    return call(inner, "capture_start", indices=indices)


def make_group_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 16,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., gym.Env] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    step_timeout: float | None = None,
) -> VecEnv:
    """
    SB3's ``make_vec_env`` with a ``StartQueue`` around everything else.

    For Atari, :func:`make_atari_group_env` adds the usual preprocessing.

    :param env_id: the env ID, the env class or a callable returning an env
    :param n_envs: number of copies
    :param seed: see ``make_vec_env``
    :param start_index: see ``make_vec_env``
    :param monitor_dir: see ``make_vec_env``
    :param wrapper_class: wrapper class, or function that wraps, applied between Monitor and StartQueue
    :param env_kwargs: keyword arguments for the environment; unlike with ``make_vec_env``, rendering is only possible
        if they include ``render_mode``
    :param vec_env_cls: ``DummyVecEnv`` (default) or ``SubprocVecEnv``
    :param vec_env_kwargs: keyword arguments for ``vec_env_cls``
    :param monitor_kwargs: keyword arguments for ``Monitor``
    :param wrapper_kwargs: keyword arguments for ``wrapper_class``
    :param step_timeout: maximum number of seconds that a step of copies in separate processes (``SubprocVecEnv``) may take in
        training, which then ends with an error that names the copy. The first reset is not limited. ``None``: 600
    :return: the vectorized environment
    """
    limit = Number(0.001, limit=True, none="600 seconds", why="a step takes some time")
    n_envs, seed = Whole(high=MAX_ENVS).check("n_envs", n_envs), Whole(0, MAX_SEED, none="no seed").check("seed", seed)
    if not isinstance(env_id, str) and not callable(env_id):
        raise ValueError(
            f"env_id must be the id of a registered environment, an environment's class or a function that makes one, got "
            f"{env_id!r:.80}: each copy is made anew."
        )
    if isinstance(env_id, str):
        # Given an id, make_vec_env sets render_mode="rgb_array": LunarLander then simulates its exhaust fumes
        # and is 3 to 6 times slower
        env_id = functools.partial(gym.make, importable_id(env_id))
    wrap = functools.partial(with_start_queue, wrapper_class=wrapper_class, wrapper_kwargs=wrapper_kwargs)
    try:
        env: Any = make_vec_env(
            env_id,
            n_envs=n_envs,
            seed=seed,
            start_index=start_index,
            monitor_dir=monitor_dir,
            wrapper_class=wrap,
            env_kwargs=env_kwargs,
            vec_env_cls=vec_env_cls,
            vec_env_kwargs=vec_env_kwargs,
            monitor_kwargs=monitor_kwargs,
        )
    except (AssertionError, NotImplementedError, TypeError):
        _check_spaces_of(functools.partial(env_id, **(env_kwargs or {})), wrap)
        raise
    env.step_timeout = limit.check("step_timeout", step_timeout)
    if step_timeout is not None and not isinstance(env, SubprocVecEnv):
        env.close()
        raise ValueError(f"step_timeout={step_timeout} needs copies in processes of their own: vec_env_cls=SubprocVecEnv.")
    return env


def importable_id(env_id: str) -> str:
    """
    :param env_id: the id of an environment
    :return: the same id, prefixed with the module that Gymnasium must import in every process: importing ale_py registers
        Atari games
    """
    module = next((module for module, ids in _REGISTERED_BY.items() if ids.fullmatch(env_id)), None)
    return env_id if module is None else f"{module}:{env_id}"


_REGISTERED_BY = {
    "ale_py": re.compile(r"ALE/[^:]+|\w+NoFrameskip-v[04]"),
    "sb3_grpo.envs.minatar": re.compile(r"MinAtar/[^:]+"),
}


def with_start_queue(
    env: gym.Env, wrapper_class: Callable[..., gym.Env] | None, wrapper_kwargs: dict[str, Any] | None = None
) -> gym.Env:
    """
    :param env: an environment
    :param wrapper_class: wrapper class, or function that wraps
    :param wrapper_kwargs: keyword arguments for ``wrapper_class``
    :return: the environment with a ``StartQueue`` outside of this wrapper
    """
    env = env if wrapper_class is None else wrapper_class(env, **(wrapper_kwargs or {}))
    return env if isinstance(env, StartQueue) else StartQueue(env)


def _not_outermost() -> ValueError:
    return ValueError(
        "StartQueue has to be the outermost wrapper of each environment: the wrappers outside of it would keep their "
        f"state from the episode before. To wrap in the right order, {_HOW_TO_ADD}"
    )
