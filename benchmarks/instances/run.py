"""
Where does a shared start pay? ``python -m benchmarks.instances.run`` (resumes; ``--table``).

First the share: which part of the variance of outcomes, and of what the regression leaves over of them, lies between groups of
eight episodes with one start, for an untrained and a half-trained policy. Then training with shared and with unrelated starts,
on the four tasks with the largest share of a half-trained policy's outcomes and the two with the smallest, five seeds, updates
of the default size and of 1,024 steps of four copies.

Named before the second part ran: the gain of a task is the probability that a run with shared starts ends above one without
(pairs of seeds, mean of both sizes of update), a run's end is its mean return in 100 episodes with new seeds, and the question
is whether Spearman's correlation of share and gain over the six tasks is positive (exact permutation p, one-sided).
"""

import argparse
import json
import os
from itertools import permutations, product
from typing import Any

import numpy as np
import torch as th

from benchmarks import common
from benchmarks.instances.tasks import TASKS
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process
from sb3_grpo.classroom.compare.statistics import compare

RESULTS = common.RESULTS / "instances.jsonl"
N_GROUPS, GROUP_SIZE, N_EPISODES, N_SEEDS = 64, 8, 100, 5
# Copies, and steps of each in an update
SIZES: dict[str, dict[str, int]] = {"2,048 steps": {"n_envs": 16}, "1,024 steps": {"n_envs": 4, "n_steps": 256}}
STAGES = {"untrained": 0.0, "half-trained": 0.5}
DEVELOPMENT_SEED = 100


def made(task: str, seed: int, n_envs: int = 16, **settings: Any) -> Any:
    """
    :param task: One of ``TASKS``
    :param seed: Seed of the training
    :param n_envs: Number of copies
    :param settings: Arguments of GRPO
    :return: The model
    """
    from sb3_grpo import GRPO, make_group_env

    env = make_group_env(TASKS[task][0], n_envs, seed=seed)
    return GRPO("MlpPolicy", env, seed=seed, device="cpu", **settings)


def share(task: str, stage: str) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param stage: One of ``STAGES``
    :return: Shares of the variance between groups: of outcomes, and of the advantages of first steps
    """
    from sb3_grpo.common.advantages import discounted_returns_to_go
    from sb3_grpo.groups.group import start_share

    model = made(task, DEVELOPMENT_SEED)
    if STAGES[stage]:
        model.learn(int(STAGES[stage] * TASKS[task][1]))
    whole = made(task, DEVELOPMENT_SEED, n_groups=N_GROUPS, group_size=GROUP_SIZE, advantage="gae")
    whole.policy.load_state_dict(model.policy.state_dict())
    whole.train = lambda: None
    whole.learn(1)
    values = whole._fit_values(whole.batch)
    outcomes = whole.batch.outcomes
    found = {"outcomes": start_share(outcomes), "mean": outcomes.mean().item(), "leftover": float("nan")}
    if values is not None:
        residuals = values.residuals(whole.batch, whole.gamma)
        first = discounted_returns_to_go(residuals, whole.batch.mask, whole.gamma * whole.gae_lambda)[..., 0]
        found["leftover"] = start_share(first)
    return found


def learned(task: str, size: str, starts: str, seed: int) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param size: One of ``SIZES``
    :param starts: "shared" or "unrelated"
    :param seed: Seed of the training
    :return: Mean return after each quarter of the training
    """
    from sb3_contrib.common.maskable.evaluation import evaluate_policy

    from sb3_grpo import make_group_env

    model = made(task, seed, unrelated_starts=starts == "unrelated", **SIZES[size])
    returns = []
    for _ in range(4):
        model.learn(TASKS[task][1] // 4, reset_num_timesteps=False)
        # The same new seeds for all runs, which no training begins from
        env = make_group_env(TASKS[task][0], 20, seed=10_000_000)
        mean, _ = evaluate_policy(model, env, N_EPISODES, deterministic=True, use_masking=model.has_masks)
        returns.append(float(mean))  # type: ignore[arg-type]
        env.close()
    return {"returns": returns, "steps": model.num_timesteps}


def chosen() -> list[str]:
    """
    :return: The tasks of the second part: four with the largest share, two with the smallest
    """
    shares = {row["task"]: row["outcomes"] for row in common.rows(RESULTS) if row.get("stage") == "half-trained"}
    ranked = sorted(shares, key=lambda task: -shares[task])
    return [*ranked[:4], *ranked[-2:]]


def ends() -> dict[tuple[str, str, str], list[float]]:
    """
    :return: By task, size and starts: where the runs have ended
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in common.rows(RESULTS):
        if "starts" in row:
            found.setdefault((row["task"], row["size"], row["starts"]), []).append(row["returns"][-1])
    return found


def interval(cells: list[tuple[str, str]]) -> tuple[float, float]:
    """
    :param cells: Tasks and sizes
    :return: 95% bootstrap interval over seeds of the mean gain
    """
    known = ends()
    shared, unrelated = ([np.array(known[task, size, how]) for task, size in cells] for how in ("shared", "unrelated"))
    _, low, high = compare("shared", "unrelated", shared, unrelated).improvement
    return low, high


def gains() -> dict[tuple[str, str], float]:
    """
    :return: For each task and size, the probability that a run with shared starts ends above one without
    """
    known = ends()
    found = {}
    for task, size in product(TASKS, SIZES):
        shared, unrelated = (known.get((task, size, starts), []) for starts in ("shared", "unrelated"))
        if len(shared) == len(unrelated) == N_SEEDS:
            pairs = [(one > other) + 0.5 * (one == other) for one, other in product(shared, unrelated)]
            found[task, size] = float(np.mean(pairs))
    return found


def rank_correlation(shares: list[float], gained: list[float]) -> tuple[float, float]:
    """
    :param shares: Share of each task
    :param gained: Its gain
    :return: Spearman's rank correlation, and its exact one-sided permutation p
    """
    from scipy.stats import spearmanr

    rho = float(spearmanr(shares, gained).statistic)
    others = [spearmanr(shares, each).statistic for each in permutations(gained)]
    return rho, float(np.mean(np.array(others) >= rho - 1e-12))


def table() -> str:
    """
    :return: Both parts as tables in Markdown, and the correlation
    """
    found = {(row["task"], row["stage"]): row for row in common.rows(RESULTS) if "stage" in row}
    won = gains()
    ranked = sorted(TASKS, key=lambda task: -found[task, "half-trained"]["outcomes"] if (task, "half-trained") in found else 0)
    sizes = " | ".join(f"shared above unrelated, {size}" for size in SIZES)
    lines = [f"| task | outcomes, untrained | outcomes, half-trained | left by values | {sizes} |", "|---" * 6 + "|"]
    for task in ranked:
        if (task, "half-trained") not in found:
            continue
        untrained, trained = found[task, "untrained"], found[task, "half-trained"]
        parts = [untrained["outcomes"], trained["outcomes"], trained["leftover"], *(won.get((task, size)) for size in SIZES)]
        lines.append(f"| {task} | {' | '.join('' if part is None else f'{part:.2f}' for part in parts)} |")
    both = [task for task in ranked if all((task, size) in won for size in SIZES)]
    if len(both) > 2:
        shares = [found[task, "half-trained"]["outcomes"] for task in both]
        rho, p = rank_correlation(shares, [float(np.mean([won[task, size] for size in SIZES])) for task in both])
        mean, (low, high) = np.mean([*won.values()]), interval([*won])
        lines.append(
            f"\nSpearman's correlation {rho:.2f} (p = {p:.2f}, {len(both)} tasks); mean of the gains {mean:.2f} "
            f"({low:.2f} to {high:.2f})."
        )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="print the tables")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    if args.one:
        th.set_num_threads(1)
        job = json.loads(args.one)
        print(json.dumps(share(**job) if "stage" in job else learned(**job)))
        return

    def run(job: Job) -> dict[str, Any]:
        return in_process("benchmarks.instances.run", "--one", json.dumps(job))

    run_missing(RESULTS, [{"task": task, "stage": stage} for task, stage in product(TASKS, STAGES)], run, args.processes)
    jobs: list[Job] = [
        {"task": task, "size": size, "starts": starts, "seed": seed}
        for seed, task, size, starts in product(range(N_SEEDS), chosen(), SIZES, ("shared", "unrelated"))
    ]
    run_missing(RESULTS, jobs, run, args.processes)


if __name__ == "__main__":
    main()
