"""
Stable-Baselines3's own tests with GRPO in place of PPO: a pytest plugin, to be run in a clone of Stable-Baselines3.

    PYTHONPATH=PATH_OF_THIS_CHECKOUT python -m pytest -p benchmarks.sb3_contract -k GRPO -m "not expensive" tests

``ACCEPT_AIDS=1`` gives the tests' environments what GRPO's error messages ask for: a time limit of 200 steps,
and ``unrelated_starts=True`` where the seed of ``reset`` is ignored.
"""

import os

import gymnasium as gym
import stable_baselines3
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.grpo import GRPO as PlainGRPO
from sb3_grpo.starts.start_queue import make_group_env

AIDS = os.environ.get("ACCEPT_AIDS") == "1"
PPO_ONLY = (
    "n_steps",
    "vf_coef",
    "clip_range_vf",
    "normalize_advantage",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
)


class Limit(gym.wrappers.TimeLimit):
    """Some test environments have a ``reset`` without ``options``."""

    def reset(self, **kwargs):
        self._elapsed_steps = 0
        return self.env.reset(**{key: value for key, value in kwargs.items() if value is not None})


def limited(env):
    """Add a time limit to all copies of an environment that is not registered."""
    if isinstance(env, DummyVecEnv):
        env.envs = [limited(copy) for copy in env.envs]
    elif isinstance(env, VecEnv):
        if env.unwrapped is not env:
            limited(env.unwrapped)
    elif isinstance(env, gym.Env) and env.spec is None:
        env = Limit(env, 200)
    return env


class GRPO(PlainGRPO):
    def __init__(self, policy, env, *args, **kwargs):
        for name in PPO_ONLY:
            kwargs.pop(name, None)
        small = {"group_size": 2, "n_groups": 2}
        if isinstance(env, str):
            env = make_group_env(env, 1)
        elif AIDS and env is not None:
            env = limited(env)
            small["unrelated_starts"] = True
        super().__init__(policy, env, *args, **{**small, **kwargs})

    def set_env(self, env, force_reset=True):
        super().set_env(limited(env) if AIDS else env, force_reset)


setattr(stable_baselines3, "PPO", GRPO)  # noqa: B010
