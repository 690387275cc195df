"""A student reads what is wrong, and never a traceback."""

import functools

import numpy as np
import pytest
import torch as th

from sb3_grpo.classroom.lecture.judge import Judge

CASES = [(th.tensor([1.0, 2.0, 4.0]),), (th.arange(6.0),)]


def double(x: th.Tensor) -> th.Tensor:
    return 2 * x


def unwritten(x: th.Tensor) -> th.Tensor:
    raise NotImplementedError


@pytest.mark.parametrize(
    "student, message",
    [
        (double, "right"),
        (unwritten, "not written yet"),
        (lambda x: None, "it returns nothing"),
        (lambda x: "two", "it returns str, not numbers"),
        (lambda x: x[0] * 2, "it returns the shape (), right is (3,)"),
        (lambda x: -2 * x, "it returns -2 at [0], right is 2. The sign is the wrong one everywhere (case 1 of 2, called with"),
        (lambda x: 3 * x, "Everywhere it is 1.5 times what is right"),
        (lambda x: 2 * x / 0, "Some values are not finite"),
        (lambda x: x.double_it(), "AttributeError"),
        (lambda x: 2 * x if len(x) == 3 else x, "it returns 1 at [1], right is 2. Everywhere it is 0.5 times"),
        (lambda x: x.mul_(2), "right"),
        (functools.partial(th.mul, other=2), "right"),
        (3.0, "TypeError"),
    ],
)
def test_function(student, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge("doubles", 1)
    judge.function("doubled", student, double, CASES)
    assert (printed := capsys.readouterr().out).startswith("doubled: ")
    assert message in printed
    assert judge.right == {"doubled": message == "right"}


@pytest.mark.parametrize("student", [double, lambda x: 2 * x, functools.partial(th.mul, other=2)])
def test_an_exercise_keeps_its_name_whatever_the_function_is_called(student) -> None:
    judge = Judge("doubles", 2)
    for name in ("first", "second", "second"):
        judge.function(name, student, double, CASES)
    assert judge.report("Ada") == "sb3-grpo doubles; Ada; 2 of 2; first second"


@pytest.mark.parametrize(
    "given", ["x", [3.14], {}, abs, 3j, 10**400, np.array([3.0, 1.0]), th.tensor([3.0, 1.0]), float("nan"), th.tensor([])]
)
def test_what_is_no_number_and_no_choice(given, capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge("answers", 2)
    judge.number("pi", given, 3.14159)
    judge.choice("sure", given, "yes", ["yes", "no"])
    assert capsys.readouterr().out.splitlines() == ["pi: a number, please", "sure: the answer must be one of 'yes', 'no'"]


def test_numbers_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge("answers", 3)
    for given, said in ((..., "no answer yet"), (None, "no answer yet"), (3.2, "3.2 is not right"), (3.14, "right")):
        judge.number("pi", given, 3.14159)
        assert capsys.readouterr().out == f"pi: {said}\n"
    for given, said in ((..., "no answer yet"), ("no", "'no' is not right"), ("yes", "right")):
        judge.choice("sure", given, "yes", ["yes", "no"])
        assert capsys.readouterr().out == f"sure: {said}\n"


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge("answers", 4)
    judge.note("first", "")
    judge.note("second", "too small")
    judge.note("third", "")
    assert judge.report("Ada; Byron") == "sb3-grpo answers; Ada, Byron; 2 of 4; first third"
    judge.note("second", "")
    assert judge.report("") == "sb3-grpo answers; ?; 3 of 4; first second third"
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "exercises" in line] == [
        "2 of 4 exercises are right; 3 pass.",
        "3 of 4 exercises are right; passed.",
    ]
