"""
Statistics of the report: interquartile means, bootstrap intervals, probabilities of improvement, and what they support.

Intervals come from rliable's stratified bootstrap. A sample is the array of one variant's scores on one environment, one
row per seed; samples from different environments may have different numbers of seeds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.results import import_extra

RESAMPLES = 2000
CONFIDENCE = 0.95
# With one or two seeds, the bootstrap has hardly anything to resample
MIN_SEEDS = 3
_SEED = 0
# Finest resolution of probabilities of improvement in the permutation test, in parts of 1
_FINEST = 200_000


class Interval(NamedTuple):
    """
    An estimate and its interval.

    :param value: the estimate
    :param low: lower end, NaN if there are too few seeds for an interval
    :param high: upper end
    """

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)

    def excludes(self, value: float) -> bool:
        """
        :param value: any value
        :return: whether there is an interval and it does not contain the value
        """
        return self.known and (value < self.low or value > self.high)


class Band(NamedTuple):
    """
    Estimates along a curve and their pointwise intervals.

    :param value: (points,) the estimates
    :param low: (points,) lower ends, NaN if there are too few seeds
    :param high: (points,) upper ends
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Verdict(Enum):
    """What the data say about two variants."""

    TOO_FEW_SEEDS = "too few seeds"
    NO_DIFFERENCE = "no difference shown"
    UNDECIDED = "undecided"
    HINT = "hint"
    DIFFERENCE = "difference"


class Comparison(NamedTuple):
    """
    Comparison of two variants, on one environment or several.

    :param first: name of a variant
    :param second: name of the other variant
    :param difference: IQM of the first minus IQM of the second
    :param improvement: probability that a run of the first beats a run of the second, averaged over environments
    :param p_value: two-sided p-value of a permutation test of the probability of improvement
    :param smallest_p: p-value of complete separation with these numbers of seeds
    :param n_first: number of seeds of the first variant for each environment
    :param n_second: number of seeds of the second variant for each environment
    """

    first: str
    second: str
    difference: Interval
    improvement: Interval
    p_value: float
    smallest_p: float
    n_first: tuple[int, ...]
    n_second: tuple[int, ...]


def iqm(scores: np.ndarray) -> np.ndarray:
    """
    Interquartile mean over the first axis: same as ``rliable.metrics.aggregate_iqm``, which has no axis argument.

    :param scores: (n, ...)
    :return: (...) mean without the lowest and the highest quarter (rounded down: with fewer than 4 scores, the mean of all)
    """
    cut = int(0.25 * len(scores))
    middle = np.sort(scores, axis=0)[cut : len(scores) - cut]
    # Equal numbers must give exactly this number: a last digit that depends on their count would look like a difference
    return np.clip(middle.mean(axis=0), middle[0], middle[-1])


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> float:
    """
    Same as ``rliable.metrics.probability_of_improvement``, which takes a hundred times as long because of its p-value.

    :param first: (n,) scores of one variant
    :param second: (m,) scores of another variant
    :return: share of the pairs in which the first is higher; ties count half
    """
    return float((np.sign(first[:, None] - second[None, :]).mean() + 1.0) / 2.0)


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Seed NumPy's global generator, which rliable 1.2 draws from regardless of its ``random_state``."""
    state = np.random.get_state()
    np.random.seed(_SEED)
    try:
        yield
    finally:
        np.random.set_state(state)


def bootstrap(function: Callable[..., np.ndarray], samples: Sequence[np.ndarray]) -> Band:
    """
    Stratified bootstrap: the seeds of each sample are resampled with replacement, independently of the other samples.

    :param function: function that takes the samples and returns a vector
    :param samples: (n, ...) each, not necessarily with the same n
    :return: the function's values and their 95% percentile intervals, NaN if a sample has fewer than 3 seeds
    """
    value = function(*samples)
    if min(len(sample) for sample in samples) < MIN_SEEDS:
        missing = np.full_like(value, np.nan)
        return Band(value, missing, missing)
    library = import_extra("rliable.library")
    with _fixed_seed():
        _, intervals = library.get_interval_estimates(
            {"": list(samples)}, function, reps=RESAMPLES, confidence_interval_size=CONFIDENCE
        )
    return Band(value, *intervals[""])


def iqm_interval(samples: Sequence[np.ndarray]) -> Interval:
    """
    :param samples: scores (n,) of one variant for each environment
    :return: the interquartile mean of all scores together
    """
    band = bootstrap(lambda *drawn: iqm(np.concatenate(drawn))[None], samples)
    return Interval(*(float(part[0]) for part in band))


def mean_interval(samples: Sequence[np.ndarray]) -> Interval:
    """
    :param samples: scores (n,) of one variant for each environment
    :return: the mean of all scores together
    """
    band = bootstrap(lambda *drawn: np.concatenate(drawn).mean()[None], samples)
    return Interval(*(float(part[0]) for part in band))


def iqm_curve(curves: np.ndarray) -> Band:
    """
    :param curves: (n, points) one curve per seed
    :return: the interquartile mean at each point
    """
    return bootstrap(iqm, [curves])


def performance_profile(samples: Sequence[np.ndarray], thresholds: np.ndarray) -> Band:
    """
    Score distribution as in ``rliable.library.create_performance_profile``, which requires equal numbers of seeds.

    :param samples: scores (n,) of one variant for each environment
    :param thresholds: (points,)
    :return: share of the runs whose score is above each threshold
    """
    return bootstrap(lambda *drawn: (np.concatenate(drawn)[:, None] > thresholds).mean(axis=0), samples)


def compare(first: str, second: str, firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> Comparison:
    """
    :param first: name of a variant
    :param second: name of the other variant
    :param firsts: scores of the first variant, (n,) for each environment
    :param seconds: scores of the second variant for the same environments
    :return: the comparison, with everything that the verdict depends on
    """
    n_envs = len(firsts)

    def statistics(*drawn: np.ndarray) -> np.ndarray:
        xs, ys = drawn[:n_envs], drawn[n_envs:]
        difference = iqm(np.concatenate(xs)) - iqm(np.concatenate(ys))
        improvement = sum(probability_of_improvement(x, y) for x, y in zip(xs, ys, strict=True)) / n_envs
        return np.array([difference, improvement])

    band = bootstrap(statistics, [*firsts, *seconds])
    difference, improvement = (Interval(*(float(part[i]) for part in band)) for i in range(2))
    sizes = [(len(x), len(y)) for x, y in zip(firsts, seconds, strict=True)]
    return Comparison(
        first,
        second,
        difference,
        improvement,
        permutation_p_value(firsts, seconds),
        # Integers, because the number of permutations over many environments exceeds the range of a float
        2 / math.prod(math.comb(n + m, n) for n, m in sizes),
        tuple(n for n, _ in sizes),
        tuple(m for _, m in sizes),
    )


def permutation_p_value(firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> float:
    """
    Permutation test: of all ways to assign the variants to the runs of each environment, the share with a probability of
    improvement at least as far from 1/2. With one environment, this is the exact Wilcoxon-Mann-Whitney test, also with ties.
    If environments have many different numbers of seeds, permutations that are nearly as far count, too.

    :param firsts: scores of one variant, (n,) for each environment
    :param seconds: scores of the other variant
    :return: two-sided p-value
    """
    rankdata = import_extra("scipy.stats").rankdata
    divisors = [2 * len(x) * len(y) for x, y in zip(firsts, seconds, strict=True)]
    # Distances from 1/2 are multiples of 1/unit, at least approximately if there are many different numbers of seeds
    unit = min(math.lcm(*divisors), _FINEST)
    rounding = 0 if all(unit % divisor == 0 for divisor in divisors) else len(divisors)
    observed = lowest = 0
    # Share of the permutations with each distance, starting with the lowest
    shares: np.ndarray = np.ones(1)
    for x, y, divisor in zip(firsts, seconds, divisors, strict=True):
        # With ties, ranks may be half-integers
        ranks = (2 * rankdata(np.concatenate([x, y]))).astype(int)
        sums = _sums_of_subsets(ranks, len(x))
        # The probability of improvement is linear in the rank sum; the constant is removed, so that 1/2 becomes 0
        distances = np.rint((np.arange(len(sums)) - len(x) * (len(ranks) + 1)) * (unit / divisor)).astype(int)
        observed += distances[ranks[: len(x)].sum()]
        there = np.flatnonzero(sums)
        begin, end = distances[there[[0, -1]]]
        with_env = np.zeros(len(shares) + end - begin)
        for place in there:
            shift = distances[place] - begin
            with_env[shift : shift + len(shares)] += sums[place] * shares
        shares, lowest = with_env, lowest + begin
    as_far = np.abs(lowest + np.arange(len(shares))) >= abs(observed) - rounding
    return min(1.0, float(shares[as_far].sum()))


def learned_p_value(untrained: np.ndarray, finals: Sequence[np.ndarray]) -> float:
    """
    Permutation test of whether any of several variants is better than untrained policies: of all ways to distribute the
    scores, the share in which the best variant is at least as far above the untrained policies in mean rank.

    :param untrained: (n,) independent scores before training
    :param finals: (m,) scores of each variant after training
    :return: p-value; 1 unless there are two untrained scores and a variant with two scores
    """
    stats = import_extra("scipy.stats")
    finals = [scores for scores in finals if len(scores) > 1]
    if len(untrained) < 2 or not finals:
        return 1.0

    def advantage_of_the_best(*samples: np.ndarray, axis: int) -> np.ndarray:
        before, *after = (sample.mean(axis=axis) for sample in samples)
        return np.max(after, axis=0) - before

    ranks = stats.rankdata(np.concatenate([untrained, *finals]))
    samples = np.split(ranks, np.cumsum([len(untrained), *map(len, finals)])[:-1])
    generator = np.random.default_rng(_SEED)
    test = stats.permutation_test(samples, advantage_of_the_best, alternative="greater", vectorized=True, rng=generator)
    return float(test.pvalue)


def _sums_of_subsets(numbers: np.ndarray, size: int) -> np.ndarray:
    """
    :param numbers: (n,) positive integers
    :param size: size of the subsets
    :return: (sum + 1,) share of the subsets with each possible sum
    """
    counts = np.zeros((size + 1, numbers.sum() + 1))
    counts[0, 0] = 1.0
    for number in numbers:
        counts[1:, number:] += counts[:-1, :-number].copy()
    return counts[size] / counts[size].sum()


def holm(p_values: Sequence[float]) -> list[float]:
    """
    Holm's correction for multiple comparisons.

    :param p_values: p-values of several comparisons
    :return: adjusted p-values: if those below 5% are rejected, the probability of any false rejection is at most 5%
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(comparison: Comparison, adjusted_p: float) -> Verdict:
    """
    Apply the rule that the report states.

    :param comparison: comparison of two variants
    :param adjusted_p: its p-value, adjusted for all comparisons of the same kind
    :return: the verdict
    """
    alpha = 1.0 - CONFIDENCE
    if not comparison.difference.known or comparison.smallest_p > alpha:
        return Verdict.TOO_FEW_SEEDS
    iqm_differs, runs_differ = comparison.difference.excludes(0.0), comparison.improvement.excludes(0.5)
    same_direction = comparison.difference.value * (comparison.improvement.value - 0.5) > 0.0
    if not iqm_differs and not runs_differ:
        return Verdict.NO_DIFFERENCE
    if not (iqm_differs and runs_differ and same_direction and comparison.p_value < alpha):
        return Verdict.UNDECIDED
    return Verdict.DIFFERENCE if adjusted_p < alpha else Verdict.HINT


def normalise(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    """
    :param scores: scores of any shape
    :param low: score that is mapped to 0
    :param high: score that is mapped to 1
    :return: the scores, scaled linearly
    """
    return (scores - low) / (high - low)


def mean_over_training(targets: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """
    :param targets: (points,) environment steps
    :param curves: (n, points) returns
    :return: (n,) area under each curve divided by the steps: the mean return during training
    """
    if len(targets) < 2:
        return curves.mean(axis=1)
    return import_extra("scipy.integrate").trapezoid(curves, targets, axis=1) / (targets[-1] - targets[0])


def cost_at_threshold(curves: np.ndarray, costs: np.ndarray, threshold: float) -> np.ndarray:
    """
    :param curves: (n, points) returns
    :param costs: (n, points) environment steps or seconds
    :param threshold: a return
    :return: (n,) cost at the first evaluation that reaches the threshold, infinite if none does
    """
    reached = curves >= threshold
    return np.where(reached.any(axis=1), costs[np.arange(len(costs)), reached.argmax(axis=1)], np.inf)
