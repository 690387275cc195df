"""
Training stays the same to the last bit: a few updates of twelve configurations, compared by hashes of the parameters and of
all random generators.

``python tests/test_same_training.py`` writes ``same_training.json`` anew, for changes that are meant to change training.
Rounding depends on the processor and on the versions of the libraries. Where these differ from those in the file, only the
size of the parameters is compared.
"""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize
from toy_envs import SpacesEnv

from sb3_grpo import DAPO, GRPO, capture_starts, make_atari_group_env, make_group_env, presets
from sb3_grpo.envs import VerifierTextVecEnv

EXPECTED = Path(__file__).parent / "same_training.json"
TINY: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
TRANSFORMER = {"n_layers": 1, "width": 16, "n_heads": 2}


def processor() -> str:
    path = Path("/proc/cpuinfo")
    kinds = [line for line in path.read_text().splitlines() if line.startswith(("flags", "cpu family", "model\t"))][:3]
    return hashlib.sha256("".join(kinds).encode()).hexdigest()[:16]


def where() -> dict[str, str]:
    versions = {"torch": th.__version__, "numpy": np.__version__, "gymnasium": gym.__version__}
    return {**versions, "stable_baselines3": stable_baselines3.__version__, "processor": processor()}


def steps_dapo() -> Any:
    return DAPO("MlpPolicy", make_group_env("CartPole-v1", 4, seed=0), n_steps=64, batch_size=64, **TINY)


def steps_subproc() -> Any:
    env = make_group_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv)
    return GRPO("MlpPolicy", env, n_steps=64, gae_lambda=0.9, batch_size=64, **TINY)


def steps_box() -> Any:
    env = make_group_env("Pendulum-v1", 4, seed=0)
    return DAPO("MlpPolicy", env, n_steps=100, gamma=0.9, ent_coef=0.01, target_kl=0.05, **TINY)


def steps_sde() -> Any:
    env = VecNormalize(make_group_env("Pendulum-v1", 4, seed=0))
    return GRPO("MlpPolicy", env, n_steps=100, use_sde=True, sde_sample_freq=8, **TINY)


def steps_grid() -> Any:
    env = make_group_env("MinAtar/Breakout-v1", 4, seed=0)
    return GRPO("MlpPolicy", env, n_steps=64, ent_coef=0.01, **TINY)


def groups_reference() -> Any:
    settings = {**presets.GRPO_PAPER, "group_size": 4, "n_groups": 2, "n_epochs": 3}
    return GRPO("MlpPolicy", make_group_env("CartPole-v1", 4, seed=0), **settings, **TINY)


def groups_subproc() -> Any:
    env = make_group_env("CartPole-v1", 3, seed=0, vec_env_cls=SubprocVecEnv)
    return DAPO("MlpPolicy", env, n_groups=2, overlong_filter=True, batch_size=64, **TINY)


def groups_dict() -> Any:
    box, one_of = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4)
    env = make_group_env(lambda: SpacesEnv(spaces.Dict(vector=box, number=one_of), spaces.MultiDiscrete([2, 3])), 4, seed=0)
    return GRPO("MultiInputPolicy", env, **{**presets.GSPO, "n_groups": 3, "batch_size": 32}, **TINY)


def groups_image() -> Any:
    env = make_atari_group_env("ALE/Breakout-v5", 4, seed=0)
    settings: dict[str, Any] = {**TINY, "policy_kwargs": {}}
    return DAPO("CnnPolicy", env, group_size=2, n_groups=1, batch_size=256, n_epochs=1, **settings)


def groups_snapshots() -> Any:
    env = make_group_env("Acrobot-v1", 4, seed=0)
    env.reset()
    for action in (0, 2, 0, 2, 2, 0):
        env.step(np.full(4, action))
    starts = capture_starts(env)
    return DAPO("MlpPolicy", env, n_groups=2, start_sampler=lambda rng: starts[rng.integers(len(starts))], **TINY)


def texts_dapo() -> Any:
    env = VerifierTextVecEnv(16, seed=0, task="arithmetic", task_kwargs={"digits": 1})
    settings = {**presets.DAPO_PAPER, "group_size": 8, "n_groups": 2, "batch_size": 64, "n_epochs": 2}
    model = DAPO("TokenPolicy", env, **settings, **{**TINY, "policy_kwargs": TRANSFORMER})
    model.policy.pretrain(env.rules.task.worked_examples(20), n_epochs=20)
    return model


def texts_rloo() -> Any:
    env = VerifierTextVecEnv(8, seed=0, task="guess_number")
    settings = {**presets.RLOO, "n_groups": 3}
    return GRPO("TokenPolicy", env, **settings, **{**TINY, "policy_kwargs": TRANSFORMER})


# Each configuration with its number of steps
CONFIGURATIONS: dict[Callable[[], Any], int] = {
    steps_dapo: 1000,
    steps_subproc: 500,
    steps_box: 1600,
    steps_sde: 1200,
    steps_grid: 1000,
    groups_reference: 1000,
    groups_subproc: 1000,
    groups_dict: 200,
    groups_image: 1500,
    groups_snapshots: 8000,
    texts_dapo: 1000,
    texts_rloo: 1000,
}


def sha(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()[:16]


def train(make: Callable[[], Any]) -> dict[str, Any]:
    """
    :param make: One of ``CONFIGURATIONS``
    :return: What has come out of its training
    """
    threads = th.get_num_threads()
    th.set_num_threads(1)
    model = make()
    try:
        model.learn(CONFIGURATIONS[make])
        parameters = [each.detach().cpu().contiguous() for each in model.policy.state_dict().values()]
        envs = model.get_env().get_attr("np_random") if model.get_env().has_attr("np_random") else []
        return {
            "timesteps": model.num_timesteps,
            "updates": model._n_updates,
            "size": float(th.cat([each.double().abs().flatten() for each in parameters]).sum()),
            "parameters": sha(*(each.numpy().tobytes() for each in parameters)),
            "starts": sha(model._start_rng.bit_generator.state),
            "torch": sha(th.get_rng_state().numpy().tobytes()),
            "numpy": sha([np.asarray(each).tolist() for each in np.random.get_state()[1:]]),
            "python": sha(random.getstate()),
            "envs": sha(*(each.bit_generator.state for each in envs)),
        }
    finally:
        model.get_env().close()
        th.set_num_threads(threads)


@pytest.mark.parametrize("make", CONFIGURATIONS, ids=lambda make: make.__name__)
def test_training_is_the_same_to_the_last_bit(make: Callable[[], Any]) -> None:
    expected = json.loads(EXPECTED.read_text())
    result = train(make)
    wanted = expected["results"][make.__name__]
    assert result["size"] == pytest.approx(wanted["size"], rel=1e-3)
    if where() == expected["where"]:
        assert result == wanted


if __name__ == "__main__":
    results = {make.__name__: train(make) for make in CONFIGURATIONS}
    EXPECTED.write_text(json.dumps({"where": where(), "results": results}, indent=1) + "\n")
