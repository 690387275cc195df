"""
The page that compares with published results: ``python -m benchmarks.pages``.

Reads ``benchmarks/results/published.csv``, published results of PPO, TRPO, A2C and REINFORCE, and puts our results on the
same tasks next to them: those of the comparisons, and of the unseen tasks that have a page. Nothing is trained.
"""

import csv
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.pages import COMPARISONS, PAGES, READINGS, RESULTS, unseen_lists
from benchmarks.tables import markdown, steps_text
from benchmarks.unseen.report import design_of
from benchmarks.unseen.run import rows
from benchmarks.unseen.scores import final_returns, select
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.statistics import iqm_interval

ALGORITHMS = ("PPO", "TRPO", "A2C", "REINFORCE", "GRPO", "DAPO")
FAMILIES = ("classic control", "Box2D", "MuJoCo", "Atari", "MinAtar", "MiniGrid")
_FAMILY = {task.env_id: task.family for tasks in LISTS.values() for task in tasks}


class Line(NamedTuple):
    """
    A row of a table.

    :param task: Our name for the task
    :param who: Source of the returns, in Markdown
    :param steps: Number of steps
    :param returns: Return of each algorithm, as text
    """

    task: str
    who: str
    steps: int
    returns: dict[str, str]


def read() -> list[dict[str, str]]:
    """
    :return: Published results, a row for each task, algorithm, number of steps and source
    """
    with (RESULTS / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_lines(found: Sequence[dict[str, str]]) -> list[Line]:
    """
    :param found: Published results
    :return: A row for each task, source and number of steps
    """
    lines: dict[tuple[str, ...], Line] = {}
    for row in found:
        returned, deviation = float(row["return"]), row["deviation"]
        # With as many digits as the larger one
        text = f"{number(returned, [returned])} ± {number(float(deviation), [returned])}" if deviation else number(returned)
        task, who = row["task"], f"[{row['source']}]({row['url']}){_version(row['version'], row['task'])}"
        line = lines.setdefault((task, who, row["steps"]), Line(task, who, int(row["steps"]), {}))
        line.returns[row["algorithm"]] = text
    return sorted(lines.values(), key=lambda line: line.steps)


def _version(theirs: str, ours: str) -> str:
    """
    :param theirs: Their name of a task
    :param ours: Our name
    :return: A note on the difference
    """
    name, _, version = theirs.rpartition("-")
    return "" if theirs == ours else f", {version if name == ours.rpartition('-')[0] else theirs}"


def tuned_lines() -> list[Line]:
    """
    :return: A row for each task of the comparisons with PPO
    """
    lines = []
    for page in COMPARISONS:
        results = collect(RESULTS / page)
        experiment = results.experiment
        if "ppo" not in results.variants:
            continue
        who = _here("tuned", page, len(experiment["seeds"]))
        for env in results.envs:
            scores = {name.upper(): results.final_scores(env, name, results.main_mode(env)) for name in results.variants}
            texts = {algorithm: interval_text(iqm_interval([of_one])) for algorithm, of_one in scores.items()}
            lines.append(Line(env, who, experiment["timesteps"][env], texts))
    return lines


def default_lines() -> list[Line]:
    """
    :return: A row for each of the unseen tasks on the lists that have a page
    """
    lines = []
    for name in unseen_lists():
        runs = select(rows(), name, design_of(PAGES / f"unseen_{name}.md"))
        for task in LISTS[name]:
            found = {algo.upper(): of_one[task.env_id] for algo, of_one in runs.of.items() if of_one[task.env_id]}
            found = {algorithm: of_one for algorithm, of_one in found.items() if algorithm in ALGORITHMS}
            texts = {algorithm: interval_text(iqm_interval([final_returns(of_one)])) for algorithm, of_one in found.items()}
            # Where runs are missing
            fewest = min(map(len, found.values()), default=SEEDS[name])
            who = _here("defaults", f"unseen_{name}", *sorted({fewest, SEEDS[name]}))
            lines.append(Line(task.env_id, who, task.timesteps, texts))
    return lines


def _here(settings: str, page: str, *n_seeds: int) -> str:
    return f"**here**, [{settings}]({page}.md), {' to '.join(map(str, n_seeds))} seeds"


def table(ours: Sequence[Line], theirs: Sequence[Line]) -> str:
    """
    :param ours: Our rows
    :param theirs: Published rows
    :return: The rows of the tasks that are in both, a column for each algorithm that has a return
    """
    tasks = [task for task in dict.fromkeys(line.task for line in ours) if any(line.task == task for line in theirs)]
    shown = [line for task in tasks for line in (*ours, *theirs) if line.task == task]
    algorithms = [algorithm for algorithm in ALGORITHMS if any(algorithm in line.returns for line in shown)]
    cells, last = [], ""
    for line in shown:
        returns = [line.returns.get(algorithm, "") for algorithm in algorithms]
        cells.append(["" if line.task == last else line.task, line.who, steps_text(line.steps), *returns])
        last = line.task
    return markdown(["task", "", "steps", *algorithms], cells) if shown else ""


def tables() -> list[tuple[str, str]]:
    """
    :return: Kinds of tasks, and their tables
    """
    ours, theirs = [*tuned_lines(), *default_lines()], published_lines(read())
    found = [
        (name, table(*([line for line in lines if _FAMILY.get(line.task, "Atari") == name] for lines in (ours, theirs))))
        for name in FAMILIES
    ]
    return [(name, text) for name, text in found if text]


def write_page() -> None:
    """Write the page."""
    shows, _, sources = (READINGS / "published.md").read_text(encoding="utf-8").partition("\n---\n")
    parts = ["# Compared with published results\n", shows.strip() + "\n"]
    for name, text in tables():
        parts.append(f"## {name[0].upper()}{name[1:]}\n\n{text}\n")
    parts.append(f"## Sources\n\n{sources.strip()}\n")
    parts.append(
        "## How it was made\n\n`python -m benchmarks.pages`, from `benchmarks/results/published.csv`, which has the figures "
        "of the sources at the linked commits. Our figures are those of the linked pages.\n"
    )
    (PAGES / "published.md").write_text("\n".join(parts), encoding="utf-8")
