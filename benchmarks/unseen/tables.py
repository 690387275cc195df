"""Tables of a list of tasks, in Markdown. ``scores.py`` defines the figures, ``report.py`` builds a page from the tables."""

import json
from collections.abc import Callable, Mapping, Sequence

from benchmarks.tables import markdown
from benchmarks.unseen.run import OURS
from benchmarks.unseen.scores import (
    MARGIN,
    Row,
    Runs,
    against,
    at_equal_seconds,
    clipped,
    designs,
    final_returns,
    gap_interval,
    median_seconds,
    say,
    scores,
    select,
)
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.statistics import Interval, iqm_interval, normalise

LESS_THAN_HALF = "†"
LABELS = {
    "ppo": "PPO, one copy",
    "ppo-norm": "PPO, one copy, normalised",
    "ppo-16-3e-4": "PPO, 16 copies",
    "ppo-16-norm-3e-4": "PPO, 16 copies, normalised",
    "ppo-16-1e-3": "PPO, 16 copies, 1e-3",
    "ppo-16-norm-1e-3": "PPO, 16 copies, 1e-3, normalised",
    "a2c": "A2C",
    "trpo": "TRPO",
    "grpo-paper": "GRPO-paper",
    "grpo": "GRPO",
    "dapo": "DAPO",
}
PAIRS = ["against", *(f"{algo}, equal {unit}" for algo in ("GRPO", "DAPO") for unit in ("steps", "seconds"))]


def table_of_scores(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: A row for each algorithm
    """
    lines = []
    for algo in runs.of:
        of_one = scores(runs, algo)
        seconds = sum(median_seconds(runs.of[algo][task.env_id]) for task in runs.common)
        cells = [score_text(iqm_interval(clipped(of_one))), score_text(gap_interval(of_one))]
        lines.append([LABELS[algo], counted(runs, algo), *cells, number(seconds)])
    return markdown(["", "runs", "IQM", "optimality gap", "CPU seconds for all tasks"], lines)


def pair_cells(runs: Runs, algo: str, peer: str) -> list[str]:
    """
    :param runs: The runs shown
    :param algo: One of ours
    :param peer: Another algorithm
    :return: The probability that a run of ours ends higher, and what it says, at equal steps and at equal seconds
    """
    at_steps, at_seconds = against(scores(runs, algo), scores(runs, peer)), at_equal_seconds(runs, algo, peer)
    pairs = [(at_steps, at_steps.word), (at_seconds[-1], say(at_seconds))]
    return [f"{score_text(pair.improvement)}, {word}" for pair, word in pairs]


def rows_of_pairs(runs: Runs) -> list[list[str]]:
    """
    :param runs: The runs shown
    :return: A row for each algorithm that GRPO and DAPO are compared with, with the columns ``PAIRS``
    """
    found = []
    for peer in (algo for algo in runs.of if algo not in ("grpo", "dapo")):
        fewest = min(len(of_task) for of_task in runs.of[peer].values())
        name = LABELS[peer] + ("" if fewest == SEEDS[runs.list] else f", {fewest} of {SEEDS[runs.list]} seeds")
        cells = [pair_cells(runs, algo, peer) if algo in runs.of else ["", ""] for algo in ("grpo", "dapo")]
        found.append([name, *cells[0], *cells[1]])
    return found


def score_text(interval: Interval) -> str:
    """
    :param interval: Interval of normalised scores or of a probability
    :return: Value and interval
    """
    return interval_text(interval, 1.0)


def counted(runs: Runs, algo: str) -> str:
    """
    :param runs: The runs shown
    :param algo: One of their algorithms
    :return: The number of runs, out of how many
    """
    return f"{sum(map(len, runs.of[algo].values()))} of {len(LISTS[runs.list]) * SEEDS[runs.list]}"


def behind(runs: Runs, algo: str) -> list[Task]:
    """
    :param runs: The runs shown
    :param algo: One of their algorithms
    :return: Tasks on which it gains less than half of the best PPO's gain over a random policy, where that gain is not
        close to zero
    """
    tasks = []
    for task in LISTS[runs.list]:
        gains = {
            name: normalise(final_returns(of_one[task.env_id]).mean(), task.low, task.high)
            for name, of_one in runs.of.items()
            if of_one[task.env_id] and (name == algo or name in variants_of_ppo(runs))
        }
        best = max((gain for name, gain in gains.items() if name != algo), default=0.0)
        if algo in gains and best >= MARGIN and gains[algo] < best / 2:
            tasks.append(task)
    return tasks


def variants_of_ppo(runs: Runs) -> list[str]:
    """
    :param runs: The runs shown
    :return: Those of PPO
    """
    return [algo for algo in runs.of if algo.startswith("ppo")]


def by_task(runs: Runs, cell: Callable[[list[Row]], str], marks: bool = False, labels: Mapping[str, str] = LABELS) -> str:
    """
    :param runs: The runs shown
    :param cell: Text for the runs of an algorithm on a task
    :param marks: Whether to mark where ours are behind PPO
    :param labels: Labels of the columns
    :return: A row for each task, a column for each algorithm
    """
    marked = {algo: behind(runs, algo) if marks and algo in OURS else [] for algo in runs.of}
    lines = []
    for task in LISTS[runs.list]:
        cells = [
            cell(of_one[task.env_id]) + LESS_THAN_HALF * (task in marked[algo]) if of_one[task.env_id] else ""
            for algo, of_one in runs.of.items()
        ]
        lines.append([f"{task.env_id}, {task.timesteps // 1000}k", number(task.low), number(task.high), *cells])
    return markdown(["task", "random", "reference", *(labels[algo] for algo in runs.of)], lines)


def mean_text(runs: list[Row]) -> str:
    """
    :param runs: Runs of an algorithm on a task
    :return: Mean of their final returns
    """
    return number(float(final_returns(runs).mean()))


def seeds_text(runs: list[Row]) -> str:
    """
    :param runs: Runs of an algorithm on a task
    :return: Final return of each
    """
    values = final_returns(runs).tolist()
    return " / ".join(number(value, values) for value in values)


def table_of_designs(found: Sequence[Row], name: str) -> str:
    """
    :param found: All rows
    :param name: Name of a list
    :return: A row for each design that the list was looked at with
    """
    lines = []
    for design in designs(found, name):
        of_design = [row for row in found if row["list"] == name and row["design"] == design]
        changes = dict.fromkeys(f"`{json.dumps(row['changes'])}`" for row in of_design if "changes" in row)
        cells = []
        for algo in ("grpo", "dapo"):
            # Its own tasks: a design that was given up after a few tasks stays here
            own = select([row for row in of_design if row["algo"] == algo], name, design)
            text = f"{score_text(iqm_interval(clipped(scores(own, algo))))}, {n_tasks(len(own.common))}" if own.common else ""
            cells.append(text)
        commits = ", ".join(dict.fromkeys(row["commit"] for row in of_design))
        lines.append([design, ", ".join(changes) or "none", commits, str(len(of_design)), *cells])
    return markdown(["design", "changes", "commit", "runs", "GRPO: IQM", "DAPO: IQM"], lines)


def n_tasks(n: int) -> str:
    """
    :param n: Number of tasks
    :return: The same in words
    """
    return f"{n} task{'' if n == 1 else 's'}"
