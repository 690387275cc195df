"""
The page of the lists: ``python -m benchmarks.unseen.report test_2``, ``development`` or ``test`` (minutes of bootstrap).

Reads ``benchmarks/results/unseen.jsonl`` and ``unseen_speed.jsonl``, and writes the part of this list in
``docs/results/unseen.md`` and the table of ``docs/results/index.md``. With ``--design`` the page shows another design of GRPO
and DAPO from now on. Nothing is trained. ``scores.py`` defines the figures.
"""

import argparse
import json
import re
from collections.abc import Sequence

import numpy as np

from benchmarks.blocks import Writers, arguments_of, fold, markdown, picture, refresh_page, steps_text
from benchmarks.common import PAGES
from benchmarks.figures import draw_band, figure_of, style
from benchmarks.unseen.run import OURS, rows
from benchmarks.unseen.scores import (
    CLIP,
    MARGIN,
    Row,
    Runs,
    against,
    at_equal_seconds,
    clipped,
    common_tasks,
    designs,
    final_returns,
    median_seconds,
    say,
    scores,
    select,
)
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.statistics import iqm_interval, performance_profile

Pairs = dict[tuple[str, str], list[str]]
PAGE, INDEX = PAGES / "unseen.md", PAGES / "index.md"
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
    "grpo-paper": "GRPO (paper)",
    "grpo": "GRPO",
    "dapo": "DAPO",
}
# The defaults without one of their parts: by the designs of their runs, labels and arguments
PARTS = {
    "unrelated": ("unrelated starts", {"unrelated_starts": True}),
    "whole_groups": ("whole groups", {"n_groups": 4}),
    "return_to_go": ("whole groups, no regression", {"advantage": "return_to_go", "loss_average": "step"}),
}
# The rows of the README's table
OVERVIEW = {
    "test_2": ("[thirteen](unseen.md), not used to choose the defaults", ("ppo-16-norm-1e-3", "ppo-16-1e-3", "ppo", "trpo")),
    "test": ("[fourteen](unseen.md#an-earlier-list), with earlier defaults", ("ppo", "trpo")),
}


def ours_in(runs: Runs) -> list[str]:
    """
    :param runs: The runs shown
    :return: GRPO and DAPO, as far as there are runs
    """
    return [algo for algo in ("grpo", "dapo") if algo in runs.of]


def name_of(runs: Runs, algo: str) -> str:
    """
    :param runs: The runs shown
    :param algo: One of their algorithms
    :return: Its label, and how many seeds it has if some are missing
    """
    fewest = min(len(of_task) for of_task in runs.of[algo].values())
    return LABELS[algo] + ("" if fewest == SEEDS[runs.list] else f", {fewest} of {SEEDS[runs.list]} seeds")


def pair_cells(runs: Runs, algo: str, peer: str) -> list[str]:
    """
    :param runs: The runs shown
    :param algo: One of ours
    :param peer: Another algorithm
    :return: The probability that a run of ours ends higher, and what it says, at equal steps and at equal seconds
    """
    at_steps, at_seconds = against(scores(runs, algo), scores(runs, peer)), at_equal_seconds(runs, algo, peer)
    both = [(at_steps, at_steps.word), (at_seconds[-1], say(at_seconds))]
    return [f"{interval_text(pair.improvement, 1.0)}, {word}" for pair, word in both]


def pairs(runs: Runs) -> Pairs:
    """
    :param runs: The runs shown
    :return: Each of ours against each of the others
    """
    return {
        (each, algo): pair_cells(runs, each, algo)
        for algo in runs.of
        for each in ours_in(runs)
        if algo not in ("grpo", "dapo")
    }


def table(runs: Runs, cells: Pairs) -> str:
    """
    :param runs: The runs shown
    :param cells: Ours against the others
    :return: A row for each algorithm: its score, and GRPO and DAPO against it
    """
    lines = []
    for algo in runs.of:
        seconds = sum(median_seconds(runs.of[algo][task.env_id]) for task in runs.common)
        score = interval_text(iqm_interval(clipped(scores(runs, algo))), 1.0)
        against_it = [cell for each in ours_in(runs) for cell in cells.get((each, algo), ["", ""])]
        lines.append([name_of(runs, algo), score, number(seconds), *against_it])
    units = ("equal steps", "equal seconds")
    return markdown(
        ["", "IQM", "CPU seconds", *(f"{LABELS[each]}, {unit}" for each in ours_in(runs) for unit in units)], lines
    )


def finding(runs: Runs, cells: Pairs) -> str:
    """
    :param runs: The runs shown
    :param cells: Ours against the others
    :return: What the numbers show of ours, next to the variant of PPO that is hardest to beat
    """
    peers = [algo for algo in runs.of if algo.startswith("ppo")]
    if not peers or not ours_in(runs) or not runs.common:
        return "Nothing is compared yet: there is no task with runs of PPO and of every other algorithm shown."
    parts = []
    for idx, unit in enumerate(("At equal steps", "at equal seconds")):
        hardest = min(peers, key=lambda peer: float(cells[ours_in(runs)[0], peer][idx].split()[0]))
        said = [f"{LABELS[each]} ends above it with probability {cells[each, hardest][idx]}" for each in ours_in(runs)]
        parts.append(f"{unit}, the hardest PPO is *{LABELS[hardest]}*: {'; '.join(said)}")
    text = "; ".join(parts) + "."
    behind_on = {each: ", ".join(task.env_id for task in behind(runs, each)) for each in ours_in(runs)}
    said = [f"{LABELS[each]} on {names}" for each, names in behind_on.items() if names]
    return f"{text} Less than half of the best PPO's gain over a random policy: {'; '.join(said)}." if said else text


def missing(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: What is missing, empty if nothing is
    """
    all_runs, tasks = len(LISTS[runs.list]) * SEEDS[runs.list], LISTS[runs.list]
    counts = {algo: sum(map(len, of_one.values())) for algo, of_one in runs.of.items()}
    said = [f"{LABELS.get(algo, algo)} {n} of {all_runs} runs" for algo, n in counts.items() if n < all_runs]
    left_out = [task.env_id for task in tasks if task not in runs.common]
    text = f"Not complete: {', '.join(said)}. " if said else ""
    if left_out:
        text += f"The aggregates cover {len(runs.common)} of {len(tasks)} tasks, without {', '.join(left_out)}."
    return text.strip()


def behind(runs: Runs, algo: str) -> list[Task]:
    """
    :param runs: The runs shown
    :param algo: One of ours
    :return: Tasks on which it gains less than half of the best PPO's gain over a random policy, unless that is close to zero
    """
    tasks = []
    for task in LISTS[runs.list]:
        gains = {
            name: task.normalised(final_returns(of_one[task.env_id]).mean())
            for name, of_one in runs.of.items()
            if of_one[task.env_id] and (name == algo or name.startswith("ppo"))
        }
        best = max((gain for name, gain in gains.items() if name != algo), default=0.0)
        if algo in gains and best >= MARGIN and gains[algo] < best / 2:
            tasks.append(task)
    return tasks


def by_task(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: A row for each task, a column for each algorithm: mean final returns
    """
    marked = {algo: behind(runs, algo) if algo in OURS else [] for algo in runs.of}
    lines = []
    for task in LISTS[runs.list]:
        means = {algo: final_returns(of_one[task.env_id]).mean() for algo, of_one in runs.of.items() if of_one[task.env_id]}
        cells = [number(means[algo]) + LESS_THAN_HALF * (task in marked[algo]) if algo in means else "" for algo in runs.of]
        lines.append([f"{task.env_id}, {steps_text(task.timesteps)}", number(task.low), number(task.high), *cells])
    return markdown(["task", "random", "reference", *(LABELS[algo] for algo in runs.of)], lines)


def draw_profile(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: The picture, in Markdown
    """
    name = f"unseen_{runs.list}"
    thresholds = np.linspace(*CLIP, 161)
    with figure_of(name, figsize=(7.0, 3.8)) as (figure, axes):
        for algo in runs.of:
            band = performance_profile(clipped(scores(runs, algo)), thresholds)
            draw_band(axes, thresholds, band, label=LABELS[algo], **style(algo, [*runs.of]))
        for at in (0.0, 1.0):
            axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="normalised score τ (0: random policy, 1: reference)", ylabel="share of runs above τ")
        axes.set(xlim=CLIP, ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside upper center", ncols=3, frameon=False, columnspacing=1.2, handlelength=2.5)
    caption = f"Share of runs with a score above τ; {SEEDS[runs.list]} seeds on {len(runs.common)} tasks."
    return picture(name, "Performance profiles", caption)


def looks(found: Sequence[Row], name: str) -> str:
    """
    :param found: All rows
    :param name: Name of a list
    :return: The designs that the list was looked at with
    """
    said = []
    for design in designs(found, name):
        own = select([row for row in found if row["algo"] in ("grpo", "dapo")], name, design)
        changes = {json.dumps(row["changes"]) for row in found if row["design"] == design and "changes" in row}
        iqms = [
            f"{LABELS[algo]} {interval_text(iqm_interval(clipped(scores(own, algo))), 1.0)}"
            for algo in ours_in(own)
            if own.common
        ]
        text = f"*{design}*{''.join(f' (`{each}`)' for each in sorted(changes))}"
        said.append(
            f"{text}: {', '.join(iqms)}, {len(own.common)} {'task' if len(own.common) == 1 else 'tasks'}" if iqms else text
        )
    return f"Designs of GRPO and DAPO that were run on this list: {len(said)}. {'; '.join(said)}."


def section(name: str, design: str) -> str:
    """
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: The part of the page on this list
    """
    found = rows()
    if design not in designs(found, name):
        raise SystemExit(f"No runs of {design} on the list {name}. Designs: {', '.join(designs(found, name)) or 'none'}")
    runs = select(found, name, design)
    cells = pairs(runs) if runs.common else {}
    parts = [finding(runs, cells)]
    if runs.common:
        parts += [draw_profile(runs), table(runs, cells)]
    parts.append(missing(runs))
    means = f"*Return of 100 deterministic episodes after training, mean over the seeds. {LESS_THAN_HALF}: less than half of "
    means += "the best PPO's gain over a random policy.*"
    parts.append(fold("Task by task", f"{by_task(runs)}\n\n{means}"))
    parts.append(looks(found, name))
    return "\n\n".join(part for part in parts if part)


def ablation(name: str, design: str) -> str:
    """
    :param name: Name of a list
    :param design: Design of the defaults
    :return: The defaults, the same without each part, and the paper's settings
    """
    found = rows()
    whole = select(found, name, design)
    labels = {"grpo": "defaults", **{part: label for part, (label, _) in PARTS.items()}, "grpo-paper": "GRPO (paper)"}
    of = {"grpo": whole.of.get("grpo", {}), **{part: select(found, name, part).of.get("grpo", {}) for part in PARTS}}
    of = {part: runs for part, runs in (of | {"grpo-paper": whole.of.get("grpo-paper", {})}).items() if runs}
    for part, (_, changes) in PARTS.items():
        if any(row.get("changes") != changes for runs in of.get(part, {}).values() for row in runs):
            raise SystemExit(f"The runs of the design {part} are not those of {json.dumps(changes)}.")
    runs = Runs(name, design, whole.paper, of, common_tasks(of, name))
    lines = []
    for part in of:
        changes = f"`{json.dumps(PARTS[part][1])}`" if part in PARTS else ""
        cells = [labels[part], changes, interval_text(iqm_interval(clipped(scores(runs, part))), 1.0), "", ""]
        if part != "grpo":
            pair = against(scores(runs, "grpo"), scores(runs, part))
            cells[3:] = [interval_text(pair.difference, 1.0), f"{interval_text(pair.improvement, 1.0)}, {pair.word}"]
        lines.append(cells)
    columns = ["", "changes", "IQM", "defaults: difference of the IQMs", "defaults: probability of ending above"]
    return "\n\n".join(part for part in (markdown(columns, lines), missing(runs)) if part)


def overview() -> str:
    """
    :return: The README's rows
    """
    shown = {name: design for name, design in arguments_of(PAGE, "unseen")}
    lines = []
    for name, (tasks, peers) in OVERVIEW.items():
        runs = select(rows(), name, shown[name])
        lines += [["" if i else tasks, name_of(runs, peer), *pair_cells(runs, "grpo", peer)] for i, peer in enumerate(peers)]
    return markdown(["tasks", "against", "GRPO, equal steps", "GRPO, equal seconds"], lines)


WRITERS: Writers = {"unseen": section, "ablation": ablation, "overview": overview}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", choices=("test_2", "test", "development"))
    parser.add_argument("--design", help="of GRPO and DAPO, from now on")
    args = parser.parse_args()
    if args.design:
        text = PAGE.read_text(encoding="utf-8")
        text = re.sub(
            rf"<!-- write: unseen {args.list} [\w.-]+ -->", f"<!-- write: unseen {args.list} {args.design} -->", text
        )
        PAGE.write_text(text, encoding="utf-8")
    refresh_page(PAGE, WRITERS, args.list)
    refresh_page(INDEX, WRITERS)


if __name__ == "__main__":
    main()
