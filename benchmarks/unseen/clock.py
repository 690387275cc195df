"""
Steps per CPU second on the tasks of a list: ``python -m benchmarks.unseen.clock test_2``.

Runs of a list are made at different times, next to other work. Equal seconds need one clock: here, all algorithms learn a task
in turn, in one process with one torch thread, ``N_STEPS`` steps after ``N_FIRST``: two updates after the first. Several times;
the results are appended to ``benchmarks/results/unseen_speed.jsonl``, and what is there already is not repeated.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks import common
from benchmarks.runs import origin
from benchmarks.timing import in_process
from benchmarks.unseen.run import NORMALIZED, OURS, PEERS, RESULTS, make_model, rows
from benchmarks.unseen.tasks import LISTS, Task

SPEEDS = RESULTS.with_name("unseen_speed.jsonl")
# An update of ours and of PPO with 16 copies begins with 2,048 steps, as that of PPO
N_FIRST, N_STEPS = 2_048, 4_096
N_REPEATS = 3


def measure(task: Task, algos: Sequence[str], seed: int) -> dict[str, float]:
    """
    :param task: What to learn
    :param algos: The algorithms, in turn
    :param seed: Random seed
    :return: Steps per CPU second of each
    """
    rates = {}
    for algo in algos:
        model = make_model(task, algo, seed, {})
        model.learn(N_FIRST)
        n_before, begun = model.num_timesteps, time.process_time()
        model.learn(N_STEPS, reset_num_timesteps=False)
        rates[algo] = round((model.num_timesteps - n_before) / (time.process_time() - begun), 1)
        model.get_env().close()
    return rates


def rates(name: str) -> dict[tuple[str, str], float]:
    """
    :param name: Name of a list
    :return: Steps per CPU second by task and algorithm, the median of the repeats
    """
    found = defaultdict(list)
    for row in common.rows(SPEEDS):
        if row["list"] == name:
            for algo, rate in row["rates"].items():
                found[row["task"], algo].append(rate)
    return {key: float(np.median(of_one)) for key, of_one in found.items()}


def main() -> None:
    """Measure what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", choices=LISTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    tasks = {task.env_id: task for task in LISTS[args.list]}
    if args.one:
        env_id, repeat = args.one
        with_runs = {row["algo"] for row in rows() if row["list"] == args.list}
        algos = [algo for algo in (*PEERS, *OURS) if algo in with_runs]
        if not tasks[env_id].is_continuous:
            algos = [algo for algo in algos if algo not in NORMALIZED.values()]
        print(json.dumps(measure(tasks[env_id], algos, int(repeat))))
        return
    made, done = origin(), {(row["list"], row["task"], row["repeat"]) for row in common.rows(SPEEDS)}
    jobs: list[dict[str, Any]] = [
        {"list": args.list, "task": env_id, "repeat": repeat} for repeat in range(N_REPEATS) for env_id in tasks
    ]
    for job in track([job for job in jobs if tuple(job.values()) not in done], args.list):
        measured = in_process("benchmarks.unseen.clock", args.list, "--one", job["task"], job["repeat"])
        with SPEEDS.open("a") as file:
            file.write(json.dumps(job | {"rates": measured} | made) + "\n")


if __name__ == "__main__":
    main()
