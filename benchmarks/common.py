"""What the benchmark scripts share: the machine's description, configurations in RL Zoo's format, evaluation."""

import importlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
ALGORITHMS = {"ppo": "stable_baselines3:PPO", "grpo": "sb3_grpo:GRPO", "dapo": "sb3_grpo:DAPO"}


def algorithm(name: str) -> type[BaseAlgorithm]:
    """
    :param name: "ppo", "grpo" or "dapo"
    :return: Its class. Imported here, so that no process holds more than its own in memory
    """
    module, class_name = ALGORITHMS[name].split(":")
    return getattr(importlib.import_module(module), class_name)


def machine() -> dict[str, Any]:
    """
    :return: What a reader needs to place a speed figure
    """
    # Imported here, so that no process holds more than its own algorithm in memory
    from sb3_grpo.common.machine import cpu_name, source_commit

    packages = ("torch", "stable_baselines3", "gymnasium", "numpy")
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {**{package: version(package) for package in packages}, "sb3_grpo": version("sb3_grpo")},
        "commit": source_commit() or "unknown",
    }


def command() -> str:
    """
    :return: The command line that made a result
    """
    return " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def hyperparameters(algo: str, env_id: str) -> dict[str, Any]:
    """
    The entry of an environment in ``zoo_configs/<algo>.yml``, in RL Zoo's format.

    :param algo: "ppo", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :return: Keyword arguments of the algorithm, and ``policy``; schedules ``lin_x`` are made into functions.
        Without an entry: the algorithm's defaults.
    """
    entries = yaml.safe_load((ROOT.parent / "zoo_configs" / f"{algo}.yml").read_text()) or {}
    entry = dict(entries.get(env_id, {"policy": "MlpPolicy"}))
    entry.pop("n_timesteps", None)
    for key, value in entry.items():
        if isinstance(value, str) and value.startswith("lin_"):
            entry[key] = LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    return entry


def evaluate(model: BaseAlgorithm, env_id: str, seed: int, n_episodes: int = 20) -> list[float]:
    """
    Deterministic evaluation on seeds that training has not seen.

    :param model: The trained model
    :param env_id: id of its environment
    :param seed: Seed of the training run
    :param n_episodes: How many episodes
    :return: Their returns
    """
    env = make_vec_env(env_id, n_envs=n_episodes, seed=1_000_000 + 1000 * seed, env_kwargs={"render_mode": None})
    returns, _ = evaluate_policy(model, env, n_eval_episodes=n_episodes, return_episode_rewards=True)
    env.close()
    return np.asarray(returns).tolist()
