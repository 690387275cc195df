"""The report of a comparison: its numbers, its statements, its page."""

import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest

pytest.importorskip("rliable")

import pandas as pd
from compare_data import BUDGET, curve_to, turn_round_sampled, write_experiment, write_run

from sb3_grpo import presets
from sb3_grpo.classroom.compare import figures, statistics
from sb3_grpo.classroom.compare.clips import median_seeds
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.figures import styles
from sb3_grpo.classroom.compare.findings import find_in, interval_text, judge, normalised_scores, number, scale
from sb3_grpo.classroom.compare.headline import few_seeds
from sb3_grpo.classroom.compare.lecture import lecture_table
from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.classroom.compare.statistics import Comparison, Interval, Verdict, compare, holm, verdict
from sb3_grpo.classroom.compare.tables import cost_table, efficiency_table, final_table, network_statements
from sb3_grpo.console import UsageError

ENV = "CartPole-v1"
MODE = "deterministic"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def two_levels(low, high):
    """PPO ends around one level, DAPO around the other."""
    return lambda env, variant, seed: curve_to((low if variant == "ppo" else high) + seed)


def text_of(page):
    """What a reader sees, without the pictures."""
    html = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


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


def test_probability_of_improvement_counts_pairs():
    first, second = np.array([1.0, 3.0]), np.array([2.0, 3.0])
    # 1 < 2, 1 < 3, 3 > 2, 3 = 3
    assert statistics.probability_of_improvement(first, second) == 1.5 / 4
    assert statistics.probability_of_improvement(second, first) == 2.5 / 4


def test_intervals_are_the_same_each_time_and_leave_numpy_alone():
    sample = np.random.default_rng(0).normal(size=10)
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    first = statistics.iqm_interval([sample])
    assert np.random.rand() == expected
    assert statistics.iqm_interval([sample]) == first
    assert first.low < first.value < first.high


def test_interval_covers_the_true_iqm():
    rng = np.random.default_rng(0)
    intervals = [statistics.iqm_interval([rng.normal(5.0, 1.0, 20)]) for _ in range(60)]
    covered = np.mean([interval.low <= 5.0 <= interval.high for interval in intervals])
    assert covered >= 0.8


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


def test_p_value_of_environments_with_many_different_numbers_of_seeds(monkeypatch):
    rng = np.random.default_rng(0)
    firsts, seconds = ([rng.normal(size=size) for size in sizes] for sizes in ((10, 9, 7), (10, 8, 10)))
    exact = statistics.permutation_p_value(firsts, seconds)
    monkeypatch.setattr(statistics, "_FINEST", 1000)
    assert exact <= statistics.permutation_p_value(firsts, seconds) <= exact + 0.01


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


def test_sentence_of_a_clear_win_names_the_winner():
    comparison = compare("ppo", "dapo", [np.arange(10.0)], [np.arange(10.0) + 100])
    (finding,) = judge([(ENV, comparison)])
    assert finding.verdict is Verdict.DIFFERENCE
    assert finding.sentence.startswith(f"dapo ended higher than ppo on {ENV}: IQM 100 higher (95% interval ")
    assert "a run of dapo beats a run of ppo with probability 1.00 (1.00 to 1.00); 10 and 10 seeds" in finding.sentence


def test_sentence_of_no_difference_says_that_it_is_no_proof():
    rng = np.random.default_rng(0)
    (finding,) = judge([(ENV, compare("ppo", "dapo", [rng.normal(size=10)], [rng.normal(size=10)]))])
    assert finding.verdict is Verdict.NO_DIFFERENCE
    assert finding.sentence.startswith("No difference shown between ")
    assert "no proof that they are equal" in finding.sentence


def test_sentence_of_runs_at_the_ceiling_points_to_the_speed():
    (finding,) = judge([(ENV, compare("ppo", "dapo", [np.full(5, 500.0)], [np.full(5, 500.0)]))])
    assert finding.verdict is Verdict.NO_DIFFERENCE
    assert "the runs that the IQM counts ended the same; 5 and 5 seeds" in finding.sentence
    assert finding.sentence.endswith("only how fast they got there can tell them apart.")


def test_sentence_of_too_few_seeds():
    (finding,) = judge([(ENV, compare("ppo", "dapo", [np.array([1.0, 2.0, 3.0])], [np.array([11.0, 12.0, 13.0])]))])
    assert finding.verdict is Verdict.TOO_FEW_SEEDS
    seen = f"Seen on {ENV}: dapo ended above ppo in 9 of 9 pairs of runs; 3 and 3 seeds."
    assert finding.sentence == seen
    # Of 4 pairs, 1 is the other way round, and 1 is level
    (finding,) = judge([(ENV, compare("ppo", "dapo", [np.array([1.0, 4.0])], [np.array([0.0, 4.0])]))])
    assert "ppo ended above dapo in 2.5 of 4 pairs of runs (ties count half)" in finding.sentence


@pytest.mark.parametrize("level", [0.1, 0.7, 0.955])
def test_runs_that_all_end_the_same_do_not_differ_where_one_is_missing(level):
    """The mean of seven times 0.1 is not that of five times 0.1 in the last digit."""
    comparison = compare("ppo", "dapo", [np.full(5, level)], [np.full(7, level)])
    assert comparison.difference == (0.0, 0.0, 0.0)
    assert verdict(comparison, comparison.p_value) is Verdict.NO_DIFFERENCE


def test_many_comparisons_turn_a_difference_into_a_hint():
    first, second = np.arange(10.0), np.arange(10.0) + 6.0
    one = compare("ppo", "dapo", [first], [second])
    assert judge([(ENV, one)])[0].verdict is Verdict.DIFFERENCE
    finding = judge([(ENV, one)] + [(ENV, one._replace(p_value=0.9))] * 99)[0]
    assert finding.verdict is Verdict.HINT
    assert "does not hold after correction for 100 comparisons" in finding.sentence
    assert "With so few seeds" not in finding.sentence, "100 * 2 / 184,756 is below 5%"


def test_hint_says_that_more_seeds_are_needed():
    # 2 of 252 ways to name the runs separate them, times 7 is above 5%
    separated = compare("ppo", "dapo", [np.arange(5.0)], [np.arange(5.0) + 100.0])
    assert {finding.verdict for finding in judge([(ENV, separated)] * 6)} == {Verdict.DIFFERENCE}
    finding = judge([(ENV, separated)] * 7)[0]
    assert finding.verdict is Verdict.HINT
    assert finding.sentence.endswith("no difference could: more seeds are needed.")


def test_number():
    numbers = (0.0, -1e-9, 0.25, 12.34, -133.4, 4545.0, 0.01234, -2.345e-5)
    assert [number(x) for x in numbers] == ["0", "0", "0.25", "12.3", "-133", "4,545", "0.0123", "-0.000023"]
    assert number(2e-5, (1e-5, 3e-5)) == "0.000020"
    assert number(float("nan")) == "-"
    assert number(-1e30) == "-1e+30" and number(2e10) == "20,000,000,000"
    # As many digits as the numbers beside it
    assert number(3.2, (120.0,)) == "3"
    # An interval that includes 0 and one that does not shall not look alike
    assert interval_text(Interval(0.01, -0.0004, 0.02)) == "0.0100 (-0.0004 to 0.0200)"
    assert interval_text(Interval(0.01, -1e-17, 0.02)) == "0.0100 (0.0000 to 0.0200)"
    assert interval_text(Interval(250.0, -0.3, 500.0)) == "250.0 (-0.3 to 500.0)"


def test_final_scores_are_those_of_the_final_evaluation(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0 * (seed + 1)), seeds=4)
    path = tmp_path / "runs" / ENV / "ppo" / "0" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows.loc[(rows["mode"] == MODE) & (rows.final == 1), "return_mean"] = 140.0
    rows.to_csv(path, index=False)
    results = collect(tmp_path)
    assert results.final_scores(ENV, "ppo", MODE).tolist() == [140.0, 200.0, 300.0, 400.0]
    # The curve goes on with the small evaluations
    assert results.curves(ENV, "ppo", MODE)[:, -1].tolist() == [100.0, 200.0, 300.0, 400.0]
    assert results.final_scores(ENV, "dapo", "stochastic").tolist() == [99.0, 199.0, 299.0, 399.0]
    row = final_table(results, ENV, MODE).rows[0]
    # Mean 260, IQM of the middle two
    assert row[0] == "ppo" and row[1].startswith("250 (") and row[2:] == ["260", "250", "140 to 400", "4"]


def test_normalised_between_untrained_and_the_best_mean(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: [10.0, 50.0, 110.0 if variant == "dapo" else 60.0], seeds=3)
    results = collect(tmp_path)
    assert scale(results, ENV) == (10.0, 110.0, True)
    envs, scores = normalised_scores(results)
    assert envs == [ENV]
    assert scores["dapo"][0].tolist() == [1.0] * 3 and scores["ppo"][0].tolist() == [0.5] * 3


def test_steps_until_the_environment_counts_as_solved(tmp_path):
    # CartPole-v1 from 475
    write_experiment(
        tmp_path, lambda env, variant, seed: [10.0, 480.0 if seed else 20.0, 500.0 if seed != 1 else 30.0], seeds=3
    )
    table = efficiency_table(collect(tmp_path), ENV, MODE)
    assert table.columns[2] == "Runs that reached 475"
    # Seed 0 at the end, the others in the middle; PPO makes 1000, 1020, 1040 steps per second
    assert table.rows[0][2:4] == ["3 of 3", "5,007"]
    assert float(table.rows[0][4]) == pytest.approx(5000 / 1020, abs=0.05)
    # Means over training by hand: 137.5, 250, 367.5
    assert table.rows[0][1].startswith("252 (")


def test_a_run_that_never_gets_there_is_infinitely_slow(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(500.0 if seed == 0 else 100.0), seeds=3)
    assert efficiency_table(collect(tmp_path), ENV, MODE).rows[0][2:5] == ["1 of 3", "never", "never"]


def test_returns_at_equal_time(tmp_path):
    # PPO is at 0, 50, 100 after 0, about 5 and 10 s, DAPO at 0, 100, 200 and then a little
    write_experiment(
        tmp_path, lambda env, variant, seed: [0.0, 100.0, 200.0] if variant == "dapo" else [0.0, 50.0, 100.0], seeds=3
    )
    results = collect(tmp_path)
    seconds = results.curves(ENV, "ppo", MODE, "seconds")
    assert results.returns_after(ENV, "ppo", MODE, 0.0).tolist() == [0.0] * 3
    half = float(seconds[1, 1]) / 2
    assert results.returns_after(ENV, "ppo", MODE, half)[1] == pytest.approx(25.0)
    # Runs that had ended
    assert results.returns_after(ENV, "dapo", MODE, 1e6).tolist() == [200.0] * 3
    shortest = min(results.done(ENV, name).seconds.median() for name in ("ppo", "dapo"))
    assert results.shortest_time(ENV) == shortest
    table = efficiency_table(results, ENV, MODE)
    assert table.columns[-1] == f"Return after {number(shortest)} s, IQM (95% interval)"
    # DAPO makes 1500 steps per second where PPO makes 1000
    assert table.rows[0][-1].startswith("66.7 (") and table.rows[1][-1].startswith("199 (")
    # A run with fewer evaluations is interpolated between those; the others are as they were
    before = results.returns_after(ENV, "dapo", MODE, 2.0)
    path = tmp_path / "runs" / ENV / "ppo" / "0" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows[rows.target_steps != 5000].to_csv(path, index=False)
    results = collect(tmp_path)
    assert results.returns_after(ENV, "dapo", MODE, 2.0).tolist() == before.tolist()
    assert results.returns_after(ENV, "ppo", MODE, 5.0)[0] == pytest.approx(50.0)


def test_curve_over_time_ends_with_the_fastest_run(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(110.0), seeds=3)
    seconds, curves = collect(tmp_path).curves_over_time(ENV, "ppo", MODE, points=3)
    # 10,000 steps at 1040 per second; seed 0 makes 1000
    assert seconds[-1] == pytest.approx(10_000 / 1040)
    assert curves[0, -1] == pytest.approx(10 + 100 * 1000 / 1040)
    assert curves[2, -1] == pytest.approx(110)


def test_page_has_everything_and_needs_nothing(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Pendulum-v1"), seeds=5)
    page = make_report(tmp_path)
    assert page == tmp_path / "report.html"
    html = page.read_text()
    pictures = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    by_env = ("curves_steps", "curves_steps_stochastic", "curves_time", "final", "diagnostics")
    expected = {f"{kind}_{env}" for kind in by_env for env in (ENV, "Pendulum-v1")}
    assert pictures == expected | {"aggregate_iqm", "performance_profiles", "probability_of_improvement"}
    for name in pictures:
        for suffix in ("png", "svg"):
            assert (tmp_path / "figures" / f"{name}.{suffix}").stat().st_size > 5_000
            assert html.count(f'href="figures/{name}.{suffix}"') == 1
    # Besides these links, only parts of the page itself
    assert not re.findall(r'src="|href="(?!#|figures/)[^"]*"|url\(|@import', html)
    assert page.stat().st_size < 300_000
    anchors = set(re.findall(r'href="#([^"]*)"', html))
    assert anchors <= set(re.findall(r'id="([^"]*)"', html))
    text = text_of(page)
    for phrase in (
        "All 20 runs finished",
        "dapo ended higher than ppo on CartPole-v1",
        "dapo ended higher than ppo over all 2 environments",
        "Over all 2 environments, dapo ended higher than ppo. On single environments a difference is shown for 2 of 2 pairs",
        "Runs that the IQM counts",
        "CartPole-v1 3, Pendulum-v1 3",
        "the most likely actions of a random network",
        "Holm's correction is for 2 comparisons on single environments, and separately for 1 over all",
        "python -m sb3_grpo compare --env CartPole-v1 --algo ppo dapo",
        "dapo: tuned, 100 trials",
        "Seeds 5 (0, 1, 2, 3, 4)",
        "Gymnasium has no return from which this environment counts as solved",
    ):
        assert phrase in text
    for name, n_rows in (("runs", 20), ("evaluations", 20 * 14)):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        assert len(table) == n_rows and list(table.columns[:4]) == ["env", "variant", "algo", "seed"]
    assert {"key", "value"} < set(pd.read_csv(tmp_path / "diagnostics.csv").columns)


def test_failed_and_missing_runs_are_listed_and_not_counted(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=5)
    failed, missing = (tmp_path / "runs" / ENV / "ppo" / seed for seed in "14")
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("Traceback (most recent call last):\nValueError: NaN <b>in</b> the policy\n")
    shutil.rmtree(missing)
    write_run(tmp_path, ENV, "a2c", "a2c", 0, curve_to(1.0))
    page = make_report(tmp_path)
    text = text_of(page)
    assert "8 of 10 runs finished, 1 failed, 1 missing" in text
    assert "ppo, dapo on CartPole-v1: 3 to 5 finished seeds each." in text
    assert "ValueError: NaN &lt;b&gt;in&lt;/b&gt; the policy" in text
    assert "3 and 5 seeds" in text or "5 and 3 seeds" in text
    assert "runs/CartPole-v1/a2c/0 is not part of experiment.json" in text
    assert pd.read_csv(tmp_path / "runs.csv").status.value_counts().to_dict() == {"done": 8, "failed": 1, "missing": 1}
    results = collect(tmp_path)
    assert results.final_scores(ENV, "ppo", MODE).tolist() == [50.0, 52.0, 53.0]
    assert final_table(results, ENV, MODE).rows[0][-1] == "3 of 5"


def test_steps_beyond_the_budget_are_said_below_the_curves(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=2)
    said = "more steps than the budget, at which the last evaluation is drawn"
    assert said not in text_of(make_report(tmp_path))
    path = tmp_path / "runs" / ENV / "dapo" / "1" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 13_000}))
    assert f"a run made up to 30% {said}" in text_of(make_report(tmp_path))


def test_unequal_evaluations_are_used_as_far_as_they_go_and_said(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    path = tmp_path / "runs" / ENV / "dapo" / "2" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows[(rows.target_steps != 4000.0) | (rows.final == 1)].to_csv(path, index=False)
    results = collect(tmp_path)
    assert results.grid(ENV, MODE).tolist() == [0.0, 2000.0, 6000.0, 8000.0, 10000.0]
    assert results.curves(ENV, "dapo", MODE).shape == (3, 5)
    notes = " ".join(results.notes)
    assert "CartPole-v1, dapo, seed 2: 5 deterministic evaluations instead of 6" in notes
    assert results.final_scores(ENV, "dapo", MODE).tolist() == [400.0, 401.0, 402.0]


def test_environment_without_runs_of_a_variant_is_left_out_of_the_aggregate(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Pendulum-v1"), seeds=3)
    shutil.rmtree(tmp_path / "runs" / "Pendulum-v1" / "ppo")
    envs, scores = normalised_scores(collect(tmp_path))
    assert envs == [ENV] and list(scores) == ["ppo", "dapo"]


def test_improvements_of_one_environment_are_not_mixed_with_another(tmp_path, monkeypatch):
    variants = {"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Pendulum-v1"), variants=variants, seeds=3)
    shutil.rmtree(tmp_path / "runs" / "Pendulum-v1" / "ppo")
    drawn = []
    draw = figures.draw_improvements
    monkeypatch.setattr(figures, "draw_improvements", lambda *arguments: (drawn.append(arguments), draw(*arguments)))
    make_report(tmp_path)
    [(_, title, rows, _)] = drawn
    assert title == "Probability of improvement, CartPole-v1"
    assert [pair[:2] for pair in rows] == [("ppo", "grpo"), ("ppo", "dapo"), ("grpo", "dapo")]


def test_steps_beyond_the_budget_are_told(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    assert not collect(tmp_path).notes, "7 of 10,000 are not worth a word"
    path = tmp_path / "runs" / ENV / "dapo" / "1" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": 11_600}))
    results = collect(tmp_path)
    assert results.notes == [
        "CartPole-v1, dapo: with its last rollout a run made 11,600 steps, 16% more than the budget, "
        "before its final evaluation."
    ]
    table = cost_table(results)
    assert [row[table.columns.index("Steps made")] for row in table.rows] == ["10,007", "10,007"]


def test_a_run_that_ended_early_is_told(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    path = tmp_path / "runs" / ENV / "dapo" / "1" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": 2_600}))
    assert collect(tmp_path).notes == [
        "CartPole-v1, dapo: a run ended after 2,600 steps of a budget of 10,000. From there on its curve has "
        "the returns of its end."
    ]


def test_runs_of_different_versions_are_told(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    for seed in range(3):
        path = tmp_path / "runs" / ENV / "ppo" / str(seed) / "config.json"
        versions = {"torch": "2.9.0", "numpy": "2.0.0" if seed else "1.26.4"}
        path.write_text(json.dumps({**json.loads(path.read_text()), "versions": versions}))
    assert collect(tmp_path).notes == ["The runs were made with different versions of numpy: 1.26.4, 2.0.0."]


def test_one_seed_does_not_say_that_nobody_learned(tmp_path):
    page = make_report(write_experiment(tmp_path, two_levels(100.0, 400.0), seeds=1)).read_text()
    assert "no variant learned here" not in page
    assert "no variant is shown to have learned here" in page


def test_one_variant_one_environment_one_seed(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), variants={"dapo": "dapo"}, seeds=1)
    text = text_of(make_report(tmp_path))
    assert "There is one variant only" in text
    assert "Fewer than 3 seeds of dapo: no interval is given" in text


def test_runs_of_two_variants_that_share_no_environment(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Acrobot-v1"), seeds=3)
    shutil.rmtree(tmp_path / "runs" / ENV / "ppo")
    shutil.rmtree(tmp_path / "runs" / "Acrobot-v1" / "dapo")
    text = text_of(make_report(tmp_path))
    assert "On no environment are there runs of two variants yet" in text and "one variant only" not in text
    assert "dapo 401 (400 to 402) on CartPole-v1, ppo 51.0 (50.0 to 52.0) on Acrobot-v1" in text


def test_nothing_finished(tmp_path):
    with pytest.raises(UsageError, match=r"has no experiment\.json"):
        make_report(tmp_path)
    write_experiment(tmp_path, two_levels(1.0, 2.0), seeds=1)
    run = tmp_path / "runs" / ENV / "ppo" / "0"
    for path in tmp_path.glob("runs/*/*/*/result.json"):
        path.unlink()
    (run / "error.txt").write_bytes(b"ValueError: no such network \xff\n")
    with pytest.raises(UsageError, match=r"no finished run yet.*1 failed.*ppo, seed 0.*no such network"):
        make_report(tmp_path)


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    import sys

    write_experiment(tmp_path, two_levels(1.0, 2.0), seeds=3)
    monkeypatch.setitem(sys.modules, "rliable.library", None)
    with pytest.raises(UsageError, match=r'rliable.*pip install "sb3-grpo\[compare\]"'):
        make_report(tmp_path)


def test_finished_runs_with_other_settings_are_named(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=4)
    planned = json.loads((tmp_path / "experiment.json").read_text())["hyperparams"][ENV]["dapo"]
    changes = {
        0: {"timesteps": BUDGET},
        1: {"timesteps": 400},
        2: {"timesteps": 400},
        3: {"hyperparameters": planned | {"gamma": "0.5"}},
    }
    for seed, change in changes.items():
        path = tmp_path / "runs" / ENV / "dapo" / str(seed) / "config.json"
        path.write_text(json.dumps({"algo": "dapo", "hyperparameters": planned} | json.loads(path.read_text()) | change))
    said = "Finished runs made with other settings than experiment.json says: "
    assert collect(tmp_path).notes == [
        f"{said}2 of {ENV}, dapo: timesteps 400 instead of {BUDGET}.",
        f"{said}1 of {ENV}, dapo: gamma '0.5' instead of '{planned['gamma']}'.",
    ]


def test_lecture_table_is_measured_where_it_can_be(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), variants={"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}, seeds=3)
    names, rows = lecture_table(collect(tmp_path))
    assert names == ["ppo", "grpo", "dapo"]
    table = {title: [[tuple(fact) for fact in facts] for facts in cells] for title, cells in rows}
    ppo, grpo, dapo = range(3)
    assert table["Value model"][ppo] == [("yes: 4,545 parameters, 50% of all", True)]
    assert table["Value model"][dapo] == [("no: 0 parameters", True)]
    assert table["Models in memory"][ppo][0] == ("2 (policy, critic)", True)
    assert table["Models in memory"][dapo][0] == ("1 (policy)", True)
    assert table["Samples per start"] == [[("1", False)], [("8", False)], [("8", False)]]
    # The defaults of the algorithms
    assert table["Clipping"][grpo][0] == ("symmetric, 0.2", False)
    assert table["Clipping"][dapo][0] == ("low 0.2, high 0.28", False)
    # 1.2 falling to 0.8, at 21 points without the first: 0.99 on average
    assert table["Clipping"][dapo][1] == ("steps clipped at the low side 4.0%, at the high side 7.9%", True)
    assert table["Dead groups"][dapo] == [
        ("25% of the groups drawn for an update, mean over the updates", True),
        ("dropped and replaced", False),
        ("11% of all steps were dropped with them (some updates draw groups several times)", True),
    ]
    assert table["Dead groups"][grpo][1:] == [("kept, with advantage zero", False)]
    assert table["Length bias"][grpo][0][0].startswith("yes") and table["Length bias"][dapo][0][0].startswith("none")


def test_lecture_table_of_a_preset(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), variants={"rloo": "grpo"}, seeds=3)
    experiment = json.loads((tmp_path / "experiment.json").read_text())
    experiment["hyperparams"]["CartPole-v1"]["rloo"] |= {name: str(value) for name, value in presets.RLOO.items()}
    (tmp_path / "experiment.json").write_text(json.dumps(experiment))
    table = dict(lecture_table(collect(tmp_path))[1])
    advantage = "whole episode's return minus the other members' mean; divided by the standard deviation of: none"
    assert table["Advantage"][0][0].text == advantage
    assert table["KL handling"][0][0].text == "in the reward of each step, coefficient 0.03"
    assert table["Clipping"][0][0].text == "none"


def test_lecture_table_says_nothing_of_critics_that_it_does_not_know(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), variants={"ppo": "ppo", "dqn": "dqn"}, seeds=3)
    _, rows = lecture_table(collect(tmp_path))
    table = dict(rows)
    for title in ("Value model", "Models in memory"):
        ppo, dqn = table[title]
        assert ppo and not dqn


def test_lecture_table_has_words_for_settings_that_differ(tmp_path):
    envs = (ENV, "Pendulum-v1")
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=envs, variants={"grpo": "grpo"}, seeds=3)
    experiment = json.loads((tmp_path / "experiment.json").read_text())
    experiment["hyperparams"]["Pendulum-v1"]["grpo"] |= {"loss_average": "step", "dynamic_sampling": "True"}
    (tmp_path / "experiment.json").write_text(json.dumps(experiment))
    table = dict(lecture_table(collect(tmp_path))[1])
    assert [fact.text for fact in table["Length bias"][0]] == [
        "yes: mean over each episode first, a step of a long episode weighs less (CartPole-v1); "
        "none: mean over all steps (Pendulum-v1)"
    ]
    assert table["Dead groups"][0][1].text == (
        "kept, with advantage zero (CartPole-v1); kept, but their steps do not count: the rollout is extended (Pendulum-v1)"
    )


def test_three_seeds_are_said_once_run_by_run_and_how_many_it_takes(tmp_path):
    variants = {"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}

    def curve(env, variant, seed):
        return curve_to({"ppo": 100.0, "grpo": 101.6, "dapo": 400.0}[variant] + seed)

    write_experiment(tmp_path, curve, variants=variants, seeds=3)
    text = text_of(make_report(tmp_path))
    assert "Seen on CartPole-v1: every run of dapo ended above every run of ppo and grpo" in text
    assert "the runs of 1 of 3 pairs ended level or overlap" in text
    assert text.count("With 3 seeds of each variant nothing is claimed") == 1 and "too few" not in text
    # 3 comparisons * 2 / C(10, 5) is below 5%, 3 * 2 / C(8, 4) is not
    assert "in 10% of such experiments. A claim on any of the 3 pairs on single environments takes at least 5 seeds" in text
    assert "Variant Seed 0 Seed 1 Seed 2 ppo 100 101 102 grpo 102 103 104 dapo 400 401 402" in text
    assert "seen: dapo ended above grpo in 9 of 9 pairs of runs" in text
    assert "grpo ended above ppo in 8 of 9 pairs" in text


def test_a_variant_with_few_seeds_takes_no_claim_from_the_others(tmp_path):
    variants = {"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}
    finals = {"ppo": 100.0, "grpo": 200.0, "dapo": 400.0}
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(finals[variant] + seed), variants=variants, seeds=8)
    for seed in range(1, 8):
        shutil.rmtree(tmp_path / "runs" / ENV / "dapo" / str(seed))
    text = text_of(make_report(tmp_path))
    assert "On CartPole-v1, grpo ended higher than ppo; for 2 of 3 pairs the seeds are too few." in text
    assert "With 1 seed of a variant nothing is claimed of 2 of 3 pairs on single environments: chance alone" in text


def test_seeds_that_chance_rarely_separates_are_not_said_to_be_few_because_of_it(tmp_path):
    # 2 / C(12, 2) is 3%, but two seeds give no interval
    write_experiment(tmp_path, two_levels(100.0, 400.0), seeds=10)
    for seed in range(2, 10):
        shutil.rmtree(tmp_path / "runs" / ENV / "dapo" / str(seed))
    results = collect(tmp_path)
    said, why = few_seeds(results, judge([(ENV, comparison) for comparison in find_in(results, ENV)]))
    assert said.startswith("With 2 seeds of a variant nothing is claimed. A claim takes at least 4 seeds")
    assert why.startswith("Fewer than 3 seeds of dapo:")


def test_where_there_are_few_seeds(tmp_path):
    envs = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")
    write_experiment(tmp_path, two_levels(100.0, 400.0), envs=envs, seeds=5)
    for env, name in (("Acrobot-v1", "dapo"), ("Pendulum-v1", "ppo"), ("Pendulum-v1", "dapo")):
        for seed in range(2, 5):
            shutil.rmtree(tmp_path / "runs" / env / name / str(seed))
    said = few_seeds(collect(tmp_path), [])
    assert said == [
        "Fewer than 3 seeds of dapo on Acrobot-v1, and of ppo and dapo on Pendulum-v1: no interval is given, it would mean "
        "nothing."
    ]


def test_pairs_whose_names_contain_and_have_a_row_each(tmp_path):
    variants = {"a": "ppo", "b and c": "ppo", "a and b": "ppo", "c": "ppo"}
    write_experiment(tmp_path, two_levels(1.0, 2.0), variants=variants, seeds=1)
    assert make_report(tmp_path).read_text().count('<tr><th scope="row">a and b and c</th>') == 2


def test_scores_are_of_the_actions_that_the_experiment_names(tmp_path):
    other = "Pendulum-v1"
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, other))
    text = text_of(make_report(tmp_path))
    assert "Results are of most likely actions." in text and "The rule:" not in text
    assert "Over all 2 environments, dapo ended higher than ppo." in text
    turn_round_sampled(tmp_path, other)
    results = collect(tmp_path)
    text = text_of(make_report(tmp_path))
    # No variant learned on the other one
    assert f"On {ENV}, dapo ended higher than ppo. On {other}, ppo ended higher than dapo." in text
    assert text.count(f"on {ENV} of most likely actions; on {other} of sampled actions") == 3
    assert "The rule: sampled actions in Atari games and MiniGrid" in text and "the same for all variants" in text
    # Sampled returns are one lower, and turned round
    assert scale(results, other).low == pytest.approx(-9.0) and scale(results, ENV).low == pytest.approx(10.0)
    # In the middle by sampled returns: the lower of the two
    for run in tmp_path.glob("runs/*/*/*"):
        (run / "clip.webp").touch()
    assert median_seeds(results, ENV)["ppo"] == 4 and median_seeds(results, other)["ppo"] == 5
    html = (tmp_path / "report.html").read_text()
    assert f"{other}: final return, sampled actions: ppo -53.5 (" in html
    assert f"{ENV}: final return, most likely actions: ppo 54.5 (" in html
    assert (tmp_path / "figures" / f"curves_steps_deterministic_{other}.png").exists()


def test_headline_counts_what_it_does_not_name(tmp_path):
    # dapo is far above the others, which are the same
    variants = {"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}
    write_experiment(
        tmp_path, lambda env, variant, seed: curve_to((400.0 if variant == "dapo" else 100.0) + seed), variants=variants
    )
    text = text_of(make_report(tmp_path))
    assert "On CartPole-v1, dapo ended higher than ppo and grpo; no difference is shown for 1 of 3 pairs." in text
    assert "variant nothing is claimed" not in text


def test_different_networks_are_told(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    assert network_statements(collect(tmp_path)) == [
        "Without critics, all variants have equally many parameters on all environments (counted)."
    ]
    for path in tmp_path.glob(f"runs/{ENV}/dapo/*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "n_parameters": 17_000, "net_arch": "[128, 128]"}))
    (statement,) = network_statements(collect(tmp_path))
    assert "differ in size" in statement and "ppo has 4,610 ([64, 64]); dapo has 17,000 ([128, 128])" in statement


def test_styles_are_fixed_and_all_different():
    one, other = styles(["ppo", "grpo", "dapo"]), styles(["trpo", "dapo", "a2c", "ppo"])
    assert one["ppo"] == other["ppo"] and one["dapo"] == other["dapo"]
    assert one["ppo"].colour == "#0072B2"
    names = ["ppo", *(f"dapo, group_size={size}" for size in range(14)), "dapo"]
    many = styles(names)
    assert list(many) == names and many["dapo"] == one["dapo"]
    assert len(set(many.values())) == len(names)
    assert len({style.colour for style in list(many.values())[:7]} | {many["dapo"].colour}) == 8


def test_where_nobody_learned_scores_are_not_normalised(tmp_path):
    # Seeds 0, 1, 2: untrained -0.2, -0.3, -0.4; at the end a little above that by chance, or far below
    def curve(env: str, variant: str, seed: int) -> list[float]:
        untrained = -0.3 - 0.1 * (seed - 1)
        return [untrained, -10.0, -20.0 if variant == "dapo" else untrained + 0.02]

    write_experiment(tmp_path, curve, seeds=3)
    results = collect(tmp_path)
    assert not scale(results, ENV).usable
    assert normalised_scores(results)[0] == []


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


def test_untrained_policies_count_one_by_one(tmp_path):
    """Means of several would be nearer to the middle than single scores after learning, as if somebody had learned here."""
    names = ("ppo", "trpo", "grpo", "dapo")
    drawn = -np.random.default_rng(12).lognormal(sigma=2.0, size=(4, 10, 2))

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return drawn[names.index(variant), seed].tolist()

    write_experiment(tmp_path, curve, variants={name: name for name in names}, n_evaluations=1)
    assert statistics.learned_p_value(drawn[..., 0].mean(axis=0), list(drawn[..., 1])) < 0.02
    assert not scale(collect(tmp_path), ENV).usable


def test_untrained_policies_that_variants_share_count_once(tmp_path):
    """Four copies of the same three scores are not twelve."""
    finals = {"ppo": 3.0, "trpo": 2.0, "grpo": 2.5, "dapo": 2.4}

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return [2.0 + seed, 0.0, finals[variant] + (0.0, 2.0, 0.8)[seed]]

    write_experiment(tmp_path, curve, variants={name: name for name in finals}, seeds=3)
    results = collect(tmp_path)
    assert scale(results, ENV).low == pytest.approx(3.0)
    assert not scale(results, ENV).usable


def test_a_first_variant_that_crashed_does_not_hide_what_the_others_learned(tmp_path):
    """Of the runs of PPO one is left, and with it one untrained policy; the other variants have five."""
    finals = {"ppo": 100.0, "grpo": 200.0, "dapo": 300.0}

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return curve_to(finals[variant] + seed)

    write_experiment(tmp_path, curve, variants={name: name for name in finals}, seeds=5)
    for seed in range(4):
        shutil.rmtree(tmp_path / "runs" / ENV / "ppo" / str(seed))
    assert scale(collect(tmp_path), ENV).usable


def test_a_lucky_untrained_policy_does_not_turn_the_order_round(tmp_path):
    """Seed 0 balances the pole before it learns: the mean of the untrained policies is above that of every variant."""

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return curve_to((60.0 if variant == "ppo" else 90.0) + seed, first=9.0 if seed else 500.0)

    write_experiment(tmp_path, curve, envs=(ENV, "Acrobot-v1"), seeds=5)
    results = collect(tmp_path)
    assert scale(results, ENV).low > scale(results, ENV).high
    assert normalised_scores(results)[0] == []
    assert "ppo ended higher" not in text_of(make_report(tmp_path))


def test_profile_in_words_is_of_the_share_above_one_half(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to({"ppo": 50.0, "dapo": 100.0}[variant], first=0.0), seeds=3)
    alt = re.search(r'aria-label="(Performance profiles [^"]*)"', make_report(tmp_path).read_text())
    assert alt is not None and alt[1].endswith("final score above 0.5: ppo 0%, dapo 100%.")


def test_statements_about_several_environments_say_which(tmp_path):
    def curve(env: str, variant: str, seed: int) -> list[float]:
        if env == "MountainCar-v0":
            return [-200.0] * 3
        return [10.0 + seed, 20.0, (400.0 if variant == "dapo" else 50.0) + seed]

    write_experiment(tmp_path, curve, envs=(ENV, "Pendulum-v1", "MountainCar-v0"), seeds=5)
    text = text_of(make_report(tmp_path))
    assert "dapo ended higher than ppo over 2 of 3 environments (without MountainCar-v0)" in text
    assert "2 of them together" in text and "over all" not in text.split("What can be said")[1].split("Holm")[0]


def test_iqm_counts_the_middle_half():
    # 8 scores, of which the lowest and the highest 2 are left out
    assert statistics.iqm_counts([np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.5, 9.0, 9.1, 2.6])]) == [2, 2]
    assert statistics.iqm_counts([np.array([0.0, 0.0]), np.array([1.0] * 4), np.array([2.0, 2.0])]) == [0, 4, 0]
    assert statistics.mean_interval([np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0])]).value == 2.5
