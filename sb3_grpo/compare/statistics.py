"""
What the report computes: interquartile means, bootstrap intervals, probabilities of improvement, and what they support.

The intervals are rliable's stratified bootstrap. A sample is the array of one variant's scores on one environment, a
row per seed; samples on several environments may have different numbers of seeds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

import numpy as np

from sb3_grpo.compare.results import import_extra

RESAMPLES = 2000
CONFIDENCE = 0.95
# With one or two seeds the bootstrap has hardly anything to draw from
MIN_SEEDS = 3
_SEED = 0
# Parts of 1 by which the permutation test tells probabilities of improvement apart, at most
_FINEST = 200_000


class Interval(NamedTuple):
    """
    An estimate and its interval.

    :param value: the estimate
    :param low: lower end, NaN where there are too few seeds for an interval
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
        :param value: any
        :return: whether there is an interval and the value lies outside
        """
        return self.known and (value < self.low or value > self.high)


class Band(NamedTuple):
    """
    Estimates along a curve and their pointwise intervals.

    :param value: (points,) the estimates
    :param low: (points,) lower ends, NaN where there are too few seeds
    :param high: (points,) upper ends
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Verdict(Enum):
    """What the data say of two variants."""

    TOO_FEW_SEEDS = "too few seeds"
    NO_DIFFERENCE = "no difference shown"
    UNDECIDED = "undecided"
    HINT = "hint"
    DIFFERENCE = "difference"


class Comparison(NamedTuple):
    """
    Two variants, on one environment or on several.

    :param first: name of a variant
    :param second: name of the other one
    :param difference: IQM of the first minus IQM of the second
    :param improvement: probability that a run of the first beats a run of the second, mean over the environments
    :param p_value: two-sided, of a permutation test of the probability of improvement
    :param smallest_p: the p-value of complete separation with this number of seeds
    :param n_first: seeds of the first, for each environment
    :param n_second: seeds of the second
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
    Interquartile mean over the first axis: the number of ``rliable.metrics.aggregate_iqm``, which has no axis.

    :param scores: (n, ...)
    :return: (...) the mean without the lowest and the highest quarter (rounded down: with under 4 scores, of all)
    """
    cut = int(0.25 * len(scores))
    middle = np.sort(scores, axis=0)[cut : len(scores) - cut]
    # Of equal numbers it is that number: a last digit that depends on how many there are would look like a difference
    return np.clip(middle.mean(axis=0), middle[0], middle[-1])


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> float:
    """
    The number of ``rliable.metrics.probability_of_improvement``, which takes a hundred times as long for its p-value.

    :param first: (n,) scores of one variant
    :param second: (m,) scores of another
    :return: share of the pairs in which the first is higher, ties count half
    """
    return float((np.sign(first[:, None] - second[None, :]).mean() + 1.0) / 2.0)


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """rliable 1.2 draws from NumPy's global generator, whatever ``random_state`` it is given."""
    state = np.random.get_state()
    np.random.seed(_SEED)
    try:
        yield
    finally:
        np.random.set_state(state)


def bootstrap(function: Callable[..., np.ndarray], samples: Sequence[np.ndarray]) -> Band:
    """
    Stratified bootstrap: the seeds of each sample are drawn again with replacement, independently of the other samples.

    :param function: takes the samples, returns a vector
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
    :return: the interquartile mean of all of them together
    """
    band = bootstrap(lambda *drawn: iqm(np.concatenate(drawn))[None], samples)
    return Interval(*(float(part[0]) for part in band))


def mean_interval(samples: Sequence[np.ndarray]) -> Interval:
    """
    :param samples: scores (n,) of one variant for each environment
    :return: the mean of all of them together
    """
    band = bootstrap(lambda *drawn: np.concatenate(drawn).mean()[None], samples)
    return Interval(*(float(part[0]) for part in band))


def iqm_counts(samples: Sequence[np.ndarray]) -> list[int]:
    """
    :param samples: scores (n,) of one variant for each environment
    :return: how many scores of each sample are in the middle half of all, which alone makes the interquartile mean
    """
    sample = np.repeat(np.arange(len(samples)), [len(scores) for scores in samples])
    cut = int(0.25 * len(sample))
    middle = np.argsort(np.concatenate(samples), kind="stable")[cut : len(sample) - cut]
    return np.bincount(sample[middle], minlength=len(samples)).tolist()


def iqm_curve(curves: np.ndarray) -> Band:
    """
    :param curves: (n, points) one curve per seed
    :return: the interquartile mean at each point
    """
    return bootstrap(iqm, [curves])


def performance_profile(samples: Sequence[np.ndarray], thresholds: np.ndarray) -> Band:
    """
    The score distribution of ``rliable.library.create_performance_profile``, which needs as many seeds everywhere.

    :param samples: scores (n,) of one variant for each environment
    :param thresholds: (points,)
    :return: share of the runs whose score is above each threshold
    """
    return bootstrap(lambda *drawn: (np.concatenate(drawn)[:, None] > thresholds).mean(axis=0), samples)


def compare(first: str, second: str, firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> Comparison:
    """
    :param first: name of a variant
    :param second: name of the other one
    :param firsts: scores of the first, (n,) for each environment
    :param seconds: scores of the second for the same environments
    :return: all that the verdict depends on
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
        # Whole numbers: many environments have more ways than a float holds
        2 / math.prod(math.comb(n + m, n) for n, m in sizes),
        tuple(n for n, _ in sizes),
        tuple(m for _, m in sizes),
    )


def permutation_p_value(firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray]) -> float:
    """
    Of all ways to give the names of the variants to the runs of each environment, the share with a probability of
    improvement as far from 1/2. With one environment this is the exact Wilcoxon-Mann-Whitney test, for ties as well. Where
    environments have many different numbers of seeds, ways that are nearly as far count, too.

    :param firsts: scores of one variant, (n,) for each environment
    :param seconds: scores of the other one
    :return: two-sided p-value
    """
    rankdata = import_extra("scipy.stats").rankdata
    divisors = [2 * len(x) * len(y) for x, y in zip(firsts, seconds, strict=True)]
    # Distances from 1/2 are whole numbers of this part, and nearly so where there are many different numbers of seeds
    unit = min(math.lcm(*divisors), _FINEST)
    rounding = 0 if all(unit % divisor == 0 for divisor in divisors) else len(divisors)
    observed = lowest = 0
    # The share of the ways with each distance, from the lowest on
    shares: np.ndarray = np.ones(1)
    for x, y, divisor in zip(firsts, seconds, divisors, strict=True):
        # With ties, a rank may be a half
        ranks = (2 * rankdata(np.concatenate([x, y]))).astype(int)
        sums = _sums_of_subsets(ranks, len(x))
        # The probability of improvement is linear in the sum of the ranks; without its constant it is 0 at 1/2
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
    Permutation test of whether any of several variants is better than untrained policies: of all ways to deal out the scores,
    the share in which the best variant is as far above the untrained policies, in the mean of the ranks.

    :param untrained: (n,) scores before learning, independent of each other
    :param finals: (m,) scores after it, of each variant
    :return: p-value; 1 where there are not two scores of each kind
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
    :param numbers: (n,) whole numbers above 0
    :param size: of the subsets
    :return: (sum + 1,) for each number, the share of the subsets that have it as their sum
    """
    counts = np.zeros((size + 1, numbers.sum() + 1))
    counts[0, 0] = 1.0
    for number in numbers:
        counts[1:, number:] += counts[:-1, :-number].copy()
    return counts[size] / counts[size].sum()


def holm(p_values: Sequence[float]) -> list[float]:
    """
    :param p_values: of several comparisons
    :return: adjusted such that rejecting those below 5% is wrong anywhere with probability 5% at most
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(comparison: Comparison, adjusted_p: float) -> Verdict:
    """
    The rule that the report states.

    :param comparison: of two variants
    :param adjusted_p: its p-value, adjusted for all comparisons of the same kind
    :return: what can be said
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
    :param scores: any
    :param low: what becomes 0
    :param high: what becomes 1
    :return: the scores between them
    """
    return (scores - low) / (high - low)


def mean_over_training(targets: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """
    :param targets: (points,) environment steps
    :param curves: (n, points) returns
    :return: (n,) area under each curve, divided by the steps: the mean return while training
    """
    if len(targets) < 2:
        return curves.mean(axis=1)
    return import_extra("scipy.integrate").trapezoid(curves, targets, axis=1) / (targets[-1] - targets[0])


def cost_at_threshold(curves: np.ndarray, costs: np.ndarray, threshold: float) -> np.ndarray:
    """
    :param curves: (n, points) returns
    :param costs: (n, points) environment steps or seconds
    :param threshold: a return
    :return: (n,) the cost at the first evaluation that reaches it, infinite for those that never do
    """
    reached = curves >= threshold
    return np.where(reached.any(axis=1), costs[np.arange(len(costs)), reached.argmax(axis=1)], np.inf)
