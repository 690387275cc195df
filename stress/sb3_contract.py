"""
Tests of Stable-Baselines3 and SB3-Contrib with GRPO in place of PPO, TRPO, MaskablePPO and RecurrentPPO: a pytest plugin, for
the folder of a source distribution. Only tests that use one of these are run.

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
# Arguments for critics, buffers, line search and the LSTM's constructor
WITHOUT_EQUIVALENT = {
    *("vf_coef", "clip_range_vf", "rollout_buffer_class", "rollout_buffer_kwargs", "sub_sampling_factor"),
    *("cg_max_steps", "cg_damping", "line_search_shrinking_factor", "line_search_max_iter", "n_critic_updates"),
    *("enable_critic_lstm", "shared_lstm", "lstm_kwargs"),
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


class MaskableGRPO(GRPO):
    """GRPO with the arguments of MaskablePPO."""

    def learn(self, *args, use_masking=True, **kwargs):
        self.use_masking = use_masking
        return super().learn(*args, **kwargs)


class RecurrentGRPO(GRPO):
    """GRPO with the arguments of RecurrentPPO."""

    def __init__(self, *args, policy_kwargs=None, **kwargs):
        known = {name: value for name, value in (policy_kwargs or {}).items() if name not in WITHOUT_EQUIVALENT}
        super().__init__(*args, policy_kwargs=known, **kwargs)


REPLACED = {"PPO": GRPO, "TRPO": GRPO, "MaskablePPO": MaskableGRPO, "RecurrentPPO": RecurrentGRPO}
OURS = {name.upper() for name, replacement in REPLACED.items() for name in (name, replacement.__name__)}
ALGORITHMS = {*OURS, *(name.upper() for module in (stable_baselines3, sb3_contrib) for name in module.__all__)}


def pytest_configure():
    """Only now, because importing this module for its GRPO should change nothing."""
    for name, replacement in REPLACED.items():
        setattr(stable_baselines3 if name == "PPO" else sb3_contrib, name, replacement)


def uses_grpo(item):
    """
    :param item: A test
    :return: Whether GRPO is a parameter of it, or no algorithm is and its source names one that is replaced
    """
    # "ars_multi" is ARS
    parameters = {part.upper().split("_")[0] for part in re.split(r"[\[\]-]", item.name)}
    if parameters & ALGORITHMS:
        return bool(parameters & OURS)
    return re.search(rf"\b({'|'.join(REPLACED)})\b", inspect.getsource(item.function)) is not None


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if not uses_grpo(item)])
    items[:] = filter(uses_grpo, items)
