"""Folders of experiments as the runs leave them, with returns that are known."""

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sb3_grpo.cli.settings import known_settings
from sb3_grpo.console import ALGORITHMS

BUDGET = 10_000
N_EVALUATIONS = 5
Curve = Callable[[str, str, int], Sequence[float]]
# A comparison that is really made
SMALL_GROUPS = {"group_size": 2, "n_groups": 2, "n_envs": 4}
TINY: dict[str, Any] = {
    "name": "tiny",
    "envs": ["CartPole-v1"],
    "variants": ["ppo", {"algo": "dapo", "hyperparams": SMALL_GROUPS}],
    "seeds": 2,
    "timesteps": 400,
    "n_evaluations": 4,
    "n_eval_episodes": 2,
    "n_final_episodes": 3,
}


def read(path: Path) -> list[dict[str, str]]:
    """
    :param path: a table in CSV
    :return: its rows
    """
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def curve_to(final: float, first: float = 10.0) -> list[float]:
    """
    :param final: the last return
    :param first: the return before learning
    :return: a straight line between them
    """
    return np.linspace(first, final, N_EVALUATIONS + 1).tolist()


def turn_round_sampled(folder: Path, env: str) -> None:
    """
    With sampled actions, those variants of an environment end lowest that end highest with the most likely ones; and the
    experiment says that the sampled ones count there.

    :param folder: of the experiment
    :param env: the environment
    """
    for path in folder.glob(f"runs/{env}/*/*/evaluations.csv"):
        rows = pd.read_csv(path)
        rows.loc[rows["mode"] == "stochastic", "return_mean"] *= -1.0
        rows.to_csv(path, index=False)
    experiment = json.loads((folder / "experiment.json").read_text())
    modes = dict.fromkeys(experiment["envs"], "deterministic") | {env: "stochastic"}
    (folder / "experiment.json").write_text(json.dumps(experiment | {"main_modes": modes}))


def hyperparams(algo: str) -> dict[str, str]:
    """
    :param algo: an algorithm
    :return: its defaults, as a comparison notes what a model was built with
    """
    if algo not in ALGORITHMS:
        return {"gae_lambda": "0.95", "clip_range": "0.2", "target_kl": "None"}
    defaults = {name: str(default) for name, default in known_settings(ALGORITHMS[algo]).items()}
    # What "auto" has become, with the average of the paper
    return defaults | {"loss_average": "step" if algo == "dapo" else "episode"}


def write_experiment(
    folder: Path,
    curve: Curve,
    envs: Sequence[str] = ("CartPole-v1",),
    variants: Mapping[str, str] | None = None,
    seeds: int = 10,
) -> Path:
    """
    :param folder: where
    :param curve: gives the returns of (environment, variant, seed) at the evaluations
    :param envs: the environments
    :param variants: names of the variants and their algorithms
    :param seeds: how many
    :return: the folder
    """
    variants = variants or {"ppo": "ppo", "dapo": "dapo"}
    experiment = {
        "name": "synthetic",
        "envs": list(envs),
        "variants": [{"name": name, "algo": algo, "hyperparams": {}} for name, algo in variants.items()],
        "seeds": list(range(seeds)),
        "timesteps": dict.fromkeys(envs, BUDGET),
        "n_evaluations": N_EVALUATIONS,
        "n_eval_episodes": 10,
        "n_final_episodes": 20,
        "command": "python -m sb3_grpo compare --env CartPole-v1 --algo ppo dapo",
        "versions": {"sb3_grpo": "0.1.0", "torch": "2.9.0"},
        "machine": {"platform": "Linux", "cpu_count": 2},
        "hyperparams": {env: {name: hyperparams(algo) for name, algo in variants.items()} for env in envs},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps(experiment))
    for env in envs:
        for name, algo in variants.items():
            for seed in range(seeds):
                write_run(folder, env, name, algo, seed, curve(env, name, seed))
    return folder


def write_run(folder: Path, env: str, variant: str, algo: str, seed: int, returns: Sequence[float]) -> Path:
    """
    :param folder: of the experiment
    :param env: the environment
    :param variant: its name
    :param algo: its algorithm
    :param seed: the seed
    :param returns: at the evaluations, the last one again at the end
    :return: the folder of the run
    """
    run = folder / "runs" / env / variant / str(seed)
    run.mkdir(parents=True)
    keys = {"env": env, "variant": variant, "algo": algo, "seed": seed}
    speed = {"ppo": 1000.0, "grpo": 2000.0, "dapo": 1500.0}.get(algo, 1200.0) * (1 + 0.02 * seed)
    targets = np.linspace(0, BUDGET, len(returns))
    evaluations = []
    for mode, drop in (("deterministic", 0.0), ("stochastic", 1.0)):
        for i, (target, value) in enumerate([*zip(targets, returns, strict=True), (targets[-1], returns[-1])]):
            final = int(i == len(returns))
            evaluations.append(
                {
                    **keys,
                    "target_steps": target,
                    "steps": target + 7 * (target > 0),
                    "seconds": target / speed,
                    "mode": mode,
                    "return_mean": value - drop,
                    "return_std": 1.0,
                    "length_mean": 100.0,
                    "success_rate": None,
                    "n_episodes": 20 if final else 10,
                    "final": final,
                }
            )
    pd.DataFrame(evaluations).to_csv(run / "evaluations.csv", index=False)
    grouped = algo in ("grpo", "dapo")
    logged = {"train/approx_kl": 0.01, "train/clip_fraction": 0.12}
    if grouped:
        logged |= {"train/clip_fraction_low": 0.04, "train/clip_fraction_high": 0.08}
        logged |= {"train/entropy": 0.5, "group/dead_fraction": 0.25}
    else:
        logged |= {"train/entropy_loss": -0.6}
    steps = np.linspace(0, BUDGET, 21)[1:]
    rows = [
        {**keys, "steps": step, "seconds": step / speed, "key": key, "value": value * (1.2 - step / BUDGET / 2.5)}
        for key, value in logged.items()
        for step in steps
    ]
    pd.DataFrame(rows).to_csv(run / "diagnostics.csv", index=False)
    (run / "config.json").write_text(json.dumps({**keys, "machine": {"platform": "Linux"}}))
    critic = 0 if grouped else 4545
    result = {
        **keys,
        "status": "done",
        "steps": BUDGET + 7,
        "seconds": BUDGET / speed,
        "steps_per_second": speed,
        "peak_memory_mib": 300.0,
        "n_parameters": 4610 + critic,
        "n_critic_parameters": critic,
        "discarded_fraction": 0.11 if algo == "dapo" else None,
        "net_arch": "[64, 64]",
        "provenance": f"{algo}: tuned, 100 trials",
        "error": None,
    }
    (run / "result.json").write_text(json.dumps(result))
    return run


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
