"""
A million steps of MuJoCo: ``python -m benchmarks.million`` (resumes; ``--tasks``, ``--arms``).

GRPO and DAPO with their defaults, and PPO with RL Zoo's hyperparameters, and with the copies, minibatches and learning rate of
ours and with ``VecNormalize``; GRPO and PPO also with a small initial standard deviation, DAPO with a learning rate that falls
to 0. Twenty evaluations of ten episodes, trained by RL Zoo. Hyperparameters were chosen without the three seeds.
"""

import argparse
import os
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.blocks import Writers, markdown, picture
from benchmarks.entries import entries
from benchmarks.figures import draw_curves, label
from benchmarks.runs import Job, run_missing
from benchmarks.tuning import zoo
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

RESULTS = common.RESULTS / "million.jsonl"
TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
STEPS, SEEDS = 1_000_000, range(300, 303)
DEFAULTS = {"n_envs": 16, "policy": "MlpPolicy"}
OURS = {**DEFAULTS, "n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": 0.001, "normalize": True}
SMALL_STD = {"policy_kwargs": "dict(log_std_init=-2)"}
# Name of the algorithm, and its hyperparameters: without any, those of the RL Zoo
ARMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "grpo": ("grpo", DEFAULTS),
    "dapo": ("dapo", DEFAULTS),
    "PPO, RL Zoo": ("ppo", None),
    "PPO, 16 envs": ("ppo", OURS),
    "GRPO, std 0.14": ("grpo", DEFAULTS | SMALL_STD),
    "PPO, 16 envs, std 0.14": ("ppo", OURS | SMALL_STD),
    "DAPO, falling rate": ("dapo", DEFAULTS | {"learning_rate": "lin_0.001"}),
}


def tenths(log: str, value: str) -> list[float]:
    """
    :param log: What a training has printed
    :param value: One of the values in it
    :return: Its mean in each tenth of the updates
    """
    values = [float(each) for each in re.findall(rf"\b{value} +\| (\S+)", log)]
    return [float(f"{part.mean():.3g}") for part in np.array_split(values, 10)]


def train(task: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param arm: One of ``ARMS``
    :param seed: Seed of the training
    :param folder: Where files go
    :return: Steps, mean returns and lengths of the evaluations; size of the updates and standard deviation in each tenth
    """
    algo, entry = ARMS[arm]
    name = f"{task}-{list(ARMS).index(arm)}-{seed}"
    logs, printed = folder / name, folder / f"{name}.txt"
    shutil.rmtree(logs, ignore_errors=True)
    printed.unlink(missing_ok=True)
    options = ("-n", STEPS, "--seed", seed, "--eval-freq", STEPS // 20, "--eval-episodes", 10, "--n-eval-envs", 10)
    zoo(name, algo, task, {**(entry or entries(algo)[task]), "n_timesteps": STEPS}, folder, logs, *options)
    [path] = logs.glob("*/*/evaluations.npz")
    found = np.load(path)
    shutil.rmtree(logs)
    curve = {"returns": found["results"].mean(1).round(2).tolist(), "lengths": found["ep_lengths"].mean(1).tolist()}
    updates = {name: tenths(printed.read_text(), name) for name in ("approx_kl", "std")}
    return {"steps": found["timesteps"].tolist(), **curve, **updates}


def curves() -> str:
    """
    :return: The curves so far, and a row for each arm, in Markdown: of a task when all its seeds are there
    """
    runs: dict[tuple[str, str], list[Any]] = {each: [] for each in product(TASKS, ARMS)}
    for row in common.rows(RESULTS):
        runs[row["task"], row["arm"]].append(row)
    complete = {each: found for each, found in runs.items() if len(found) == len(SEEDS)}
    tasks = [task for task in TASKS if any(task == name for name, _ in complete)]
    arms = [arm for arm in ARMS if any(arm == name for _, name in complete)]
    drawn: dict[str, list[Any]] = {arm: [] for arm in arms}
    lines = []
    for arm in arms:
        line = [label(arm)]
        for task in tasks:
            found = complete.get((task, arm))
            if found is None:
                drawn[arm].append(None)
                line.append("")
                continue
            # The last evaluation of a run that ends with its last rollout may be missing in another one
            n = min(len(row["steps"]) for row in found)
            returns = np.array([row["returns"][:n] for row in found])
            drawn[arm].append((np.array(found[0]["steps"][:n]), iqm_curve(returns)))
            line.append(interval_text(iqm_interval([returns[:, -1]])))
        lines.append(line)
    draw_curves("million", tasks, drawn)
    alt = f"Return over a million steps of {'; '.join(map(label, arms))} on {', '.join(tasks)}"
    caption = (
        "Three seeds: IQM and 95% bootstrap interval, which for three are mean and range, of deterministic evaluations in ten "
        "episodes. Table: the last one"
    )
    table = markdown(["", *tasks], lines)
    return f"{picture('million', alt, caption)}\n\n{table}"


WRITERS: Writers = {"million": curves}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("million"))
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    jobs: list[Job] = [{"task": task, "arm": arm, "seed": seed} for seed, task, arm in product(SEEDS, args.tasks, args.arms)]
    run_missing(RESULTS, jobs, lambda job: train(**job, folder=args.folder.resolve()), args.processes)


if __name__ == "__main__":
    main()
