"""Agents that learn in the page."""

from typing import Any

from tests.browser import draw_frames, until

GREEDY = {"seed": 1, "lr": "0.3", "clip": 0, "kind": "return_to_go", "groupSize": "8"}
# Where the three carts are
CARTS = "[...document.querySelectorAll('#live .cart rect')].map(cart => cart.getAttribute('x')).join()"
STEPS = "[...document.querySelectorAll('#live tbody td:nth-child(2)')].map(cell => Number(cell.textContent))"


def record(page: Any, state: dict[str, Any], budget: int) -> list[dict[str, Any]]:
    return page.evaluate(
        "([state, budget]) => window.lecture.WIDGETS.live.record({...window.lecture.WIDGETS.live.state, ...state}, {budget})",
        [state, budget],
    )


def test_begins_with_a_recording_and_does_not_train(opened: Any) -> None:
    says = opened.locator("#live .says")
    assert "This is a recording" in says.inner_text() and "PPO 500" in says.inner_text()
    before = opened.locator("#live").inner_html()
    opened.locator("#live").scroll_into_view_if_needed()
    draw_frames(opened)
    assert opened.locator("#live").inner_html() == before


def test_every_example_is_recorded(opened: Any) -> None:
    for label in opened.evaluate("Object.keys(window.lecture.WIDGETS.live.examples)"):
        opened.locator("#live").get_by_role("button", name=label, exact=True).click()
        assert "This is a recording" in opened.locator("#live .says").inner_text(), label
    opened.locator("#live input[type=range]").first.focus()
    opened.keyboard.press("ArrowRight")
    assert "There is no recording" in opened.locator("#live .says").inner_text()


def test_trains_between_frames_and_pauses_by_keyboard(opened: Any) -> None:
    live = opened.locator("#live")
    live.get_by_role("button", name="Train", exact=True).focus()
    opened.keyboard.press("Enter")
    until(opened, f"Math.min(...{STEPS}) >= 1 && Math.min(...{STEPS}) < 60")
    assert "Training" in live.locator(".says").inner_text()
    opened.keyboard.press("Enter")
    assert live.locator(".says").inner_text().startswith("Paused. Mean return")
    steps, carts = opened.evaluate(STEPS), opened.evaluate(CARTS)
    draw_frames(opened)
    assert opened.evaluate(STEPS) == steps and opened.evaluate(CARTS) == carts
    live.get_by_role("button", name="Resume", exact=True).click()
    live.locator(".cart").first.scroll_into_view_if_needed()
    until(opened, f"Math.min(...{STEPS}) > {min(steps)} && {CARTS} !== '{carts}'")
    # The same settings once more: a pause
    steps = opened.evaluate(STEPS)
    live.get_by_role("button", name="As it should be", exact=True).click()
    live.get_by_role("button", name="Resume", exact=True).click()
    until(opened, f"Math.min(...{STEPS}) > {min(steps)}")
    live.get_by_role("button", name="Start over", exact=True).click()
    assert "This is a recording" in live.locator(".says").inner_text()
    assert "untrained" in live.locator(".cart").first.inner_text()


def test_policies_drive_carts_and_train_as_without_them(opened: Any) -> None:
    opened.evaluate("TRAINING.budget = 4000")
    live = opened.locator("#live")
    live.get_by_role("button", name="Train", exact=True).click()
    live.locator(".cart").first.scroll_into_view_if_needed()
    until(opened, "document.querySelector('#live .says').textContent.startsWith('Trained')")
    shown = "window.lecture.WIDGETS.live.runs().map(({algorithm, seed, points}) => ({algorithm, seed, points}))"
    runs = opened.evaluate(shown)
    assert runs == record(opened, {}, 4000)
    firsts = {run["algorithm"]: run["points"][-1] for run in runs if run["seed"] == 1}
    for cart, (algorithm, last) in zip(live.locator(".cart").all(), firsts.items(), strict=True):
        assert cart.inner_text().split() == [f"{algorithm},", f"{last[0]:,}", "steps:", "lasts", f"{last[1]:.0f}"]
    # The carts go on after training, but not off screen
    carts = opened.evaluate(CARTS)
    until(opened, f"{CARTS} !== '{carts}'")
    opened.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    draw_frames(opened)
    carts = opened.evaluate(CARTS)
    draw_frames(opened)
    assert opened.evaluate(CARTS) == carts


def test_another_setting_ends_the_training(opened: Any) -> None:
    live = opened.locator("#live")
    live.get_by_role("button", name="Train", exact=True).click()
    live.locator("input[type=checkbox]").click()
    assert live.get_by_role("button", name="Train", exact=True).count() == 1
    assert "clip=0" in opened.url


def test_all_three_learn_and_the_same_seed_is_the_same_run(opened: Any) -> None:
    runs = record(opened, {}, 8000)
    assert runs == record(opened, {}, 8000)
    for algorithm in ("PPO", "GRPO", "DAPO"):
        curves = [run["points"] for run in runs if run["algorithm"] == algorithm]
        assert sum(points[-1][1] for points in curves) > 2 * sum(points[0][1] for points in curves), algorithm


def test_too_greedy_is_soon_certain(opened: Any) -> None:
    runs = record(opened, GREEDY, 4000)
    for algorithm in ("PPO", "DAPO"):
        curves = [run["points"] for run in runs if run["algorithm"] == algorithm]
        assert sum(points[-1][2] for points in curves) / len(curves) < 0.2
