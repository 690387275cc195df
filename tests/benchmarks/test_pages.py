"""Pages that are written by a program are those that it writes, and what the README says of them stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rliable")
pytest.importorskip("matplotlib")

from compare_data import curve_to, turn_round_sampled, write_experiment
from matplotlib.figure import Figure

from benchmarks import arguments, blocks, tables
from benchmarks.common import PAGES, ROOT
from benchmarks.pages import WRITERS, WRITTEN
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.common.arguments import ARGUMENTS

INTERVAL = re.compile(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)")
BLOCK = re.compile(r"<!-- write: .*?<!-- end -->", re.DOTALL)
MARKS: dict[str, Any] = {"index": pytest.mark.slow, "tables": pytest.mark.long, "text": pytest.mark.slow}


def test_the_page_of_arguments() -> None:
    meanings = {name: meaning for group in arguments.groups_of_arguments().values() for name, meaning in group.items()}
    assert {*ARGUMENTS} <= {*meanings} and all(meanings.values())
    written = arguments.PAGE.read_text(encoding="utf-8")
    assert written == arguments.arguments_page(), "Write it again: python -m benchmarks.arguments"


@pytest.mark.parametrize(
    "page",
    [pytest.param(path, id=name, marks=MARKS.get(name, ())) for name, path in WRITTEN.items()],
)
def test_the_pages_of_results_are_current(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem != "lesson_plan":  # the lecture's slides have pictures in them
        monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    np.seterr(all="ignore")
    written = page.read_text(encoding="utf-8")
    assert blocks.refresh(written, WRITERS) == written, f"Write it again: python -m benchmarks.pages {page.stem}"


def test_what_is_said_has_the_numbers_of_the_tables() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it reaches")[2].partition("\n## ")[0]
    tables = " ".join(" ".join((PAGES / name).read_text(encoding="utf-8").split()) for name in ("tables.md", "text.md"))
    index = BLOCK.sub("", (PAGES / "index.md").read_text(encoding="utf-8"))
    said = [INTERVAL.findall(" ".join(text.split())) for text in (section, index)]
    assert len(said[0]) == 2 and said[1]
    for number in said[0] + said[1]:
        assert number in tables, number


def test_only_the_blocks_are_written_again() -> None:
    page = "A.\n\n<!-- write: sum 1 2 -->\nold\n<!-- end -->\n\nB.\n\n<!-- write: other -->\nkept\n<!-- end -->\n"
    written = blocks.refresh(page, {"sum": lambda *numbers: str(sum(map(int, numbers)))})
    assert written == page.replace("\nold\n", "\n\n3\n\n")
    assert blocks.refresh(written, {}) == written


def test_intervals_in_tables_do_not_break() -> None:
    page = "<!-- write: table -->\n<!-- end -->\n"
    written = blocks.refresh(page, {"table": lambda: "| 0.5 (-1.2 to 3,400) (not to be) |\n\n0.5 (0.4 to 0.6)"})
    assert "| 0.5 (-1.2\u00a0to\u00a03,400) (not to be) |" in written and "0.5 (0.4 to 0.6)" in written


def test_finished_runs_count_with_the_evaluations_that_were_agreed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(50.0 + seed), ["A-v0", "B-v0"], seeds=4)
    turn_round_sampled(tmp_path, "B-v0")
    for failed in tmp_path.glob("runs/*/ppo/3/result.json"):
        failed.unlink()
    monkeypatch.setattr(tables, "comparison", lambda name: collect(tmp_path))
    said = tables.finals("made up")
    header, _, first, second, *_ = said.splitlines()
    assert header.startswith("|  | PPO |") and first.startswith("| A-v0, 10k | 51.0 (50.0 to 52.0) |")
    assert second.startswith("| B-v0, 10k | -50.0 (-51.0 to -49.0) |")
    assert "deterministic (on B-v0: stochastic) episodes" in said
