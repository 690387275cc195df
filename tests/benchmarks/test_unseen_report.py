"""The lists of tasks: scores, what may be said of them, and the page, on rows that are made up."""

import numpy as np
import pytest

pytest.importorskip("rliable")

from unseen_data import CONTINUOUS, PLAIN, cells_of, rows_of

from benchmarks import figures
from benchmarks.unseen import report, run, scores
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare import statistics
from sb3_grpo.classroom.compare.statistics import Interval

NOTHING_SHOWN = scores.Pair(Interval(0.2, -0.1, 0.3), Interval(0.6, 0.4, 0.7))


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch, tmp_path):
    monkeypatch.setitem(LISTS, "test", (PLAIN, CONTINUOUS))
    monkeypatch.setitem(SEEDS, "test", 3)
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    # Speeds of no task here
    monkeypatch.setattr(scores, "rates", lambda name: {("Other-v0", "ppo"): 1.0})


def estimate(cell):
    """
    :param cell: A number and its interval
    :return: The number
    """
    return float(cell.split()[0])


def test_the_slower_one_is_read_when_the_faster_one_has_ended():
    found = [
        *rows_of("ppo", PLAIN, [90] * 3, seconds=(10, 50), first=40),
        *rows_of("ppo", CONTINUOUS, [10] * 3, seconds=(10, 50), first=0),
        # Ends at 11, 12 and 13 seconds: all of its runs count with what they end with
        *(row | {"seconds": [5, 11 + row["seed"]]} for row in rows_of("grpo", PLAIN, [70] * 3, first=20)),
        # Here PPO is the faster one, and GRPO is read
        *rows_of("grpo", CONTINUOUS, [6] * 3, seconds=(45, 60), first=-8),
    ]
    runs = scores.select(found, "test", "A")
    grpo, ppo = scores.scores_at_equal_seconds(runs, "grpo", "ppo")
    np.testing.assert_allclose(grpo, [[0.7] * 3, [0.1] * 3])
    np.testing.assert_allclose(ppo, [[0.4] * 3, [1.0] * 3])
    grpo, ppo = scores.scores_at_equal_seconds(runs, "grpo", "ppo", scores.first_after)
    np.testing.assert_allclose(grpo, [[0.7] * 3, [0.8] * 3])
    np.testing.assert_allclose(ppo, [[0.9] * 3, [1.0] * 3])


def test_without_an_evaluation_by_then_it_is_a_random_policy():
    found = [
        *rows_of("ppo", PLAIN, [90] * 3, seconds=(10, 50), first=40),
        *rows_of("ppo", CONTINUOUS, [10] * 3, seconds=(10, 50), first=0),
        *rows_of("grpo", PLAIN, [70] * 3, seconds=(4, 9)),
        *rows_of("grpo", CONTINUOUS, [6] * 3, seconds=(4, 10)),
    ]
    runs = scores.select(found, "test", "A")
    _, ppo = scores.scores_at_equal_seconds(runs, "grpo", "ppo")
    # An evaluation at exactly that time counts
    np.testing.assert_allclose(ppo, [[0.0] * 3, [0.5] * 3])
    _, ppo = scores.scores_at_equal_seconds(runs, "grpo", "ppo", scores.first_after)
    np.testing.assert_allclose(ppo, [[0.4] * 3, [0.5] * 3])


def test_seconds_are_steps_at_the_speed_that_was_measured_in_turn(monkeypatch):
    found = [row for algo in ("ppo", "grpo") for row in rows_of(algo, PLAIN, [5] * 3, seconds=(10, 20))]
    monkeypatch.setattr(scores, "rates", {"test": {("Plain-v0", "ppo"): 500.0}}.get)
    runs = scores.select(found, "test", "A")
    assert [row["seconds"] for row in runs.of["ppo"]["Plain-v0"]] == [[1.0, 2.0]] * 3
    # Not measured: what the runs took
    assert [row["seconds"] for row in runs.of["grpo"]["Plain-v0"]] == [[10, 20]] * 3


@pytest.mark.parametrize(
    ("difference", "improvement", "word"),
    [
        ((0.0, -0.05, 0.05), (0.5, 0.4, 0.6), "level"),
        ((0.0, -0.06, 0.05), (0.5, 0.4, 0.6), "undecided"),
        ((0.2, 0.1, 0.3), (0.6, 0.5, 0.7), "undecided"),
        ((0.0, -0.01, 0.01), (0.6, 0.51, 0.7), "above"),
        ((-0.2, -0.3, -0.1), (0.4, 0.3, 0.49), "below"),
        ((0.0, np.nan, np.nan), (0.9, np.nan, np.nan), "undecided"),
    ],
)
def test_words(difference, improvement, word):
    pair = scores.Pair(Interval(*difference), Interval(*improvement))
    assert pair.word == word
    # It has to hold with the next evaluation, too
    assert scores.say([pair, pair]) == word and scores.say([pair, NOTHING_SHOWN]) == "undecided"


@pytest.mark.parametrize(("plain", "normalized"), run.NORMALIZED.items())
def test_ppo_is_normalised_where_ours_are(plain, normalized):
    """Ours normalise where actions are continuous. Elsewhere, PPO's runs count for both."""
    found = [row for task, finals in ((PLAIN, [10, 20, 30]), (CONTINUOUS, [0, 0, 10])) for row in rows_of(plain, task, finals)]
    runs = scores.select([*found, *rows_of(normalized, CONTINUOUS, [8, 9, 10])], "test", "A")
    assert scores.final_returns(runs.of[normalized]["Plain-v0"]).tolist() == [10, 20, 30]
    assert scores.final_returns(runs.of[normalized]["Continuous-v0"]).tolist() == [8, 9, 10]
    # No stand-in where it would differ
    assert normalized not in scores.select(found, "test", "A").of


def test_aggregates_are_those_worked_out_by_hand():
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("ppo", CONTINUOUS, [0, 0, 10]),  # 0.5, 0.5, 1
        *rows_of("trpo", PLAIN, [1, 2]),
        *rows_of("trpo", CONTINUOUS, [1, 2]),
        *rows_of("grpo", PLAIN, [20, 25, 900]),  # the last clipped to 1.1
        *rows_of("grpo", CONTINUOUS, [-10, -10_000, 2]),  # 0, clipped to -0.5, 0.6
    ]
    runs = scores.select(found, "test", "A")
    table = report.table(runs)
    ppo, grpo = cells_of(table, "PPO, 1 env"), cells_of(table, "GRPO")
    # Without the lowest and the highest of six
    assert estimate(ppo["IQM"]) == pytest.approx(np.mean([0.2, 0.3, 0.5, 0.5]), abs=0.006)
    assert estimate(grpo["IQM"]) == pytest.approx(np.mean([0.0, 0.2, 0.25, 0.6]), abs=0.006)
    pair = scores.against(scores.scores(runs, "grpo"), scores.scores(runs, "ppo"))
    assert pair.difference.value == pytest.approx(0.2625 - 0.375, abs=0.006)
    # Plain: 20 beats 10 and equals 20, 25 beats two, 900 all; Continuous: only 2 beats two zeros
    improvement = ((1 + 0.5 + 2 + 3) / 9 + 2 / 9) / 2
    assert estimate(ppo["GRPO, equal steps"]) == pytest.approx(improvement, abs=0.006)
    assert ppo["CPU seconds"] == "40"
    assert cells_of(table, "TRPO")[""] == "TRPO, 2 of 3 seeds"


def test_what_is_missing_is_said_and_left_out():
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("ppo", CONTINUOUS, [0, 0, 10]),
        *rows_of("ppo", CONTINUOUS, [5] * 4)[3:],  # a seed that the list does not have
        *rows_of("grpo", PLAIN, [20, 25]),
    ]
    runs = scores.select(found, "test", "A")
    assert runs.common == [PLAIN]
    said = report.missing(runs)
    assert said == "Not complete: GRPO 2 of 6 runs. The aggregates cover 1 of 2 tasks, without Continuous-v0."


def test_the_parts_of_a_page(monkeypatch, tmp_path):
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("grpo-paper", PLAIN, [1, 2, 3], design="paper"),
        *rows_of("grpo", PLAIN, [40, 50, 60]),
        *rows_of("grpo", PLAIN, [70, 80, 90], design="B", changes={"batch_size": 64}),
    ]
    found += [row | {"task": CONTINUOUS.env_id} for row in found]
    monkeypatch.setattr(report, "rows", lambda: found)
    assert "(../images/unseen_test.svg)" in report.profile("test", "B")
    assert ">GRPO<" in (tmp_path / "unseen_test.svg").read_text()
    row = cells_of(report.tasks_of("test", "B").partition("\n\n")[0], "Plain-v0")
    assert (row["PPO, 1 env"], row["GRPO"]) == ("20", "80")
    # The newest runs of the paper's settings, which are no look at the list
    assert cells_of(report.section("test", "B"), "GRPO (paper)")["IQM"]
    with pytest.raises(SystemExit, match=r"No runs of C on the list test\. Designs: A, B"):
        report.section("test", "C")
