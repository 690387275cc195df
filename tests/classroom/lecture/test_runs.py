"""The trainings that the chapters show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lecture_runs import MODELS, TIMESTEPS, program
from tests.classroom.lecture.conftest import Opened

DATA = Path(__file__).parents[3] / "sb3_grpo" / "classroom" / "lecture" / "data"
RUNS: dict[str, Any] = json.loads((DATA / "runs.json").read_text("utf-8"))
CAPITALS: dict[str, Any] = json.loads((DATA / "capitals.json").read_text("utf-8"))
CHAPTERS = ("vpg", "trpo", "ppo", "grpo", "dapo", "prorl")


@pytest.mark.parametrize("name", MODELS)
def test_the_program_in_the_page_runs_and_is_the_one_that_ran(name: str) -> None:
    if name == "trpo":
        pytest.importorskip("sb3_contrib", reason="TRPO is in sb3-contrib")
    lines = RUNS["runs"][name]["program"]
    assert lines == program(name)
    names: dict[str, Any] = {}
    exec(lines.replace(f"{TIMESTEPS:_}", "600"), names)
    assert names["model"].num_timesteps >= 600


@pytest.mark.parametrize("name", CHAPTERS)
def test_each_chapter_shows_a_run(opened: Any, name: str) -> None:
    widget = opened.locator(f"#{name} #run-{name}")
    says = widget.locator(".says").inner_text()
    shown = re.search(r"at the end: (\d+) \((\d+) to (\d+)\)", says)
    assert shown is not None
    assert [int(each) for each in shown.groups()] == pytest.approx([part[-1] for part in RUNS["runs"][name]["iqm"]], abs=0.51)
    assert RUNS["runs"][name]["program"].strip() == widget.locator("pre").inner_text().strip()


def test_one_seed_is_shown(browser: Any, lecture: Path) -> None:
    widget = Opened(browser, lecture, "#run-ppo?seed=2").page.locator("#run-ppo")
    assert f"Seed 2 ends at {RUNS['runs']['ppo']['curves'][1][-1]:.0f}." in widget.inner_text()
    assert widget.locator("path.pink").count() >= 2


def test_capitals_are_shown_before_and_after(browser: Any, lecture: Path) -> None:
    page = Opened(browser, lecture, "#capitals?country=Turkey").page
    column = CAPITALS["asked"].index(["Turkey", "Ankara"])
    before, after = (100 * CAPITALS["chances"][row][column] for row in (0, -1))
    says = page.locator("#capitals .says").inner_text()
    assert f"probability {before:.0f}% before" in says and f"and {after:.0f}% after" in says
    assert "Istanbul" in page.locator("#capitals table").inner_text()
