"""An agent that can be pushed."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser import Opened, draw_frames, until

STEP = "Number(document.querySelector('#play .note').textContent.match(/Step (\\d+)/)[1])"


@pytest.fixture
def still(browser: Any, lecture: Path) -> Any:
    """The page for readers who want no motion."""
    opened = Opened(browser, lecture, reduced_motion="reduce")
    opened.page.locator("#play").scroll_into_view_if_needed()
    yield opened.page
    assert opened.complaints == []
    opened.page.close()


def test_buttons_and_drags_push_the_cart(opened: Any) -> None:
    play = opened.locator("#play")
    play.scroll_into_view_if_needed()
    play.get_by_role("button", name="Push left").click()
    assert "Pushed to the left" in play.inner_text()
    until(opened, "Number(document.querySelector('#play .stage').getAttribute('aria-valuenow')) < -0.08")
    box = play.locator(".stage").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.mouse.move(x, y)
    opened.mouse.down()
    opened.mouse.move(x + 40, y)
    opened.mouse.up()
    assert "Pushed to the right" in play.inner_text()


def test_stands_still_for_those_who_want_it_until_play(still: Any) -> None:
    draw_frames(still)
    assert still.evaluate(STEP) == 0
    still.locator("#play .stage").focus()
    still.keyboard.press("ArrowRight")
    assert "Pushed to the right in step 0" in still.locator("#play").inner_text()
    still.locator("#play").get_by_role("button", name="Play").click()
    until(still, f"{STEP} > 10")
    still.locator("#play").get_by_role("button", name="Pause").click()
    step = still.evaluate(STEP)
    draw_frames(still)
    assert still.evaluate(STEP) == step


def test_rests_off_screen(opened: Any) -> None:
    opened.locator("#play").scroll_into_view_if_needed()
    until(opened, f"{STEP} > 5")
    opened.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    draw_frames(opened)
    step = opened.evaluate(STEP)
    draw_frames(opened)
    assert opened.evaluate(STEP) == step


def test_arrow_keys_push_and_do_not_turn_slides(opened: Any) -> None:
    opened.locator("#present").click()
    opened.evaluate("location.hash = 'play'")
    stage = opened.locator("#play .stage")
    stage.wait_for()
    stage.focus()
    opened.keyboard.press("ArrowLeft")
    assert stage.is_visible()
    assert "Pushed to the left" in opened.locator("#play").inner_text()


def test_what_was_trained_in_the_page_plays(opened: Any) -> None:
    play, live = opened.locator("#play"), opened.locator("#live")
    play.locator("select").select_option("live")
    assert "Train an agent above first" in play.inner_text()
    live.get_by_role("button", name="Train", exact=True).click()
    until(opened, "window.lecture.WIDGETS.live.runs().every(run => run.steps > 0)")
    live.get_by_role("button", name="Pause", exact=True).click()
    play.scroll_into_view_if_needed()
    play.locator("select").select_option("trained")
    play.locator("select").select_option("live")
    assert "Train an agent above first" not in play.inner_text()
    until(opened, f"{STEP} > 3")
