"""Steps within a trust region: against numeric optimisation, and against what theory promises."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo.classroom.lecture.arithmetic.trust_region import (
    adapted,
    facts,
    fisher,
    gained,
    gradient,
    mixture,
    natural_direction,
    natural_step,
    promised_delta,
    step_facts,
    two_states,
    vanilla_step,
)

POLICIES = [(0.0, -2.0), (1.5, -1.0), (-1.0, 2.5)]
F, G = np.array([[4.0, 0.7], [0.7, 1.0]]), np.array([1.0, -0.4])


@pytest.mark.parametrize("theta", POLICIES)
def test_gradient_and_values(theta: tuple[float, float]) -> None:
    def value(first: float, second: float) -> float:
        # By playing it out, in expectation
        stay = 1 / (1 + np.exp(-np.array([first, second])))
        at, total = np.array([1.0, 0.0]), 0.0
        for step in range(400):
            total += 0.9**step * (at * stay * (1, 2)).sum()
            at = at * stay + (at * (1 - stay))[::-1]
        return total

    numeric = [(value(*(theta + move)) - value(*(theta - move))) / 2e-5 for move in 1e-5 * np.eye(2)]
    assert facts(theta).values[0] == pytest.approx(value(*theta))
    assert gradient(theta) == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("theta", POLICIES)
def test_fisher_is_the_mean_square_of_the_scores(theta: tuple[float, float]) -> None:
    of = facts(theta)
    assert fisher(theta) == pytest.approx(np.diag(0.1 * of.visits * of.stay * (1 - of.stay)))


@pytest.mark.parametrize(
    ("matrix", "vector"), [(F, G), (np.diag([4.0, 1.0]), np.ones(2)), (fisher((0, -2)), gradient((0, -2)))]
)
def test_natural_step_is_the_best_within_the_constraint(matrix: np.ndarray, vector: np.ndarray) -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    step = natural_direction(vector, matrix, 0.01)
    constraint: Any = {"type": "ineq", "fun": lambda x: 100 * (0.01 - x @ matrix @ x / 2)}
    found = minimize(
        lambda x: -10 * vector @ x, 0.3 * step[::-1], constraints=constraint, options={"ftol": 1e-14, "maxiter": 500}
    )
    assert step == pytest.approx(found.x, abs=1e-5)
    assert step @ matrix @ step / 2 == pytest.approx(0.01)


def test_conjugate_gradients_of_sb3_contrib_find_the_same_direction() -> None:
    utils = pytest.importorskip("sb3_contrib.common.utils")
    matrix = th.tensor(F)
    direction = utils.conjugate_gradient_solver(lambda v: matrix @ v, th.tensor(G)).numpy()
    alpha = np.sqrt(0.02 / (direction @ F @ direction))
    assert natural_direction(G, F, 0.01) == pytest.approx(alpha * direction, abs=1e-5)


def test_length_with_the_wrong_matrix_uses_a_quarter() -> None:
    matrix, vector = np.diag([4.0, 1.0]), np.ones(2)
    direction = np.linalg.solve(matrix, vector)
    wrong = np.sqrt(0.02 / (vector @ matrix @ vector)) * direction
    assert wrong @ matrix @ wrong / 2 == pytest.approx(0.0025)


@pytest.mark.parametrize("theta", POLICIES)
@pytest.mark.parametrize("move", [(0.3, 0.1), (-1.0, 2.0), (3.0, -2.0)])
def test_promises_are_kept(theta: tuple[float, float], move: tuple[float, float]) -> None:
    new = theta[0] + move[0], theta[1] + move[1]
    *_, promised, measured = step_facts(*theta, *new)
    assert measured >= promised
    assert gained(theta, new) == pytest.approx(measured - facts(theta).values[0])
    for share in (0.01, 0.1, 0.5):
        measured, _, promised = mixture(theta, share)
        assert measured >= promised


def test_small_steps() -> None:
    mean_kl, *_ = step_facts(0, -2, *natural_step(0, -2, 1e-4))
    assert mean_kl == pytest.approx(1e-4, rel=0.02)
    delta = promised_delta((0, -2))
    assert step_facts(0, -2, *natural_step(0, -2, delta))[3] == pytest.approx(facts((0, -2)).values[0], abs=1e-6)
    # Along the gradient the return rises by its square, to first order
    slope = gradient((0, -2))
    assert two_states(*vanilla_step(0, -2, 1e-5))[0] - two_states(0, -2)[0] == pytest.approx(1e-5 * slope @ slope, rel=1e-3)


def test_adaptive_penalty() -> None:
    assert [adapted(kl) for kl in (0.0151, 0.015, 0.007, 0.0066)] == [0.08, 0.04, 0.04, 0.02]


def test_only_vanilla_is_trapped(opened: Any) -> None:
    widget = opened.locator("#trust-region")
    assert "After 1 update:" in widget.locator(".says").inner_text()
    widget.get_by_role("button", name="None of them").click()
    assert "After 20 updates: vanilla 9.96, natural 17.91, clipped 17.46" in widget.locator(".says").inner_text()
    widget.get_by_role("button", name="η = 0.25").click()
    rows = widget.locator("tbody tr")
    kls = [float(rows.nth(row).locator("td").nth(2).inner_text()) for row in (1, 2)]
    assert kls[0] <= kls[1] < 0.022
    assert "vanilla 9.77" in widget.locator(".says").inner_text()
    widget.locator("input[type=range]").first.press("Home")
    assert "After 1 update:" in widget.locator(".says").inner_text()
    assert "#trust-region?" in opened.url
