"""Tables and the picture of a pretrained language model on the page ``text``: ``python -m benchmarks.pages text``."""

from collections import defaultdict
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown, picture
from benchmarks.common import read_result, rows
from benchmarks.figures import draw_band, figure_of, style
from benchmarks.language_model import learning, speed
from benchmarks.language_model.tasks import ONE_TURN, SEVERAL_TURNS
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

NAMES = {"grpo": "GRPO (paper)", "dapo": "DAPO", "dr_grpo": "Dr. GRPO", "trl": "TRL"}
N_SHOWN = 3
# Columns of curves
_TOKENS, _COMPLETIONS, _SECONDS, _ACCURACY = range(4)


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
    with figure_of("language_model", 2, 2, figsize=(6.4, 4.6), sharey=True) as (figure, grid):
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
        "Learning curves",
        "SmolLM2-135M with LoRA: most likely answers to 200 held-out prompts. IQM, with its 95% interval for three seeds.",
    )


def finals(kind: str) -> str:
    """
    :param kind: "one_turn" or "several_turns"
    :return: A row for each task and variant
    """
    lines = []
    found = _runs()
    for task, variant in product(SEVERAL_TURNS if kind == "several_turns" else ONE_TURN, NAMES):
        if not (runs := found[task, variant]):
            continue
        curves = [run["curve"] for run in runs]
        before, after = (np.array([curve[place][_ACCURACY] for curve in curves]) for place in (0, -1))
        samples = [run["pass_at_8"] for run in runs if "pass_at_8" in run]
        cells = [f"{fmean(before):.2f}", interval_text(iqm_interval([after])), interval_text(iqm_interval([after - before]))]
        cells += [" to ".join(f"{fmean(each):.2f}" for each in zip(*samples, strict=True)) if samples else ""]
        cells += [f"{fmean(curve[-1][_COMPLETIONS] for curve in curves):,.0f}"]
        cells += [f"{fmean(curve[-1][_SECONDS] for curve in curves) / 60:.1f}"]
        memory = [run["peak_memory_mib"] for run in runs if "peak_memory_mib" in run]
        cells += [f"{max(memory) / 1024:.1f}" if memory else ""]
        lines.append([task.replace("_", " "), NAMES[variant], str(len(runs)), *cells])
    columns = ["", "", "seeds", "right before", "right after", "gain", "pass@8", "completions", "CPU minutes", "GiB"]
    return markdown(columns, lines)


def answers(kind: str) -> str:
    """
    :param kind: "one_turn" or "several_turns"
    :return: The first prompts whose answers have changed, with the answers before and after
    """
    lines = []
    for task in SEVERAL_TURNS if kind == "several_turns" else ONE_TURN:
        answered = [answer for run in _runs()[task, "dapo"][:1] for answer in run["answers"] if answer[1] != answer[2]]
        for prompt, *texts, is_right in answered[:N_SHOWN]:
            shown = [f"`{text.strip()}`".replace("\n", "` `") for text in (prompt.splitlines()[-1], *texts)]
            lines.append([task.replace("_", " "), *shown, "right" if is_right else "wrong"])
    return markdown(["", "prompt", "before", "after", ""], lines)


def rates() -> str:
    """
    :return: Tokens per second and memory by length, next to TRL and to the bare model
    """
    measured: dict[Any, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows(speed.OUTPUT):
        measured[tuple(row["shape"])][row["subject"]][row["repeat"]] = row
    lines = []
    for shape, subjects in measured.items():

        def of(subject: str, key: str, subjects: Any = subjects) -> float:
            return median(row[key] for row in subjects[subject].values())

        def times(key: str, subjects: Any = subjects) -> str:
            common = subjects["ours"].keys() & subjects["trl"].keys()
            return f"{median(subjects['ours'][each][key] / subjects['trl'][each][key] for each in common):.1f}"

        cells = [f"{shape[0]}", f"{shape[1]}", f"{shape[2]} x {shape[3]}"]
        cells += [f"{of('ours', 'generated_per_second'):.0f} ({times('generated_per_second')})"]
        cells += [
            f"{of('ours', 'trained_per_second'):.0f} ({times('trained_per_second')})",
            f"{of('bare', 'trained_per_second'):.0f}",
        ]
        cells += [f"{of('ours', 'tokens_per_second'):.0f} ({times('tokens_per_second')})"]
        cells += [" and ".join(f"{of(subject, 'peak_memory_mib') / 1024:.1f}" for subject in ("ours", "trl"))]
        lines.append(cells)
    columns = ["prompt", "answer", "answers", "generated", "trained", "limit of training", "together", "GiB: ours and TRL"]
    return markdown(columns, lines)


def memory() -> str:
    """
    :return: Memory of the loss with the exact KL divergence, by vocabulary
    """
    lines = []
    for row in read_result("language_model/memory.json")["rows"]:
        if row["kl"]:
            what = [f"{row['vocabulary']:,}", "yes" if row["trains_head"] else "no"]
            lines.append([*what, f"{row['in_pieces_mib']:,.0f}", f"{row['at_once_mib']:,.0f}"])
    return markdown(["vocabulary", "last layer trained", "MiB in pieces", "MiB at once"], lines)


WRITERS: Writers = {
    "language_model_curves": curves,
    "language_model_finals": finals,
    "language_model_answers": answers,
    "language_model_rates": rates,
    "language_model_memory": memory,
}
