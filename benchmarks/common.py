"""What the benchmark scripts share: the machine's description, and configurations in RL Zoo's format."""

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

from sb3_grpo.utils.entries import parse_value

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
ALGORITHMS = {"ppo": "stable_baselines3:PPO", "grpo": "sb3_grpo:GRPO", "dapo": "sb3_grpo:DAPO"}


def algorithm(name: str) -> type[BaseAlgorithm]:
    """
    :return: Its class. Imported here, so that each process holds only its own algorithm in memory
    :return: Its class. Imported here, so that no process holds more than its own in memory
    """
    module, class_name = ALGORITHMS[name].split(":")
    return getattr(importlib.import_module(module), class_name)


def machine() -> dict[str, Any]:
    """
    :return: What a reader needs in order to interpret a speed figure
    """
    # Imported here, so that each process holds only its own algorithm in memory
    from sb3_grpo.utils.machine import cpu_name, source_commit

    packages = ("stable_baselines3", "gymnasium", "numpy", "sb3_grpo")
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"torch": str(th.__version__)} | {package: version(package) for package in packages},
        "commit": source_commit() or "unknown",
    }


def command() -> str:
    """
    :return: The command line that produced a result
    """
    return " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def hyperparameters(algo: str, env_id: str) -> dict[str, Any]:
    """
    The entry of an environment in ``zoo_configs/<algo>.yml``, in RL Zoo's format.

    :param algo: "ppo", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :return: Keyword arguments of the algorithm, and ``policy``; schedules ``lin_x`` become functions.
        Without an entry: the algorithm's defaults.
    """
    entries = yaml.safe_load((ROOT.parent / "zoo_configs" / f"{algo}.yml").read_text()) or {}
    entry = dict(entries.get(env_id, {"policy": "MlpPolicy"}))
    entry.pop("n_timesteps", None)
    for key, value in entry.items():
        if isinstance(value, str) and value.startswith("lin_"):
            entry[key] = LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
        if isinstance(value, str) and key == "policy_kwargs":
            entry[key] = parse_value(value)  # a call in a string, as in the RL Zoo
    return entry


def write_trust(name: str, what: str, promise: str, n: int, wrong: list[Any], **more: Any) -> None:
    """
    Write the result of trying to break something, for ``benchmarks.trust``.

    :param name: name of the file in ``results/trust``
    :param what: what was tried
    :param promise: what is promised
    :param n: how often it was tried
    :param wrong: the cases where the promise was not kept
    :param more: further entries
    """
    path = RESULTS / "trust" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    found = {"what": what, "promise": promise, "n": n, "as_promised": n - len(wrong), **more, "wrong": wrong}
    path.write_text(json.dumps({**found, "command": command(), "machine": machine()}, indent=1) + "\n")
    print(f"{n} tried, {n - len(wrong)} as promised: {path}")
