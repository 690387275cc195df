"""What the expected gradient of each estimator is, on a task whose exact gradient is known."""

import functools
from typing import Any

import numpy as np
import pytest

from benchmarks.gradient_bias import WIDTH, exact_gradient, measure


def test_the_exact_gradient_is_that_of_finite_differences() -> None:
    logits = np.random.default_rng(3).normal(size=WIDTH)

    def arrives(logits: np.ndarray) -> float:
        right = 0.8 / (1 + np.exp(-logits)) + 0.2 / (1 + np.exp(logits))
        at = np.eye(WIDTH)[WIDTH // 2]
        for _ in range(12):
            inside = at * (np.arange(WIDTH) % (WIDTH - 1) != 0)
            at = at - inside + np.roll(inside * right, 1) + np.roll(inside * (1 - right), -1)
        return at[-1]

    steps = 1e-6 * np.eye(WIDTH)
    numeric = [(arrives(logits + step) - arrives(logits - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(exact_gradient(logits), numeric, atol=1e-8)


@functools.cache
def measured(name: str, leave_one_out: bool) -> Any:
    return measure(name, leave_one_out, 1500, seed=7)[0]


@pytest.mark.parametrize(
    ("name", "leave_one_out", "projection"),
    [("outcome", True, 1.0), ("outcome", False, 0.75), ("gae", True, 0.92), ("gae, n_steps", True, 1.0)],
)
def test_the_mean_gradient(name: str, leave_one_out: bool, projection: float) -> None:
    """The values of the updates before leave all of the signal, those of the same update take a part of it."""
    figures = measured(name, leave_one_out)
    assert figures["constant"].projection == pytest.approx(projection, abs=4 * figures["constant"].error)
    assert figures["constant"].cosine > 0.99 and figures["constant"].error < 0.02


def test_values_of_the_updates_before_have_less_noise_than_outcomes() -> None:
    noise = {name: measured(name, True)["constant"].noise for name in ("outcome", "gae, n_steps")}
    assert noise["gae, n_steps"] < 0.9 * noise["outcome"]
