"""
The page on DAPO's changes, and the data of the lecture's widget: ``python -m benchmarks.switches.report``.

Reads ``benchmarks/results/switches.jsonl`` and ``group_noise.json``, and writes ``docs/results/dapo_switches.md`` with its
figure and ``sb3_grpo/classroom/lecture/data/switches.json``. Nothing is trained.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import IMAGES, PAGES, READINGS, fold, list_pages
from benchmarks.switches.effects import Effects, Measured, difference, effect, effects, measured
from benchmarks.switches.figures import draw
from benchmarks.switches.group_noise import RESULTS as NOISE
from benchmarks.switches.run import RESULTS
from benchmarks.switches.scaling import Fit, fit_interval
from benchmarks.switches.tasks import TASKS, Arm, five, ladder, ordered
from benchmarks.tables import markdown
from benchmarks.unseen.run import ROOT, origins, rows
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import Interval, iqm_curve, iqm_interval

DATA = ROOT / "sb3_grpo" / "classroom" / "lecture" / "data" / "switches.json"
LABELS = {
    "clip_higher": "clip-higher",
    "dynamic_sampling": "dynamic sampling",
    "step_loss": "step-level loss",
    "overlong_filter": "overlong filter",
    "overlong_range": "overlong penalty",
    "no_kl": "no KL penalty",
}
# Table 1 of DAPO's paper (AIME 2024, mean of 32 samples), by what a rung has that the one before has not
PAPER = {
    "overlong_filter": 36,
    "clip_higher": 38,
    "overlong_range": 41,
    "step_loss": 42,
    "dynamic_sampling": 50,
    "no_kl": 30,
}


class Rung:
    """
    A rung of the ladder.

    :param found: The measurements
    :param arm: The combination
    :param before: The combination of the rung below, ``None`` for the first
    """

    def __init__(self, found: Measured, arm: Arm, before: Arm | None):
        self.arm, self.curves = arm, found.curves[arm]
        self.added = next((name for name in arm if before is not None and name not in before), None)
        replaced = before is not None and not set(before) <= set(arm)
        self.label = "GRPO" if self.added is None else f"+ {LABELS[self.added]}{' for the filter' if replaced else ''}"
        self.paper = None if self.added is None else PAPER[self.added]
        self.fit, self.low, self.high = fit_interval(found.grid, self.curves, found.task.range[1])
        self.final = iqm_interval([self.curves[:, -1]])
        scores = found.over_training([arm])
        self.over_training = iqm_interval([scores[:, 0]])
        self.adds = None if before is None else difference(scores, found.over_training([before]))


def rungs_of(found: Measured) -> list[Rung]:
    """
    :param found: The measurements
    :return: The rungs of the ladder
    """
    arms = ladder(found.task.overlong)
    return [Rung(found, arm, before) for arm, before in zip(arms, (None, *arms), strict=False)]


def ladder_table(rungs: list[Rung], budget: int) -> str:
    """
    :param rungs: Rungs of the ladder
    :param budget: Budget of each run
    :return: A row for each
    """

    def cell(rung: Rung, key: str, divisor: float = 1.0) -> str:
        return interval_text(Interval(*(getattr(fit, key) / divisor for fit in (rung.fit, rung.low, rung.high))))

    columns = ["", "at the end", "over training", "adds", "ceiling A", "midpoint, thousands", "exponent B", "paper: AIME 2024"]
    lines = [
        [
            rung.label,
            interval_text(rung.final),
            interval_text(rung.over_training),
            "" if rung.adds is None else interval_text(rung.adds),
            cell(rung, "ceiling"),
            cell(rung, "midpoint", 1000) + (" \u2020" if rung.high.midpoint > budget else ""),
            cell(rung, "exponent"),
            "" if rung.paper is None else f"{rung.paper}",
        ]
        for rung in rungs
    ]
    return markdown(columns, lines)


def effects_table(of: dict[str, dict[str, Effects]]) -> str:
    """
    :param of: Effects on each task
    :return: A row for each switch on each task
    """
    lines = []
    for task, each in of.items():
        for name, figures in each.items():
            main = "" if figures.main is None else interval_text(figures.main)
            lines.append([task, LABELS[name], main, interval_text(figures.alone), interval_text(figures.last)])
    return markdown(["", "switch", "on average over the others", "added to GRPO", "added to the other four"], lines)


def overlong_table(acrobot: Measured, cartpole: Measured) -> str:
    """
    :param acrobot: Where the limit is failure
    :param cartpole: Where it is success
    :return: Mean over training of GRPO and of DAPO, without and with the filter
    """
    names = set(five("overlong_filter")) - {"overlong_filter"}
    lines = []
    for label, arm in {"GRPO": (), "DAPO": ordered(names)}.items():
        for found in (acrobot, cartpole):
            both = [arm, ordered({*arm, "overlong_filter"})]
            scores = found.over_training(both)
            cut_off = [row["cut_off"] for row in found.rows if tuple(row["on"]) in both]
            cells = [interval_text(iqm_interval([scores[:, i]])) for i in range(2)]
            cells.append(interval_text(difference(scores[:, 1:], scores[:, :1])))
            lines.append([found.task.title, label, *cells, f"{100 * np.mean(cut_off):.0f}%"])
    return markdown(["", "", "without the filter", "with the filter", "difference", "episodes cut off"], lines)


def noise_table(noise: dict[str, Any], sizes: Measured) -> str:
    """
    :param noise: Noise of the gradient
    :param sizes: Runs with groups of several sizes
    :return: A row for each size
    """
    of_size = {int(arm[0].partition("=")[2]): arm for arm in sizes.curves}
    lines = []
    for size, interval in zip(noise["sizes"], noise["none"]["noise"], strict=True):
        # For an update of 16 episodes
        of_update = Interval(*(np.array(interval) * np.sqrt(size / 16)).tolist())
        arm = of_size.get(size)
        learned = ["", ""]
        if arm:
            scores = sizes.over_training([arm])[:, 0], sizes.finals(arm)
            learned = [interval_text(iqm_interval([each])) for each in scores]
        lines.append([str(size), interval_text(Interval(*interval)), interval_text(of_update) if size <= 16 else "", *learned])
    columns = ["G", "noise of one group", "noise of 16 episodes", "CartPole: over training", "CartPole: at the end"]
    return markdown(columns, lines)


def curve(scores: np.ndarray, digits: int) -> list[list[float]]:
    """
    :param scores: (seeds, points)
    :param digits: Digits after the decimal point
    :return: The interquartile mean at each point, and the ends of its interval
    """
    return [[round(float(x), digits) + 0.0 for x in part] for part in iqm_curve(scores)]


def worth(found: Measured, arm: Arm, name: str, digits: int) -> list[float] | None:
    """
    :param found: The measurements
    :param arm: A combination
    :param name: Name of a switch
    :param digits: Digits after the decimal point
    :return: What the switch adds to the others that are on, with its interval. ``None`` if it is on, or that was not measured
    """
    if name in arm or ordered({*arm, name}) not in found.curves:
        return None
    return [round(x, digits) + 0.0 for x in effect(found, name, [arm])]


def widget_data(found: dict[str, Measured], of: dict[str, dict[str, Effects]]) -> dict[str, Any]:
    """
    :param found: The measurements on control, on text, and of the ladder
    :param of: The effects on the first two
    :return: The lecture's data. A combination is named by five digits, one per switch
    """
    data = {}
    for name, each in found.items():
        names, digits = five(each.task.overlong), each.task.digits
        arms = [arm for arm in each.curves if set(arm) <= set(names)]
        data[name] = {
            "title": each.task.title,
            "steps": each.task.timesteps,
            "unit": each.task.unit,
            "score": each.task.score,
            "range": each.task.range,
            "digits": digits,
            "seeds": len(each.seeds),
            "switches": [LABELS[switch] for switch in names],
            # On top of any combination of the others
            "main": [[round(x, digits) for x in of[name][switch].main or ()] for switch in names if name in of],
            "arms": {
                "".join(str(int(switch in arm)) for switch in names): {
                    "curve": curve(each.curves[arm], digits),
                    "mean": [round(x, digits) for x in iqm_interval([each.over_training([arm])[:, 0]])],
                    "worth": [worth(each, arm, switch, digits) for switch in names],
                }
                for arm in arms
            },
        }
    return data


def page(found: dict[str, Measured], of: dict[str, dict[str, Effects]], rungs: list[Rung], noise: dict[str, Any]) -> str:
    """
    :param found: The measurements
    :param of: The effects on control and on text
    :param rungs: Rungs of the ladder on text
    :param noise: Noise of groups
    :return: The page in Markdown
    """
    readings = (READINGS / "dapo_switches.md").read_text(encoding="utf-8").split("\n---\n")
    shows, of_ladder, overlong, groups, to_know = (part.strip() for part in readings)
    control, text, ladder_task = found["control"], found["text"], found["ladder"].task
    n_seeds = len(control.seeds)
    titles = {found[name].task.title: each for name, each in of.items()}
    parts = [
        "# What each of DAPO's changes is worth\n",
        "![Effects of the changes, and the ladder on text](../images/dapo_switches.svg){.picture}\n",
        f"*{n_seeds} seeds. Left: what each change adds to the mean score over training: difference of the IQMs, with its 95% "
        "interval. Right: the changes one after another, in the order of the paper's table: means over the seeds, and "
        "fitted curves.*\n",
        shows + "\n",
        effects_table(titles) + "\n",
        "*Mean score over training: difference of the IQMs with and without the change, with its 95% interval. All "
        "combinations use the same seeds, so the bootstrap resamples seeds jointly.*\n",
        "## The ladder\n",
        of_ladder + "\n",
        ladder_table(rungs, ladder_task.timesteps) + "\n",
        f"*{ladder_task.title}, {ladder_task.timesteps:,} {ladder_task.unit}. IQM and 95% interval. Adds: to the mean over "
        "training, compared with the row above, on the same seeds. A, midpoint and B: "
        "$R(C) = R_0 + (A - R_0) / (1 + (C_{mid} / C)^B)$, the form of [ScaleRL](https://arxiv.org/abs/2510.13786), fitted to "
        "the mean over the seeds, with $R_0$ as measured and A at most 1; intervals by resampling the seeds. \u2020: the "
        "interval of the midpoint extends beyond the budget, so the ceiling is extrapolated.*\n",
        "## Overlong episodes, where the limit is failure and where it is success\n",
        overlong + "\n",
        overlong_table(control, found["cartpole"]) + "\n",
        "*Mean return over training: IQM and 95% interval. Cut off: share of the episodes in updates, for both columns.*\n",
        "## Larger groups\n",
        groups + "\n",
        noise_table(noise, found["sizes"]) + "\n",
        "*Noise: standard deviation of the gradient divided by the norm of its expectation, with its 95% interval. "
        f"CartPole-v1, {found['sizes'].task.timesteps:,} steps, 16 episodes in every update: IQM and 95% interval.*\n",
        fold("Control: all combinations", combinations(control)),
        fold("Text: all combinations", combinations(text)),
        f"## What to know\n\n{to_know}\n",
        f"## How it was made\n\n{made(found)}\n",
    ]
    return "\n".join(parts)


def combinations(found: Measured) -> str:
    """
    :param found: The measurements
    :return: A row for each combination
    """
    lines = []
    for arm in found.curves:
        scores = found.over_training([arm])[:, 0]
        seeds = ", ".join(f"{score:.{found.task.digits}f}" for score in found.finals(arm))
        label = ", ".join(LABELS[name] for name in arm) or "GRPO"
        lines.append([label, interval_text(iqm_interval([scores])), interval_text(iqm_interval([found.finals(arm)])), seeds])
    return markdown(["changes that are on", "over training", "at the end", "at the end, seed by seed"], lines)


def made(found: dict[str, Measured]) -> str:
    """
    :param found: The measurements
    :return: Commands, commits, machines and versions
    """
    all_rows = [row for each in found.values() for row in each.rows]
    seconds = sum(row["seconds"] for row in all_rows)
    commands = ["python -m benchmarks.switches.run", "python -m benchmarks.switches.group_noise"]
    commands.append("python -m benchmarks.switches.report")
    block = "\n".join(("```sh", *commands, "```"))
    return (
        f"{block}\n\n{len(all_rows)} runs, {seconds / 60:.0f} CPU minutes. "
        f"{origins(all_rows).replace('unseen.jsonl', 'switches.jsonl')}"
    )


def write_page(
    found_rows: list[dict[str, Any]], noise: dict[str, Any], pages: Path = PAGES, images: Path = IMAGES, data: Path = DATA
) -> None:
    """
    :param found_rows: All runs
    :param noise: Noise of groups
    :param pages: Folder of the page
    :param images: Folder of the figure
    :param data: Folder of the lecture's data
    """
    found = {name: measured(found_rows, name) for name in TASKS}
    both = {name: found[name] for name in ("control", "text")}
    of = {name: effects(each) for name, each in both.items()}
    rungs = rungs_of(found["ladder"])
    fits: list[tuple[Arm, str, Fit]] = [(rung.arm, rung.label, rung.fit) for rung in rungs]
    draw(both, of, LABELS, found["ladder"], fits, images / "dapo_switches.svg")
    (pages / "dapo_switches.md").write_text(page(found, of, rungs, noise), encoding="utf-8")
    data.write_text(
        json.dumps(widget_data(both | {"ladder": found["ladder"]}, of), separators=(",", ":")) + "\n", encoding="utf-8"
    )


def main() -> None:
    """Write the page and the data."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_page(rows(RESULTS), json.loads(NOISE.read_text(encoding="utf-8")))
    list_pages()


if __name__ == "__main__":
    main()
