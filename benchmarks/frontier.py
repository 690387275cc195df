"""
Tasks with a distant reward: ``python -m benchmarks.frontier``.

PPO and TRPO from Stable-Baselines3, DAPO, and DAPO with ``FrontierStarts`` (``examples/frontier_starts.py``), five seeds each.
Steps of scouts count.
Each run is a process with one torch thread; its row is appended to ``benchmarks/results/frontier.jsonl`` when it ends.
Continues where it was interrupted, and writes ``docs/results/frontier.md`` from the existing rows (``--page``: only that).
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from rich.progress import Progress

from benchmarks.unseen.run import EVALUATED_AT, EVALUATION_SEED, ROOT, Evaluate, origin, rows
from benchmarks.unseen.tasks import Task

RESULTS = ROOT / "benchmarks" / "results" / "frontier.jsonl"
PAGE = ROOT / "docs" / "results" / "frontier.md"
ARMS = {"ppo": "PPO", "trpo": "TRPO", "dapo": "DAPO", "frontier": "DAPO, `FrontierStarts`"}
N_SEEDS = 5
N_FINAL_EPISODES = 100


class Corridor(gym.Env[int, int]):
    """
    A reward of 1 at the end of ``length`` places. At the other end is a wall: steps against it have no effect.

    :param length: How many steps away the reward is
    """

    def __init__(self, length: int = 40):
        self.length, self.place = length, 0
        self.observation_space: Any = gym.spaces.Discrete(length + 1)
        self.action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place = max(self.place + (1 if action else -1), 0)
        at_end = self.place == self.length
        return self.place, float(at_end), at_end, False, {}

    def get_state(self) -> int:
        return self.place

    def set_state(self, state: int) -> None:
        self.place = state


class Distant(NamedTuple):
    """
    :param task: What to learn; a run has solved it if its return is at least ``high``
    :param norm: Whether all algorithms normalise observations
    """

    task: Task
    norm: bool = False

    def make(self, **kwargs: Any) -> gym.Env:
        """
        :param kwargs: Arguments for ``gym.make``
        :return: The environment
        """
        if self.task.env_id == "Corridor":
            return gym.wrappers.TimeLimit(Corridor(), 100)
        return self.task.make(**kwargs)


TASKS = {
    each.task.env_id: each
    for each in (
        Distant(Task("Corridor", 50_000, 0.0, 0.9, "toy text")),
        Distant(Task("FrozenLake8x8-v1", 150_000, 0.005, 0.6, "toy text")),
        # Solved according to Gymnasium. The velocity is at most 0.07
        Distant(Task("MountainCar-v0", 100_000, -200.0, -110.0, "classic control"), norm=True),
        Distant(Task("MiniGrid-DoorKey-8x8-v0", 500_000, 0.0, 0.8, "MiniGrid"), norm=True),
        Distant(Task("MiniGrid-MultiRoom-N4-S5-v0", 500_000, 0.0, 0.6, "MiniGrid"), norm=True),
    )
}


def learn(distant: Distant, arm: str, seed: int) -> dict[str, Any]:
    """
    :param distant: What to learn
    :param arm: One of ``ARMS``
    :param seed: Random seed
    :return: The row
    """
    import sb3_contrib
    import stable_baselines3
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    import sb3_grpo
    from examples.frontier_starts import FrontierStarts

    th.set_num_threads(1)
    gym.logger.min_level = gym.logger.ERROR
    eval_env: VecEnv = make_vec_env(distant.make, 10, seed=EVALUATION_SEED + seed)
    kwargs: dict[str, Any] = {}
    if arm in ("ppo", "trpo"):
        env: VecEnv = make_vec_env(distant.make, 1, seed=seed)
        if distant.norm:
            env = VecNormalize(env, norm_reward=False)
            eval_env = VecNormalize(eval_env, training=False, norm_reward=False)
        cls: Any = stable_baselines3.PPO if arm == "ppo" else sb3_contrib.TRPO
    else:
        env, cls = sb3_grpo.make_group_env(distant.make, 16, seed=seed), sb3_grpo.DAPO
        if distant.norm:
            kwargs["policy_kwargs"] = {"normalize_observations": True}
        if arm == "frontier":
            kwargs["start_sampler"] = FrontierStarts(distant.make)
    model = cls("MlpPolicy", env, seed=seed, device="cpu", **kwargs)
    evaluate = Evaluate(eval_env, [share * distant.task.timesteps for share in EVALUATED_AT])
    model.learn(distant.task.timesteps, callback=evaluate)
    evaluate.note(N_FINAL_EPISODES)
    return {"steps": evaluate.steps, "seconds": evaluate.seconds, "returns": evaluate.returns}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """
    :param row: A run
    :return: What distinguishes it from other runs
    """
    return row["task"], row["arm"], row["seed"]


def page(found: list[dict[str, Any]]) -> str:
    """
    :param found: All runs so far
    :return: The page
    """
    runs = {key(row): row for row in found}
    names = [name for name in TASKS if any(row["task"] == name for row in found)]

    def cells(name: str, show: Any) -> str:
        of_arms = ([runs[name, arm, seed] for seed in range(N_SEEDS) if (name, arm, seed) in runs] for arm in ARMS)
        return " | ".join(show(of_arm) if of_arm else "" for of_arm in of_arms)

    def table(show: Any) -> str:
        lines = [f"| | {' | '.join(ARMS.values())} |", f"|---{'|---' * len(ARMS)}|"]
        titles = {name: f"{name}, {TASKS[name].task.timesteps // 1000}k, {TASKS[name].task.high:g}" for name in names}
        return "\n".join([*lines, *(f"| {titles[name]} | {cells(name, show)} |" for name in names)])

    def solved(of_arm: list[dict[str, Any]]) -> str:
        return f"{sum(row['returns'][-1] >= TASKS[row['task']].task.high for row in of_arm)} of {len(of_arm)}"

    def seeds(of_arm: list[dict[str, Any]]) -> str:
        return ", ".join(f"{row['returns'][-1]:.3g}" for row in of_arm)

    def seconds(of_arm: list[dict[str, Any]]) -> str:
        return f"{np.median([row['seconds'][-1] for row in of_arm]):.0f}"

    made = sorted({f"{row['commit']}, {row['machine']}" for row in found})
    return "\n".join(
        [
            "# Rewards that are far away\n",
            table(solved) + "\n",
            "*Runs that solved the task, i.e. whose mean return of 100 deterministic episodes from ordinary starts reaches "
            "the number after the budget of steps. Scouts' steps count. Empty: not run.*\n",
            "## Seed by seed\n",
            table(seeds) + "\n",
            "*Mean return of the same episodes.*\n",
            "## Seconds\n",
            table(seconds) + "\n",
            "*Median CPU seconds.*\n",
            "## How it was made\n",
            "`python -m benchmarks.frontier`: the defaults of each class; on MountainCar and MiniGrid all normalise "
            "observations. "
            f"Seeds 0 to {N_SEEDS - 1}; earlier trials used other seeds. Commit and processor: {'; '.join(made)}. "
            "`FrontierStarts` is `examples/frontier_starts.py`: [how it works](../guide/starts.md#starts-at-the-frontier).\n",
        ]
    )


def main() -> None:
    """Run what has no row yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", action="store_true", help="only the page")
    parser.add_argument("--one", nargs=3, help="one run, printed (development: seeds from 100 on)")
    args = parser.parse_args()
    if args.one:
        name, arm, seed = args.one
        print(json.dumps(learn(TASKS[name], arm, int(seed))))
        return
    done = {key(row) for row in rows(RESULTS)}
    jobs = [{"task": name, "arm": arm, "seed": seed} for seed, name, arm in product(range(N_SEEDS), args.tasks, args.arms)]
    jobs = [] if args.page else [job for job in jobs if key(job) not in done]
    made, lock = origin(), Lock()

    def run(job: dict[str, Any]) -> None:
        one = ["--one", job["task"], job["arm"], str(job["seed"])]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.frontier", *one]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        with lock:
            progress.advance(bar)
            if ended.returncode:
                progress.print(f"{job}: {ended.stderr.strip().splitlines()[-1]}")
                return
            with RESULTS.open("a") as file:
                file.write(json.dumps(job | json.loads(ended.stdout.splitlines()[-1]) | made) + "\n")

    with Progress() as progress, ThreadPoolExecutor(args.processes) as pool:
        bar = progress.add_task("frontier", total=len(jobs))
        list(pool.map(run, jobs))
    if rows(RESULTS):
        from benchmarks.pages import list_pages  # with Matplotlib, which the runs need not load

        PAGE.write_text(page(rows(RESULTS)), encoding="utf-8")
        list_pages()


if __name__ == "__main__":
    main()
