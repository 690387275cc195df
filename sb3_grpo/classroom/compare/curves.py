"""The lines to draw for one environment."""

from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import Band, iqm_curve

# How far an update moved from the policy that acted: algorithms log one of these
KL_KEYS = ("train/approx_kl", "train/kl_divergence_loss")
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
    The line of a variant.

    :param name: name of the variant
    :param x: (points,) horizontal positions
    :param band: values to draw
    :param runs: (n, points) drawn individually if the band has no interval
    """

    name: str
    x: np.ndarray
    band: Band
    runs: np.ndarray


def with_runs(results: Results, env: str) -> list[str]:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: the variants with a finished run on it
    """
    return [name for name in results.variants if len(results.done(env, name))]


def over_steps(results: Results, env: str) -> list[Line]:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: learning curves over environment steps
    """
    mode = results.main_mode(env)
    curves = {name: results.curves(env, name, mode) for name in with_runs(results, env)}
    return [Line(name, results.grid(env, mode), iqm_curve(runs), runs) for name, runs in curves.items()]


def over_time(results: Results, env: str) -> tuple[str, list[Line]]:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: the unit of time, and learning curves over training time
    """
    curves = {name: results.curves_over_time(env, name, results.main_mode(env)) for name in with_runs(results, env)}
    longest = max(grid[-1] for grid, _ in curves.values())
    unit, divisor = ("minutes", 60.0) if longest > _LONG else ("seconds", 1.0)
    return unit, [Line(name, grid / divisor, iqm_curve(runs), runs) for name, (grid, runs) in curves.items()]


def logged(results: Results, env: str) -> dict[str, list[Line]]:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: values logged during training by title: their mean over the seeds, from the lowest to the highest seed
    """
    grid = results.grid(env, results.main_mode(env))
    panels: dict[str, list[Line]] = {}
    for title, keys in DIAGNOSTICS.items():
        for name in with_runs(results, env):
            by_key = ((sign, results.diagnostic(env, name, key)) for key, sign in keys)
            values = next((sign * values for sign, values in by_key if values.size), np.empty((0, 0)))
            # Nothing is drawn where no run has logged anything
            there = ~np.isnan(values).all(axis=0)
            if there.any():
                values, x = values[:, there], grid[1:][there]
                band = Band(np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))
                panels.setdefault(title, []).append(Line(name, x, band, values))
    return panels
