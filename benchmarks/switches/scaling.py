"""The curve of ScaleRL (arXiv:2510.13786, eq. 1): from the score before training to the ceiling that training approaches."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

RESAMPLES = 400
# Bounds of the exponent. The midpoint may lie this many times beyond the budget: further out, it cannot be told from none
EXPONENTS = (0.3, 8.0)
FURTHEST = 10.0


class Fit(NamedTuple):
    """
    :param ceiling: A, the score that is approached
    :param midpoint: C_mid, the compute at which half of the way is covered
    :param exponent: B, how steep the curve is there
    """

    ceiling: float
    midpoint: float
    exponent: float


def scaling_curve(compute: np.ndarray, start: float, ceiling: float, midpoint: float, exponent: float) -> np.ndarray:
    """
    ``R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)``.

    :param compute: C, not negative
    :param start: R_0, the score before training
    :param ceiling: A
    :param midpoint: C_mid
    :param exponent: B
    :return: The score at each compute
    """
    with np.errstate(divide="ignore"):
        return start + (ceiling - start) / (1.0 + (midpoint / compute) ** exponent)


def fit(compute: np.ndarray, scores: np.ndarray, highest: float) -> Fit:
    """
    Least squares. ``R_0`` is the first score, as measured.

    :param compute: (points,) beginning with 0
    :param scores: (points,)
    :param highest: Upper bound of the ceiling
    :return: The best fit
    """
    budget, start = float(compute[-1]), float(scores[0])
    low, high = np.array([start, 0.01, EXPONENTS[0]]), np.array([highest, FURTHEST, EXPONENTS[1]])

    def errors(parameters: np.ndarray) -> np.ndarray:
        return scaling_curve(compute[1:] / budget, start, *parameters) - scores[1:]

    begin = np.clip([scores.max(), 0.6, 2.0], low + 1e-6, high - 1e-6)
    ceiling, midpoint, exponent = least_squares(errors, begin, bounds=(low, high)).x
    return Fit(float(ceiling), float(midpoint * budget), float(exponent))


def fit_interval(compute: np.ndarray, curves: np.ndarray, highest: float, seed: int = 0) -> tuple[Fit, Fit, Fit]:
    """
    :param compute: (points,) beginning with 0
    :param curves: (seeds, points)
    :param highest: Upper bound of the ceiling
    :param seed: Seed of the bootstrap
    :return: The fit to the mean over the seeds, and the ends of its 95% intervals, from resampling the seeds
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(curves), size=(RESAMPLES, len(curves)))
    fits = np.array([fit(compute, curves[rows].mean(0), highest) for rows in drawn])
    low, high = np.percentile(fits, [2.5, 97.5], axis=0)
    return fit(compute, curves.mean(0), highest), Fit(*low.tolist()), Fit(*high.tolist())
