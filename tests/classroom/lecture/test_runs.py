"""The trainings that the chapters show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.classroom.lecture.conftest import Opened

DATA = Path(__file__).parents[3] / "sb3_grpo" / "classroom" / "lecture" / "data"
RUNS: dict[str, Any] = json.loads((DATA / "runs.json").read_text("utf-8"))
CAPITALS: dict[str, Any] = json.loads((DATA / "capitals.json").read_text("utf-8"))
CHAPTERS = ("vpg", "trpo", "ppo", "grpo", "dapo", "prorl")


@pytest.mark.parametrize("name", RUNS["runs"])
def test_the_program_in_the_page_runs(name: str) -> None:
    if name == "trpo":
        pytest.importorskip("sb3_contrib", reason="TRPO is in sb3-contrib")
    names: dict[str, Any] = {}
    exec(RUNS["runs"][name]["program"].replace("50_000", "600"), names)
    assert 600 <= names["model"].num_timesteps < 50_000


def test_each_chapter_shows_a_run(opened: Any) -> None:
    for name in CHAPTERS:
        section, run = opened.locator(f"#{name} #run-{name}"), RUNS["runs"][name]
        shown = re.search(r"at the end: (\d+) \((\d+) to (\d+)\)", section.locator(".says").inner_text())
        assert shown is not None, name
        assert [int(each) for each in shown.groups()] == pytest.approx([part[-1] for part in run["iqm"]], abs=0.51), name
        assert run["program"].strip() == section.locator("pre").inner_text().strip()
        assert section.locator(".picture svg").count() >= 2


def test_pictures_of_runs_are_the_colours_of_the_page(opened: Any) -> None:
    inks = []
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        colours = opened.evaluate("""[...document.querySelectorAll(".picture path, .picture text")].map((each) =>
            each.style.stroke + each.style.fill).join(" ")""")
        assert "var(--c" in colours and "#" not in colours
        known = opened.evaluate(
            """names => names.map((name) => getComputedStyle(document.body).getPropertyValue(name))""",
            sorted(set(re.findall(r"--c[0-9a-f]{6}", colours))),
        )
        assert all(known)
        inks.append(opened.evaluate("getComputedStyle(document.querySelector('.picture text')).fill"))
    assert inks[0] != inks[1]


def test_a_guess_shows_its_answer_on_demand(opened: Any) -> None:
    guess = opened.locator("#trpo details.guess")
    assert not guess.locator("p").is_visible()
    guess.locator("summary").press("Enter")
    assert "0.0074 nats" in guess.locator("p").inner_text()


def test_capitals_are_shown_before_and_after(lesson: Opened) -> None:
    lesson.go("#capitals?country=Turkey")
    column = CAPITALS["asked"].index(["Turkey", "Ankara"])
    before, after = (100 * CAPITALS["chances"][row][column] for row in (0, -1))
    says = lesson.page.locator("#capitals .says").inner_text()
    assert f"probability {before:.0f}% before" in says and f"and {after:.0f}% after" in says
    assert "Orange: Istanbul." in lesson.page.locator("#capitals figcaption").first.inner_text()
