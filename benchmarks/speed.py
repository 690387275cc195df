"""
Environment steps per CPU second of training, against SB3's PPO on the same environment copies: ``python -m benchmarks.speed``.

Subjects take turns, each in a process with one torch thread: random stepping, PPO with RL Zoo's hyperparameters, PPO
with GRPO's steps per update, epochs and minibatches, GRPO, DAPO. Writes medians, and medians of the ratios within a round,
to ``benchmarks/results/speed.json`` after each round. Continues from there.
"""

import argparse
import json
import time
from itertools import product
from typing import Any

import numpy as np

from benchmarks.timing import ROOT, Round, Stopwatch, medians, one_round, peak_memory_mib, ratio

OUTPUT = "speed.json"
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


def training(subject: str, env_id: str, n_envs: int) -> dict[str, float]:
    """
    :param subject: "ppo", "ppo, same updates", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :param n_envs: Number of copies
    :return: Rates, peak memory in MiB, and the share of the time that updates take
    """
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env

    from benchmarks.common import algorithm, hyperparameters

    th.set_num_threads(1)
    changes = update_of(hyperparameters("grpo", env_id), n_envs) if subject == SAME_UPDATES else {}
    algo = subject.partition(",")[0]
    kwargs = {**hyperparameters(algo, env_id), **changes}
    kwargs.pop("n_envs", None)
    normalize = kwargs.pop("normalize", False)
    env: Any = make_vec_env(env_id, n_envs, seed=0, env_kwargs={"render_mode": None})
    if normalize:
        from stable_baselines3.common.vec_env import VecNormalize

        # True, or arguments. The discount factor does not affect speed
        env = VecNormalize(env, **(normalize if isinstance(normalize, dict) else {}))
    model = algorithm(algo)(env=env, seed=0, device="cpu", **kwargs)
    stopwatch = Stopwatch()
    for method in ("collect_rollouts", "train"):
        stopwatch.watch(model, method)
    begin = time.process_time()
    model.learn(N_STEPS)
    seconds = time.process_time() - begin
    n_steps = model.num_timesteps
    env.close()
    return {
        "steps_per_second": n_steps / seconds,
        "collect_steps_per_second": n_steps / stopwatch.spent["collect_rollouts"],
        "share_of_updates": stopwatch.spent["train"] / seconds,
        "peak_memory_mib": peak_memory_mib(),
    }


def update_of(hyperparams: dict[str, Any], n_envs: int) -> dict[str, int]:
    """
    :param hyperparams: An entry of GRPO
    :param n_envs: Number of copies
    :return: Steps of each copy, epochs and minibatches of its first updates, defaults included
    """
    from sb3_grpo import GRPO
    from sb3_grpo.cli.settings import known_settings

    defaults = known_settings(GRPO)
    passes = {name: hyperparams.get(name, defaults[name]) for name in ("n_epochs", "batch_size")}
    return {"n_steps": hyperparams.get("n_steps", 2048 // n_envs), **passes}


def summary(runs: list[Round]) -> dict[str, Any]:
    """
    :param runs: The rounds
    :return: Medians, and medians of the ratios within a round
    """
    rate = "steps_per_second"
    return {
        "median": medians(runs),
        "median_of_paired_ratios": {
            algo: {
                "training_vs_ppo": ratio(runs, algo, rate, "ppo"),
                "training_vs_ppo_with_the_same_updates": ratio(runs, algo, rate, SAME_UPDATES),
                "collection_vs_random_stepping": ratio(runs, algo, "collect_steps_per_second", "random", rate),
                "peak_memory_vs_ppo": ratio(runs, algo, "peak_memory_mib", "ppo"),
            }
            for algo in ("grpo", "dapo")
        },
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=SUBJECTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        env_id, n_envs = args.cell[0], int(args.cell[1])
        measured = random_stepping(env_id, n_envs) if args.one == "random" else training(args.one, env_id, n_envs)
        print(json.dumps(measured))
        return

    from benchmarks.common import read_result, write_result

    exists = (ROOT / "benchmarks" / "results" / OUTPUT).exists()
    result: dict[str, Any] = read_result(OUTPUT) if exists else {"steps": N_STEPS, "cells": []}
    cells = {(cell["env"], cell["n_envs"]): cell for cell in result["cells"]}
    for repeat, (env_id, n_envs) in product(range(args.repeats), CELLS):
        cell = cells.get((env_id, n_envs)) or {"env": env_id, "n_envs": n_envs, "runs": []}
        if len(cell["runs"]) > repeat:
            continue
        print(f"{repeat + 1}/{args.repeats} {env_id}, {n_envs} copies")
        cell["runs"].append(one_round(SUBJECTS, "benchmarks.speed", "--cell", env_id, n_envs))
        cells[env_id, n_envs] = cell | summary(cell["runs"])
        write_result(OUTPUT, result | {"cells": list(cells.values())})


if __name__ == "__main__":
    main()
