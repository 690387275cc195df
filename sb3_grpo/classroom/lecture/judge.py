"""Self-grading exercises: a student's answers are compared with the right ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch as th

# Share of right answers needed to pass, as in the lecture
PASS_MARK = 0.6
_TOLERANCE = 1e-4


class Judge:
    """
    Prints "right", or what is wrong with an answer, and counts the right ones. It never raises an error for a student's code.

    :param title: title of the exercises
    :param n_exercises: number of exercises
    """

    def __init__(self, title: str, n_exercises: int):
        self.title = title
        self.n_exercises = n_exercises
        self.right: dict[str, bool] = {}

    def function(
        self,
        name: str,
        student: Callable[..., Any],
        right: Callable[..., Any],
        cases: Sequence[Sequence[Any]],
        mistakes: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """
        :param name: name of the exercise
        :param student: the student's function
        :param right: the right function
        :param cases: the arguments of each call; put the one that is easiest to compute by hand first
        :param mistakes: see :func:`problem_of`
        """
        self.note(name, problem_of(student, right, cases, mistakes))

    def number(self, name: str, given: Any, right: float, tolerance: float = 1e-2) -> None:
        """
        :param name: name of the exercise
        :param given: the student's answer, None or ... if there is none yet
        :param right: the right answer
        :param tolerance: maximum distance of an answer from it
        """
        if given is None or given is ...:
            self.note(name, "no answer yet")
        elif not _is_number(given):
            self.note(name, "a number, please")
        else:
            self.note(name, "" if abs(float(given) - right) <= tolerance else f"{given} is not right")

    def choice(self, name: str, given: Any, right: str, choices: Sequence[str]) -> None:
        """
        :param name: name of the exercise
        :param given: the student's answer, None or ... if there is none yet
        :param right: the right answer
        :param choices: possible answers
        """
        if given is None or given is ...:
            self.note(name, "no answer yet")
        elif not isinstance(given, str) or given not in choices:
            self.note(name, f"the answer must be one of {', '.join(map(repr, choices))}")
        else:
            self.note(name, "" if given == right else f"{given!r} is not right")

    def note(self, name: str, problem: str) -> None:
        """
        :param name: name of the exercise
        :param problem: what is wrong, empty if nothing is
        """
        self.right[name] = not problem
        print(f"{name}: {problem or 'right'}")

    def report(self, student: str) -> str:
        """
        :param student: the student's name
        :return: a line to hand in
        """
        names = [name for name, right in self.right.items() if right]
        needed = math.ceil(PASS_MARK * self.n_exercises)
        verdict = "passed" if len(names) >= needed else f"{needed} pass"
        print(f"{len(names)} of {self.n_exercises} exercises are right; {verdict}.")
        name = student.replace(";", ",").strip() or "?"
        return f"sb3-grpo {self.title}; {name}; {len(names)} of {self.n_exercises}; {' '.join(names)}"


def problem_of(
    student: Callable[..., Any],
    right: Callable[..., Any],
    cases: Sequence[Sequence[Any]],
    mistakes: Mapping[str, Callable[..., Any]] | None = None,
) -> str:
    """
    :param student: the student's function
    :param right: the right function
    :param cases: the arguments of each call
    :param mistakes: functions with a common mistake, by what to say to students whose function returns the same in all cases
    :return: what is wrong, empty if nothing is
    """
    for number, arguments in enumerate(cases, 1):
        wanted = _array(right(*deepcopy(arguments)))
        try:
            problem = _difference(student(*deepcopy(arguments)), wanted)
        except NotImplementedError:
            return "not written yet"
        except Exception as error:
            return f"{type(error).__name__}: {error}{_shown(arguments, number, len(cases))}"
        if problem:
            shown = _shown(arguments, number, len(cases))
            return f"{_idea(student, cases, mistakes or {})}{problem}{shown}"
    return ""


def _idea(student: Callable[..., Any], cases: Sequence[Sequence[Any]], mistakes: Mapping[str, Callable[..., Any]]) -> str:
    try:
        answers = [student(*deepcopy(arguments)) for arguments in cases] if mistakes else []
    except Exception:
        return ""
    for idea, wrong in mistakes.items():
        expected = [_array(wrong(*deepcopy(arguments))) for arguments in cases]
        if not any(_difference(answer, each) for answer, each in zip(answers, expected, strict=True)):
            return f"{idea}: "
    return ""


def _is_number(given: Any) -> bool:
    try:
        return not isinstance(given, str) and math.isfinite(float(given))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _array(value: Any) -> np.ndarray:
    return (value.detach().cpu().numpy() if isinstance(value, th.Tensor) else np.asarray(value)).astype(float)


def _difference(answer: Any, wanted: np.ndarray) -> str:
    """
    :param answer: result of the student's function
    :param wanted: the right result
    :return: what is wrong, empty if nothing is
    """
    if answer is None:
        return "it returns nothing. Is there a return?"
    try:
        given = _array(answer)
    except (TypeError, ValueError):
        return f"it returns {type(answer).__name__}, not numbers"
    if given.shape != wanted.shape:
        return f"it returns the shape {given.shape}, right is {wanted.shape}"
    wrong = ~np.isclose(given, wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
    if not wrong.any():
        return ""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    where = f" at {list(place)}" if place else ""
    return f"it returns {given[place]:.4g}{where}, right is {wanted[place]:.4g}{_hint(given, wanted)}"


def _hint(given: np.ndarray, wanted: np.ndarray) -> str:
    """
    :param given: wrong values
    :param wanted: right values
    :return: a hint how to get from the wrong values to the right ones, empty if there is no simple way
    """
    counts = np.abs(wanted) > _TOLERANCE
    if not np.isfinite(given).all():
        return ". Some values are not finite: is something divided by 0?"
    if not counts.any():
        return ""
    factors = given[counts] / wanted[counts]
    if not np.allclose(factors, factors[0], rtol=1e-3) or not np.allclose(given[~counts], 0.0, atol=1e-3):
        return ""
    if math.isclose(factors[0], -1.0, rel_tol=1e-3):
        return ". The sign is the wrong one everywhere"
    return f". Everywhere it is {factors[0]:.4g} times what is right" if counts.sum() > 1 else ""


def _shown(arguments: Sequence[Any], number: int, n_cases: int) -> str:
    """Describe the case that failed. Only small arguments are shown."""
    size = sum(each.numel() if isinstance(each, th.Tensor) else np.size(each) for each in arguments)
    called = f", called with {', '.join(map(repr, arguments))}" if size <= 16 else ""
    return f" (case {number} of {n_cases}{called})"
