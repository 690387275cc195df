"""The figure of the page: effects of the switches, and the ladder on text."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.figures import figure_of, style
from benchmarks.switches.effects import Effects, Measured
from sb3_grpo.classroom.compare.statistics import Interval, iqm

_MARKS = {"main": ("D", "#000000"), "alone": ("o", "#0072B2"), "last": ("s", "#D55E00")}
_SAYS = {"main": "mean over all 16 combinations of the others", "alone": "on top of GRPO", "last": "on top of the other four"}


def draw_effects(axes: plt.Axes, title: str, labels: dict[str, str], of: dict[str, Effects]) -> None:
    """
    :param axes: Where to draw
    :param title: Title of the axes
    :param labels: Labels of the switches
    :param of: Effects of the switches
    """
    kinds = [kind for kind in _MARKS if getattr(next(iter(of.values())), kind) is not None]
    for place, kind in enumerate(kinds):
        intervals: list[Interval] = [getattr(each, kind) for each in of.values()]
        y = np.arange(len(of)) + 0.22 * (place - (len(kinds) - 1) / 2)
        marker, colour = _MARKS[kind]
        axes.hlines(y, [each.low for each in intervals], [each.high for each in intervals], color=colour, linewidth=1.5)
        axes.plot([each.value for each in intervals], y, marker, color=colour, markersize=5, label=_SAYS[kind])
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.set_yticks(range(len(of)), [labels[name] for name in of])
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)


def draw_ladder(axes: plt.Axes, found: Measured, rungs: Mapping[str, np.ndarray]) -> None:
    """
    :param axes: Where to draw
    :param found: The measurements
    :param rungs: (seeds, points) curves of each rung
    """
    for label, curves in rungs.items():
        axes.plot(found.grid / 1000, iqm(curves), label=label, linewidth=1.5, **style(label, [*rungs]))
    axes.set(xlabel=f"thousand {found.task.unit}", ylabel=found.task.score)
    axes.set_title(f"Ladder: {found.task.title}", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.grid(alpha=0.3)


def draw_picture(
    found: dict[str, Measured],
    of: dict[str, dict[str, Effects]],
    labels: dict[str, str],
    climbed: Measured,
    rungs: Mapping[str, np.ndarray],
) -> None:
    """
    :param found: The measurements on control and on text
    :param of: The effects
    :param labels: Labels of the switches
    :param climbed: The measurements of the ladder
    :param rungs: (seeds, points) curves of each rung
    """
    with figure_of("dapo_switches", 1, 3, figsize=(13, 3.6), width_ratios=(1, 1, 1.15)) as (figure, axes):
        for axis, (name, measured) in zip(axes, found.items(), strict=False):
            draw_effects(axis, f"{measured.task.title}: {measured.task.score}", labels, of[name])
        draw_ladder(axes[2], climbed, rungs)
        handles, said = axes[0].get_legend_handles_labels()
        figure.legend(handles, said, loc="outside lower left", ncols=3, frameon=False)
