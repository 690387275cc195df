"""Bias and noise of gradients are those of a listing of everything that can happen; the widgets show them."""

from itertools import product
from typing import Any

import pytest
import torch as th

from sb3_grpo.classroom.lecture.arithmetic.estimators import (
    LOGITS,
    advantage_of_steps,
    episodes_needed,
    gae_error,
    group_error,
    k_step_advantages,
    k_step_error,
    one_action,
    plain_error,
    true_gradient,
    walks,
)
from sb3_grpo.common.advantages import group_advantages, td_residuals
from tests.browser import Opened


def test_walks_are_all_there_is() -> None:
    every = walks()
    assert every.probability.sum().item() == pytest.approx(1)
    # The scores have the mean 0
    assert (every.probability @ every.scores.sum(1)).abs().max() < 1e-12


def test_gradient_is_that_of_the_value() -> None:
    def value(logits: th.Tensor) -> th.Tensor:
        right, one, none = logits.sigmoid(), th.ones(1, dtype=th.float64), th.zeros(1, dtype=th.float64)
        values = th.zeros(len(LOGITS), dtype=th.float64)
        for _ in range(10):
            values = right * th.cat([values[1:], one]) + (1 - right) * th.cat([none, values[:-1]])
        return values[len(LOGITS) // 2]

    logits = th.tensor(LOGITS, dtype=th.float64)
    exact: Any = th.autograd.functional.jacobian(value, logits)
    assert true_gradient().tolist() == pytest.approx(exact.tolist())
    assert walks().values[0, 0].item() == pytest.approx(value(logits).item())


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_groups_of_three_listed_whole(leave_one_out: bool) -> None:
    """The formula from pairs, against every group of three that there is, with the package's advantages."""
    every, exact = walks(4), true_gradient(4)
    scores, outcomes = every.scores.sum(1), every.rewards.sum(1)
    members = th.tensor(list(product(range(len(outcomes)), repeat=3)))
    rewards = outcomes[members][..., None]
    advantages = group_advantages(rewards, th.ones_like(rewards, dtype=th.bool), leave_one_out=leave_one_out, scale="none")
    gradients = (advantages * scores[members]).mean(1)
    probability = every.probability[members].prod(1)
    mean = probability @ gradients
    variance = probability @ gradients.square().sum(1) - mean.square().sum()
    bias, noise = group_error(3, int(leave_one_out), 4)
    assert bias == pytest.approx(((mean - exact).norm() / exact.norm()).item())
    assert noise == pytest.approx((3 * variance / exact.square().sum()).sqrt().item())


def test_ends_of_lambda() -> None:
    assert gae_error(1, 0.5) == pytest.approx(k_step_error(10, 0.5))
    assert gae_error(0, 0.5) == pytest.approx(k_step_error(0, 0.5))
    assert gae_error(1, 0.5)[0] == pytest.approx(0, abs=1e-9)
    assert gae_error(0.3, 0)[0] == pytest.approx(0, abs=1e-9)
    assert plain_error()[0] == 0
    assert episodes_needed(*gae_error(0, 0.5)) == float("inf")
    # Without a mistake the critic takes noise out at every lambda
    assert max(gae_error(each, 0)[1] for each in (0, 0.5, 1)) < plain_error()[1]


@pytest.mark.parametrize(
    ("n_steps", "expected"),
    [
        (1, [0.04, -0.33, 0.7, 1.5]),
        # 0.9^2 0.3 - 0.5; 0.9 - 0.6; the episode has ended; 2 - 0.5
        (2, [-0.257, 0.3, 0.7, 1.5]),
        (5, [0.31, 0.3, 0.7, 1.5]),
    ],
)
def test_returns_of_some_steps_by_hand(n_steps: int, expected: list[float]) -> None:
    mask = th.tensor([[[True, True, True], [True, False, False]]])
    rewards, values = th.tensor([[[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]]]), th.tensor([[[0.5, 0.6, 0.3], [0.5, 0.0, 0.0]]])
    advantages = k_step_advantages(td_residuals(rewards, values, mask, 0.9), mask, 0.9, n_steps)
    assert advantages[mask].tolist() == pytest.approx(expected)
    assert not advantages[~mask].any()


def test_a_good_number_of_steps_is_as_good_as_the_best_lambda() -> None:
    def off(bias: float, noise: float) -> float:
        return (bias**2 + noise**2 / 16) ** 0.5

    one, two, three, five = (off(*k_step_error(k, 0.5)) for k in (0, 1, 2, 4))
    best = min(off(*gae_error(step / 50, 0.5)) for step in range(51))
    assert three < best < five < two < one


def test_examples_of_the_lecture_notes() -> None:
    assert advantage_of_steps([2], [5, 1], 0.9, 1) == pytest.approx([-2.1])
    first, second, mean, noise, best = one_action(0.2, 10, 2, 3.6)
    assert (first, second, mean, noise, best) == pytest.approx((5.12, 0.32, 1.28, 1.92, 8.4))
    assert one_action(0.2, 10, 2, best)[3] == pytest.approx(0, abs=1e-9)


def test_gae_shows_its_best_lambda(opened: Any) -> None:
    says = opened.locator("#gae .says")
    opened.locator("#gae").get_by_role("button", name="Something in between").click()
    assert "The best is λ = 0.82 with 29%; groups of four without a critic: 58%" in says.inner_text()
    assert "never" in opened.locator("#gae tr", has_text="A3C(0)").inner_text()
    five = opened.locator("#gae tr", has_text="5 steps: A3C(4)").inner_text()
    assert five.split()[-4:] == ["0.07", "0.32", "0.33", "20"]
    opened.locator("#gae").get_by_role("button", name="critic exact").click()
    assert "bias 0%" in says.inner_text()
    opened.locator("#gae input[type=range]").first.press("End")
    assert "λ = 1.00: the gradient is off by 41%" in says.inner_text()


def test_baseline(browser: Any, lecture: Any) -> None:
    page = Opened(browser, lecture, "#baseline?p=0.2&r=10&o=2&b=0").page
    assert "off by 3.36" in page.locator("#baseline .says").inner_text()
    # Rare or likely, the best baseline leans towards the reward of the rare action
    for button in ("least noise", "A smaller one"):
        page.locator("#baseline").get_by_role("button", name=button).click()
        assert "off by 0.00" in page.locator("#baseline .says").inner_text()
        assert "expected gradient is 1.28" in page.locator("#baseline .says").inner_text()
