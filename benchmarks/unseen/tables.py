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
    first_after,
    gap_interval,
    last_by,
    say,
    scores,
    scores_at_equal_seconds,
    select,
    too_early,
)
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo.compare.findings import interval_text, number
from sb3_grpo.compare.statistics import Interval, iqm_interval, normalise

LESS_THAN_HALF = "†"
LABELS = {
    "ppo": "PPO",
    "ppo-norm": "PPO-norm",
    "a2c": "A2C",
    "trpo": "TRPO",
    "grpo-paper": "GRPO-paper",
    "grpo": "GRPO",
    "dapo": "DAPO",
}


def table_at_equal_steps(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: A row for each algorithm
    """
    lines = []
    for algo in runs.of:
        of_one, cells = scores(runs, algo), ["", "", ""]
        if "ppo" in runs.of and algo != "ppo":
            pair = against(of_one, scores(runs, "ppo"))
            cells = [score_text(pair.difference), score_text(pair.improvement), pair.word]
        middle, gap = iqm_interval(clipped(of_one)), gap_interval(of_one)
        lines.append([LABELS[algo], counted(runs, algo), score_text(middle), score_text(gap), *cells])
    columns = ["", "runs", "IQM", "optimality gap", "difference to PPO's IQM", "probability of improvement", "against PPO"]
    return markdown(columns, lines)


def tables_at_equal_seconds(runs: Runs) -> tuple[str, str]:
    """
    :param runs: The runs shown, including PPO's
    :return: A row for each other algorithm: with the last evaluation of the slower one, and with its next one
    """
    tables: tuple[list[list[str]], list[list[str]]] = ([], [])
    for algo in runs.of:
        if algo == "ppo":
            continue
        pairs = at_equal_seconds(runs, algo)
        for lines, pair, read in zip(tables, pairs, (last_by, first_after), strict=True):
            of_both = scores_at_equal_seconds(runs, algo, "ppo", read)
            middles = [score_text(iqm_interval(clipped(each))) for each in of_both]
            gap = score_text(gap_interval(of_both[0]))
            lines.append([LABELS[algo], *middles, gap, score_text(pair.difference), score_text(pair.improvement)])
        tables[0][-1] += [say(pairs), f"{too_early(runs, algo, 'ppo')} of {len(runs.common)}"]
    columns = ["", "IQM", "PPO's IQM", "optimality gap", "difference", "probability of improvement"]
    return markdown([*columns, "against PPO", "tasks not evaluated by then"], tables[0]), markdown(columns, tables[1])


def tables_against_alike(runs: Runs) -> tuple[str, str]:
    """
    :param runs: The runs shown, including those of ``ppo-alike``
    :return: Rows for each of ours, over all tasks and over those with continuous actions: at equal steps, and at equal seconds
    """
    steps, seconds = [], []
    continuous = runs._replace(common=[task for task in runs.common if task.is_continuous])
    parts = {"all": runs, "continuous actions": continuous} if continuous.common else {"all": runs}
    for algo in (algo for algo in OURS if algo in runs.of):
        for where, part in parts.items():
            head = [LABELS[algo], f"{where}, {len(part.common)}"]
            first, second = scores(part, algo), scores(part, "ppo-alike")
            pair = against(first, second)
            middles = [score_text(iqm_interval(clipped(each))) for each in (first, second)]
            steps.append([*head, *middles, score_text(pair.difference), score_text(pair.improvement), pair.word])
            pairs = at_equal_seconds(part, algo, "ppo-alike")
            seconds.append([*head, *(score_text(each.improvement) for each in pairs), say(pairs)])
    columns = ["", "tasks", "IQM", "PPO's IQM", "difference", "probability of improvement", "against PPO"]
    at_seconds = ["", "tasks", "probability of improvement", "with the slower one's next evaluation", "against PPO"]
    return markdown(columns, steps), markdown(at_seconds, seconds)


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
    :return: Tasks on which it gains less than half of PPO's gain over a random policy, where that gain is not close to zero
    """
    tasks = []
    for task in LISTS[runs.list]:
        of_both = [runs.of.get(name, {}).get(task.env_id) for name in (algo, "ppo")]
        if all(of_both):
            gain, gain_of_ppo = (normalise(final_returns(each).mean(), task.low, task.high) for each in of_both)
            if gain_of_ppo >= MARGIN and gain < gain_of_ppo / 2:
                tasks.append(task)
    return tasks


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
