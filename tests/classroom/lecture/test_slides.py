"""The slides of the class: what a lecturer does with them, and whether the last row can read them."""

import re
from pathlib import Path
from typing import Any

import pytest

from sb3_grpo.classroom.lecture.deck import WORDS_PER_MINUTE, Slide
from sb3_grpo.classroom.lecture.page import slides
from tests.browser import Opened, until

CLASS_MINUTES = 90
SLIDE = "document.querySelector('.slide.shown').getBoundingClientRect()"
# What of the slide that is shown is too small for the last row, or lies outside of it or over something else
FAULTS = """() => {
    const slide = document.querySelector(".slide.shown"), page = slide.getBoundingClientRect(), faults = [];
    const boxesOf = (parts) => [...parts].map((each) => each.getBoundingClientRect()).filter(({ height }) => height);
    const boxes = (selector) => boxesOf(slide.querySelectorAll(selector));
    for (const each of slide.querySelectorAll("*")) {
        const said = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
        if (!said || !each.getClientRects().length || each.closest("math")) continue;
        const label = each.closest("svg, .controls, .row, footer, figcaption, thead, .listing");
        const matrix = each.ownerSVGElement ? each.getScreenCTM() : { a: 1, b: 0 };
        const size = parseFloat(getComputedStyle(each).fontSize) * Math.hypot(matrix.a, matrix.b);
        if (size < (label ? 20 : 32) - 0.1) faults.push(`small (${size.toFixed(1)}): ${each.textContent}`);
        const { left, right, top, bottom } = each.getBoundingClientRect();
        const inside = left > page.left - 1 && right < page.right + 1 && top > page.top - 1 && bottom < page.bottom + 1;
        if (!inside) faults.push(`outside: ${each.textContent}`);
    }
    for (const [above, below] of [
        [".conclusion *", ".controls"],
        [".controls *, .widget > div:not([class]) *", ".ask > .row"],
        [".conclusion *, .controls *, .widget *, .body > *", "footer"],
    ]) {
        const bottom = Math.max(0, ...boxes(above).map((each) => each.bottom));
        const top = Math.min(...boxes(below).map((each) => each.top));
        if (bottom > top + 1) faults.push(`${above} ends at ${bottom}, ${below} begins at ${top}`);
    }
    return faults;
}"""


@pytest.fixture(scope="module")
def path() -> list[Slide]:
    return slides()


def test_notes_take_the_minutes_that_they_are_given(path: list[Slide]) -> None:
    for slide in path:
        assert slide.words / WORDS_PER_MINUTE + slide.work == pytest.approx(slide.minutes, abs=0.5), slide.title
    assert sum(slide.minutes for slide in path) == CLASS_MINUTES
    assert [slide.begin for slide in path][:3] == [0, 2, 4]


def test_every_slide_says_where_to_read_on(path: list[Slide], lecture: Path) -> None:
    names = set(re.findall(r'id="([^"]+)"', lecture.read_text("utf-8")))
    assert {slide.more for slide in path if slide.more} <= names
    assert sum(bool(slide.more) for slide in path) > len(path) / 2


@pytest.mark.parametrize(
    "family", ["system-ui", *(pytest.param(each, marks=pytest.mark.slow) for each in ("serif", "Liberation Sans"))]
)
def test_the_last_row_can_read_every_slide(browser: Any, lecture: Path, path: list[Slide], family: str) -> None:
    lesson = Opened(browser, lecture, viewport={"width": 1920, "height": 1080})
    lesson.add_style(f".slide, .slide :not(code, pre, pre *, math, math *) {{ font-family: {family} !important }}")
    for number, slide in enumerate(path):
        lesson.page.evaluate(f"present(slides[{number}])")
        assert lesson.page.evaluate(FAULTS) == [], slide.title
    assert lesson.complaints == []


def test_a_remote_control_changes_the_slide_whatever_has_the_focus(lesson: Opened, path: list[Slide]) -> None:
    page, last = lesson.page, len(path)
    lesson.go("#slide-11")
    assert page.locator(".slide:visible h2").inner_text() == "PPO: the clip"
    slider = page.locator(".slide:visible input[type=range]").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("#slide-11")
    page.keyboard.press("PageDown")
    assert page.url.endswith("#slide-12")
    for key, slide in (("ArrowRight", 13), ("PageUp", 12), ("Home", 1), ("ArrowLeft", 1), ("End", last), ("PageDown", last)):
        page.keyboard.press(key)
        assert page.url.endswith(f"#slide-{slide}")
        assert page.locator(".slide:visible").count() == 1
    page.keyboard.press("b")
    assert page.locator(".slide:visible").count() == 0
    page.keyboard.press("b")
    page.keyboard.press("Escape")
    assert page.locator(".slide:visible").count() == 0 and page.locator(".part:visible").count() > 5


def test_a_presentation_begins_anywhere_and_goes_on_where_it_was_left(lesson: Opened) -> None:
    page = lesson.page
    page.get_by_role("link", name="Dead groups").first.click()
    # The browser says a moment after the click that the address is another one
    page.locator(".slide:visible h2").wait_for()
    assert page.locator(".slide:visible h2").inner_text() == "Dead groups"
    # A part of a chapter has an address, too, and ends the presentation
    page.get_by_role("link", name="Read on").locator("visible=true").click()
    page.locator("#grpo-dead-groups").wait_for()
    assert page.locator("#grpo-dead-groups").is_visible()
    page.keyboard.press("p")
    assert page.locator(".slide:visible h2").inner_text() == "Dead groups"


def test_a_slide_fills_a_window_of_any_size(opened: Any) -> None:
    opened.locator("#present").click()
    for width, height in ((1280, 720), (1024, 768), (3840, 2160)):
        opened.set_viewport_size({"width": width, "height": height})
        # The browser says a moment later that the window is another one
        until(opened, f"Math.abs(Math.max({SLIDE}.width / {width}, {SLIDE}.height / {height}) - 1) < 0.01")


def test_the_handout_has_all_slides_and_all_that_is_said(opened: Any, path: list[Slide]) -> None:
    opened.evaluate("window.print = () => { window.printed = true; }")
    opened.locator("#handout").click()
    assert opened.evaluate("window.printed")
    opened.emulate_media(media="print")
    assert opened.locator(".slide:visible").count() == opened.locator(".notes:visible").count() == len(path)
    assert opened.locator(".notes .clock").nth(3).inner_text() == "0:07 4 min"
    assert opened.locator("main:visible").count() == 0
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.locator("main:visible").count() == 1
