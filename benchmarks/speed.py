"""
Environment steps per CPU second of training, against SB3's PPO on the same environment copies: ``python -m benchmarks.speed``.

Subjects alternate, several times, in processes with one torch thread: random stepping, PPO with RL Zoo's hyperparameters, PPO
with GRPO's steps per update, epochs and minibatches, GRPO, DAPO. Prints medians, and medians of the ratios within a repeat,
and writes ``benchmarks/results/speed.json`` after each repeat. Continues from there.
"""

import argparse
import inspect
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
OUTPUT = RESULTS / "speed.json"
N_STEPS = 30_000
# Environments and numbers of copies
CELLS = [("CartPole-v1", n_envs) for n_envs in (16, 1, 8, 64)]
CELLS += [(env_id, 16) for env_id in ("Acrobot-v1", "Pendulum-v1", "LunarLander-v3")]
# PPO with GRPO's steps per update, epochs and minibatches
SAME_UPDATES = "ppo, same updates"
SUBJECTS = ("random", "ppo", SAME_UPDATES, "grpo", "dapo")


def random_stepping(env_id: str, n_envs: int) -> dict[str, float]:
    """
    :param env_id: id of a registered environment
    :param n_envs: Number of copies
    :return: Rate of the bare ``VecEnv`` with random actions, without the entry's ``VecNormalize``, if any
    """
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env(env_id, n_envs, seed=0, env_kwargs={"render_mode": None})
    actions = [np.array([env.action_space.sample() for _ in range(n_envs)]) for _ in range(1000)]
    env.reset()
    begin = time.process_time()
    for i in range(N_STEPS // n_envs):
        env.step(actions[i % 1000])
    return {"steps_per_second": N_STEPS / (time.process_time() - begin)}


def training(algo: str, env_id: str, n_envs: int) -> dict[str, float]:
    """
    :param algo: "ppo", "ppo, same updates", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :param n_envs: Number of copies
    :return: Rates, peak memory in MiB, and the share of the time that updates take
    """
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env

    from benchmarks.common import algorithm, hyperparameters
    from sb3_grpo.utils.entries import parse_value

    th.set_num_threads(1)
    changes = update_of(hyperparameters("grpo", env_id), n_envs) if algo == SAME_UPDATES else {}
    algo = algo.partition(",")[0]
    kwargs = {**hyperparameters(algo, env_id), **changes}
    kwargs.pop("n_envs", None)
    normalize = kwargs.pop("normalize", False)
    env: Any = make_vec_env(env_id, n_envs, seed=0, env_kwargs={"render_mode": None})
    if normalize:
        from stable_baselines3.common.vec_env import VecNormalize

        # RL Zoo's format: true, or a call in a string. The discount factor does not affect speed
        env = VecNormalize(env, **(parse_value(normalize) if isinstance(normalize, str) else {}))
    model = algorithm(algo)(env=env, seed=0, device="cpu", **kwargs)
    spent: dict[str, float] = defaultdict(float)

    def clock(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.process_time() - begin

        return wrapper

    model.collect_rollouts = clock("collect", model.collect_rollouts)  # type: ignore[attr-defined]
    model.train = clock("train", model.train)  # type: ignore[attr-defined]
    begin = time.process_time()
    model.learn(N_STEPS)
    seconds = time.process_time() - begin
    n_steps = model.num_timesteps
    env.close()
    return {
        "steps_per_second": n_steps / seconds,
        "collect_steps_per_second": n_steps / spent["collect"],
        "share_of_updates": spent["train"] / seconds,
        # Not peak_memory(): importing it would load our algorithms into PPO's process
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def update_of(hyperparams: dict[str, Any], n_envs: int) -> dict[str, int]:
    """
    :param hyperparams: An entry of GRPO
    :param n_envs: Number of copies
    :return: Steps of each copy, epochs and minibatches of its first updates, defaults included
    """
    from sb3_grpo import GRPO

    defaults = inspect.signature(GRPO).parameters
    passes = {name: hyperparams.get(name, defaults[name].default) for name in ("n_epochs", "batch_size")}
    return {"n_steps": hyperparams.get("n_steps", 2048 // n_envs), **passes}


def summary(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """
    :param runs: The measurements of each repeat, by subject
    :return: Medians, and medians of the ratios within a repeat
    """

    def ratio(algo: str, key: str, peer: str, peer_key: str) -> float:
        return float(np.median([run[algo][key] / run[peer][peer_key] for run in runs]))

    rate = "steps_per_second"
    return {
        "median": {
            subject: {key: float(np.median([run[subject][key] for run in runs])) for key in runs[0][subject]}
            for subject in SUBJECTS
        },
        "median_of_paired_ratios": {
            algo: {
                "training_vs_ppo": ratio(algo, rate, "ppo", rate),
                "training_vs_ppo_with_the_same_updates": ratio(algo, rate, SAME_UPDATES, rate),
                "collection_vs_random_stepping": ratio(algo, "collect_steps_per_second", "random", rate),
                "peak_memory_vs_ppo": ratio(algo, "peak_memory_mib", "ppo", "peak_memory_mib"),
            }
            for algo in ("grpo", "dapo")
        },
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        subject, env_id, n_envs = args.one
        measured = random_stepping if subject == "random" else partial(training, subject)
        print(json.dumps(measured(env_id, int(n_envs))))
        return

    from benchmarks.common import command, machine

    result: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"steps": N_STEPS, "cells": []}
    cells = {(cell["env"], cell["n_envs"]): cell for cell in result["cells"]}
    for repeat, (env_id, n_envs) in product(range(args.repeats), CELLS):
        cell = cells.get((env_id, n_envs)) or {"env": env_id, "n_envs": n_envs, "runs": []}
        if len(cell["runs"]) > repeat:
            continue
        one = [sys.executable, "-W", "ignore", "-m", "benchmarks.speed", "--one"]
        measures = {}
        for subject in SUBJECTS:
            ended = subprocess.run(
                [*one, subject, env_id, str(n_envs)], check=True, capture_output=True, text=True, cwd=RESULTS.parents[1]
            )
            measures[subject] = json.loads(ended.stdout.splitlines()[-1])
        cell["runs"].append(measures)
        cells[env_id, n_envs] = cell | summary(cell["runs"])
        result |= {"cells": list(cells.values()), "command": command(), "machine": machine()}
        OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
        rates = ", ".join(f"{subject} {each['steps_per_second']:.0f}" for subject, each in measures.items())
        print(f"{repeat + 1}/{args.repeats} {env_id}, {n_envs} copies: {rates}", flush=True)


if __name__ == "__main__":
    main()
