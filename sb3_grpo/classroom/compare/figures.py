"""
The pictures: drawn once by matplotlib, as SVG in the page and as SVG and PNG files for slides.

A variant has the same colour, line style and marker in all pictures. The colours are those of Okabe and Ito that are
dark enough for a white background; line styles and markers help readers who cannot tell the colours apart.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib import rc_context, rcParams

from sb3_grpo.classroom.compare.curves import Line
from sb3_grpo.classroom.compare.statistics import Interval
from sb3_grpo.classroom.pictures import NO_DATE, TEXT, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """
    How a variant is drawn.

    :param colour: colour on white, for matplotlib and CSS
    :param dashes: dashes and gaps in units of the line width, empty for a solid line
    :param marker: marker for matplotlib
    :param dark: colour on black
    """

    colour: str
    dashes: tuple[float, ...]
    marker: str
    dark: str


_STYLES = [
    Style("#0072B2", (), "o", "#4BA9EC"),
    Style("#D55E00", (5, 1.5), "s", "#FF8A4A"),
    Style("#009E73", (6, 1.5, 1.5, 1.5), "^", "#35CFA0"),
    Style("#CC79A7", (1.5, 1), "D", "#EDA3CC"),
    Style("#56B4E9", (8, 3), "v", "#A5DBFF"),
    Style("#E69F00", (3, 1, 1, 1, 1, 1), "P", "#F7C948"),
    Style("#000000", (4, 3), "X", "#F4F4F4"),
    Style("#7F7F7F", (), "*", "#A6A6A6"),
]
_KNOWN = {"ppo": 0, "grpo": 1, "dapo": 2, "trpo": 3, "a2c": 4}
_MARKERS = "<>hdp8H1"
_SIZE = (5.6, 3.3)


def styles(variants: Sequence[str]) -> dict[str, Style]:
    """
    :param variants: names of the variants, in the order of the experiment
    :return: the style of each variant: the algorithm's own if it is named after an algorithm, otherwise one of the others
    """
    known = {name: _STYLES[_KNOWN[name]] for name in variants if name in _KNOWN}
    free = [style for style in _STYLES if style not in known.values()]
    chosen: dict[str, Style] = {}
    n_beyond = 0
    for name in variants:
        if name in known:
            chosen[name] = known[name]
        elif free:
            chosen[name] = free.pop(0)
        else:
            # More variants than colours: colours repeat with another line style and marker
            i = n_beyond % len(_STYLES)
            dashes, marker = _STYLES[(i + 3) % len(_STYLES)].dashes, _MARKERS[i % len(_MARKERS)]
            chosen[name] = _STYLES[i]._replace(dashes=dashes, marker=marker)
            n_beyond += 1
    return chosen


def draw_lines(
    lines: Sequence[Line],
    look: Mapping[str, Style],
    xlabel: str,
    finals: Mapping[str, tuple[np.ndarray, Interval]] | None = None,
    threshold: float | None = None,
    ylabel: str = "Return",
) -> "Figure":
    """
    One line per variant, with its interval, or with its runs if there is none.

    :param lines: lines of the variants
    :param look: styles of the variants
    :param xlabel: label of the horizontal axis
    :param finals: final scores of each variant and their IQM, drawn beside the curves
    :param threshold: a value to mark
    :param ylabel: label of the vertical axis
    :return: the figure
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    if finals:
        axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=[5.0, 0.35 + 0.22 * len(finals)])
        draw_finals(beside, finals, look)
    else:
        axes = figure.subplots()
    draw_curves(axes, lines, look, threshold)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure


def draw_curves(
    axes: "Axes",
    lines: Sequence[Line],
    look: Mapping[str, Style],
    threshold: float | None = None,
    n_ticks: int = 6,
    every_run: bool = False,
) -> None:
    """
    :param axes: where to draw
    :param lines: lines of the variants
    :param look: styles of the variants
    :param threshold: a value to mark
    :param n_ticks: how many parts the horizontal axis has at most
    :param every_run: draw the runs of lines with an interval, too
    """
    from matplotlib.ticker import EngFormatter

    if threshold is not None:
        axes.axhline(threshold, color=TEXT, linewidth=1.0, linestyle=(0, (2, 3)))
    for place, (name, x, band, runs) in enumerate(lines):
        style, known = look[name], not np.isnan(band.low).all()
        if every_run or not known:
            axes.plot(x, runs.T, color=style.colour, alpha=0.2 if known else 0.45, linewidth=0.8)
        if known:
            axes.fill_between(x, band.low, band.high, color=style.colour, alpha=0.2, linewidth=0)
        every = max(1, len(x) // 8)
        # Shift markers, so that those of two overlapping curves do not coincide
        shown = (place * every // len(lines), every)
        kind: dict[str, Any] = {
            "linestyle": (0, style.dashes),
            "marker": style.marker,
            "markevery": shown,
            "markeredgecolor": "white",
        }
        axes.plot(x, band.value, label=name, color=style.colour, **kind)
    axes.locator_params("x", nbins=n_ticks)
    if max(line.x[-1] for line in lines) >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.02)
    if not axes.dataLim.intervaly.any():
        # Nothing but zeros, for which matplotlib would show hundredths
        axes.set_ylim(-0.05, 1.05)


def draw_finals(
    axes: "Axes", finals: Mapping[str, tuple[np.ndarray, Interval]], look: Mapping[str, Style], label: str = "Final"
) -> None:
    """
    Draw a small marker per run, and a large one with a bar for the IQM and its interval.

    :param axes: where to draw
    :param finals: scores of each variant and their IQM
    :param look: styles of the variants
    :param label: what the scores are
    """
    size = rcParams["lines.markersize"]
    for place, (name, (values, interval)) in enumerate(finals.items()):
        style = look[name]
        axes.plot(
            np.full(len(values), place - 0.2),
            values,
            style.marker,
            color=style.colour,
            alpha=0.35,
            markersize=0.64 * size,
            mew=0,
        )
        if interval.known:
            axes.plot([place + 0.2] * 2, interval[1:], color=style.colour, linewidth=0.55 * size, solid_capstyle="butt")
        axes.plot(
            place + 0.2, interval.value, style.marker, color=style.colour, markersize=1.18 * size, markeredgecolor="white"
        )
    axes.set_xlim(-0.8, len(finals) - 0.2)
    axes.set_xticks([])
    axes.set_xlabel(label)
    axes.grid(axis="x", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False, labelleft=False)


def save(figure: "Figure", path: Path, title: str) -> str:
    """
    :param figure: a figure
    :param path: where to save it as PNG and SVG files with a title and a legend, without a suffix
    :param title: the title
    :return: SVG for the page, which has both in its text: the stylesheet decides on colours
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Identifiers in the same page must differ
    with rc_context({"svg.hashsalt": path.name}):
        svg_path = path.with_name(f"{path.name}.svg")
        figure.savefig(svg_path, transparent=True, metadata=NO_DATE)
        in_page = inline(svg_path.read_text("utf-8"))
        figure.suptitle(textwrap.fill(title, 50))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if labels:
            n_columns = max(1, min(len(labels), 60 // (max(map(len, labels)) + 6)))
            figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, frameon=False, handlelength=3)
            figure.set_figheight(figure.get_figheight() + 0.25 * -(-len(labels) // n_columns))
        figure.savefig(svg_path, metadata=NO_DATE)
        # Computing the layout takes as long as drawing, and it is already known
        figure.set_layout_engine("none")
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=300)
    return in_page
