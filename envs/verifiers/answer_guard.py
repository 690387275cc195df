"""
Prevents the scores of reasoning-gym from running the agent's answers as code.

Some of its data sets parse answers with ``eval``, or with sympy, which calls it. Here, data sets that expect a list only get
literals, and those that expect a formula only get formulas. Further checks catch wrong answers that would get the full score.
"""

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from operator import add, mul, sub, truediv
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ScoreAnswer = Callable[[str, dict[str, Any]], float]


class _Formulas(NamedTuple):
    """
    Elements allowed in answers to a data set, besides numbers, the variables of the item, + - * / and parentheses.

    :param names: Names of constants
    :param functions: Names of functions of one argument
    :param powers: Whether powers are allowed
    """

    names: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    powers: bool = False


_INTEGRALS = _Formulas(
    frozenset({"C", "E", "pi"}),
    frozenset(
        "Abs acos acosh acot asin asinh atan atanh cos cosh cot csc exp ln log sec sin sinh sqrt tan tanh".split(),
    ),
    powers=True,
)

# Data sets that parse the answer with sympy
_FORMULAS = {
    "countdown": _Formulas(),
    "intermediate_integration": _INTEGRALS,
    "polynomial_multiplication": _Formulas(powers=True),
    "puzzle24": _Formulas(),
    "simple_integration": _INTEGRALS,
}

# Data sets whose module uses eval for answers, and for nothing else
_LITERALS = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}

# Data sets that ask for formulas with the numbers of the item, but accept other numbers and round the result
_OWN_NUMBERS = {"puzzle24"}

# Data sets that accept nan as the right number
_NUMBERS = {"complex_arithmetic"}

# Data sets that only evaluate code that they have created themselves
_OWN_CODE = {
    "advanced_geometry",
    "bitwise_arithmetic",
    "codeio",
    "decimal_arithmetic",
    "number_sorting",
    "polynomial_equations",
    "propositional_logic",
    "simple_equations",
}

# Nearly every function of sympy evaluates strings passed to it
_EVALUATES = re.compile(
    r"(?<![\w.])(?:eval|exec|compile|__import__)\b|\b(?:pickle|marshal|subprocess|os\.system)\b|\b\w*sympy\w*"
)

_OPERATIONS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}

_MAX_LENGTH = 1000
_MAX_BITS = 4096


def guard_score_answer(name: str, dataset: Any) -> ScoreAnswer:
    """
    :param name: Name of a data set of reasoning-gym
    :param dataset: The data set
    :return: Its ``score_answer``, protected from answers that it would run as code. It can be sent to a process that does
        not need this package
    """
    if name in _LITERALS:
        return partial(_score_literals, dataset.score_answer)
    if name in _FORMULAS:
        own_numbers = partial(_score_own_numbers, dataset.score_answer)
        return partial(_score_formulas, own_numbers if name in _OWN_NUMBERS else dataset.score_answer, _FORMULAS[name])
    if name in _NUMBERS:
        return partial(_score_numbers, dataset.score_answer)
    # A composite data set passes answers on to its parts
    parts = getattr(dataset, "datasets", {})
    if unsafe := sorted(set(parts) & (_LITERALS | _FORMULAS.keys() | _NUMBERS)):
        raise ValueError(
            f"reasoning_gym:{name} cannot have {', '.join(unsafe)} among its data sets: answers to them have to be looked "
            "through before they are scored, which is done only where they are used alone."
        )
    for part_name, part in {name: dataset, **parts}.items():
        if part_name not in _OWN_CODE:
            _refuse_evaluation(part_name, type(part))
    return dataset.score_answer


def _refuse_evaluation(name: str, cls: type) -> None:
    from reasoning_gym.dataset import ProceduralDataset

    if cls.score_answer is ProceduralDataset.score_answer:  # type: ignore[attr-defined]
        return  # the default, which compares texts
    for module in _modules(cls.__module__):
        try:
            found = _EVALUATES.search(inspect.getsource(sys.modules[module]))
        except (OSError, TypeError):
            raise ValueError(
                f"reasoning_gym:{name} cannot be used: there is no source of {module} that would tell whether it runs answers "
                "as code."
            ) from None
        if found is not None:
            raise ValueError(
                f"reasoning_gym:{name} cannot be used: it may run what the agent writes as code, its module {module} uses "
                f"{found.group()}. Write a Task that makes its items, with a score that does not."
            )


def _modules(start: str) -> list[str]:
    """
    :param start: Module of a data set
    :return: This module and all modules of reasoning-gym from which it imports, directly or indirectly
    """
    found: dict[str, None] = {}
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = None
            things = vars(sys.modules[name]).values()
            near = [each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", "") for each in things]
            ahead += [each for each in near if isinstance(each, str) and each.startswith("reasoning_gym.")]
    return list(found)


def _score_literals(score_answer: ScoreAnswer, answer: str, entry: dict[str, Any]) -> float:
    # A global name of the module shadows the built-in one
    vars(sys.modules[score_answer.__module__])["eval"] = ast.literal_eval
    return score_answer(answer, entry)


def _score_numbers(score_answer: ScoreAnswer, answer: str, entry: dict[str, Any]) -> float:
    # Only allows the characters of numbers instead of searching for words, as there may be spaces within a number
    return score_answer(answer, entry) if re.fullmatch(r"[-+0-9.eEiIjJ()\s]*", answer) else 0.0


def _score_own_numbers(score_answer: ScoreAnswer, answer: str, entry: dict[str, Any]) -> float:
    formula = ast.parse(answer.strip(), mode="eval").body
    numbers: list[Any] = [node.value for node in ast.walk(formula) if isinstance(node, ast.Constant)]
    try:
        if sorted(numbers) != sorted(entry["metadata"]["numbers"]) or _value(formula).denominator != 1:
            return 0.0
    except ZeroDivisionError:
        return 0.0
    return score_answer(answer, entry)


def _value(node: Any) -> Fraction:
    """
    :param node: A formula of numbers
    :return: Its value
    """
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))


def _score_formulas(score_answer: ScoreAnswer, allowed: _Formulas, answer: str, entry: dict[str, Any]) -> float:
    # The reference may contain other elements, and is not written by the agent
    if answer != entry["answer"] and not _is_formula(answer, entry["metadata"], allowed):
        return 0.0
    return score_answer(answer, entry)


def _is_formula(answer: str, metadata: dict[str, Any], allowed: _Formulas) -> bool:
    if len(answer) > _MAX_LENGTH or not re.fullmatch(r"[0-9A-Za-z+\-*/(). ]+", answer):
        return False
    variables = {*allowed.names, *map(str, metadata.get("variables", ())), *map(str, [metadata.get("variable", "")])}
    try:
        return _bits(ast.parse(answer.strip(), mode="eval").body, variables, allowed) <= _MAX_BITS
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False


def _bits(node: ast.AST, variables: set[str], allowed: _Formulas) -> float:
    """
    :param node: Syntax tree of a possible formula
    :param variables: Names that it may contain
    :param allowed: What else it may contain
    :return: Approximate number of bits of its value, as formulas whose value would take too long are rejected, too
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return math.log2(node.value + 1)
    if isinstance(node, ast.Name) and node.id in variables:
        return 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return _bits(node.operand, variables, allowed)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _bits(node.left, variables, allowed) + _bits(node.right, variables, allowed) + 1.0
    if allowed.powers and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _bits(node.left, variables, allowed) * 2.0 ** _bits(node.right, variables, allowed)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in allowed.functions:
        if len(node.args) == 1 and not node.keywords:
            return _bits(node.args[0], variables, allowed)
    raise ValueError("not a formula")
