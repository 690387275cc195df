"""The page of the defaults without their parts, on rows that are made up."""

import pytest

pytest.importorskip("rliable")

from unseen_data import CONTINUOUS, PLAIN, cells_of, rows_of

from benchmarks import pages
from benchmarks.unseen import ablation
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare import statistics


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch):
    monkeypatch.setitem(LISTS, "test", (PLAIN, CONTINUOUS))
    monkeypatch.setitem(SEEDS, "test", 3)
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def without(part, task, finals, **more):
    """
    :param part: Of the defaults
    :param task: On which
    :param finals: Last return of each seed
    :param more: Entries of the rows
    :return: Rows
    """
    return rows_of("grpo", task, finals, design=part, **{"changes": ablation.PARTS[part].changes} | more)


def complete():
    """
    :return: Rows of the defaults and of all that is compared with them
    """
    found = [
        *rows_of("ppo", PLAIN, [0, 0, 0]),
        *rows_of("dapo", PLAIN, [0, 0, 0]),
        *rows_of("grpo", PLAIN, [70, 80, 90]),
        *rows_of("grpo-paper", PLAIN, [10, 11, 12]),
        *without("unrelated", PLAIN, [70, 80, 90]),
        *without("whole_groups", PLAIN, [60, 61, 62]),
        *without("return_to_go", PLAIN, [20, 21, 22]),
    ]
    return found + [row | {"task": CONTINUOUS.env_id, "returns": [0, row["returns"][-1] / 5 - 10]} for row in found]


def test_the_defaults_against_what_is_left_without_a_part():
    runs = ablation.variants(complete(), "A", "test")
    assert list(runs.of) == ["grpo", "unrelated", "whole_groups", "return_to_go", "grpo-paper"]
    assert runs.common == [PLAIN, CONTINUOUS]
    table = ablation.table(runs)
    defaults, unrelated, left = (cells_of(table, row) for row in ("defaults", "unrelated starts", "no regression"))
    assert defaults["IQM"].startswith("0.80 (") and (defaults["defaults are"], defaults["changes"]) == ("", "")
    assert unrelated["defaults: probability of improvement"].startswith("0.50 (")
    assert (unrelated["defaults are"], unrelated["changes"]) == ("undecided", '`{"unrelated_starts": true}`')
    # 0.8 - 0.21, on both tasks
    assert left["IQM"].startswith("0.21 (") and left["defaults: difference of the IQMs"].startswith("0.59 (")
    assert (left["defaults: probability of improvement"], left["defaults are"]) == ("1.00 (1.00 to 1.00)", "above")
    text = ablation.page(runs)
    assert "over 2 of 2 tasks**\n\n- Between GRPO and GRPO without shared starts it is undecided" in text
    assert "GRPO is above GRPO as in the paper: probability of improvement 1.00" in text
    assert "GRPO with whole groups is above GRPO without the regression" in text
    assert "Not complete" not in text and "70.0 / 80.0 / 90.0" in text
    assert "--algos grpo --design unrelated --changes '{\"unrelated_starts\": true}'" in text


def test_equal_runs_are_level():
    found = [*rows_of("grpo", PLAIN, [50, 50, 50]), *without("unrelated", PLAIN, [50, 50, 50])]
    assert "GRPO and GRPO without shared starts are level" in ablation.page(ablation.variants(found, "A", "test"))


def test_what_is_missing_is_said():
    found = [*rows_of("grpo", PLAIN, [70, 80, 90]), *without("return_to_go", PLAIN, [20, 21])]
    text = ablation.page(ablation.variants(found, "A", "test"))
    for part in ("defaults 3 of 6", "no regression 2 of 6", "unrelated starts 0 of 6", "GRPO-paper 0 of 6"):
        assert f"{part} runs" in text
    assert "The aggregates cover 1 of 2 tasks, without Continuous-v0." in text
    assert "Of GRPO and GRPO without the regression there are too few seeds to say" in text
    for some in (found[:3], found[3:], [*found[:3], *without("unrelated", CONTINUOUS, [1, 2, 3])]):
        assert "Nothing is compared yet" in ablation.page(ablation.variants(some, "A", "test"))


def test_runs_of_other_changes_are_not_taken():
    with pytest.raises(SystemExit, match="The runs of the design whole_groups are not those of"):
        ablation.variants(without("whole_groups", PLAIN, [1, 2, 3], changes={"n_groups": 8}), "A", "test")


def test_the_page_keeps_its_design(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    (tmp_path / "index.md").write_text("Text.\n")
    (tmp_path / "unseen_test.md").write_text("% Design: A\n\n# Title\n")
    pages.list_pages()
    assert "ablation" not in (tmp_path / "index.md").read_text()
    where = {"name": "test", "pages": tmp_path, "images": tmp_path}
    ablation.write_page(complete(), **where)
    drawn = (tmp_path / "ablation.svg").read_text()
    assert ">no regression<" in drawn and ">defaults<" in drawn
    page = (tmp_path / "ablation.md").read_text()
    assert page.startswith("% Design: A\n") and "(../images/ablation.svg)" in page
    # The page of the list has moved on, this one has not
    (tmp_path / "unseen_test.md").write_text("% Design: B\n\n# Title\n")
    ablation.write_page(complete(), **where)
    assert (tmp_path / "ablation.md").read_text() == page and (tmp_path / "ablation.svg").read_text() == drawn
    pages.list_pages()
    assert "\nablation\npublished\n" in (tmp_path / "index.md").read_text()
    with pytest.raises(SystemExit, match="No runs of C on the list test"):
        ablation.write_page(rows_of("ppo", PLAIN, [1]), "C", **where)
