"""The widget of DAPO's five changes: what it says is what was measured."""

import json
from itertools import product
from typing import Any

import pytest

from sb3_grpo.classroom.lecture.page import HERE
from tests.classroom.lecture.conftest import Opened


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return json.loads((HERE / "data" / "switches.json").read_text("utf-8"))


def said(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "\u2212")


def test_each_state_says_its_mean_and_those_of_both_ends(opened: Any, measured: dict[str, Any]) -> None:
    section = opened.locator("#dapo-switches")
    for task, digits in {"control": 0, "text": 2}.items():
        section.locator("select").select_option(task)
        for arm in ("00000", "00100", "01111", "11111"):
            for box, on in zip(section.locator("input[type=checkbox]").all(), arm, strict=True):
                box.set_checked(on == "1")
            says = section.locator(".says").inner_text()
            for name in ("00000", "11111", arm):
                value, low, high = (said(x, digits) for x in measured[task]["arms"][name]["mean"])
                assert f"{value} ({low} to {high})" in says, (task, arm)


def test_what_was_not_measured_is_not_drawn(opened: Any, measured: dict[str, Any]) -> None:
    arm = next(bits for bits in map("".join, product("01", repeat=5)) if bits not in measured["text"]["arms"])
    section = opened.locator("#dapo-switches")
    section.locator("select").select_option("text")
    for box, on in zip(section.locator("input[type=checkbox]").all(), arm, strict=True):
        box.set_checked(on == "1")
    assert "was not measured" in section.locator(".says").inner_text()
    assert section.locator("svg path.line").count() == 2
    section.get_by_role("button", name="dynamic sampling alone").click()
    assert section.locator("svg path.line").count() == 3


def test_a_switch_is_worth_the_same_on_and_off(opened: Any) -> None:
    section = opened.locator("#dapo-switches")
    row = section.locator("tbody tr").nth(1)
    section.get_by_role("button", name="DAPO", exact=True).click()
    worth = row.locator("td").nth(1).inner_text()
    assert row.locator("td").first.inner_text() == "on" and " to " in worth
    box = section.get_by_role("checkbox", name="Dynamic sampling", exact=True)
    box.focus()
    opened.keyboard.press("Space")
    assert not box.is_checked()
    assert [cell.inner_text() for cell in row.locator("td").all()] == ["off", worth]
    assert "DAPO less dynamic sampling" in section.locator(".says").inner_text()


def test_address_of_a_combination(lesson: Opened) -> None:
    lesson.go("#dapo-switches?task=text&clip=1&dynamic=0&step=0&overlong=0&kl=0")
    says = lesson.page.locator("#dapo-switches .says").inner_text()
    assert "GRPO with clip-higher" in says and "exact answers" in says
