"""
The page of a list: ``python -m benchmarks.unseen.report development`` or ``test``.

Reads ``benchmarks/results/unseen.jsonl`` and writes ``docs/results/unseen_development.md`` (``unseen_test.md``) and a figure
in ``docs/images``. Nothing is trained. What the rules of the lists leave open is fixed here:

- A score is 0 at the return of a random policy and 1 at the reference of the task. For what is computed of several tasks it is
  clipped to ``CLIP``: a single run that walks over the cliff in every step would otherwise be at -8.7. The probability of
  improvement asks only which of two runs is higher, and takes the scores as they are.
- Tasks are put together if every algorithm shown has a run there. Where a run is missing, the page says so.
- Equal seconds, for two algorithms on a task: the time is what the faster of the two needs, median over its runs. Its runs
  count with what they end with, those of the other with their last evaluation by then, or as a random policy if there is none
  yet. From one evaluation to the next, steps double (the oldest rows: a fifth of a run), so that takes up to half of what the
  slower one has done by then, and all of it if the other ends before its first evaluation. So it is also read at its next
  evaluation, which gives it as much: what it had learned by then lies between the two, unless it forgets. A word is said only
  if it holds both ways.
- ``ppo-norm`` has PPO's runs where it is PPO.
- "above" and "below": the interval of the probability of improvement excludes 0.5. "level": it does not, and the interval of
  the difference of the IQMs lies within ``MARGIN``, fixed before any run on the test list. Otherwise "undecided".
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.common import machine
from benchmarks.pages import IMAGES, PAGES, fold, list_pages
from benchmarks.tables import markdown
from benchmarks.unseen.run import OURS, PEERS, key, rows
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo.compare.figures import styles
from sb3_grpo.compare.findings import interval_text, number
from sb3_grpo.compare.statistics import (
    Interval,
    bootstrap,
    iqm,
    iqm_interval,
    normalise,
    performance_profile,
    probability_of_improvement,
)

CLIP = (-0.5, 1.1)
# Of the IQM: what is within is called level
MARGIN = 0.05
# More are not written down one by one
MOST_SEEDS = 3
LESS_THAN_HALF = "†"
TITLES = {"development": "Tasks that the defaults were chosen on", "test": "Tasks that the defaults were not chosen on"}
# A comment in Markdown: a page that is made again has the same design, whatever was tried since
_BEGIN = "% Design: "
LABELS = {
    "ppo": "PPO",
    "ppo-norm": "PPO-norm",
    "a2c": "A2C",
    "trpo": "TRPO",
    "grpo-paper": "GRPO-paper",
    "grpo": "GRPO",
    "dapo": "DAPO",
}

Row = dict[str, Any]
Scores = list[np.ndarray]  # (n,) for each task, normalised, not clipped
Read = Callable[[Row, float, float], float]  # a run at a time


class Runs(NamedTuple):
    """
    What is shown.

    :param list: Name of the list
    :param design: Of GRPO and DAPO
    :param paper: Design that the runs of ``grpo-paper`` are of
    :param of: The runs of each algorithm that has any, for each task
    :param common: Tasks on which all of these have runs
    """

    list: str
    design: str
    paper: str
    of: dict[str, dict[str, list[Row]]]
    common: list[Task]


class Pair(NamedTuple):
    """
    An algorithm against another.

    :param difference: Its IQM minus the other's
    :param improvement: Probability that one of its runs is above one of the other's on the same task, mean over the tasks
    """

    difference: Interval
    improvement: Interval

    @property
    def word(self) -> str:
        # A small difference that is there nearly everywhere is not level: the IQM leaves half of the runs out
        if self.improvement.excludes(0.5):
            return "above" if self.improvement.value > 0.5 else "below"
        within = -MARGIN <= self.difference.low and self.difference.high <= MARGIN
        return "level" if within else "undecided"


def designs(found: Sequence[Row], name: str, algos: Sequence[str] = OURS) -> list[str]:
    """
    :param found: All rows
    :param name: Of a list
    :param algos: Of these algorithms
    :return: The designs that the list was looked at with, in the order of the first look
    """
    return list(dict.fromkeys(row["design"] for row in found if row["list"] == name and row["algo"] in algos))


def select(found: Sequence[Row], name: str, design: str) -> Runs:
    """
    :param found: All rows
    :param name: Of a list
    :param design: Of GRPO and DAPO
    :return: What is shown of them
    """
    # The paper's settings need no runs of their own for each design
    with_paper = designs(found, name, ["grpo-paper"])
    paper = design if design in with_paper or not with_paper else with_paper[-1]
    tasks = {task.env_id: task for task in LISTS[name]}
    of: dict[str, dict[str, list[Row]]] = {algo: {env_id: [] for env_id in tasks} for algo in (*PEERS, *OURS)}
    once = {key(row): row for row in found if row["task"] in tasks and row["seed"] < SEEDS[name]}
    for row in sorted(once.values(), key=lambda row: row["seed"]):
        wanted = paper if row["algo"] == "grpo-paper" else design
        if row["list"] == name and row["design"] in ("", wanted):
            of[row["algo"]][row["task"]].append(row)
    of = {algo: runs for algo, runs in of.items() if any(runs.values())}
    if "ppo-norm" in of and "ppo" in of:
        of["ppo-norm"] |= {env_id: of["ppo"][env_id] for env_id, task in tasks.items() if not task.normalize}
    common = [task for env_id, task in tasks.items() if of and all(runs[env_id] for runs in of.values())]
    return Runs(name, design, paper, of, common)


def final_returns(runs: Sequence[Row]) -> np.ndarray:
    """
    :param runs: Of an algorithm on a task
    :return: (n,) what they end with
    """
    return np.array([run["returns"][-1] for run in runs])


def scores(runs: Runs, algo: str) -> Scores:
    """
    :param runs: What is shown
    :param algo: One of them
    :return: What its runs end with, on the tasks that are put together
    """
    return [normalise(final_returns(runs.of[algo][task.env_id]), task.low, task.high) for task in runs.common]


def median_seconds(runs: Sequence[Row]) -> float:
    """
    :param runs: Of an algorithm on a task
    :return: What they take, median
    """
    return float(np.median([run["seconds"][-1] for run in runs]))


def last_by(run: Row, seconds: float, low: float) -> float:
    """
    :param run: A row
    :param seconds: After how many
    :param low: Return of a random policy
    :return: Return at the last evaluation by then
    """
    evaluations = zip(run["seconds"], run["returns"], strict=True)
    return next((value for at, value in reversed(list(evaluations)) if at <= seconds), low)


def first_after(run: Row, seconds: float, low: float) -> float:
    """
    :param run: A row
    :param seconds: After how many
    :param low: Return of a random policy, as ``last_by`` has it
    :return: Return at the first evaluation that is not earlier, or else at the end
    """
    evaluations = zip(run["seconds"], run["returns"], strict=True)
    return next((value for at, value in evaluations if at >= seconds), run["returns"][-1])


def scores_at_equal_seconds(runs: Runs, first: str, second: str, read: Read = last_by) -> tuple[Scores, Scores]:
    """
    :param runs: What is shown
    :param first: An algorithm
    :param second: Another
    :param read: How a run of the slower one is read
    :return: Scores of both, when the faster one has ended
    """
    both: tuple[Scores, Scores] = ([], [])
    for task in runs.common:
        pair = [runs.of[algo][task.env_id] for algo in (first, second)]
        needs = [median_seconds(of_one) for of_one in pair]
        for part, of_one, needed in zip(both, pair, needs, strict=True):
            # Half of the faster one's runs end a little after its median: they count as ended
            ended = needed == min(needs)
            values = final_returns(of_one) if ended else np.array([read(run, min(needs), task.low) for run in of_one])
            part.append(normalise(values, task.low, task.high))
    return both


def too_early(runs: Runs, first: str, second: str) -> int:
    """
    :param runs: What is shown
    :param first: An algorithm
    :param second: Another
    :return: On how many of the tasks the faster one has ended before a run of the other has been evaluated
    """
    n_tasks = 0
    for task in runs.common:
        faster, slower = sorted((runs.of[algo][task.env_id] for algo in (first, second)), key=median_seconds)
        n_tasks += any(run["seconds"][0] > median_seconds(faster) for run in slower)
    return n_tasks


def clipped(samples: Scores) -> Scores:
    """
    :param samples: Scores
    :return: Within ``CLIP``
    """
    return [np.clip(sample, *CLIP) for sample in samples]


def gap_interval(samples: Scores) -> Interval:
    """
    :param samples: Scores
    :return: How much they lack to 1 in the mean, nothing where they are above: ``rliable.metrics.aggregate_optimality_gap``
    """
    band = bootstrap(lambda *drawn: 1.0 - np.minimum(np.concatenate(drawn), 1.0).mean()[None], clipped(samples))
    return Interval(*(float(part[0]) for part in band))


def against(first: Scores, second: Scores) -> Pair:
    """
    :param first: Scores of an algorithm
    :param second: Scores of another on the same tasks
    :return: How they compare
    """
    n_tasks = len(first)

    def statistics(*drawn: np.ndarray) -> np.ndarray:
        xs, ys = drawn[:n_tasks], drawn[n_tasks:]
        improvement = np.mean([probability_of_improvement(x, y) for x, y in zip(xs, ys, strict=True)])
        middle_x, middle_y = (iqm(np.clip(np.concatenate(each), *CLIP)) for each in (xs, ys))
        return np.array([middle_x - middle_y, improvement])

    band = bootstrap(statistics, [*first, *second])
    return Pair(*(Interval(*(float(part[i]) for part in band)) for i in range(2)))


def at_equal_seconds(runs: Runs, algo: str) -> list[Pair]:
    """
    :param runs: What is shown
    :param algo: One of them
    :return: It and PPO, with the last evaluation of the slower one and with its next one
    """
    return [against(*scores_at_equal_seconds(runs, algo, "ppo", read)) for read in (last_by, first_after)]


def say(pairs: Sequence[Pair]) -> str:
    """
    :param pairs: The same two algorithms in several ways
    :return: What can be said of them if it holds in all of these
    """
    words = {pair.word for pair in pairs}
    return words.pop() if len(words) == 1 else "undecided"


def table_at_equal_steps(runs: Runs) -> str:
    """
    :param runs: What is shown
    :return: A row for each algorithm
    """
    lines = []
    for algo in runs.of:
        of_one, cells = scores(runs, algo), ["", "", ""]
        if "ppo" in runs.of and algo != "ppo":
            pair = against(of_one, scores(runs, "ppo"))
            cells = [_text(pair.difference), _text(pair.improvement), pair.word]
        middle, gap = iqm_interval(clipped(of_one)), gap_interval(of_one)
        lines.append([LABELS[algo], counted(runs, algo), _text(middle), _text(gap), *cells])
    columns = ["", "runs", "IQM", "optimality gap", "difference to PPO's IQM", "probability of improvement", "against PPO"]
    return markdown(columns, lines)


def tables_at_equal_seconds(runs: Runs) -> tuple[str, str]:
    """
    :param runs: What is shown, PPO among it
    :return: A row for each other algorithm: with the last evaluation of the slower one, and with its next one
    """
    tables: tuple[list[list[str]], list[list[str]]] = ([], [])
    for algo in runs.of:
        if algo == "ppo":
            continue
        pairs = at_equal_seconds(runs, algo)
        for lines, pair, read in zip(tables, pairs, (last_by, first_after), strict=True):
            of_both = scores_at_equal_seconds(runs, algo, "ppo", read)
            middles = [_text(iqm_interval(clipped(each))) for each in of_both]
            gap = _text(gap_interval(of_both[0]))
            lines.append([LABELS[algo], *middles, gap, _text(pair.difference), _text(pair.improvement)])
        tables[0][-1] += [say(pairs), f"{too_early(runs, algo, 'ppo')} of {len(runs.common)}"]
    columns = ["", "IQM", "PPO's IQM", "optimality gap", "difference", "probability of improvement"]
    return markdown([*columns, "against PPO", "tasks not evaluated by then"], tables[0]), markdown(columns, tables[1])


def _text(interval: Interval) -> str:
    return interval_text(interval, 1.0)


def counted(runs: Runs, algo: str) -> str:
    """
    :param runs: What is shown
    :param algo: One of them
    :return: How many runs there are of how many
    """
    return f"{sum(map(len, runs.of[algo].values()))} of {len(LISTS[runs.list]) * SEEDS[runs.list]}"


def behind(runs: Runs, algo: str) -> list[Task]:
    """
    :param runs: What is shown
    :param algo: One of them
    :return: Tasks on which it gains less than half of what PPO gains over a random policy, where that is not next to nothing
    """
    tasks = []
    for task in LISTS[runs.list]:
        of_both = [runs.of.get(name, {}).get(task.env_id) for name in (algo, "ppo")]
        if all(of_both):
            gain, gain_of_ppo = (normalise(final_returns(each).mean(), task.low, task.high) for each in of_both)
            if gain_of_ppo >= MARGIN and gain < gain_of_ppo / 2:
                tasks.append(task)
    return tasks


def by_task(runs: Runs, cell: Callable[[list[Row]], str], marks: bool = False) -> str:
    """
    :param runs: What is shown
    :param cell: What to write of the runs of an algorithm on a task
    :param marks: Whether to mark where ours are behind PPO
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
    return markdown(["task", "random", "reference", *(LABELS[algo] for algo in runs.of)], lines)


def mean_text(runs: list[Row]) -> str:
    """
    :param runs: Of an algorithm on a task
    :return: Mean of what they end with
    """
    return number(float(final_returns(runs).mean()))


def seeds_text(runs: list[Row]) -> str:
    """
    :param runs: Of an algorithm on a task
    :return: What each of them ends with
    """
    values = final_returns(runs).tolist()
    return " / ".join(number(value, values) for value in values)


def table_of_designs(found: Sequence[Row], name: str) -> str:
    """
    :param found: All rows
    :param name: Of a list
    :return: A row for each design that the list was looked at with
    """
    lines = []
    for design in designs(found, name):
        of_design = [row for row in found if row["list"] == name and row["design"] == design]
        changes = dict.fromkeys(f"`{json.dumps(row['changes'])}`" for row in of_design if "changes" in row)
        cells = []
        for algo in ("grpo", "dapo"):
            # Of its own tasks: a design that was given up after a few of them stays here
            own = select([row for row in of_design if row["algo"] == algo], name, design)
            text = f"{_text(iqm_interval(clipped(scores(own, algo))))}, {_tasks(len(own.common))}" if own.common else ""
            cells.append(text)
        commits = ", ".join(dict.fromkeys(row["commit"] for row in of_design))
        lines.append([design, ", ".join(changes) or "none", commits, str(len(of_design)), *cells])
    return markdown(["design", "changes", "commit", "runs", "GRPO: IQM", "DAPO: IQM"], lines)


def _tasks(n: int) -> str:
    return f"{n} task{'' if n == 1 else 's'}"


def result(runs: Runs) -> str:
    """
    :param runs: What is shown
    :return: What the numbers say of ours and PPO, a paragraph
    """
    ours = [algo for algo in OURS if algo in runs.of]
    if "ppo" not in runs.of or not ours or not runs.common:
        return "Nothing is compared yet: there is no task with runs of PPO and of every other algorithm shown."
    steps, seconds, behind_on = [], [], []
    for algo in ours:
        steps.append(clause(algo, against(scores(runs, algo), scores(runs, "ppo"))))
        seconds.append(clause(algo, *at_equal_seconds(runs, algo)))
        tasks = behind(runs, algo)
        if tasks:
            names = ", ".join(task.env_id for task in tasks)
            behind_on.append(
                f"On {_tasks(len(tasks))} ({names}) {LABELS[algo]} gains less than half of PPO's gain over a random policy."
            )
    together = f"over {len(runs.common)} of {_tasks(len(LISTS[runs.list]))}"
    begun = [f"**At equal steps**, {together}: {'; '.join(steps)}.", f"**At equal seconds**: {'; '.join(seconds)}."]
    return " ".join(begun + behind_on)


def clause(algo: str, *pairs: Pair) -> str:
    """
    :param algo: An algorithm
    :param pairs: It and PPO, with the slower one read at its last evaluation, and at its next one if that is another matter
    :return: What can be said of the two, and the numbers
    """
    label = LABELS[algo]
    says = {word: f"{label} is {word} PPO" for word in ("above", "below")}
    says |= {"level": f"{label} and PPO are level", "undecided": f"between {label} and PPO it is undecided"}
    text = says[say(pairs)]
    if not all(pair.improvement.known for pair in pairs):
        text = f"of {label} and PPO there are too few seeds to say"
    first, *others = pairs
    text += f", probability of improvement {_text(first.improvement)}, difference of the IQMs {_text(first.difference)}"
    for other in others:
        text += f", with the slower one's next evaluation {_text(other.improvement)} and {_text(other.difference)}"
    return text


def completeness(runs: Runs) -> str:
    """
    :param runs: What is shown
    :return: What is missing, nothing if nothing is
    """
    tasks, all_runs = LISTS[runs.list], len(LISTS[runs.list]) * SEEDS[runs.list]
    short = [algo for algo in runs.of if sum(map(len, runs.of[algo].values())) < all_runs]
    said = [f"{LABELS[algo]} {counted(runs, algo)} runs" for algo in short]
    said += [f"{LABELS[algo]} 0 of {all_runs} runs" for algo in (*PEERS, *OURS) if algo not in runs.of]
    left_out = [task.env_id for task in tasks if task not in runs.common]
    text = f"**Not complete:** {', '.join(said)}. " if said else ""
    if left_out:
        text += f"Put together are {len(runs.common)} of {_tasks(len(tasks))}, without {', '.join(left_out)}."
    return text.strip()


def draw_profile(runs: Runs, path: Path) -> None:
    """
    :param runs: What is shown
    :param path: Where to save, an SVG
    """
    look, thresholds = styles(list(runs.of)), np.linspace(*CLIP, 161)
    # Text as text, and the same file for the same data
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sb3-grpo"}):
        figure, axes = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
        for algo in runs.of:
            band, style = performance_profile(clipped(scores(runs, algo)), thresholds), look[algo]
            width = 2.0 if algo in ("ppo", "grpo", "dapo") else 1.2
            axes.plot(
                thresholds, band.value, color=style.colour, linestyle=style.linestyle, label=LABELS[algo], linewidth=width
            )
            axes.fill_between(thresholds, band.low, band.high, color=style.colour, alpha=0.1, linewidth=0)
        for at in (0.0, 1.0):
            axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="normalised score τ (0: random policy, 1: reference)", ylabel="share of runs above τ")
        axes.set(xlim=CLIP, ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside upper center", ncols=len(runs.of), frameon=False, columnspacing=1.2, handlelength=2.5)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def made(runs: Runs) -> str:
    """
    :param runs: What is shown
    :return: Commands, commits, machines and versions
    """
    shown = [row for of_one in runs.of.values() for of_task in of_one.values() for row in of_task]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in shown))
    text = (
        f"`python -m benchmarks.unseen.run {runs.list}` with the design {runs.design}, then "
        f"`python -m benchmarks.unseen.report {runs.list} --design {runs.design}`. Commits of the runs: {commits}. "
        "All of them: `benchmarks/results/unseen.jsonl`."
    )
    places = dict.fromkeys(_place(row["machine"], row["versions"]) for row in shown if "versions" in row)
    if places:
        text += f" Machine: {'; '.join(places)}."
    if any("versions" not in row for row in shown):
        here = machine()
        place = _place(here["cpu"], {name: here["versions"][name] for name in ("torch", "stable_baselines3")})
        text += f" {'Some of the' if places else 'The'} runs have no note of their machine; report made with {place}."
    return text


def _place(cpu: str, versions: dict[str, str]) -> str:
    return ", ".join([cpu, *(f"{package} {version}" for package, version in versions.items())])


def page(found: Sequence[Row], runs: Runs) -> str:
    """
    :param found: All rows
    :param runs: What is shown of them
    :return: In Markdown
    """
    name, n_seeds = runs.list, SEEDS[runs.list]
    looks = designs(found, name)
    parts = [f"{_BEGIN}{runs.design}\n", f"# {TITLES[name]}\n"]
    if runs.common:
        parts += [
            f"![Performance profiles](../images/unseen_{name}.svg){{.picture}}\n",
            f"*Share of the runs whose normalised score is above τ, and its 95% bootstrap interval; {n_seeds} seeds on "
            f"{len(runs.common)} of {_tasks(len(LISTS[name]))}. A score is (return - random) / (reference - random), clipped "
            f"to {CLIP[0]} and {CLIP[1]}.*\n",
        ]
    parts += [result(runs) + "\n", completeness(runs) + "\n", _how_to_read(runs, looks)]
    if runs.common:
        parts += ["## Over the tasks, at equal steps\n", table_at_equal_steps(runs) + "\n"]
    if runs.common and "ppo" in runs.of and len(runs.of) > 1:
        last, following = tables_at_equal_seconds(runs)
        parts += [
            "## Over the tasks, at equal seconds\n",
            "Each against PPO, at the time at which the faster of the two ends on a task. The slower one counts with its last "
            "evaluation by then, as a random policy if there is none.\n",
            last + "\n",
            "With the slower one's next evaluation. What it had learned lies between the two tables, unless it forgets: "
            "*above*, *below* and *level* are said if they hold in both.\n",
            following + "\n",
        ]
    parts += [
        "## Task by task\n",
        by_task(runs, mean_text, marks=True) + "\n",
        f"*Return of 100 deterministic episodes after training, mean over the seeds. {LESS_THAN_HALF}: less than half of "
        f"PPO's gain over a random policy, where that is at least {MARGIN} of the scale.*\n",
    ]
    if n_seeds <= MOST_SEEDS:
        parts.append(fold("Seed by seed", by_task(runs, seeds_text)))
    parts += [
        fold("Seconds of a processor, median", by_task(runs, lambda of_one: number(median_seconds(of_one)))),
        "## Designs\n",
        f"Looks at this list: {len(looks)} ({', '.join(looks)}). Each is one design of our algorithms; all stay here.\n",
        table_of_designs(found, name) + "\n",
        f"## How it was made\n\n{made(runs)}\n",
    ]
    return "\n".join(part for part in parts if part.strip())


def _how_to_read(runs: Runs, looks: Sequence[str]) -> str:
    """
    :param runs: What is shown
    :param looks: Designs that the list was looked at with
    :return: The words of the page, and what the algorithms are
    """
    paper = "" if runs.paper == runs.design else f" (runs of the design {runs.paper})"
    return (
        f"*Above* or *below*: the 95% interval of the probability of improvement excludes 0.5. *Level*: it does not, and the "
        f"interval of the difference of the IQMs lies within {MARGIN}, fixed before any run on the test list. Otherwise "
        f"*undecided*. Intervals are stratified bootstraps over the seeds, not corrected for the number of comparisons. "
        f"Everybody learns with the defaults of the class; GRPO and DAPO are of the design {runs.design} (designs that "
        f"this list was looked at with: {len(looks)}). PPO-norm: PPO in a `VecNormalize` on the tasks where the RL Zoo "
        f"normalises, PPO's runs elsewhere. GRPO-paper: the settings of the GRPO paper{paper}.\n"
    )


def write_page(found: Sequence[Row], name: str, design: str | None = None, pages: Path = PAGES, images: Path = IMAGES) -> None:
    """
    :param found: All rows
    :param name: Of a list
    :param design: Of GRPO and DAPO. If None, that of the page there is, or else the last one that the list was looked at with
    :param pages: Where the page goes
    :param images: Where the figure goes
    """
    looks, path = designs(found, name), pages / f"unseen_{name}.md"
    if design is None and path.exists():
        design = path.read_text(encoding="utf-8").splitlines()[0].removeprefix(_BEGIN)
    if not looks or design not in (None, *looks):
        raise SystemExit(f"No runs of {design or 'ours'} on the list {name}. Designs: {', '.join(looks) or 'none'}")
    runs = select(found, name, design or looks[-1])
    if runs.common:
        draw_profile(runs, images / f"unseen_{name}.svg")
    path.write_text(page(found, runs), encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", choices=LISTS)
    parser.add_argument("--design", help="of GRPO and DAPO; that of the page there is, or else the last one")
    args = parser.parse_args()
    write_page(rows(), args.list, args.design)
    list_pages()


if __name__ == "__main__":
    main()
