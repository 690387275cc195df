"""Where the hyperparameters of an algorithm are defined, and how they were chosen."""

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3
import yaml

UNDOCUMENTED = "no record of how these values were found"


def config_path(algo: str) -> Path:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :return: the file with its hyperparameters in RL Zoo's format: ours, or the RL Zoo's own if we have none
    """
    ours = Path(importlib.import_module("sb3_grpo.zoo_configs").__path__[0], f"{algo}.yml")
    return ours if ours.is_file() else Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algo}.yml"


def entry_name(entries: dict[str, Any], env_id: str) -> str:
    """
    Find the entry that the RL Zoo uses for an environment.

    :param entries: the entries of a configuration file
    :param env_id: id of an environment; a ``module:`` prefix is ignored
    :return: name of the entry: the environment's own id, ``"atari"`` or ``"default"``
    :raises ValueError: if there is no such entry
    """
    env_id = env_id.rpartition(":")[2]
    if env_id in entries:
        return env_id
    fallback = "atari" if "AtariEnv" in str(gym.registry.get(env_id)) else "default"
    if fallback not in entries:
        raise ValueError(f"There is no entry {env_id} or {fallback}. Entries are: {', '.join(entries) or 'none'}")
    return fallback


def provenance(algo: str, env_id: str) -> str:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :param env_id: id of an environment
    :return: how the values of the entry were found, from the comment directly above it
    """
    text = config_path(algo).read_text(encoding="utf-8")
    name = entry_name(yaml.safe_load(text), env_id)
    comment: list[str] = []
    for line in text.splitlines():
        if line.split(":")[0].strip("'\"") == name:
            break
        comment = [*comment, line.lstrip("# ").rstrip()] if line.startswith("#") else []
    return " ".join(comment) or UNDOCUMENTED
