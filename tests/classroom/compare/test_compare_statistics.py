"""Statistics of the report of a comparison."""

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("rliable")

from sb3_grpo.classroom.compare import statistics
from sb3_grpo.classroom.compare.statistics import Comparison, Interval, Verdict, compare, holm, verdict


def test_iqm_is_the_mean_of_the_middle_half():
    assert statistics.iqm(np.array([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -100.0])) == 3.5
    # A quarter of 3 is less than one run: none is cut off
    assert statistics.iqm(np.array([0.0, 1.0, 8.0])) == 3.0
    columns = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [90.0, 5.0]])
    assert statistics.iqm(columns).tolist() == [1.5, 5.0]


def test_same_numbers_as_rliable():
    from rliable import library, metrics

    rng = np.random.default_rng(0)
    x, y = rng.normal(0.0, 1.0, (9, 3)).round(1), rng.normal(0.3, 1.0, (9, 3)).round(1)
    assert statistics.iqm(x.ravel()) == pytest.approx(metrics.aggregate_iqm(x))
    by_env = [statistics.probability_of_improvement(x[:, i], y[:, i]) for i in range(3)]
    assert np.mean(by_env) == pytest.approx(metrics.probability_of_improvement(x, y))
    taus = np.linspace(-1.0, 1.0, 5)
    profile, _ = library.create_performance_profile({"x": x}, taus, reps=2)
    np.testing.assert_allclose(statistics.performance_profile(list(x.T), taus).value, profile["x"])


def test_intervals_are_the_same_each_time_and_leave_numpy_alone():
    sample = np.random.default_rng(0).normal(size=10)
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    first = statistics.iqm_interval([sample])
    assert np.random.rand() == expected
    assert statistics.iqm_interval([sample]) == first
    assert first.low < first.value < first.high


def test_no_interval_with_two_seeds():
    interval = statistics.iqm_interval([np.array([1.0, 2.0])])
    assert interval.value == 1.5
    assert not interval.known


def test_exact_p_value_of_complete_separation():
    # 2 of the C(8, 4) = 70 ways to name the runs
    p_value = statistics.permutation_p_value([np.arange(4.0)], [np.arange(4.0) + 10])
    assert p_value == pytest.approx(2 / 70)
    assert statistics.permutation_p_value([np.ones(5)], [np.ones(5)]) == 1.0
    # Smaller than any number of shuffles would find
    assert statistics.permutation_p_value([np.arange(10.0)], [np.arange(10.0) + 10]) == pytest.approx(2 / 184_756)


def test_p_value_counts_all_ways_to_name_the_runs():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(1.0, size=9)
    assert statistics.permutation_p_value([x], [y]) == pytest.approx(mannwhitneyu(x, y, method="exact").pvalue)

    # Ties, and two environments with different numbers of seeds: one after the other
    firsts = [np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 4.0, 4.0])]
    seconds = [np.array([2.0, 3.0, 3.0, 5.0, 5.0]), np.array([2.0, 4.0])]
    named = []
    for first, second in zip(firsts, seconds, strict=True):
        runs = np.concatenate([first, second])
        chosen = [list(ids) for ids in itertools.combinations(range(len(runs)), len(first))]
        named.append([statistics.probability_of_improvement(runs[ids], np.delete(runs, ids)) - 0.5 for ids in chosen])
    distances = np.abs([sum(each) for each in itertools.product(*named)])
    # The names as they are come first
    expected = np.mean(distances >= distances[0] - 1e-9)
    assert statistics.permutation_p_value(firsts, seconds) == pytest.approx(expected)


def test_p_value_of_many_environments():
    rng = np.random.default_rng(0)
    firsts, seconds = [rng.normal(size=12) for _ in range(60)], [rng.normal(size=12) for _ in range(60)]
    # With that many runs it is as a normal distribution would have it
    shares = np.array([statistics.probability_of_improvement(x, y) for x, y in zip(firsts, seconds, strict=True)])
    distance = abs((shares - 0.5).sum()) / np.sqrt(60 * 25 / (12 * 12 * 12))
    comparison = compare("a", "b", firsts, seconds)
    assert comparison.p_value == pytest.approx(math.erfc(distance / np.sqrt(2)), abs=0.01)
    assert comparison.smallest_p == 0.0


def test_holm_by_hand():
    # 0.01 * 3, then 0.02 * 2, then 0.04 or what came before
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


@pytest.mark.parametrize(
    "difference, improvement, p_value, adjusted_p, smallest_p, expected",
    [
        (Interval(5, 1, 9), Interval(0.9, 0.7, 1.0), 0.005, 0.01, 1e-5, Verdict.DIFFERENCE),
        (Interval(-5, -9, -1), Interval(0.1, 0.0, 0.3), 0.005, 0.01, 1e-5, Verdict.DIFFERENCE),
        (Interval(5, 1, 9), Interval(0.9, 0.7, 1.0), 0.04, 0.2, 1e-5, Verdict.HINT),
        (Interval(5, 1, 9), Interval(0.9, 0.7, 1.0), 0.06, 0.2, 1e-5, Verdict.UNDECIDED),
        (Interval(5, 1, 9), Interval(0.6, 0.4, 0.8), 0.005, 0.01, 1e-5, Verdict.UNDECIDED),
        (Interval(5, 1, 9), Interval(0.1, 0.0, 0.3), 0.005, 0.01, 1e-5, Verdict.UNDECIDED),
        (Interval(5, -1, 9), Interval(0.6, 0.4, 0.8), 0.005, 0.01, 1e-5, Verdict.NO_DIFFERENCE),
        # Three seeds each: 2 of 20 ways to name the runs separate them
        (Interval(5, 1, 9), Interval(1.0, 1.0, 1.0), 0.1, 0.1, 0.1, Verdict.TOO_FEW_SEEDS),
    ],
)
def test_rule_of_the_verdicts(difference, improvement, p_value, adjusted_p, smallest_p, expected):
    comparison = Comparison("a", "b", difference, improvement, p_value, smallest_p, (9,), (9,))
    assert verdict(comparison, adjusted_p) is expected


@pytest.mark.parametrize("n_seeds", [5, 10])
def test_equals_are_seldom_told_apart(n_seeds):
    """Each of the two rates is 5% at the most; of 200 draws, 10 or, by chance, a few more."""
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(200):
        comparison = compare("a", "b", [rng.normal(size=n_seeds)], [rng.normal(size=n_seeds)])
        verdicts.append(verdict(comparison, comparison.p_value))
    assert verdicts.count(Verdict.DIFFERENCE) <= 16
    assert verdicts.count(Verdict.DIFFERENCE) + verdicts.count(Verdict.HINT) <= 16


@pytest.mark.parametrize("level", [0.1, 0.7, 0.955])
def test_runs_that_all_end_the_same_do_not_differ_where_one_is_missing(level):
    """The mean of seven times 0.1 is not that of five times 0.1 in the last digit."""
    comparison = compare("ppo", "dapo", [np.full(5, level)], [np.full(7, level)])
    assert comparison.difference == (0.0, 0.0, 0.0)
    assert verdict(comparison, comparison.p_value) is Verdict.NO_DIFFERENCE


def test_learning_is_seldom_seen_where_there_is_none():
    """The best of four variants, and untrained policies that each of them shares: 5% of 200 draws, or a few more."""
    rng = np.random.default_rng(0)
    seen = [statistics.learned_p_value(rng.normal(size=5), [rng.normal(size=5) for _ in range(4)]) <= 0.05 for _ in range(200)]
    assert sum(seen) <= 16
    # And not overlooked, with one variant of four that learns, and with four that do
    untrained, better = np.arange(3.0), 10.0 + np.arange(3.0)
    assert statistics.learned_p_value(untrained, [better, *[untrained + 0.1 * i for i in (1, 2, 3)]]) <= 0.05
    assert statistics.learned_p_value(untrained, [better + i for i in range(4)]) <= 0.05
    assert statistics.learned_p_value(untrained[:1], [better]) == 1.0


def test_intervals_of_few_seeds_are_too_narrow() -> None:
    """As docs/classroom_report.md says."""
    generator = np.random.default_rng(0)
    for n_seeds, covered in ((3, 0.75), (5, 0.90), (10, 0.94)):
        runs = generator.normal(size=(n_seeds, 2_000))
        drawn = np.stack([statistics.iqm(runs[generator.integers(n_seeds, size=n_seeds)]) for _ in range(1_000)])
        low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
        assert np.mean((low < 0) & (high > 0)) == pytest.approx(covered, abs=0.03)
