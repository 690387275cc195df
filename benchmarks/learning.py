"""
Final returns and learning curves over several seeds: ``python -m benchmarks.learning``.

Every (task, algorithm, seed) is a process of its own with one torch thread, and leaves one JSON file under
``benchmarks/results/learning``; what is there is not run again. ``--report`` only reads the files.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

RUNS = Path(__file__).resolve().parent / "results" / "learning"
BUDGETS = {"CartPole-v1": 100_000, "Acrobot-v1": 300_000, "LunarLander-v3": 500_000}
N_POINTS = 100


def run(env_id: str, algo: str, seed: int) -> dict[str, Any]:
    """
    Train and evaluate once.

    :param env_id: id of a registered environment
    :param algo: "ppo", "grpo" or "dapo"
    :param seed: Seed of everything
    :return: Curve, final returns, speed
    """
    import torch as th
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    from benchmarks.common import algorithm, command, evaluate, hyperparameters, machine

    th.set_num_threads(1)

    class Curve(BaseCallback):
        """Collect (environment steps, seconds, return) of every training episode."""

        def __init__(self) -> None:
            super().__init__()
            self.points: list[tuple[int, float, float]] = []
            self.begin = time.perf_counter()

        def _on_step(self) -> bool:
            if self.locals["dones"].any():
                seconds = time.perf_counter() - self.begin
                self.points += [
                    (self.num_timesteps, seconds, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info
                ]
            return True

    kwargs = hyperparameters(algo, env_id)
    configuration = {key: str(value) for key, value in kwargs.items()}
    n_envs = kwargs.pop("n_envs", 16)
    env = make_vec_env(env_id, n_envs=n_envs, seed=seed, env_kwargs={"render_mode": None})
    model = algorithm(algo)(env=env, seed=seed, device="cpu", **kwargs)
    curve = Curve()
    begin = time.perf_counter()
    model.learn(BUDGETS[env_id], callback=curve)
    seconds = time.perf_counter() - begin
    points = np.array(curve.points)
    steps = np.linspace(0, BUDGETS[env_id], N_POINTS + 1)[1:]
    return {
        "env": env_id,
        "algo": algo,
        "seed": seed,
        "hyperparameters": configuration,
        "n_envs": n_envs,
        "budget": BUDGETS[env_id],
        "steps": model.num_timesteps,
        "seconds": round(seconds, 2),
        "steps_per_second": round(model.num_timesteps / seconds),
        "final_returns": evaluate(model, env_id, seed),
        "curve_steps": steps.tolist(),
        "curve_returns": np.interp(steps, points[:, 0], _smooth(points[:, 2])).round(2).tolist(),
        "curve_seconds": np.interp(steps, points[:, 0], points[:, 1]).round(2).tolist(),
        "command": command(),
        "machine": machine(),
    }


def _smooth(values: np.ndarray, window: int = 20) -> np.ndarray:
    """Running mean over the last episodes."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def _path(env_id: str, algo: str, seed: int | str) -> Path:
    return RUNS / f"{env_id}_{algo}_{seed}.json"


def _load(env_id: str, algo: str) -> list[dict[str, Any]]:
    runs = [json.loads(path.read_text()) for path in RUNS.glob(_path(env_id, algo, "*").name)]
    return sorted(runs, key=lambda result: result["seed"])


def iqm_interval(scores: np.ndarray) -> tuple[float, float, float]:
    """
    :param scores: (seeds,) one score per run
    :return: Interquartile mean and its 95% bootstrap interval
    """
    from sb3_grpo.compare import statistics

    interval = statistics.iqm_interval([scores])
    return interval.value, interval.low, interval.high


def report(env_ids: Iterable[str], algos: Iterable[str]) -> list[dict[str, Any]]:
    """
    Summarise all runs that there are, print a table and write ``summary.json``.

    :param env_ids: Which environments
    :param algos: Which algorithms
    :return: A row for each (environment, algorithm)
    """
    rows = []
    for env_id, algo in itertools.product(env_ids, algos):
        runs = _load(env_id, algo)
        if not runs:
            continue
        finals = np.array([np.mean(result["final_returns"]) for result in runs])
        iqm, low, high = iqm_interval(finals)
        rows.append(
            {
                "env": env_id,
                "algo": algo,
                "hyperparameters": runs[0]["hyperparameters"],
                "budget": runs[0]["budget"],
                "seeds": [result["seed"] for result in runs],
                "final_mean": round(float(finals.mean()), 1),
                "final_iqm": round(iqm, 1),
                "iqm_95_interval": [round(low, 1), round(high, 1)],
                "final_of_each_seed": finals.round(1).tolist(),
                "auc": round(float(np.mean([np.mean(result["curve_returns"]) for result in runs])), 1),
            }
        )
    for row in rows:
        print(
            f"{row['env']:16} {row['algo']:5} n={len(row['seeds']):2} "
            f"mean {row['final_mean']:7.1f}  IQM {row['final_iqm']:7.1f} {row['iqm_95_interval']}  "
            f"AUC {row['auc']:7.1f}  {row['final_of_each_seed']}"
        )
    (RUNS / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--algo", nargs="+", default=["dapo", "grpo"], choices=["ppo", "grpo", "dapo"])
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to SEEDS-1 (tuning used seeds from 100 on)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only summarise what is there")
    parser.add_argument("--one", nargs=3, metavar=("ENV", "ALGO", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    if args.one:
        env_id, algo, seed = args.one
        _path(env_id, algo, seed).write_text(json.dumps(run(env_id, algo, int(seed))) + "\n")
        return
    if not args.report:
        todo = [
            (env_id, algo, seed)
            for env_id in args.env
            for algo in args.algo
            for seed in range(args.seeds)
            if not _path(env_id, algo, seed).exists()
        ]

        def start(job: tuple[str, str, int]) -> None:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.learning", "--one", *map(str, job)],
                check=True,
                cwd=RUNS.parents[2],
            )

        from tqdm import tqdm

        with ThreadPoolExecutor(args.jobs) as pool:
            for _ in tqdm(pool.map(start, todo), total=len(todo), desc="runs"):
                pass
    report(BUDGETS, ["ppo", "grpo", "dapo"])


if __name__ == "__main__":
    main()
