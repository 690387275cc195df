"""The pictures of the page: drawings, captions, and the files next to the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from sb3_grpo.classroom.compare.curves import EnvCurves, Line
from sb3_grpo.classroom.compare.figures import Style
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.statistics import Band, Comparison, Interval
from sb3_grpo.classroom.compare.stills import Still, curves_still, rows_still

# How actions were chosen, in words
MODE_WORDS = {"deterministic": "most likely actions", "stochastic": "sampled actions"}


class File(NamedTuple):
    """
    A picture next to the page, as PNG and SVG.

    :param label: what it shows
    :param name: name of the files, without a suffix
    """

    label: str
    name: str

    def address(self, suffix: str) -> str:
        """
        :param suffix: png or svg
        :return: address for a link
        """
        return quote(f"figures/{self.name}.{suffix}")


class Drawing(NamedTuple):
    """
    One drawing of a picture.

    :param still: static version, shown without scripts and on paper
    :param title: title, if the picture has several drawings
    :param live: name of the drawing with which a script replaces it, if any
    """

    still: Still
    title: str = ""
    live: str = ""


@dataclass
class Picture:
    """
    A picture with its caption.

    :param title: title of the picture
    :param caption: caption that describes it
    :param drawings: one or several drawings that belong together
    :param files: the same picture as files next to the page
    """

    title: str
    caption: str
    drawings: list[Drawing]
    files: list[File] = field(default_factory=list)


def curves_picture(curves: EnvCurves, number_of: int, look: Mapping[str, Style]) -> Picture:
    """
    :param curves: curves of an environment
    :param number_of: the environment's number on the page
    :param look: styles of the variants
    :return: its learning curves
    """
    lines = curves.steps[curves.mode]
    ends = _ends({line.name: Interval(*(float(part[-1]) for part in line.band)) for line in lines})
    alt = f"{curves.env}: return against environment steps, {MODE_WORDS[curves.mode]}. At the end of the curves: {ends}."
    caption = (
        f"Return against environment steps, {MODE_WORDS[curves.mode]}: IQM over the seeds with its 95% interval"
        f"{', single runs where there is none' if any(np.isnan(line.band.low).all() for line in lines) else ''}."
    )
    still = curves_still(alt, lines, look, "Environment steps", curves.threshold)
    return Picture(curves.env, caption, [Drawing(still, live=f"curves {number_of}")])


def final_picture(curves: EnvCurves, look: Mapping[str, Style], file: File) -> Picture:
    """
    :param curves: curves of an environment
    :param look: styles of the variants
    :param file: the same picture as files next to the page
    :return: the final return of every run
    """
    numbers = {name: place for place, name in enumerate(look)}
    rows = [(name, numbers[name], scores, curves.intervals[name]) for name, scores in curves.finals.items()]
    alt = f"{curves.env}: final return, {MODE_WORDS[curves.mode]}: {_ends(curves.intervals)}."
    caption = f"Final return, {MODE_WORDS[curves.mode]}: every run (small), IQM (large) and its 95% interval (bar)."
    return Picture(curves.env, caption, [Drawing(rows_still(alt, rows, "Return"))], [file])


def diagnostics_picture(curves: EnvCurves, number_of: int, look: Mapping[str, Style], file: File) -> Picture:
    """
    :param curves: curves of an environment
    :param number_of: the environment's number on the page
    :param look: styles of the variants
    :param file: the same picture as files next to the page
    :return: the values logged during training
    """
    drawings = []
    for place, (title, lines) in enumerate(curves.diagnostics.items()):
        ends = ", ".join(f"{line.name} {number(float(line.band.value[-1]))}" for line in lines)
        still = curves_still(f"{curves.env}: {title}. At the end: {ends}.", lines, look, "Environment steps")
        drawings.append(Drawing(still, title, f"diagnostics {number_of} {place}"))
    caption = (
        "Logged while training: mean over the seeds, from the lowest to the highest seed. PPO counts every ratio outside the "
        "clip range as clipped, GRPO and DAPO only those where clipping cuts the gradient off."
    )
    return Picture(curves.env, caption, drawings, [file])


def aggregate_picture(
    where: str, scores: dict[str, np.ndarray], intervals: dict[str, Interval], look: Mapping[str, Style], file: File
) -> Picture:
    """
    :param where: description of the environments
    :param scores: normalised scores of every run of each variant
    :param intervals: IQM of these scores
    :param look: styles of the variants
    :param file: the same picture as files next to the page
    :return: all environments together
    """
    numbers = {name: place for place, name in enumerate(look)}
    rows = [(name, numbers[name], values, intervals[name]) for name, values in scores.items()]
    alt = f"Normalised final scores on {where}: {_ends(intervals, 1.0)}."
    caption = f"Normalised final scores on {where}: every run (small), IQM (large) and its 95% interval (bar)."
    return Picture("Final score", caption, [Drawing(rows_still(alt, rows, "Normalised score", least=1.0))], [file])


def profiles_picture(
    where: str, thresholds: np.ndarray, profiles: dict[str, Band], look: Mapping[str, Style], file: File
) -> Picture:
    """
    :param where: description of the environments
    :param thresholds: (points,) normalised scores
    :param profiles: share of the runs above them, for each variant
    :param look: styles of the variants
    :param file: the same picture as files next to the page
    :return: performance profiles
    """
    middle = int(np.abs(thresholds - 0.5).argmin())
    shares = ", ".join(f"{name} {profile.value[middle]:.0%}" for name, profile in profiles.items())
    alt = f"Performance profiles on {where}. Share of the runs with a normalised final score above 0.5: {shares}."
    lines = [Line(name, thresholds, band, np.empty((0, len(thresholds)))) for name, band in profiles.items()]
    caption = f"The share of runs whose normalised final score is above τ on {where}, with 95% intervals. Higher is better."
    still = curves_still(alt, lines, look, "Normalised score τ")
    return Picture("Performance profiles", caption, [Drawing(still, live="profiles")], [file])


def improvements_picture(where: str, pairs: Sequence[Comparison], look: Mapping[str, Style], file: File) -> Picture:
    """
    :param where: description of the environments
    :param pairs: comparisons of pairs of variants
    :param look: styles of the variants
    :param file: the same picture as files next to the page
    :return: probabilities of improvement
    """
    numbers = {name: place for place, name in enumerate(look)}
    rows = [(f"{pair.first} beats {pair.second}", numbers[pair.first], np.empty(0), pair.improvement) for pair in pairs]
    each = ", ".join(f"{name} {interval_text(interval, 1.0)}" for name, _, _, interval in rows)
    alt = f"Probability on {where} that a run of one variant ends above a run of another: {each}."
    caption = f"How often a run of one variant ends above one of the other on {where}, with 95% intervals."
    still = rows_still(alt, rows, "Probability", (0.0, 1.0), 0.5, 1.0)
    return Picture("Probability of improvement", caption, [Drawing(still)], [file])


def _ends(intervals: Mapping[str, Interval], least: float = 0.0) -> str:
    return ", ".join(f"{name} {interval_text(interval, least)}" for name, interval in intervals.items())
