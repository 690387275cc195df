"""
Tests of Stable-Baselines3 and SB3-Contrib with GRPO in place of PPO and TRPO: a pytest plugin, for the folder of a source
distribution. Only tests that use PPO or TRPO are run.

    PYTHONPATH=PATH_OF_THIS_CHECKOUT OMP_NUM_THREADS=1 python -m pytest -p stress.sb3_contract -m "not expensive" tests

``WHOLE_GROUPS=1`` uses two groups of two in place of ``n_steps``. ``ACCEPT_AIDS=1`` gives the environments what GRPO's error
messages ask for: ``unrelated_starts=True`` and, with whole groups, a time limit of 200 steps.
"""

import inspect
import os
import re

import gymnasium as gym
import sb3_contrib
import stable_baselines3
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.grpo import GRPO as PlainGRPO

AIDS = os.environ.get("ACCEPT_AIDS") == "1"
WHOLE_GROUPS = os.environ.get("WHOLE_GROUPS") == "1"
ALGORITHMS = {"GRPO", *(name.upper() for module in (stable_baselines3, sb3_contrib) for name in module.__all__)}
# Arguments of PPO and TRPO for their critics, buffers and line search
WITHOUT_EQUIVALENT = {
    *("vf_coef", "clip_range_vf", "rollout_buffer_class", "rollout_buffer_kwargs", "sub_sampling_factor"),
    *("cg_max_steps", "cg_damping", "line_search_shrinking_factor", "line_search_max_iter", "n_critic_updates"),
}


class Limit(gym.wrappers.TimeLimit):
    """A time limit for environments whose ``reset`` has no ``options``."""

    def reset(self, **kwargs):
        self._elapsed_steps = 0
        return self.env.reset(**{key: value for key, value in kwargs.items() if value is not None})


def limited(env):
    """
    :param env: Environment or VecEnv
    :return: The same, with a time limit for all copies of an environment that is not registered
    """
    if isinstance(env, DummyVecEnv):
        env.envs = [limited(copy) for copy in env.envs]
    elif isinstance(env, VecEnv):
        if env.unwrapped is not env:
            limited(env.unwrapped)
    elif isinstance(env, gym.Env) and env.spec is None and not is_wrapped(env, Limit):
        env = Limit(env, 200)
    return env


class GRPO(PlainGRPO):
    """GRPO with the arguments of PPO and TRPO."""

    def __init__(self, policy, env, *args, normalize_advantage=True, **kwargs):
        if isinstance(env, str):
            env = gym.make(env)  # one copy, as PPO
        kwargs = {name: value for name, value in kwargs.items() if name not in WITHOUT_EQUIVALENT}
        kwargs["advantage_scale"] = "batch" if normalize_advantage else "none"
        if WHOLE_GROUPS:
            kwargs.update(n_steps=None, n_groups=2, group_size=2)
        if AIDS:
            kwargs["unrelated_starts"] = True
            env = limited(env) if WHOLE_GROUPS else env
        super().__init__(policy, env, *args, **kwargs)

    def set_env(self, env, force_reset=True):
        super().set_env(limited(env) if AIDS and WHOLE_GROUPS else env, force_reset)


def pytest_configure():
    """Only now, because importing this module for its GRPO should change nothing."""
    stable_baselines3.PPO = sb3_contrib.TRPO = GRPO


def uses_grpo(item):
    """
    :param item: A test
    :return: Whether GRPO is a parameter of it, or no algorithm is and its source names PPO or TRPO
    """
    parameters = {part.upper() for part in re.split(r"[\[\]-]", item.name)}
    if parameters & ALGORITHMS:
        return bool(parameters & {"GRPO", "PPO"})
    return re.search(r"\b(PPO|TRPO)\b", inspect.getsource(item.function)) is not None


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if not uses_grpo(item)])
    items[:] = filter(uses_grpo, items)
