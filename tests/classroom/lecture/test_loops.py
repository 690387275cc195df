"""The recorded updates, and the widgets that step through them."""

import json
import math
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import cut_off
from sb3_grpo.groups.group import live_groups
from tests.browser import Opened

UPDATES = ("update_ppo", "update_grpo", "update_sums")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((files("sb3_grpo.classroom.lecture") / "data" / f"{name}.json").read_text("utf-8"))


def state(lesson: Opened, fragment: str) -> tuple[Any, str]:
    """
    :param lesson: The page
    :param fragment: Widget and state
    :return: The widget, and what it says
    """
    lesson.go(f"#{fragment}")
    widget = lesson.page.locator(f"#{fragment.split('?')[0]}")
    return widget, " ".join(widget.locator(".says, .note").all_inner_texts())


def padded(record: dict[str, Any], key: str) -> tuple[th.Tensor, th.Tensor]:
    """
    :return: (E, T) a column of the steps, a row for each episode, and which entries exist
    """
    column = th.tensor(record["steps"][key], dtype=th.float64)
    rows = column.split([each["n_steps"] for each in record["episodes"]])
    values = th.nn.utils.rnn.pad_sequence(list(rows), True, math.nan)
    return values.nan_to_num(), ~values.isnan()


def near(values: Any) -> Any:
    return pytest.approx(np.asarray(values), rel=1e-4, abs=1e-4)


def check_advantages(record: dict[str, Any]) -> None:
    settings, (rewards, mask) = record["settings"], padded(record, "reward")
    if record["algorithm"] == "PPO":
        last = th.tensor([each.get("next_value", 0.0) for each in record["episodes"]], dtype=th.float64)
        residuals = td_residuals(rewards[None], padded(record, "value")[0][None], mask[None], settings["gamma"], last[None])
        advantages = discounted_returns_to_go(residuals, mask[None], settings["gamma"] * settings["gae_lambda"])[0]
    else:
        shape = (len(record["groups"]), -1)
        advantages = group_advantages(rewards.unflatten(0, shape), mask.unflatten(0, shape)).flatten(0, 1)
        returns = rewards.sum(1).unflatten(0, shape)
        assert [group["returns"] for group in record["groups"]] == returns.tolist()
        assert [group["std"] for group in record["groups"]] == near(returns.std(1))
        assert [group["dead"] for group in record["groups"]] == (~live_groups(returns)).tolist()
    assert record["steps"]["advantage"] == near(advantages[mask])


def check_optimizer_steps(record: dict[str, Any]) -> None:
    settings, steps, seen = record["settings"], record["steps"], {}
    before = old = th.tensor(steps["log_prob"], dtype=th.float64)
    for each in record["optimizer_steps"]:
        part = th.tensor(each["steps"])
        seen.setdefault(each["epoch"], []).extend(each["steps"])
        advantages = th.tensor(steps["advantage"], dtype=th.float64)[part]
        if settings.get("normalize_advantage"):
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            assert each["advantage"] == near(advantages)
        ratio = (before[part] - old[part]).exp()
        below, above = cut_off(ratio, advantages, settings["clip_low"], settings["clip_high"])
        assert (each["below"], each["above"]) == (part[below].tolist(), part[above].tolist())
        assert each["approx_kl"] == near(kl_estimate(old[part], before[part], "k3").mean())
        before = th.tensor(each["log_prob"], dtype=th.float64)
    # Each epoch is a pass on all steps
    assert all(sorted(of_epoch) == list(range(len(old))) for of_epoch in seen.values())
    assert len(seen) == settings["n_epochs"]


@pytest.mark.parametrize("name", UPDATES)
def test_recorded_numbers_follow_from_what_was_played(name: str) -> None:
    check_advantages(recorded(name))
    check_optimizer_steps(recorded(name))


def test_first_states_tell_the_story(lesson: Opened) -> None:
    _, ppo = state(lesson, "ppo-loop")
    assert "51 of 64 actions turned out better than the critic expected, 13 worse" in ppo
    assert "the next moment the pole fell" in ppo
    # Before the guess it does not give the answer away
    _, before = state(lesson, "grpo-loop")
    assert "10 of 24 are right" in before and "dead" not in before
    _, grpo = state(lesson, "grpo-loop?at=3")
    assert "Group 2 is dead: all its answers got 0" in grpo


@pytest.mark.parametrize("name, fragment", [("update_ppo", "ppo-loop?"), ("update_grpo", "grpo-loop?run=cartpole&")])
def test_what_is_cut_off_is_marked(lesson: Opened, name: str, fragment: str) -> None:
    steps = recorded(name)["optimizer_steps"]
    assert any(each["below"] for each in steps) and any(each["above"] for each in steps)
    for k, each in enumerate(steps):
        widget, says = state(lesson, f"{fragment}at={4 + k}")
        assert widget.locator(".cut").count() == len(each["below"]) + len(each["above"])
        if k == 0:
            assert "every ratio is 1" in says
        elif each["below"] or each["above"]:
            assert f"{len(each['above'])} above, {len(each['below'])} below" in says


def test_ratio_of_a_step_is_the_recorded_one(lesson: Opened) -> None:
    record = recorded("update_sums")
    i = record["optimizer_steps"][3]["steps"][0]
    ratio = math.exp(record["optimizer_steps"][2]["log_prob"][i] - record["steps"]["log_prob"][i])
    _, says = state(lesson, f"grpo-loop?run=sums&at=7&step={i + 1}")
    assert f"ratio {ratio:.3f}" in says
    new, old = (math.exp(each["log_prob"][i]) for each in (record["optimizer_steps"][-1], record["steps"]))
    _, says = state(lesson, f"grpo-loop?run=sums&at=8&step={i + 1}")
    assert f"probability {old:.2f} before, {new:.2f} now" in says


def test_forward_and_back_by_buttons_and_keys(opened: Any) -> None:
    for name in ("ppo-loop", "grpo-loop"):
        widget = opened.locator(f"#{name}")
        place, lines = widget.locator(".stages output"), widget.locator(".listing .here")
        widget.get_by_label("Stage of the update").fill("3")
        assert place.inner_text() == "3 of 8: advantages"
        before = lines.all_inner_texts()
        widget.get_by_role("button", name="Forward").click()
        assert place.inner_text() == "4 of 8: gradient step 1"
        assert lines.count() > 0 and lines.all_inner_texts() != before
        widget.get_by_role("button", name="Back").press("Enter")
        widget.get_by_role("button", name="Back").press("Enter")
        assert place.inner_text() == "2 of 8: rewards"
        widget.get_by_label("Stage of the update").press("End")
        assert place.inner_text() == "8 of 8: new probabilities"
        assert f"#{name}?" in opened.url and "at=8" in opened.url
        # No further than the last one
        widget.get_by_role("button", name="Forward").click()
        assert place.inner_text() == "8 of 8: new probabilities"


def test_step_is_chosen_by_pointer_and_by_key(opened: Any) -> None:
    widget = opened.locator("#ppo-loop")
    slider = widget.locator(".controls label input")
    widget.locator(".strips .target").first.click()
    assert slider.input_value() == "1"
    slider.press("ArrowRight")
    assert "step 2 of" in widget.locator(".note").inner_text()


def test_other_run_keeps_to_its_own_steps(lesson: Opened) -> None:
    widget, says = state(lesson, "grpo-loop?run=cartpole&at=3&step=169")
    assert "Episode 8, step 42 of 42" in says
    widget.get_by_role("button", name="Sums").click()
    assert "Answer 24" in widget.locator(".note").inner_text()


def test_guess_shows_the_first_step_that_is_cut_off(opened: Any) -> None:
    widget = opened.locator("#ppo-loop")
    widget.get_by_role("button", name="The third").click()
    assert "Yes" in widget.locator(".guess").inner_text()
    assert widget.locator(".cut").count() > 0
