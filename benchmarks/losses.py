"""
Losses after DAPO: ``python -m benchmarks.losses`` (resumes; ``--table``; ``--unseen`` on tasks that chose nothing).

GRPO's defaults with another loss, and whole groups (four of eight, outcomes) with another one; five seeds, nothing tuned: each
loss has the bounds of its paper. A run's score is its mean return in 100 episodes with new seeds at the end, scaled to 0 for
random actions and 1 for the reference of the task. Sums are texts, which always have whole groups; there, it is the share of
right answers.

Named before it ran: a loss wins if the probability that a run with it ends above a run of its baseline (``clip``, ``clip,
groups``) has a 95% bootstrap interval above 0.5 over all tasks; with five seeds on five tasks, that takes about 0.6. What wins
is run once on those of the thirteen tasks of ``unseen`` that it is made for (20 episodes at the end, half of which last 1,000
steps).
"""

import argparse
import json
import os
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.utils import LinearSchedule

from benchmarks import common
from benchmarks.instances.tasks import Lake, Reversal, Tour, registered
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process
from benchmarks.unseen.tasks import TEST_2
from sb3_grpo.classroom.compare.statistics import compare, iqm

RESULTS = common.RESULTS / "losses.jsonl"
N_SEEDS, N_EPISODES = 5, 100


class Task(NamedTuple):
    """
    :param make: Makes a copy
    :param steps: Steps of a training
    :param low: Mean return of random actions
    :param high: Mean return of a good policy
    """

    make: Any
    steps: int
    low: float
    high: float


TASKS = {
    "CartPole": Task(registered("CartPole-v1"), 60_000, 22.0, 500.0),
    "LunarLander": Task(registered("LunarLander-v3"), 150_000, -180.0, 250.0),
    "HalfCheetah": Task(registered("HalfCheetah-v5"), 100_000, -280.0, 1500.0),
    "lakes": Task(Lake, 80_000, 0.04, 0.6),
    "tours": Task(Tour, 80_000, -6.3, -4.2),
    "reversal": Task(Reversal, 100_000, 1 / 64, 1.0),
    "sums": Task(None, 100_000, 0.0, 1.0),
}
# Of tasks that nothing was chosen on, those whose rewards are never negative
UNSEEN = {
    task.env_id: Task(task.make, task.timesteps, task.low, task.high)
    for task in TEST_2
    if task.low >= 0 and task.family != "MuJoCo"
}
EVERY = TASKS | UNSEEN
GROUPS: dict[str, Any] = {"n_groups": 4, "group_size": 8, "advantage": "outcome", "gamma": 1.0, "n_steps": None}
ARMS: dict[str, dict[str, Any]] = {
    "clip": {},
    "clip-higher": {"clip_range_high": 0.28},
    "cispo": {"policy_loss": "cispo", "clip_range": 1.0, "clip_range_high": 4.0},
    "dppo": {"policy_loss": "dppo"},
    "sapo": {"policy_loss": "sapo"},
    "importance sampling": {"policy_loss": "importance_sampling"},
    "importance sampling, 1 epoch": {"policy_loss": "importance_sampling", "n_epochs": 1},
    "clip, 4 epochs": {"n_epochs": 4},
    "clip, groups": GROUPS,
    "target policy, groups": {**GROUPS, "policy_loss": "target_policy", "batch_size": None, "loss_average": 1.0},
    "maxrl, groups": {**GROUPS, "advantage": "maxrl"},
    "gspo, groups": {**GROUPS, "ratio_level": "episode", "clip_range": 3e-4, "clip_range_high": 4e-4},
    "dynamic sampling, groups": {**GROUPS, "dynamic_sampling": True},
}
# What wins, and its baseline
RUN_UNSEEN = ("clip, groups", "maxrl, groups")


def baseline(arm: str, task: str) -> str:
    """
    :param arm: One of ``ARMS``
    :param task: One of ``TASKS``
    :return: What it is compared with; sums have whole groups anyway
    """
    return "clip, groups" if arm.endswith("groups") and task != "sums" else "clip"


def fits(arm: str, task: str) -> bool:
    """
    :param arm: One of ``ARMS``
    :param task: One of ``TASKS``
    :return: Whether the loss is made for the task: DPPO for probabilities, MaxRL for returns that are not negative
    """
    if arm == "dppo":
        return task != "HalfCheetah"
    if arm in ("clip, groups", "clip, 4 epochs"):
        return task != "sums"  # it is clip
    return arm != "maxrl, groups" or task in ("CartPole", "lakes", "reversal", "sums")


def sums(arm: str, seed: int) -> dict[str, Any]:
    """
    :param arm: One of ``ARMS``
    :param seed: Seed of the training
    :return: Share of the one-digit sums that the small transformer of ``sb3-grpo text`` gets right at the end
    """
    from sb3_grpo import GRPO
    from sb3_grpo.cli.text import LESSONS, N_ENVS, NETWORK, SETTINGS, WARM_START_BATCH
    from sb3_grpo.envs import ArithmeticTask, VerifierTextVecEnv
    from sb3_grpo.text.policies import TokenPolicy

    lesson, task = LESSONS[1], ArithmeticTask(1)
    settings = {**SETTINGS, **lesson.settings, **ARMS[arm]} | {key: lesson.settings[key] for key in ("group_size", "n_groups")}
    settings["learning_rate"] = LinearSchedule(lesson.learning_rate, 0.0, 1.0)
    env = VerifierTextVecEnv(N_ENVS, seed=seed, task=task, max_answer_tokens=4)
    model = GRPO(TokenPolicy, env, policy_kwargs=NETWORK, seed=seed, device="cpu", **settings)
    policy: TokenPolicy = model.policy  # type: ignore[assignment]
    policy.pretrain(task.worked_examples(lesson.examples, seed=seed), n_epochs=lesson.passes, batch_size=WARM_START_BATCH)
    model.learn(TASKS["sums"].steps)
    items = [task.item(index) for index in range(task.n_items)]
    answers = policy.generate([item.prompt for item in items])
    right = [answer == item.answer for answer, item in zip(answers, items, strict=True)]
    return {"mean_return": float(np.mean(right)), "steps": model.num_timesteps}


def run(arm: str, task: str, seed: int) -> dict[str, Any]:
    """
    :param arm: One of ``ARMS``
    :param task: One of ``TASKS``
    :param seed: Seed of the training
    :return: Its mean return at the end
    """
    from sb3_contrib.common.maskable.evaluation import evaluate_policy

    from sb3_grpo import GRPO, make_group_env

    if task == "sums":
        return sums(arm, seed)
    env = make_group_env(EVERY[task].make, 16, seed=seed)
    model = GRPO("MlpPolicy", env, seed=seed, device="cpu", **ARMS[arm]).learn(EVERY[task].steps)
    test = make_group_env(EVERY[task].make, 20, seed=10_000_000)
    n_episodes = 20 if task in UNSEEN else N_EPISODES
    mean, _ = evaluate_policy(model, test, n_episodes, deterministic=True, use_masking=model.has_masks)  # type: ignore[arg-type]
    return {"mean_return": float(mean), "steps": model.num_timesteps}  # type: ignore[arg-type]


def scores() -> dict[tuple[str, str], np.ndarray]:
    """
    :return: Scores of the seeds of each arm and task that is complete
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in common.rows(RESULTS):
        low, high = EVERY[row["task"]].low, EVERY[row["task"]].high
        score = float(np.clip((row["mean_return"] - low) / (high - low), -0.5, 1.1))
        found.setdefault((row["arm"], row["task"]), {})[row["seed"]] = score
    return {key: np.array([*each.values()]) for key, each in found.items() if len(each) == N_SEEDS}


def table(every: dict[str, Task], arms: Iterable[str]) -> str:
    """
    :param every: Tasks
    :param arms: Some of ``ARMS``
    :return: Interquartile means, and the probability of ending above the baseline with its interval, as a table in Markdown
    """
    found = scores()
    lines = ["| loss | " + " | ".join(every) + " | ends above its baseline |", "|---" * (len(every) + 2) + "|"]
    for arm in arms:
        cells = [f"{iqm(found[arm, task]):.2f}" if (arm, task) in found else "" for task in every]
        tasks = [task for task in every if (arm, task) in found and (baseline(arm, task), task) in found]
        above = ""
        if tasks and arm not in ("clip", "clip, groups"):
            firsts = [found[arm, task] for task in tasks]
            seconds = [found[baseline(arm, task), task] for task in tasks]
            point, low, high = compare(arm, "its baseline", firsts, seconds).improvement
            above = f"{point:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {arm} | {' | '.join(cells)} | {above} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--unseen", action="store_true", help="the tasks of unseen")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    every, arms = (UNSEEN, RUN_UNSEEN) if args.unseen else (TASKS, tuple(ARMS))
    if args.table:
        print(table(every, arms))
    elif args.one:
        th.set_num_threads(1)
        print(json.dumps(run(**json.loads(args.one))))
    else:
        runs = product(range(N_SEEDS), every, arms)
        jobs: list[Job] = [
            {"arm": arm, "task": task, "seed": seed} for seed, task, arm in runs if args.unseen or fits(arm, task)
        ]
        run_missing(RESULTS, jobs, lambda job: in_process("benchmarks.losses", "--one", json.dumps(job)), args.processes)


if __name__ == "__main__":
    main()
