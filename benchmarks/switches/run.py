"""
What each of DAPO's changes is worth: ``python -m benchmarks.switches.run``.

GRPO (paper), DAPO, and combinations in between. Each run is a process with one torch thread; its row is appended to
``benchmarks/results/switches.jsonl`` when it ends. Continues where it was interrupted.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from statistics import fmean
from typing import Any

from rich.progress import Progress
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import common
from benchmarks.runs import origin
from benchmarks.switches.tasks import N_EPISODES, N_POINTS, TASKS, WARM_START_PASSES, Arm, arguments, environments, sums

RESULTS = common.RESULTS / "switches.jsonl"
N_SEEDS = 5


class Scores(BaseCallback):
    """
    The score of the sampling policy, at the beginning and after equal shares of the budget.

    :param score: Function of a model
    :param timesteps: The budget
    """

    def __init__(self, score: Callable[[Any], float], timesteps: int):
        super().__init__()
        self.score, self.timesteps = score, timesteps
        self.scores: list[float] = []
        # Per update: the share of dead groups, and of learned-from episodes that a time limit cut off
        self.dead: list[float] = []
        self.cut_off: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.dead.append(self.model.logger.name_to_value["group/dead_fraction"])
        if self.model.batch is not None:
            self.cut_off.append(self.model.batch.truncated.float().mean().item())
        # One policy took all steps of the rollout (except in episodes begun ahead of time)
        reached = min(self.num_timesteps * N_POINTS // self.timesteps, N_POINTS - 1) + 1
        if reached > len(self.scores):
            self.scores += [round(self.score(self.model), 3)] * (reached - len(self.scores))


def learn(name: str, arm: Arm, seed: int) -> dict[str, Any]:
    """
    :param name: One of ``TASKS``
    :param arm: The switches that are on
    :param seed: Random seed
    :return: The row
    """
    import torch as th
    from stable_baselines3.common.utils import set_random_seed

    from sb3_grpo import GRPO

    th.set_num_threads(1)
    begun, task = time.process_time(), TASKS[name]
    env, score = environments(name, seed)
    policy = "TokenPolicy" if task.is_text else "MlpPolicy"
    model = GRPO(policy, env, seed=seed, device="cpu", stats_window_size=N_EPISODES, **arguments(task, arm))
    # A reference policy draws random numbers, too: training begins identically with and without it
    set_random_seed(seed)
    if task.is_text:
        model.policy.pretrain(sums().worked_examples(100, seed=seed), n_epochs=WARM_START_PASSES, batch_size=32)
    callback = Scores(score, task.timesteps)
    model.learn(task.timesteps, callback=callback)
    return {
        "task": name,
        "on": arm,
        "seed": seed,
        "scores": [*callback.scores, round(score(model), 3)],
        "dead": round(fmean(callback.dead), 3),
        "cut_off": round(fmean(callback.cut_off), 3),
        "updates": len(callback.dead),
        "seconds": round(time.process_time() - begun, 1),
    }


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """
    :param row: A run
    :return: What distinguishes it from other runs
    """
    return row["task"], tuple(row["on"]), row["seed"]


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    made, done = origin(), {key(row) for row in common.rows(RESULTS)}
    jobs = [(name, arm, seed) for name, seed in product(args.tasks, range(N_SEEDS)) for arm in TASKS[name].arms]
    jobs = [job for job in jobs if job not in done]
    # Every process is a fork of one that has imported everything
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.switches.run", "sb3_grpo", "stable_baselines3.common.evaluation"])
    with Progress() as progress, ProcessPoolExecutor(args.processes, context, max_tasks_per_child=1) as pool:
        bar = progress.add_task("runs", total=len(jobs))
        for ended in as_completed([pool.submit(learn, *job) for job in jobs]):
            with RESULTS.open("a") as file:
                file.write(json.dumps(ended.result() | made) + "\n")
            progress.advance(bar)


if __name__ == "__main__":
    main()
