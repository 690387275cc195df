"""The table of the defaults on the first page of the results."""

import re
from pathlib import Path

import pytest

pytest.importorskip("rliable")

from unseen_data import PLAIN, rows_of

from benchmarks.unseen import overview, report
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare import statistics

ROOT = Path(__file__).parents[2]
INTERVAL = re.compile(r"[\d.]+ \([\d.]+ to [\d.]+\)")


def test_each_peer_has_a_row_and_says_which_runs_are_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(LISTS, "test", (PLAIN,))
    monkeypatch.setitem(SEEDS, "test", 3)
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    monkeypatch.setattr(overview, "TASKS", {"test": "a list"})
    monkeypatch.setattr(overview, "PAGES", tmp_path)
    (tmp_path / "unseen_test.md").write_text(f"{report.BEGIN}A\n")
    # GRPO ends above PPO, and has ended before PPO has learned anything; DAPO takes longer and ends below
    found = [
        *rows_of("ppo", PLAIN, [20, 30, 40]),
        *rows_of("trpo", PLAIN, [50, 50], seconds=(1.0, 2.0)),
        *rows_of("grpo", PLAIN, [50, 60, 70], seconds=(1.0, 2.0)),
        *rows_of("dapo", PLAIN, [10, 10, 10], seconds=(30.0, 40.0)),
    ]
    monkeypatch.setattr(overview, "rows", lambda: found)
    _, _, ppo, trpo = ([cell.strip() for cell in line.strip("|").split("|")] for line in overview.table().splitlines())
    assert ppo[:2] == ["a list", "PPO, one copy"]
    assert [cell.split()[0] for cell in ppo[2:]] == ["1.00", "1.00", "0.00", "0.00"]
    assert trpo[:2] == ["", "TRPO, 2 of 3 seeds"]


def test_the_readme_has_the_numbers_of_the_results():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it reaches")[2].partition("\n## ")[0]
    lines = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8").splitlines()
    said = [INTERVAL.findall(line) for line in section.splitlines() if line.startswith("|") and INTERVAL.search(line)]
    assert len(said) == 6
    for numbers in said:
        assert any(all(number in line for number in numbers) for line in lines), numbers
