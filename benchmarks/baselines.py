"""
What do updates in steps compare with: the group's mean, the batch's, or nothing? ``python -m benchmarks.baselines``.

GRPO with its defaults on the development tasks. Its advantages are generalised advantage estimates with the values of a
regression, minus a mean: that of the group, whose members share a start or do not, that of all steps of the update, or 0. Each
run is a process with one torch thread; its row is appended to ``benchmarks/results/baselines.jsonl`` when it ends. What has a
row is not run again. ``--table`` prints the table of the page.
"""

import argparse
import json
import os
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import common
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process
from benchmarks.unseen.run import learn
from benchmarks.unseen.tasks import DEVELOPMENT

RESULTS = common.RESULTS / "baselines.jsonl"
SEEDS = 5
ARMS = {"group, shared starts": (1, 2), "group": (1, 2), "batch": (0, 1, 2), "nothing": ()}
TASKS = {task.env_id: task for task in DEVELOPMENT}


def run(arm: str, task: str, seed: int) -> dict[str, Any]:
    """
    :param arm: One of ``ARMS``
    :param task: Id of a development task
    :param seed: Random seed
    :return: The row
    """
    from sb3_grpo.common import advantages

    def estimates(rewards: Any, mask: Any, gamma: float, leave_one_out: bool, scale: str, eps: float) -> Any:
        found = advantages.discounted_returns_to_go(rewards, mask, gamma)
        deviations = advantages._deviations(found, mask, dim=ARMS[arm]) if ARMS[arm] else found
        return advantages.scale_advantages(deviations, deviations, mask, scale, eps)

    advantages.KINDS["gae"] = estimates
    return learn(TASKS[task], "grpo", seed, {"unrelated_starts": "shared" not in arm})


def table() -> str:
    """
    :return: Interquartile means of the final scores, and what the batch's mean adds to the first arm, as Markdown
    """
    import rliable.library
    import rliable.metrics

    found = pd.DataFrame(common.rows(RESULTS))
    found["score"] = [
        float(np.clip(TASKS[row.task].normalised(row.returns[-1]), -0.5, 1.1)) for row in found.itertuples(index=False)
    ]
    scores = {arm: found[found["arm"] == arm].pivot(index="seed", columns="task", values="score") for arm in ARMS}
    lines = ["| | " + " | ".join(ARMS) + " |", "|---" * (len(ARMS) + 1) + "|"]
    for task in TASKS:
        lines.append(
            f"| {task} | "
            + " | ".join(f"{rliable.metrics.aggregate_iqm(scores[arm][[task]].values):.2f}" for arm in ARMS)
            + " |"
        )

    def iqm(values: np.ndarray) -> np.ndarray:
        return np.array([rliable.metrics.aggregate_iqm(values)])

    points, intervals = rliable.library.get_interval_estimates(
        {arm: each.values for arm, each in scores.items()}, iqm, reps=2_000
    )
    cells = [f"{points[arm][0]:.3f} ({intervals[arm][0, 0]:.3f} to {intervals[arm][1, 0]:.3f})" for arm in ARMS]
    lines.append("| **all** | " + " | ".join(cells) + " |")
    generator, first = np.random.default_rng(0), scores["group, shared starts"].values
    for arm in list(ARMS)[1:]:
        drawn = []
        for _ in range(2_000):
            a, b = (
                each[generator.integers(len(each), size=each.shape), np.arange(each.shape[1])]
                for each in (first, scores[arm].values)
            )
            drawn.append(rliable.metrics.aggregate_iqm(b) - rliable.metrics.aggregate_iqm(a))
        low, high = np.percentile(drawn, [2.5, 97.5])
        difference = points[arm][0] - points["group, shared starts"][0]
        lines.append(f"\n{arm} less group, shared starts: {difference:+.3f} ({low:+.3f} to {high:+.3f})")
    return "\n".join(lines)


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(**json.loads(args.one))))
    elif args.table:
        print(table())
    else:
        every = product(range(SEEDS), TASKS, ARMS)
        jobs: list[Job] = [{"arm": arm, "task": task, "seed": seed} for seed, task, arm in every]
        run_missing(RESULTS, jobs, lambda job: in_process("benchmarks.baselines", "--one", json.dumps(job)), args.processes)


if __name__ == "__main__":
    main()
