"""Data for the script of the page: every number once, with as many digits as are visible."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sb3_grpo.classroom.compare.curves import EnvCurves, Line
from sb3_grpo.classroom.compare.figures import Style
from sb3_grpo.classroom.compare.findings import Scale
from sb3_grpo.classroom.compare.statistics import Band
from sb3_grpo.classroom.compare.stills import dash_array

_DIGITS = 5


def live_data(
    look: Mapping[str, Style],
    envs: Sequence[EnvCurves],
    scales: Mapping[str, Scale],
    profiles: tuple[np.ndarray, dict[str, Band]],
) -> dict[str, Any]:
    """
    :param look: styles of the variants
    :param envs: curves of each environment
    :param scales: the returns that are normalised to 0 and 1 on each environment
    :param profiles: normalised scores, and the share of runs above them for each variant
    :return: data for JSON
    """
    thresholds, bands = profiles
    return {
        "variants": [{"name": name, "dash": dash_array(style)} for name, style in look.items()],
        "envs": [_env(each, scales[each.env], list(look)) for each in envs],
        "profiles": [_line(Line(name, thresholds, band, np.empty((0, 0))), list(look)) for name, band in bands.items()],
    }


def _env(curves: EnvCurves, scale: Scale, names: list[str]) -> dict[str, Any]:
    by_mode = {}
    for mode, lines in curves.steps.items():
        by_mode[mode] = [
            {
                **_line(line, names),
                "runs": _numbers(line.runs),
                "times": _numbers(curves.times[mode][line.name]),
                "time": _line(over_time, names),
            }
            for line, over_time in zip(lines, curves.time[mode], strict=True)
        ]
    return {
        "name": curves.env,
        "mode": curves.mode,
        "unit": curves.unit,
        "threshold": curves.threshold,
        "scale": [_number(scale.low), _number(scale.high)] if scale.usable else None,
        "curves": by_mode,
        "diagnostics": [[_line(line, names) for line in lines] for lines in curves.diagnostics.values()],
    }


def _line(line: Line, names: list[str]) -> dict[str, Any]:
    band = [_numbers(part) for part in line.band]
    return {
        "variant": names.index(line.name),
        "x": _numbers(line.x),
        "band": band[:1] if np.isnan(line.band.low).all() else band,
    }


def _numbers(values: np.ndarray) -> list[Any]:
    return [_numbers(each) if isinstance(each, np.ndarray) else _number(float(each)) for each in values]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded == int(rounded) else rounded
