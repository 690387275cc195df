"""The report of the unseen tasks, on rows that are made up."""

import json

import numpy as np
import pytest

pytest.importorskip("rliable")

from rliable import metrics
from unseen_data import CONTINUOUS, PLAIN, cells_of, rows_of

from benchmarks import pages
from benchmarks.unseen import report, run, scores, tables
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare import statistics
from sb3_grpo.classroom.compare.statistics import Interval


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch):
    monkeypatch.setitem(LISTS, "test", (PLAIN, CONTINUOUS))
    monkeypatch.setitem(SEEDS, "test", 3)
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    # Speeds of no task here
    monkeypatch.setattr(scores, "rates", lambda name: {("Other-v0", "ppo"): 1.0})


def estimate(cell):
    """
    :param cell: A number and its interval
    :return: The number
    """
    return float(cell.split()[0])


def test_aggregates_are_those_worked_out_by_hand():
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("ppo", CONTINUOUS, [0, 0, 10]),  # 0.5, 0.5, 1
        *rows_of("grpo", PLAIN, [20, 25, 900]),  # the last clipped to 1.1
        *rows_of("grpo", CONTINUOUS, [-10, -10_000, 2]),  # 0, clipped to -0.5, 0.6
    ]
    runs = scores.select(found, "test", "A")
    table = tables.table_of_scores(runs)
    ppo, grpo = cells_of(table, "PPO"), cells_of(table, "GRPO")
    # Without the lowest and the highest of six
    assert estimate(ppo["IQM"]) == pytest.approx(np.mean([0.2, 0.3, 0.5, 0.5]), abs=0.006)
    assert estimate(grpo["IQM"]) == pytest.approx(np.mean([0.0, 0.2, 0.25, 0.6]), abs=0.006)
    pair = scores.against(scores.scores(runs, "grpo"), scores.scores(runs, "ppo"))
    assert pair.difference.value == pytest.approx(0.2625 - 0.375, abs=0.006)
    # What is above 1 makes up for nothing
    by_rliable = metrics.aggregate_optimality_gap(np.array([[0.2, 0.25, 1.1], [0.0, -0.5, 0.6]]).T)
    assert by_rliable == pytest.approx(1 - 1.55 / 6)
    assert estimate(grpo["optimality gap"]) == pytest.approx(by_rliable, abs=0.006)
    # Plain: 20 beats 10 and equals 20, 25 beats two, 900 all; Normal: only 2 beats two zeros
    improvement = ((1 + 0.5 + 2 + 3) / 9 + 2 / 9) / 2
    (row,) = tables.rows_of_pairs(runs)
    assert row[0] == "PPO, one copy" and estimate(row[1]) == pytest.approx(improvement, abs=0.006) and row[3:] == ["", ""]
    assert ppo["runs"] == "6 of 6" and ppo["CPU seconds for all tasks"] == "40"


def test_the_probability_of_improvement_sees_what_is_clipped():
    runs = scores.select([*rows_of("ppo", PLAIN, [200] * 3), *rows_of("grpo", PLAIN, [300] * 3)], "test", "A")
    pair = scores.against(scores.scores(runs, "grpo"), scores.scores(runs, "ppo"))
    assert (pair.difference.value, pair.improvement.value) == (0.0, 1.0)


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


def test_after_the_last_evaluation_it_is_the_end():
    row = {"seconds": [10.0, 20.0], "returns": [1.0, 2.0]}
    times = (5.0, 10.0, 15.0, 20.0, 25.0)
    assert [scores.last_by(row, at, -1.0) for at in times] == [-1.0, 1.0, 1.0, 2.0, 2.0]
    assert [scores.first_after(row, at, -1.0) for at in times] == [1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(("plain", "normalized"), run.NORMALIZED.items())
def test_ppo_is_normalised_where_ours_are(plain, normalized):
    """Ours normalise where actions are continuous. Elsewhere, PPO's runs count for both."""
    found = [row for task, finals in ((PLAIN, [10, 20, 30]), (CONTINUOUS, [0, 0, 10])) for row in rows_of(plain, task, finals)]
    runs = scores.select([*found, *rows_of(normalized, CONTINUOUS, [8, 9, 10])], "test", "A")
    assert scores.final_returns(runs.of[normalized]["Plain-v0"]).tolist() == [10, 20, 30]
    assert scores.final_returns(runs.of[normalized]["Continuous-v0"]).tolist() == [8, 9, 10]
    assert tables.counted(runs, normalized) == "6 of 6"
    # No stand-in where it would differ
    assert normalized not in scores.select(found, "test", "A").of


def test_ours_are_compared_with_the_ppo_that_is_hardest_to_beat():
    found = [
        row
        for task in (PLAIN, CONTINUOUS)
        for algo, last, seconds in (
            ("ppo", 1, 20),
            ("ppo-16-3e-4", 7, 40),
            ("ppo-16-1e-3", 3, 4),
            ("grpo", 5, 20),
        )
        for row in rows_of(algo, task, [last] * 3, seconds=(seconds / 2, seconds), first=0)
    ]
    text = report.result(scores.select(found, "test", "A"))
    # 16 copies end higher, but take twice as long; with our learning rate they have ended before ours have learned anything
    steps, _, seconds = text.partition("**At equal seconds**")
    assert "GRPO is below *PPO, 16 copies*: probability of improvement 0.00" in steps
    assert "GRPO is above PPO" not in text and "PPO, 16 copies, 1e-3" in seconds


def test_what_is_missing_is_said_and_left_out():
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("ppo", CONTINUOUS, [0, 0, 10]),
        *rows_of("ppo", CONTINUOUS, [5] * 4)[3:],  # a seed that the list does not have
        *rows_of("grpo", PLAIN, [20, 25]),
    ]
    runs = scores.select(found, "test", "A")
    assert runs.common == [PLAIN]
    text = report.page(found, runs)
    assert (
        "GRPO 2 of 6 runs" in text and "DAPO 0 of 6 runs" in text and "PPO, one copy 6 of 6" not in report.completeness(runs)
    )
    assert "The aggregates cover 1 of 2 tasks, without Continuous-v0." in text
    assert (
        "over 1 of 2 tasks**\n\n- Of GRPO and *PPO, one copy* there are too few seeds to say: probability of improvement 0.58"
        in text
    )
    row = cells_of(tables.by_task(runs, tables.mean_text), "Continuous-v0")
    assert (row["PPO, one copy"], row["GRPO"]) == ("3.33", "")
    # Nothing to put together, nothing to compare
    for some in (rows_of("grpo", PLAIN, [20]), [*rows_of("grpo", PLAIN, [20]), *rows_of("ppo", CONTINUOUS, [5])]):
        text = report.page(some, scores.select(some, "test", "A"))
        assert "Nothing is compared yet" in text and "at equal seconds" not in text


@pytest.mark.parametrize(
    ("difference", "improvement", "word"),
    [
        ((0.0, -0.05, 0.05), (0.5, 0.4, 0.6), "level"),
        ((0.0, -0.06, 0.05), (0.5, 0.4, 0.6), "undecided"),
        ((0.0, -0.05, 0.06), (0.5, 0.4, 0.6), "undecided"),
        ((0.2, 0.1, 0.3), (0.6, 0.5, 0.7), "undecided"),
        ((0.2, 0.1, 0.3), (0.6, 0.51, 0.7), "above"),
        ((0.0, -0.01, 0.01), (0.6, 0.51, 0.7), "above"),
        ((-0.2, -0.3, -0.1), (0.4, 0.3, 0.49), "below"),
        ((0.0, np.nan, np.nan), (0.9, np.nan, np.nan), "undecided"),
    ],
)
def test_words(difference, improvement, word):
    assert scores.Pair(Interval(*difference), Interval(*improvement)).word == word


def test_a_word_has_to_hold_with_the_next_evaluation_too():
    above = scores.Pair(Interval(0.2, 0.1, 0.3), Interval(0.6, 0.51, 0.7))
    undecided = scores.Pair(Interval(0.2, -0.1, 0.3), Interval(0.6, 0.4, 0.7))
    assert scores.say([above, above]) == "above" and scores.say([above, undecided]) == "undecided"
    assert report.clause("GRPO", above).startswith("GRPO is above PPO")
    assert report.clause("GRPO", above, undecided).startswith("Between GRPO and PPO it is undecided")


def test_the_sentence_is_made_from_the_numbers():
    ppo = [*rows_of("ppo", PLAIN, [10, 20, 30], seconds=(50, 90)), *rows_of("ppo", CONTINUOUS, [0, 1, 2], seconds=(50, 90))]
    ours = [*rows_of("grpo", PLAIN, [40, 50, 60]), *rows_of("grpo", CONTINUOUS, [7, 8, 9])]
    runs = scores.select([*ppo, *ours], "test", "A")
    steps, _, seconds = report.result(runs).partition("**At equal seconds**\n\n- ")
    assert "over 2 of 2 tasks**\n\n- GRPO is above *PPO, one copy*: probability of improvement 1.00 (1.00 to 1.00)" in steps
    assert seconds.startswith("GRPO is above *PPO, one copy*")
    same = [row | {"algo": "dapo", "design": "A"} for row in ppo]
    text = report.result(scores.select([*ppo, *same], "test", "A"))
    assert "Between DAPO and *PPO, one copy* it is undecided" in text
    equal = [*rows_of("ppo", PLAIN, [50, 51, 52]), *rows_of("dapo", PLAIN, [50, 51, 52])]
    assert "DAPO and *PPO, one copy* are level" in report.result(scores.select(equal, "test", "A"))


def test_less_than_half_of_what_ppo_gains_is_marked():
    found = [
        *rows_of("ppo", PLAIN, [80] * 3),
        *rows_of("grpo", PLAIN, [39] * 3),
        *rows_of("dapo", PLAIN, [40] * 3),
        *rows_of("a2c", PLAIN, [0] * 3),  # a peer
        # PPO gains 0.04 of the scale: nothing to be behind of
        *rows_of("ppo", CONTINUOUS, [-9.2] * 3),
        *rows_of("grpo", CONTINUOUS, [-10] * 3),
    ]
    runs = scores.select(found, "test", "A")
    table = tables.by_task(runs, tables.mean_text, marks=True)
    row = cells_of(table, "Plain-v0")
    assert (row["GRPO"], row["DAPO"], row["A2C"]) == ("39†", "40", "0")
    assert "†" not in cells_of(table, "Continuous-v0")["GRPO"]
    found = [row for row in found if row["task"] == "Plain-v0"]
    text = report.result(scores.select(found, "test", "A"))
    assert "Less than half" in text and text.endswith("- GRPO on Plain-v0.")


def test_seeds_one_by_one_only_if_they_are_few(monkeypatch):
    found = [*rows_of("ppo", PLAIN, [80, 70, 60]), *rows_of("grpo", PLAIN, [39] * 3)]
    assert "80.0 / 70.0 / 60.0" in report.page(found, scores.select(found, "test", "A"))
    monkeypatch.setitem(SEEDS, "test", 5)
    assert "/ 70.0 /" not in report.page(found, scores.select(found, "test", "A"))


def test_all_designs_are_listed():
    found = [
        *rows_of("ppo", PLAIN, [10, 20, 30]),
        *rows_of("grpo-paper", PLAIN, [4, 5, 6]),
        *rows_of("grpo-paper", PLAIN, [1, 2, 3], design="paper"),
        *rows_of("grpo", PLAIN, [40, 50, 60]),
        *rows_of("grpo", PLAIN, [70, 80, 90], design="B", changes={"batch_size": 64}),
        *(row | {"list": "development"} for row in rows_of("grpo", PLAIN, [0], design="other")),
    ]
    runs = scores.select(found, "test", "B")
    assert scores.final_returns(runs.of["grpo"]["Plain-v0"]).tolist() == [70, 80, 90]
    text = report.page(found, runs)
    assert "Designs tried on this list: 2 (A, B)." in text and "other" not in text.partition("## Designs")[2]
    table = tables.table_of_designs(found, "test")
    first, second = cells_of(table, "A"), cells_of(table, "B")
    assert first["GRPO: IQM"].startswith("0.50 (") and first["GRPO: IQM"].endswith(", 1 task")
    assert second["GRPO: IQM"].startswith("0.80 (")
    assert (first["changes"], second["changes"], second["DAPO: IQM"]) == ("none", '`{"batch_size": 64}`', "")
    # The newest runs of the paper's settings, which are no look at the list
    assert scores.final_returns(runs.of["grpo-paper"]["Plain-v0"]).tolist() == [1, 2, 3]
    assert tables.counted(runs, "grpo-paper") == "3 of 6" and "(runs with the design paper)" in text


def test_the_page_the_figure_and_the_list_of_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    index = tmp_path / "index.md"
    index.write_text("# Results\n\nText.\n\n```{toctree}\n:hidden:\n\nspeed\n```\n")
    pages.list_pages()
    assert "unseen" not in index.read_text()
    found = [row for algo in ("ppo", "grpo") for task in (PLAIN, CONTINUOUS) for row in rows_of(algo, task, [1, 2, 3])]
    report.write_page(found, "test", pages=tmp_path, images=tmp_path)
    pages.list_pages()
    assert index.read_text().startswith("# Results\n\nText.\n\n```{toctree}\n:hidden:\n\nclassroom\n")
    assert "\nunseen_test\n" in index.read_text() and index.read_text().count("toctree") == 1
    assert "(../images/unseen_test.svg)" in (tmp_path / "unseen_test.md").read_text()
    drawn = (tmp_path / "unseen_test.svg").read_text()
    report.write_page(found, "test", "A", pages=tmp_path, images=tmp_path)
    assert ">GRPO<" in drawn and (tmp_path / "unseen_test.svg").read_text() == drawn
    # Made again, it has the same design, although there is a later one
    found += rows_of("grpo", PLAIN, [1, 2, 3], design="B")
    report.write_page(found, "test", pages=tmp_path, images=tmp_path)
    assert "have the design A (designs tried on this list: 2)" in (tmp_path / "unseen_test.md").read_text()
    (tmp_path / "unseen_test.md").unlink()
    report.write_page(found, "test", pages=tmp_path, images=tmp_path)
    assert "have the design B (" in (tmp_path / "unseen_test.md").read_text()
    with pytest.raises(SystemExit, match="No runs of C on the list test"):
        report.write_page(found, "test", "C", pages=tmp_path, images=tmp_path)


def test_rows_say_where_they_were_made_and_old_ones_are_readable():
    made = run.origin()
    assert set(made) == {"commit", "machine", "versions"} and set(made["versions"]) == {"torch", "stable_baselines3"}
    assert json.loads(json.dumps(made)) == made
    old, new = rows_of("ppo", PLAIN, [1, 2, 3]), rows_of("grpo", PLAIN, [1, 2, 3], machine="Abacus", versions={"torch": "9.9"})
    text = report.made(scores.select(new, "test", "A"))
    assert "Commits of the runs: abc." in text and "Machine: Abacus, torch 9.9." in text and "report made with" not in text
    text = report.made(scores.select([*old, *new], "test", "A"))
    assert "Abacus" in text and f"Some of the runs have no note of their machine; report made with {made['machine']}" in text
    text = report.made(scores.select(old, "test", "A"))
    assert "The runs have no note" in text and f"torch {made['versions']['torch']}" in text
