"""Data to draw for one environment, computed once for the pictures and for the page."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.lecture import KL_KEYS
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import Band, Interval, iqm_curve, iqm_interval
from sb3_grpo.classroom.compare.tables import threshold_of

# Logged values to draw under each title: the first key that a variant logged, multiplied by the factor
DIAGNOSTICS: dict[str, tuple[tuple[str, float], ...]] = {
    "Dead groups (share of groups)": (("group/dead_fraction", 1.0),),
    "Clipped at the low side (share of steps)": (("train/clip_fraction_low", 1.0),),
    "Clipped at the high side (share of steps)": (("train/clip_fraction_high", 1.0),),
    "Clipped in all (share of steps)": (("train/clip_fraction", 1.0),),
    "Entropy of the policy (nats)": (("train/entropy", 1.0), ("train/entropy_loss", -1.0)),
    "KL divergence per update": tuple((key, 1.0) for key in KL_KEYS),
    "KL divergence from the reference": (("train/kl_ref", 1.0),),
}
# Longer training is shown in minutes
_LONG = 300.0


class Line(NamedTuple):
    """
    The line of a variant in a picture.

    :param name: name of the variant
    :param x: (points,) horizontal positions
    :param band: values to draw
    :param runs: (n, points) drawn individually if the band has no interval
    """

    name: str
    x: np.ndarray
    band: Band
    runs: np.ndarray


@dataclass
class EnvCurves:
    """
    All data to draw for one environment.

    :param env: the environment
    :param mode: the kind of evaluation whose returns are the scores
    :param steps: learning curves over environment steps, by mode
    :param time: learning curves over training time in ``unit``, by mode
    :param unit: seconds or minutes
    :param times: (n, points) evaluation times of each variant's runs in ``unit``, by mode
    :param finals: final returns of each variant
    :param intervals: IQM of the final returns
    :param diagnostics: logged values by title: mean and range over the seeds
    :param threshold: the return at which the environment is considered solved, if there is one
    """

    env: str
    mode: str
    steps: dict[str, list[Line]]
    time: dict[str, list[Line]]
    unit: str
    times: dict[str, dict[str, np.ndarray]]
    finals: dict[str, np.ndarray]
    intervals: dict[str, Interval]
    diagnostics: dict[str, list[Line]]
    threshold: float | None


def env_curves(results: Results, env: str) -> EnvCurves:
    """
    :param results: results of the experiment
    :param env: an environment in which a run has finished
    :return: all data to draw for it
    """
    names = [name for name in results.variants if len(results.done(env, name))]
    steps, time, times = {}, {}, {}
    for mode in results.modes:
        curves = {name: results.curves(env, name, mode) for name in names}
        steps[mode] = [Line(name, results.grid(env, mode), iqm_curve(runs), runs) for name, runs in curves.items()]
        over_time = {name: results.curves_over_time(env, name, mode) for name in names}
        time[mode] = [Line(name, grid, iqm_curve(runs), runs) for name, (grid, runs) in over_time.items()]
        times[mode] = {name: results.curves(env, name, mode, "seconds") for name in names}
    longest = max(line.x[-1] for lines in time.values() for line in lines)
    unit, divisor = ("minutes", 60.0) if longest > _LONG else ("seconds", 1.0)
    finals = {name: results.final_scores(env, name, results.main_mode(env)) for name in names}
    return EnvCurves(
        env=env,
        mode=results.main_mode(env),
        steps=steps,
        time={mode: [line._replace(x=line.x / divisor) for line in lines] for mode, lines in time.items()},
        unit=unit,
        times={mode: {name: each / divisor for name, each in by_name.items()} for mode, by_name in times.items()},
        finals=finals,
        intervals={name: iqm_interval([scores]) for name, scores in finals.items()},
        diagnostics=_diagnostics(results, env, names),
        threshold=threshold_of(env),
    )


def _diagnostics(results: Results, env: str, names: list[str]) -> dict[str, list[Line]]:
    grid = results.grid(env, results.main_mode(env))
    panels: dict[str, list[Line]] = {}
    for title, keys in DIAGNOSTICS.items():
        for name in names:
            logged_as = ((sign, results.diagnostic(env, name, key)) for key, sign in keys)
            values = next((sign * values for sign, values in logged_as if values.size), np.empty((0, 0)))
            if not values.size:
                continue
            # Nothing is drawn where no run has logged anything
            logged = ~np.isnan(values).all(axis=0)
            values, x = values[:, logged], grid[1:][logged]
            if len(x):
                band = Band(np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))
                panels.setdefault(title, []).append(Line(name, x, band, values))
    return panels
