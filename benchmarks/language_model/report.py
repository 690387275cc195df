"""Tables and the picture of a pretrained language model: ``python -m benchmarks.pages index text``."""

from collections import defaultdict
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown, picture
from benchmarks.common import rows
from benchmarks.figures import draw_band, figure_of, style
from benchmarks.language_model import learning, speed
from benchmarks.language_model.tasks import ONE_TURN, SEVERAL_TURNS
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

NAMES = {"grpo": "GRPO (paper)", "dapo": "DAPO", "dr_grpo": "Dr. GRPO", "trl": "TRL"}
# Columns of curves
_TOKENS, _, _SECONDS, _ACCURACY = range(4)


def _runs() -> dict[tuple[str, str], list[dict[str, Any]]]:
    runs = defaultdict(list)
    for row in sorted(rows(learning.OUTPUT), key=lambda each: each["seed"]):
        runs[row["task"], row["variant"]].append(row)
    return runs


def _draw(axes: Any, runs: list[dict[str, Any]], column: int, unit: float, **look: Any) -> None:
    if not runs:
        return
    curves = [np.array(run["curve"]) for run in runs]
    grid = np.linspace(0, min(curve[-1, column] for curve in curves), 50)
    values = np.array([np.interp(grid, curve[:, column], curve[:, _ACCURACY]) for curve in curves])
    draw_band(axes, grid / unit, iqm_curve(values), **look)


def curves() -> str:
    """
    :return: Accuracy by tokens in each task, and by minutes next to TRL
    """
    runs = _runs()
    with figure_of("language_model", 2, 2, figsize=(4.8, 4.6), sharey=True) as (figure, grid):
        for axes, task in zip(grid.flat, ONE_TURN, strict=False):
            for variant in (each for each in learning.VARIANTS if each in NAMES):
                look = style(variant, [*NAMES])
                _draw(axes, runs[task, variant], _TOKENS, 1000, label=NAMES[variant], **look)
            axes.set(title=task.replace("_", " "), xlabel="thousand tokens")
        for variant in ("dapo", "trl"):
            _draw(grid[1, 1], runs["sums", variant], _SECONDS, 60, label=NAMES[variant], **style(variant, [*NAMES]))
        grid[1, 1].set(title="sums, by time", xlabel="CPU minutes, one core")
        for axes in grid.flat:
            axes.set(ylim=(0, 1))
            axes.grid(alpha=0.3)
        for axes in grid[:, 0]:
            axes.set_ylabel("right answers")
        handles = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    return picture(
        "language_model",
        "Right answers over tokens with GRPO, DAPO and Dr. GRPO on sums, letters and chain sums, and over minutes with TRL",
        "SmolLM2-135M with LoRA: most likely answers to 200 held-out prompts. IQM, with its 95% interval for three seeds.",
    )


def finals() -> str:
    """
    :return: A row for each task and variant
    """
    lines = []
    found = _runs()
    for task, variant in product((*ONE_TURN, *SEVERAL_TURNS), NAMES):
        if not (runs := found[task, variant]):
            continue
        curves = [run["curve"] for run in runs]
        before, after = (np.array([curve[place][_ACCURACY] for curve in curves]) for place in (0, -1))
        cells = [f"{fmean(before):.2f}", interval_text(iqm_interval([after]))]
        cells += [f"{fmean(curve[-1][_SECONDS] for curve in curves) / 60:.1f}"]
        lines.append([f"{task.replace('_', ' ')}: {NAMES[variant]}", *cells])
    return markdown(["", "right before", "right after", "CPU minutes"], lines)


def rates() -> str:
    """
    :return: Tokens per second and memory by length, next to TRL
    """
    measured: dict[Any, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows(speed.OUTPUT):
        measured[tuple(row["shape"])][row["subject"]][row["repeat"]] = row
    lines = []
    for (prompt, answer, _, n_groups, *_), subjects in measured.items():
        both = subjects["ours"], subjects["trl"]
        rate = median(row["tokens_per_second"] for row in both[0].values())
        ratios = [both[0][each]["tokens_per_second"] / both[1][each]["tokens_per_second"] for each in both[0].keys() & both[1]]
        memory = [f"{median(row['peak_memory_mib'] for row in each.values()) / 1024:.1f}" for each in both if each]
        times = f"{median(ratios):.1f}" if ratios else ""
        lines.append([str(prompt), str(answer), str(n_groups), f"{rate:.0f}", times, " and ".join(memory)])
    return markdown(["prompt", "answer", "groups", "tokens per CPU second", "times TRL's", "GiB: ours and TRL"], lines)


WRITERS: Writers = {"language_model_curves": curves, "language_model_finals": finals, "language_model_rates": rates}
