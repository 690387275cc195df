"""No answer to a data set of reasoning-gym is run as code."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sb3_grpo.envs import VerifierTextEnv, make_task
from sb3_grpo.envs.verifiers.answer_guard import guard_score_answer
from sb3_grpo.envs.verifiers.runner import Check

pytest.importorskip("reasoning_gym")

EVALUATED = ["n_queens", "spiral_matrix", "countdown", "simple_integration"]

# Written for eval as for sympy, which has no open, but functions that have it
ATTACKS = [
    "[open({path!r}, 'w').close()]",
    "__import__('os').system('touch {path}')",
    "x.__class__.__base__.__subclasses__()[0]",
    "sin(x, evaluate=open({path!r}, 'w'))",
    "(lambda: open({path!r}, 'w'))()",
]

ENTRIES: dict[str, dict[str, Any]] = {
    "countdown": {"answer": "6*7 + 1", "metadata": {"numbers": [6, 7, 1], "target": 43}},
    "puzzle24": {"answer": "1*3*5 + 9", "metadata": {"numbers": [1, 3, 5, 9]}},
    "polynomial_multiplication": {"answer": "3*x**5 - y", "metadata": {"variables": ["x", "y"]}},
    "simple_integration": {"answer": "x**3/3 + C", "metadata": {"variable": "x", "integrand": "x**2"}},
    "intermediate_integration": {"answer": "Integral(cos(x), x) + C", "metadata": {"variable": "x", "integrand": "cos(x)"}},
}


@pytest.fixture(scope="module")
def score() -> Callable[[str, str], float]:
    from reasoning_gym import create_dataset

    scores = {name: guard_score_answer(name, create_dataset(name, seed=0, size=1)) for name in ENTRIES}
    return lambda name, answer: scores[name](answer, ENTRIES[name])


@pytest.mark.parametrize("name", EVALUATED)
def test_answers_are_not_run_in_an_environment_nor_in_this_process(name: str, tmp_path: Path) -> None:
    env = VerifierTextEnv(f"reasoning_gym:{name}", task_kwargs={"size": 1})
    task, path = env.rules.task, tmp_path / "touched"
    item = task.item(0)
    answers = [*(attack.format(path=str(path)) for attack in ATTACKS), item.answer]
    verdicts = env.rules.runner.score([Check(answer, task.scorer().payload(item), "") for answer in answers])
    for scores in ([verdict.value for verdict in verdicts], [task.score(answer, item) for answer in answers]):
        assert scores == [0.0] * len(ATTACKS) + [1.0]
    assert not path.exists()
    env.close()


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("countdown", "(1 + 7*6)", ["6*7 + True", "(6*7) .real + 1", "6*7 + 1 # x", "Integer(43) + 0*6*7*1"]),
        ("countdown", "6*7 + 1", ["9**9**9**9", "+".join(["1"] * 1000), "(", "(" * 400 + "1" + ")" * 400]),
        ("puzzle24", "9+5*3/1", ["8*3*1*1", "1*3*5 + 9 + 0", "3 + 3*5*1 + 6"]),
        ("polynomial_multiplication", "-y + x*x*x**3*3", ["3*x**5 - y + 0*9**9**9", "(((9**99)**99)**99)**99"]),
        ("simple_integration", " x**(6/2) / 3 - C", ["Integral(x**2, x)", "sin(x, x)", "[x**3/3][0]", "x if x else x"]),
        ("simple_integration", "0.5*x**3 - x**3/6", []),
        ("intermediate_integration", "cos(x - pi/2)", ["sin(x, x)"]),
        ("intermediate_integration", "Integral(cos(x), x) + C", []),
    ],
)
def test_formulas_are_still_read(name: str, right: str, wrong: list[str], score: Callable[[str, str], float]) -> None:
    assert score(name, right) == 1
    assert [answer for answer in wrong if score(name, answer) != 0] == []


def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> ModuleType:
    import importlib

    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize(("imported", "call"), [("re", "eval(answer)"), ("sympy", "sympy.sympify(answer)")])
def test_data_sets_that_may_evaluate_answers_are_refused(
    imported: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reasoning_gym.arithmetic.gcd import GCDConfig
    from reasoning_gym.factory import DATASETS

    module = make_module(
        tmp_path,
        monkeypatch,
        "new_data_sets",
        f"import {imported}\nfrom reasoning_gym.arithmetic.gcd import GCDDataset\n\n\nclass New(GCDDataset):\n"
        f"    def score_answer(self, answer, entry):\n        return float({call} == 1)\n",
    )
    monkeypatch.setitem(DATASETS, "new", (module.New, GCDConfig))
    with pytest.raises(ValueError, match=r"reasoning_gym:new cannot be used.*new_data_sets uses (eval|sympy)"):
        make_task("reasoning_gym:new")


@pytest.mark.parametrize("name", ["advanced_geometry", "polynomial_equations", "simple_equations", "gcd"])
def test_data_sets_that_evaluate_no_answer_are_accepted(name: str) -> None:
    task = make_task(f"reasoning_gym:{name}", size=1)
    assert task.score(task.item(0).answer, task.item(0)) == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only where the system tells how much memory there is")
def test_the_memory_of_the_worker_is_limited() -> None:
    from sb3_grpo.envs import VerifierError
    from sb3_grpo.envs.verifiers.runner import VerifierRunner

    runner = VerifierRunner(
        lambda answer, _: float(len(bytearray(int(answer))) > 0), trusted=False, name="long", n_bytes=2**28, on_error="raise"
    )
    assert runner.score([Check("1000", "", "")])[0].value == 1
    with pytest.raises(VerifierError, match="MemoryError"):
        runner.score([Check(str(2**29), "", "")])
    runner.close()
    task = make_task("reasoning_gym:gcd", size=1)
    assert task.scorer().name == "reasoning_gym:gcd"
