"""The functions in the lecture's JavaScript return what PyTorch, Gymnasium and the package return."""

import json
from typing import Any

import pytest

from tests.classroom.lecture.golden import GOLDEN, cases

EXPECTED: dict[str, list[tuple[Any, list[float]]]] = json.loads(GOLDEN.read_text("utf-8"))
# Calls that are more than a function of the page
CALLS = {
    "learn": """({algorithm, weights, batch, parts}) => {
        const settings = {...TRAINING, ...LIVE_ALGORITHMS[algorithm], lr: 0.1, entCoef: 0.01};
        const model = modelOf([4, 3, 2, 2], settings.critic ? [4, 3, 2, 1] : null, Float64Array.from(weights));
        const optimizer = adam(weights.length, settings), gradient = new Float64Array(weights.length);
        const losses = parts.map((part) => improve(model, optimizer, batch, part, 2, settings, gradient));
        return [...losses, ...gradient, ...model.weights];
    }""",
    "cartpole": """(before, action) => {
        const {state, reward, ended} = CartPole.step(before, action);
        return [...CartPole.observe(state), reward, +ended];
    }""",
    "agent": "(kind, observation) => agentOf(kind)(observation)",
}


def test_values_are_those_of_the_package() -> None:
    functions = cases()
    assert functions.keys() == EXPECTED.keys()
    for name, calls in EXPECTED.items():
        function = functions[name][0]
        for args, expected in calls:
            assert function(*args) == pytest.approx(expected, rel=1e-6, abs=1e-6), (name, args)


def test_page_computes_these_values(opened: Any) -> None:
    assert {f"M.{name}" for name in opened.evaluate("Object.keys(M)")} <= EXPECTED.keys()
    for name, calls in EXPECTED.items():
        script = f"calls => calls.map(args => [({CALLS.get(name, name)})(...args)].flat(Infinity))"
        computed = opened.evaluate(script, [args for args, _ in calls])
        for values, (args, expected) in zip(computed, calls, strict=True):
            assert values == pytest.approx(expected, rel=1e-6, abs=1e-6), (name, args)
