"""
The pictures, each as PNG and SVG, in 16:9 with large text for slides.

A variant has the same colour, line style and marker in all pictures. The colours are those of Okabe and Ito that are
dark enough for a white background; line styles and markers help readers who cannot tell the colours apart.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.curves import Line
from sb3_grpo.classroom.compare.results import import_extra
from sb3_grpo.classroom.compare.statistics import Band, Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """
    How a variant is drawn.

    :param colour: colour on white, for matplotlib and CSS
    :param linestyle: line style for matplotlib
    :param marker: marker for matplotlib
    :param dark: colour on black
    """

    colour: str
    linestyle: str | tuple[int, tuple[float, ...]]
    marker: str
    dark: str

    @property
    def dashes(self) -> tuple[float, ...]:
        """Dashes and gaps in units of the line width, empty for a solid line."""
        return self.linestyle[1] if isinstance(self.linestyle, tuple) else ()


_STYLES = [
    Style("#0072B2", "-", "o", "#4BA9EC"),
    Style("#D55E00", (0, (5, 1.5)), "s", "#FF8A4A"),
    Style("#009E73", (0, (6, 1.5, 1.5, 1.5)), "^", "#35CFA0"),
    Style("#CC79A7", (0, (1.5, 1)), "D", "#EDA3CC"),
    Style("#56B4E9", (0, (8, 3)), "v", "#A5DBFF"),
    Style("#E69F00", (0, (3, 1, 1, 1, 1, 1)), "P", "#F7C948"),
    Style("#000000", (0, (4, 3)), "X", "#F4F4F4"),
    Style("#7F7F7F", "-", "*", "#A6A6A6"),
]
_KNOWN = {"ppo": 0, "grpo": 1, "dapo": 2, "trpo": 3, "a2c": 4}
_MARKERS = "<>hdp8H1"

_RC = {
    "font.size": 20,
    "axes.titlesize": 24,
    "axes.labelsize": 22,
    "legend.fontsize": 20,
    "lines.linewidth": 3.5,
    "lines.markersize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    # Text as outlines, so that it looks the same everywhere
    "svg.fonttype": "path",
}
_SIZE = (12.8, 7.2)
_DPI = 150


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
            linestyle, marker = _STYLES[(i + 3) % len(_STYLES)].linestyle, _MARKERS[i % len(_MARKERS)]
            chosen[name] = _STYLES[i]._replace(linestyle=linestyle, marker=marker)
            n_beyond += 1
    return chosen


@contextmanager
def _figure(path: Path, title: str, size: tuple[float, float] = _SIZE) -> Iterator["Figure"]:
    """Create a figure that is saved as ``path`` with the suffixes .png and .svg at the end of the ``with`` block."""
    matplotlib = import_extra("matplotlib")
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    # The same data must give the same files
    with matplotlib.rc_context({**_RC, "svg.hashsalt": path.name}):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=26)
        yield figure
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None, "Creator": None})
        # Computing the layout takes as long as drawing, and it is already known
        figure.set_layout_engine("none")
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=_DPI)


def _legend(figure: "Figure", handles: Sequence["Artist"], labels: Sequence[str]) -> None:
    # Width of an entry in characters, including the line in front of it
    width = max(len(label) for label in labels) + 9
    small = -(-len(labels) // max(1, 85 // width)) > 2
    n_columns = max(1, min(5, len(labels), (115 if small else 85) // width))
    size = 15 if small else 20
    figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, frameon=False, handlelength=3, fontsize=size)


def _row_label(name: str) -> str:
    return textwrap.fill(name, 24)


def _row_size(names: Iterable[str]) -> int:
    return 20 if max(len(name) for name in names) <= 14 else 15


def _plot(axes: "Axes", lines: Sequence[Line], look: Mapping[str, Style], markers: bool = True) -> None:
    for i, (name, x, band, runs) in enumerate(lines):
        style = look[name]
        if np.isnan(band.low).all():
            axes.plot(x, runs.T, color=style.colour, alpha=0.45, linewidth=1.2)
        else:
            axes.fill_between(x, band.low, band.high, color=style.colour, alpha=0.2, linewidth=0)
        every = max(1, len(x) // 8)
        # Shift markers, so that those of two overlapping curves do not coincide
        begin = i * every // max(1, len(lines))
        axes.plot(
            x,
            band.value,
            label=name,
            color=style.colour,
            linestyle=style.linestyle,
            marker=style.marker if markers else None,
            markevery=(begin, every),
            markeredgecolor="white",
        )


def _thousands(axes: "Axes") -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_curves(
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
    lines: Sequence[Line],
    look: Mapping[str, Style],
    threshold: float | None = None,
) -> None:
    """
    Learning curves.

    :param path: where to save, without a suffix
    :param title: title of the picture
    :param xlabel: label of the horizontal axis
    :param ylabel: label of the vertical axis
    :param lines: lines of the variants
    :param look: styles of the variants
    :param threshold: a return to mark
    """
    with _figure(path, title) as figure:
        axes = figure.subplots()
        if threshold is not None:
            axes.axhline(threshold, color="#444444", linewidth=1.5, linestyle=(0, (2, 2)))
            axes.annotate(
                f"counts as solved: {threshold:g}",
                (0.0, threshold),
                xycoords=("axes fraction", "data"),
                xytext=(6, -5),
                textcoords="offset points",
                va="top",
                fontsize=16,
                color="#444444",
            )
        _plot(axes, lines, look)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_xlim(left=0)
        if max(line.x[-1] for line in lines) >= 10_000:
            _thousands(axes)
        _legend(figure, *axes.get_legend_handles_labels())


def draw_scores(
    path: Path,
    title: str,
    xlabel: str,
    scores: Mapping[str, np.ndarray],
    intervals: Mapping[str, Interval],
    look: Mapping[str, Style],
) -> None:
    """
    One row per variant: a small marker per run, and a large one with a bar for the IQM and its interval.

    :param path: where to save, without a suffix
    :param title: title of the picture
    :param xlabel: label of the scores
    :param scores: scores of each variant, one per run
    :param intervals: interval of each variant
    :param look: styles of the variants
    """
    with _figure(path, title, (_SIZE[0], 2.6 + 0.95 * len(scores))) as figure:
        axes = figure.subplots()
        for row, (name, values) in enumerate(scores.items()):
            style, interval = look[name], intervals[name]
            # Spread out, because many runs may have the same score
            spread = row + np.linspace(-0.14, 0.14, len(values)) if len(values) > 1 else np.array([row + 0.0])
            axes.plot(values, spread + 0.16, style.marker, color=style.colour, alpha=0.4, markersize=9, markeredgewidth=0)
            if interval.known:
                axes.plot(
                    [interval.low, interval.high], [row - 0.2] * 2, color=style.colour, linewidth=7, solid_capstyle="butt"
                )
            axes.plot(interval.value, row - 0.2, style.marker, color=style.colour, markersize=17, markeredgecolor="white")
        axes.set_yticks(range(len(scores)), [_row_label(name) for name in scores], fontsize=_row_size(scores))
        axes.set_ylim(len(scores) - 0.4, -0.6)
        axes.set_xlabel(xlabel)
        axes.grid(axis="y", visible=False)


def draw_profiles(
    path: Path, title: str, thresholds: np.ndarray, profiles: Mapping[str, Band], look: Mapping[str, Style]
) -> None:
    """
    Performance profiles.

    :param path: where to save, without a suffix
    :param title: title of the picture
    :param thresholds: (points,) normalised scores
    :param profiles: share of the runs above them, for each variant
    :param look: styles of the variants
    """
    with _figure(path, title) as figure:
        from matplotlib.ticker import PercentFormatter

        axes = figure.subplots()
        _plot(axes, [Line(name, thresholds, band, np.empty((0, len(thresholds)))) for name, band in profiles.items()], look)
        axes.set(xlabel="Normalised score τ", ylabel="Share of runs above τ", ylim=(-0.02, 1.02))
        axes.set_xlim(thresholds[0], thresholds[-1])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _legend(figure, *axes.get_legend_handles_labels())


def draw_improvements(path: Path, title: str, rows: Sequence[tuple[str, str, Interval]], look: Mapping[str, Style]) -> None:
    """
    Probability of improvement, one row per pair.

    :param path: where to save, without a suffix
    :param title: title of the picture
    :param rows: (X, Y, probability that X > Y)
    :param look: styles of the variants
    """
    with _figure(path, title, (_SIZE[0], 2.8 + 0.75 * len(rows))) as figure:
        axes = figure.subplots()
        size = _row_size([name for first, second, _ in rows for name in (first, second)])
        axes.axvline(0.5, color="#444444", linewidth=2, linestyle=(0, (2, 2)))
        for row, (first, second, interval) in enumerate(rows):
            style = look[first]
            if interval.known:
                axes.plot([interval.low, interval.high], [row] * 2, color=style.colour, linewidth=8, solid_capstyle="butt")
            axes.plot(interval.value, row, style.marker, color=style.colour, markersize=16, markeredgecolor="white")
            axes.annotate(
                _row_label(second),
                (1.0, row),
                xycoords=("axes fraction", "data"),
                xytext=(10, 0),
                textcoords="offset points",
                va="center",
                fontsize=size,
            )
        axes.set_yticks(range(len(rows)), [_row_label(first) for first, _, _ in rows], fontsize=size)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(-0.03, 1.03)
        axes.set_xlabel("Probability that a run of the left one beats a run of the right one")
        axes.grid(axis="y", visible=False)


def draw_diagnostics(
    path: Path, title: str, xlabel: str, panels: Mapping[str, Sequence[Line]], look: Mapping[str, Style]
) -> None:
    """
    One small picture per diagnostic.

    :param path: where to save, without a suffix
    :param title: title of the picture
    :param xlabel: label of the horizontal axes
    :param panels: lines to draw under each title
    :param look: styles of the variants
    """
    n_rows = (len(panels) + 1) // 2
    with _figure(path, title, (_SIZE[0], 1.6 + 4.0 * n_rows)) as figure:
        all_axes = figure.subplots(n_rows, min(2, len(panels)), squeeze=False).flatten()
        handles: dict[str, Artist] = {}
        for axes, (name, lines) in zip(all_axes, panels.items(), strict=False):
            _plot(axes, lines, look)
            axes.set_title(name, fontsize=19)
            axes.set_xlabel(xlabel, fontsize=18)
            axes.set_xlim(left=0)
            if min(line.band.low.min() for line in lines) >= 0:
                axes.set_ylim(0, 1.1 * max(line.band.high.max() for line in lines) or 1)
            _thousands(axes)
            # Not every panel contains every variant
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        order = [name for name in look if name in handles]
        _legend(figure, [handles[name] for name in order], order)
