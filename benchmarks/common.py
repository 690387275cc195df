"""What the benchmarks share: folders, the machine's description, and hyperparameters from ``zoo_configs``."""

import importlib
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch as th
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from sb3_grpo.utils.entries import read_entry

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
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
    :return: What a reader needs in order to interpret a speed figure
    """
    # Imported here, so that each process holds only its own algorithm in memory
    from sb3_grpo import __version__
    from sb3_grpo.utils.machine import cpu_name, source_commit

    packages = ("stable_baselines3", "gymnasium", "numpy")
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"torch": th.__version__, **{each: version(each) for each in packages}, "sb3_grpo": __version__},
        "commit": source_commit() or "unknown",
    }


def command() -> str:
    """
    :return: The command line that produced a result
    """
    spec = sys.modules["__main__"].__spec__
    return " ".join(["python", "-m", spec.name if spec else Path(sys.argv[0]).stem, *sys.argv[1:]])


def write_result(name: str, result: dict[str, Any]) -> None:
    """
    :param name: Name of a file in ``benchmarks/results``
    :param result: What was measured; command and machine are added
    """
    path = RESULTS / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**result, "command": command(), "machine": machine()}, indent=1) + "\n")
    print(path)


def read_result(name: str) -> Any:
    """
    :param name: Name of a JSON file in ``benchmarks/results``
    :return: Its content
    """
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rows(path: Path) -> list[dict[str, Any]]:
    """
    :param path: JSON, a run in each line
    :return: All runs so far
    """
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def hyperparameters(algo: str, env_id: str) -> dict[str, Any]:
    """
    The entry of an environment in ``zoo_configs/<algo>.yml``, in RL Zoo's format.

    :param algo: "ppo", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :return: Keyword arguments of the algorithm, and ``policy``; schedules ``lin_x`` become functions.
        Without an entry: the algorithm's defaults.
    """
    entries = yaml.safe_load((ROOT / "zoo_configs" / f"{algo}.yml").read_text()) or {}
    entry = read_entry(entries.get(env_id, {"policy": "MlpPolicy"}))
    entry.pop("n_timesteps", None)
    for key, value in entry.items():
        if isinstance(value, str) and value.startswith("lin_"):
            entry[key] = LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    return entry
