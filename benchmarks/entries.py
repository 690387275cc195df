"""
Do entries of ``zoo_configs`` beat the defaults? ``python -m benchmarks.entries`` (resumes; ``--tasks``).

RL Zoo trains GRPO and DAPO with their entry, and with the defaults and the wrappers of the entry, for the same number of
steps. A run's score is its mean return in 100 episodes at the end. Named before the first run: an entry stays if the
probability that a run with it ends above a run with the defaults has a 95% bootstrap interval above 0.5, over five seeds. An
entry that does not lead after three is given up: this rule is younger than LunarLander's three seeds and two of Hopper,
Walker2d, HalfCheetah and MiniGrid.

The entries of MiniGrid had the same values: three stand for the others, and, decided after their first results, one that they
lose is enough. All MinAtar games are tested. GRPO's first entries of LunarLander-v3, Hopper and Walker2d had values that were
chosen for DAPO, as had both of LunarLanderContinuous: they were to be tested only if DAPO's stayed, and went with them. The
groups of Acrobot's were chosen on seeds 200 to 207, which include those of this test. Ant's entry is younger than the other
results, and the only one that was tested there. HalfCheetah's is the second one that ends above the defaults, with one value
in place of eight. GRPO's of Hopper and DAPO's of MinAtar Breakout come from searches (``benchmarks.tuning``);
``entry_parts.csv`` has what parts of the latter bring. An entry that has gone can be found in the commit that its rows name.
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks import common
from benchmarks.blocks import Writers, markdown, steps_text
from benchmarks.runs import Job, run_missing
from benchmarks.tuning import N_EPISODES, final_return, zoo
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import compare, iqm, probability_of_improvement

RESULTS = common.RESULTS / "entries.jsonl"
ALGOS, ARMS, SEEDS = ("grpo", "dapo"), ("entry", "defaults"), range(200, 205)
# Seeds after which an entry that does not lead is given up
FEWEST = 3
# What the environment needs, and what else no entry is tested for
_ENVIRONMENT = ("env_wrapper", "frame_stack", "policy")
_NOT_TESTED = {*_ENVIRONMENT, "n_envs", "n_timesteps"}


class Task(NamedTuple):
    """
    :param steps: Steps of a training
    :param package: What registers it, if it is not Gymnasium
    :param algos: Algorithms whose entry is tested
    """

    steps: int
    package: str | None = None
    algos: tuple[str, ...] = ALGOS


TASKS = {
    "Acrobot-v1": Task(300_000),
    "Pendulum-v1": Task(100_000),
    "MountainCarContinuous-v0": Task(100_000),
    "LunarLander-v3": Task(300_000, algos=("dapo",)),
    "Reacher-v5": Task(100_000),
    "Hopper-v5": Task(300_000),
    "Walker2d-v5": Task(300_000, algos=("dapo",)),
    "HalfCheetah-v5": Task(150_000),
    "Ant-v5": Task(150_000),
    "MiniGrid-Empty-Random-5x5-v0": Task(50_000, "minigrid"),
    "MiniGrid-DoorKey-5x5-v0": Task(100_000, "minigrid"),
    "MiniGrid-Unlock-v0": Task(100_000, "minigrid"),
    "MinAtar/Asterix-v1": Task(300_000, "sb3_grpo.envs.minatar", ("grpo",)),
    "MinAtar/Breakout-v1": Task(300_000, "sb3_grpo.envs.minatar"),
    "MinAtar/Freeway-v1": Task(300_000, "sb3_grpo.envs.minatar", ("grpo",)),
    "MinAtar/Seaquest-v1": Task(300_000, "sb3_grpo.envs.minatar", ("grpo",)),
    "MinAtar/SpaceInvaders-v1": Task(300_000, "sb3_grpo.envs.minatar", ("grpo",)),
}


def entries(algo: str) -> dict[str, Any]:
    """
    :param algo: Name of an algorithm
    :return: Its entries in ``zoo_configs``
    """
    loaded: dict[str, Any] = yaml.safe_load((common.ROOT / "zoo_configs" / f"{algo}.yml").read_text())
    return loaded


def train(task: str, algo: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param arm: One of ``ARMS``
    :param seed: Seed of the training
    :param folder: Where files go
    :return: Mean return at the end
    """
    found = entries(algo)
    entry = found[task]
    if arm == "defaults":
        entry = {**found["default"], **{key: entry[key] for key in _ENVIRONMENT if key in entry}}
    name, steps = f"{task.replace('/', '-')}-{algo}-{arm}-{seed}", TASKS[task].steps
    logs = folder / name
    shutil.rmtree(logs, ignore_errors=True)
    evaluation = ("--eval-freq", steps, "--eval-episodes", N_EPISODES, "--n-eval-envs", 10)
    zoo(name, algo, task, entry, folder, logs, "-n", steps, "--seed", seed, *evaluation, package=TASKS[task].package)
    return {"mean_return": final_return(logs)}


def scores(task: str, algo: str, arm: str, seeds: Sequence[int]) -> np.ndarray:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param arm: One of ``ARMS``
    :param seeds: Some of ``SEEDS``
    :return: (n,) mean returns of their runs so far
    """
    wanted = {"task": task, "algo": algo, "arm": arm}
    found = [row for row in common.rows(RESULTS) if wanted.items() <= row.items() and row["seed"] in seeds]
    return np.array([row["mean_return"] for row in found])


def has_ended(task: str, algo: str) -> bool:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :return: Whether the first seeds are complete, and the entry does not lead
    """
    entry, defaults = (scores(task, algo, arm, SEEDS[:FEWEST]) for arm in ARMS)
    return len(entry) == len(defaults) == FEWEST and probability_of_improvement(entry, defaults) <= 0.5


def table() -> str:
    """
    :return: Interquartile means of each entry and of the defaults, and which ends above, as a table in Markdown
    """
    lines = []
    for task, (steps, _, algos) in TASKS.items():
        for algo in algos:
            found = [scores(task, algo, arm, SEEDS) for arm in ARMS]
            sizes = {len(each) for each in found}
            if sizes == {len(SEEDS)} or (sizes == {FEWEST} and has_ended(task, algo)):
                ends = [f"{iqm(each):.4g}" for each in found]
                above = interval_text(compare(*ARMS, found[:1], found[1:]).improvement)
                lines.append([f"{task}, {steps_text(steps)}, {algo.upper()}", str(len(found[0])), *ends, above])
    return markdown(["", "seeds", *ARMS, "the entry ends above"], lines)


WRITERS: Writers = {"entries": table}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("entries"))
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    known = {algo: entries(algo) for algo in ALGOS}
    for seeds in (SEEDS[:FEWEST], SEEDS[FEWEST:]):
        jobs: list[Job] = [
            {"task": task, "algo": algo, "arm": arm, "seed": seed}
            for seed, task, arm in product(seeds, args.tasks, ARMS)
            for algo in TASKS[task].algos
            if {*known[algo].get(task, ())} - _NOT_TESTED and not has_ended(task, algo)
        ]
        run_missing(RESULTS, jobs, lambda job: train(**job, folder=args.folder.resolve()), args.processes)


if __name__ == "__main__":
    main()
