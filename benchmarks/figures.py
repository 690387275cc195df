"""The pictures of the pages, with Matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.common import IMAGES
from sb3_grpo.classroom.compare.statistics import Band

# Can also be told apart with colour blindness (Okabe and Ito), and by the lines
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_FIXED = {"ppo": 0, "grpo": 1, "dapo": 2, "trpo": 3, "grpo-paper": 4}
_LINES = ("-", "--", "-.", ":")


def style(name: str, names: Sequence[str]) -> dict[str, Any]:
    """
    :param name: One of the names
    :param names: All that are shown together
    :return: How its curve is drawn; those of the algorithms are the same in all pictures
    """
    others = [each for each in names if each not in _FIXED]
    idx = _FIXED[name] if name in _FIXED else others.index(name) + (5 if len(others) < len(names) else 0)
    return {"color": COLOURS[idx % len(COLOURS)], "linestyle": _LINES[(idx // len(COLOURS)) % len(_LINES)]}


@contextmanager
def figure_of(name: str, *args: Any, **kwargs: Any) -> Iterator[tuple[plt.Figure, Any]]:
    """
    Saves a picture in ``docs/images``: text stays text, and the same data give the same file.

    :param name: Its name
    :param args: For ``plt.subplots``
    :param kwargs: For ``plt.subplots``
    """
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sb3-grpo"}):
        figure, axes = plt.subplots(*args, **kwargs, layout="constrained")
        yield figure, axes
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def draw_band(axes: plt.Axes, x: np.ndarray, band: Band, **look: Any) -> None:
    """
    :param axes: Where to draw
    :param x: (points,)
    :param band: A curve with its interval
    :param look: Label, colour and line
    """
    axes.plot(x, band.value, linewidth=1.5, **look)
    axes.fill_between(x, band.low, band.high, color=look["color"], alpha=0.15, linewidth=0)


def draw_curves(name: str, titles: Sequence[str], curves: Mapping[str, Sequence[tuple[np.ndarray, Band] | None]]) -> None:
    """
    :param name: Name of the picture
    :param titles: Titles of the axes
    :param curves: For each variant a curve on each of the axes: steps and returns
    """
    # Two columns can also be read on a telephone
    n_columns = min(len(titles), 2)
    n_rows = -(-len(titles) // n_columns)
    # A single one needs room for its title and two names next to each other
    size = (2.8 * n_columns if n_columns > 1 else 3.8, 2.2 * n_rows + 0.4)
    with figure_of(name, n_rows, n_columns, figsize=size, squeeze=False) as (figure, grid):
        for idx, (axes, title) in enumerate(zip(grid.flat, titles, strict=False)):
            for variant, each in curves.items():
                if each[idx] is not None:
                    steps, band = each[idx]
                    draw_band(axes, steps / 1000, band, label=label(variant), **style(variant, [*curves]))
            axes.set_title(title.rsplit("/")[-1], fontsize=10)
            axes.set_xlabel("steps (thousands)")
            axes.grid(alpha=0.3)
        for axes in grid.flat[len(titles) :]:
            axes.axis("off")
        grid[0, 0].set_ylabel("return")
        # Not all of them may be on the first axes
        shown = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        n_names = 2 * n_columns if max(map(len, shown)) < 15 else n_columns + 1
        figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=n_names, frameon=False)


def draw_dots(axes: plt.Axes, rows: Sequence[str], dots: Mapping[str, Sequence[Sequence[float]]], at: float | None) -> None:
    """
    :param axes: Where to draw
    :param rows: Names of the rows, from top to bottom
    :param dots: For each series a value in each row, with the ends of its interval
    :param at: A value to mark
    """
    for place, (name, intervals) in enumerate(dots.items()):
        height = np.arange(len(rows)) + 0.2 * (place - (len(dots) - 1) / 2)
        value, low, high = np.array(intervals).T
        look = {"color": style(name, [*dots])["color"], "fmt": "os^"[place], "markersize": 4, "linewidth": 1.5}
        axes.errorbar(value, height, xerr=(value - low, high - value), label=label(name), **look)
    if at is not None:
        axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def label(name: str) -> str:
    """
    :param name: Of a variant
    :return: The same; algorithms in capitals
    """
    return name.upper() if name in ("ppo", "trpo", "a2c", "grpo", "dapo") else name
