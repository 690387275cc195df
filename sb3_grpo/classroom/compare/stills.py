"""
Small static drawings in the page, as values that a template writes as SVG: shown without scripts, on paper and on slides.

A variant with number N is drawn with the class ``vN``, to which the page's style assigns a light and a dark colour.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.curves import Line
from sb3_grpo.classroom.compare.figures import Style
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import Interval

_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 10.0, 8.0, 34.0
_SIZE = (480.0, 270.0)
_ROW = 44.0
_LINE_WIDTH = 2.2


class Path(NamedTuple):
    """
    A line or area.

    :param css: CSS classes
    :param d: the SVG attribute ``d``
    :param dashes: dashes for SVG, empty for a solid line
    """

    css: str
    d: str
    dashes: str = ""


class Text(NamedTuple):
    """
    A line of text.

    :param x: horizontal position
    :param y: vertical position of the baseline
    :param anchor: start, middle or end
    :param content: the text
    """

    x: float
    y: float
    anchor: str
    content: str


@dataclass
class Still:
    """
    A static drawing.

    :param width: width of the drawing
    :param height: height of the drawing
    :param alt: alternative text
    :param paths: lines and areas, in drawing order
    :param texts: texts in the drawing
    """

    width: float
    height: float
    alt: str
    paths: list[Path] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


class _Axis(NamedTuple):
    """An axis that maps ``low`` to ``high`` in the data to ``begin`` to ``end`` in the drawing."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, values: np.ndarray | float) -> np.ndarray:
        share = (np.asarray(values, float) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, n: int) -> list[float]:
        from matplotlib.ticker import MaxNLocator

        found = MaxNLocator(n, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        width = self.high - self.low
        return [float(tick) for tick in found if self.low - 1e-9 * width <= tick <= self.high + 1e-9 * width]


def short(value: float) -> str:
    """
    :param value: any number
    :return: its label on an axis: "0.5", "400", "100k", "1.5M"
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def value_range(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """
    :param values: all values to draw, NaN for missing ones
    :return: limits of an axis with room for them
    """
    flat = np.concatenate([np.ravel(each) for each in values])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    room = 0.04 * (high - low) or 0.04 * abs(high) or 0.5
    return low - room, high + room


def curves_still(
    alt: str, lines: Sequence[Line], look: Mapping[str, Style], xlabel: str, threshold: float | None = None
) -> Still:
    """
    :param alt: alternative text
    :param lines: lines of the variants
    :param look: styles of all variants, in the order of their numbers
    :param xlabel: label of the horizontal axis
    :param threshold: a value to mark
    :return: curves with their intervals, or with their runs if there are no intervals
    """
    still = Still(*_SIZE, alt)
    drawn = [part for line in lines for part in _drawn(line)]
    marked = [] if threshold is None else [np.array([threshold])]
    y = _Axis(*value_range([*drawn, *marked]), _SIZE[1] - _BOTTOM, _TOP)
    begin, end = min(float(line.x[0]) for line in lines), max(float(line.x[-1]) for line in lines)
    x = _Axis(begin, end if end > begin else begin + 1.0, _LEFT, _SIZE[0] - _RIGHT)
    _grid(still, x, y, xlabel)
    if threshold is not None:
        still.paths.append(Path("mark", f"M{_LEFT:g} {y(threshold):.1f}H{_SIZE[0] - _RIGHT:g}"))
    numbers = {name: number for number, name in enumerate(look)}
    for name, xs, band, runs in lines:
        css = f"v{numbers[name]}"
        if np.isnan(band.low).all():
            still.paths.append(Path(f"thin {css}", "".join(_polyline(x(xs), y(run)) for run in runs)))
        else:
            there = ~np.isnan(band.low)
            edge = np.concatenate([x(xs[there]), x(xs[there])[::-1]])
            still.paths.append(
                Path(f"area {css}", _polyline(edge, y(np.concatenate([band.low[there], band.high[there][::-1]]))) + "Z")
            )
    for name, xs, band, _ in lines:
        still.paths.append(Path(f"line v{numbers[name]}", _polyline(x(xs), y(band.value)), dash_array(look[name])))
    return still


def rows_still(
    alt: str,
    rows: Sequence[tuple[str, int, np.ndarray, Interval]],
    xlabel: str,
    limits: tuple[float, float] | None = None,
    reference: float | None = None,
    least: float = 0.0,
) -> Still:
    """
    Draw one row per entry: a point for every run, a thick one for the estimate, a bar for its interval, and both as numbers.

    :param alt: alternative text
    :param rows: name, number of the variant, runs and estimate of each row
    :param xlabel: label of the horizontal axis
    :param limits: limits of the axis, by default those of the data
    :param reference: a value to mark
    :param least: show digits as for numbers of at least this size
    :return: the drawing
    """
    height = _ROW * len(rows) + _BOTTOM + _TOP
    still = Still(_SIZE[0], height, alt)
    low, high = limits or value_range([np.array([*values, *interval]) for _, _, values, interval in rows])
    x = _Axis(low, high, 12.0, _SIZE[0] - 12.0)
    _horizontal(still, x, height - _BOTTOM, xlabel)
    if reference is not None:
        still.paths.append(Path("mark", f"M{x(reference):.1f} {_TOP:g}V{height - _BOTTOM:g}"))
    for place, (name, variant, values, interval) in enumerate(rows):
        top = _TOP + place * _ROW
        still.texts += [
            Text(12.0, top + 13, "start", name),
            Text(_SIZE[0] - 12.0, top + 13, "end", interval_text(interval, least)),
        ]
        if len(values):
            # Spread out, because many runs may have the same value
            spread = np.linspace(-4.0, 4.0, len(values)) if len(values) > 1 else np.zeros(1)
            dots = "".join(f"M{at:.1f} {top + 24 + aside:.1f}h0" for at, aside in zip(x(values), spread, strict=True))
            still.paths.append(Path(f"dots v{variant}", dots))
        if interval.known:
            still.paths.append(Path(f"bar v{variant}", f"M{x(interval.low):.1f} {top + 35:g}H{x(interval.high):.1f}"))
        still.paths.append(Path(f"estimate v{variant}", f"M{x(interval.value):.1f} {top + 35:g}h0"))
    return still


def dash_array(style: Style) -> str:
    """
    :param style: style of a variant
    :return: its dashes for SVG
    """
    return " ".join(f"{_LINE_WIDTH * dash:.1f}" for dash in style.dashes)


def _drawn(line: Line) -> list[np.ndarray]:
    """Values drawn for a line: the runs replace an unknown interval."""
    return [line.band.value, line.runs] if np.isnan(line.band.low).all() else [*line.band]


def _grid(still: Still, x: _Axis, y: _Axis, xlabel: str) -> None:
    for tick in y.ticks(5):
        at = float(y(tick))
        still.paths.append(Path("grid", f"M{x.begin:g} {at:.1f}H{x.end:g}"))
        still.texts.append(Text(x.begin - 6, at + 4, "end", short(tick)))
    _horizontal(still, x, y.begin, xlabel)


def _horizontal(still: Still, x: _Axis, y: float, xlabel: str) -> None:
    still.paths.append(Path("axis", f"M{x.begin:g} {y:g}H{x.end:g}"))
    for tick in x.ticks(6):
        at = float(x(tick))
        # Keep labels inside the drawing
        anchor = "end" if at > still.width - 24 else "start" if at < 14 else "middle"
        still.texts.append(Text(at, y + 15, anchor, short(tick)))
    still.texts.append(Text((x.begin + x.end) / 2, y + 31, "middle", xlabel))


def _polyline(xs: np.ndarray, ys: np.ndarray) -> str:
    """A line that breaks where a value is NaN."""
    text, pen = "", "M"
    for x, y in zip(xs, ys, strict=True):
        if not math.isfinite(y):
            pen = "M"
            continue
        text += f"{pen}{x:.1f} {y:.1f}"
        pen = "L"
    return text
