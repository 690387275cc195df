"""A calculator, for a task with a tool."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

CALCULATOR_ERROR = "error"
_OPERATIONS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
# What is longer is an error. There are no powers, so that no result can be much longer than the expression
_MAX_EXPRESSION = 64
MAX_RESULT = 20


def calculate(expression: str) -> str:
    """
    :param expression: Untrusted text
    :return: The value of a formula of numbers, ``+-*/`` and brackets, or ``CALCULATOR_ERROR``
    """
    if len(expression) > _MAX_EXPRESSION or not re.fullmatch(r"[0-9.+\-*/() ]+", expression):
        return CALCULATOR_ERROR
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return CALCULATOR_ERROR
    text = str(value) if value.denominator == 1 else f"{float(value):.6g}"
    return text if len(text) <= MAX_RESULT else CALCULATOR_ERROR


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp):
        return _OPERATIONS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    raise ValueError(f"{type(node).__name__} is not allowed")
