"""
The tables and the picture of the lists of tasks: ``python -m benchmarks.pages index tables`` (minutes of bootstrap).

Reads ``benchmarks/results/unseen.jsonl`` and ``unseen_speed.jsonl``. A block on a page names a list, and a design of GRPO and
DAPO. Nothing is trained. ``scores.py`` defines the figures.
"""

import json

import numpy as np

from benchmarks.blocks import Writers, markdown, picture, steps_text
from benchmarks.figures import draw_band, figure_of, style
from benchmarks.unseen.run import rows
from benchmarks.unseen.scores import (
    CLIP,
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
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.statistics import iqm_interval, performance_profile

LABELS = {
    "ppo": "PPO, 1 env",
    "ppo-norm": "PPO, 1 env, normalised",
    "ppo-16-3e-4": "PPO, 16 envs",
    "ppo-16-norm-3e-4": "PPO, 16 envs, normalised",
    "ppo-16-1e-3": "PPO, 16 envs, 1e-3",
    "ppo-16-norm-1e-3": "PPO, 16 envs, 1e-3, normalised",
    "a2c": "A2C",
    "trpo": "TRPO",
    "grpo-paper": "GRPO (paper)",
    "grpo": "GRPO",
    "dapo": "DAPO",
}
# What the picture and the returns task by task show
DRAWN = ("ppo", "ppo-norm", "grpo", "dapo")
# The defaults without one of their parts: by the designs of their runs, labels and arguments
PARTS = {
    "unrelated": ("unrelated starts", {"unrelated_starts": True}),
    "whole_groups": ("whole groups", {"n_groups": 4}),
    "return_to_go": ("whole groups, no regression", {"advantage": "return_to_go", "loss_average": "step"}),
}


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


def table(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: A row for each algorithm: its score, and GRPO against it
    """
    lines = []
    for algo in runs.of:
        seconds = sum(median_seconds(runs.of[algo][task.env_id]) for task in runs.common)
        score = interval_text(iqm_interval(clipped(scores(runs, algo))), 1.0)
        cells = ["", ""] if algo in ("grpo", "dapo") or "grpo" not in runs.of else pair_cells(runs, "grpo", algo)
        lines.append([name_of(runs, algo), score, number(seconds), *cells])
    return markdown(["", "IQM", "CPU seconds", "GRPO, equal steps", "GRPO, equal seconds"], lines)


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


def tasks_of(name: str, design: str) -> str:
    """
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: A row for each task, a column for each algorithm: mean final returns
    """
    runs = shown(name, design)
    algos = [algo for algo in runs.of if algo in DRAWN]
    lines = []
    for task in LISTS[name]:
        found = [runs.of[algo][task.env_id] for algo in algos]
        means = [number(final_returns(each).mean()) if each else "" for each in found]
        lines.append([f"{task.env_id}, {steps_text(task.timesteps)}", *means])
    table = markdown(["task", *(LABELS[algo] for algo in algos)], lines)
    return f"{table}\n\n*Return of 100 deterministic episodes after training, mean over the seeds.*"


def shown(name: str, design: str) -> Runs:
    """
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: Its runs
    """
    found = rows()
    if design not in designs(found, name):
        raise SystemExit(f"No runs of {design} on the list {name}. Designs: {', '.join(designs(found, name)) or 'none'}")
    return select(found, name, design)


def profile(name: str, design: str) -> str:
    """
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: The picture
    """
    runs, image, thresholds = shown(name, design), f"unseen_{name}", np.linspace(*CLIP, 161)
    drawn = [algo for algo in runs.of if algo in DRAWN]
    with figure_of(image, figsize=(5.6, 3.6)) as (figure, axes):
        for algo in drawn:
            band = performance_profile(clipped(scores(runs, algo)), thresholds)
            draw_band(axes, thresholds, band, label=LABELS[algo], **style(algo, drawn))
        for at in (0.0, 1.0):
            axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="normalised score τ (0: random policy, 1: reference)", ylabel="share of runs above τ")
        axes.set(xlim=CLIP, ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside upper center", ncols=2, frameon=False, columnspacing=1.2, handlelength=2.5)
    alt = f"Share of runs above each normalised score: {'; '.join(LABELS[algo] for algo in drawn)}"
    return picture(image, alt, f"Share of runs with a score above τ; {SEEDS[name]} seeds on {len(runs.common)} tasks.")


def section(name: str, design: str) -> str:
    """
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: The algorithms on this list
    """
    runs = shown(name, design)
    return "\n\n".join(part for part in (table(runs) if runs.common else "", missing(runs)) if part)


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
        cells = [labels[part], interval_text(iqm_interval(clipped(scores(runs, part))), 1.0), ""]
        if part != "grpo":
            pair = against(scores(runs, "grpo"), scores(runs, part))
            cells[2] = f"{interval_text(pair.improvement, 1.0)}, {pair.word}"
        lines.append(cells)
    columns = ["", "IQM", "defaults end above"]
    return "\n\n".join(part for part in (markdown(columns, lines), missing(runs)) if part)


WRITERS: Writers = {"profile": profile, "unseen": section, "unseen_tasks": tasks_of, "ablation": ablation}
