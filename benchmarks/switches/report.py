"""
What the page on DAPO's changes shows, and the data of the lecture's widget: ``python -m benchmarks.switches.report``.

Reads ``benchmarks/results/switches.jsonl``. Nothing is trained.
"""

import json
from functools import cache
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown, picture
from benchmarks.common import ROOT, rows
from benchmarks.figures import draw_dots, figure_of
from benchmarks.switches.effects import Effects, Measured, difference, effect, effects, measured
from benchmarks.switches.run import RESULTS
from benchmarks.switches.tasks import Arm, five, ladder, ordered
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

BOTH = ("control", "text")
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


def ladder_table(rungs: list[Rung]) -> str:
    """
    :param rungs: Rungs of the ladder
    :return: A row for each
    """
    lines = [
        [
            rung.label,
            interval_text(rung.over_training),
            "" if rung.adds is None else interval_text(rung.adds),
            "" if rung.paper is None else f"{rung.paper}",
        ]
        for rung in rungs
    ]
    return markdown(["", "over training", "adds", "paper: AIME 2024"], lines)


def draw_effects(of: dict[str, dict[str, Effects]]) -> str:
    """
    :param of: Effects on each task
    :return: The picture, in Markdown
    """
    kinds = {"added to GRPO": "alone", "added to the other four": "last", "on average over the others": "main"}
    with figure_of("switches", len(of), figsize=(5.6, 5.2)) as (figure, grid):
        for axes, (task, each) in zip(grid, of.items(), strict=True):
            dots = {kind: [getattr(figures, name) for figures in each.values()] for kind, name in kinds.items()}
            measured_all = {kind: intervals for kind, intervals in dots.items() if None not in intervals}
            draw_dots(axes, [LABELS[name] for name in each], measured_all, at=0.0)
            axes.set_title(task, fontsize=10)
            axes.set_xlabel("difference of the mean score over training")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    caption = "To the right of the line, a change helps. With 95% intervals; five seeds."
    alt = "Differences that each of DAPO's five changes makes to the mean score over training, on Acrobot and on sums"
    return picture("switches", alt, caption)


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


def write() -> None:
    """Write the lecture's data."""
    both = {name: of_task(name) for name in BOTH}
    of = {name: effects(each) for name, each in both.items()}
    data = widget_data(both | {"ladder": of_task("ladder")}, of)
    DATA.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


@cache
def of_task(name: str) -> Measured:
    """
    :param name: Name of a task
    :return: Its runs
    """
    return measured(rows(RESULTS), name)


WRITERS: Writers = {
    "switches_effects": lambda: draw_effects({of_task(name).task.title: effects(of_task(name)) for name in BOTH}),
    "switches_ladder": lambda: ladder_table(rungs_of(of_task("ladder"))),
}


if __name__ == "__main__":
    write()
