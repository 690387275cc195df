"""Whether two formulas are equal: exactly, as values that differ by less than a tolerance are different."""

import re
import signal
import sys
from fractions import Fraction
from itertools import accumulate
from typing import Any

import cloudpickle
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Do not strip units, as the last letter may be a variable: "x + m" must keep its m, and "5 m" is not "5 cm"
_NORMALIZATION = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)

# Less than the default limit of the environment: an answer that is too hard need not end the process
_SECONDS = 3.0
_FUNCTIONS = re.compile(r"(?<![\\A-Za-z])((?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|pi|infty|oo)(?![A-Za-z])", re.ASCII)
# Each level doubles the time that it takes to read a formula
_MAX_DEPTH = 8
# Python cannot be interrupted while it calculates 9^{9^9}, nor in reasonable time compare 9^{9^{9^9}} with anything
_TOWER = re.compile(r"\^\s*\{[^{}]*\^\s*\{[^{}]*\^")
_MAX_BITS = 2.0**19
# Decimal places up to which a difference is looked for, before and after trying to prove that it is zero
_DIGITS = (100, 5000)
# What the letters of two formulas are replaced with, one after the other, to find out that these differ
_POINTS = ((2, 3, 5, 7, 11, 13, 17, 19), (-3, 7, -2, 13, -5, 11, 23, -17))
_REVERSED = {">": "<", "<": ">", ">=": "<=", "<=": ">="}


class UndecidedError(ArithmeticError):
    """It could not be proved that two formulas are equal, nor that they differ."""


class _OutOfTime(BaseException):
    """Not an ``Exception``, as sympy catches many of these."""


def equal_formulas(answer: str | Fraction, reference: str) -> bool:
    """
    :param answer: A formula in LaTeX or Python's notation, or a number
    :param reference: A formula
    :return: Whether they are equal. A ``TimeoutError`` is raised if this was neither proved nor disproved within a limit of
        processor time, so that it does not depend on how busy the machine is
    """

    def stop(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        target = sympy.Rational(answer) if isinstance(answer, Fraction) else _read(answer)
        return target is not None and (gold := _read(reference)) is not None and _same(target, gold)
    except (ArithmeticError, TypeError, NotImplementedError, _OutOfTime) as error:
        raise TimeoutError(
            f"within {_SECONDS:g} s it was not decided whether {answer!s:.200} equals {reference:.200}"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _read(formula: str) -> Any:
    """
    :param formula: A formula
    :return: What sympy makes of it, not evaluated. None if it cannot be read, is nested too deeply, or has too large numbers
    """
    # From Python's notation: x**2, sqrt(x)
    latex = _FUNCTIONS.sub(r"\\\1 ", formula.replace("**", "^")).replace("\\oo ", "\\infty ")
    latex = re.sub(r"\^\s*([-+]\d+)", r"^{\1}", re.sub(r"\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", latex))
    depths = accumulate(1 if c in "({[" else -1 if c in ")}]" else 0 for c in latex)
    if max(depths, default=0) > _MAX_DEPTH or _TOWER.search(latex):
        return None
    try:
        formula = latex2sympy(latex, is_real=True, normalization_config=_NORMALIZATION, conversion_config=_CONVERSION)
        return formula if _bits(formula) <= _MAX_BITS else None
    except Exception:
        return None


def _bits(formula: Any) -> float:
    """
    :param formula: A formula
    :return: Approximately the number of bits of the largest number in its evaluation
    """
    if isinstance(formula, sympy.MatrixBase):
        return sum(map(_bits, formula.flat()))
    if isinstance(formula, sympy.Rational):
        return formula.p.bit_length() + formula.q.bit_length()
    if isinstance(formula, sympy.Float):
        return formula._prec + abs(formula._mpf_[2])
    bits = [*map(_bits, formula.args)] or [4.0]
    if isinstance(formula, sympy.Pow | sympy.exp):
        exponent = formula.args[-1]
        size = max(abs(float(exponent)), 1.0) if exponent.is_Rational else 2.0 ** min(bits[-1], 64.0)
        return size * (bits[0] if len(bits) == 2 else 2.0)
    if isinstance(formula, sympy.factorial):
        return bits[0] * 2.0 ** min(bits[0], 64.0)
    return sum(bits)


def _same(a: Any, b: Any) -> bool:
    """
    :param a: A formula, not evaluated
    :param b: Another one
    :return: Whether they are equal numbers, terms, tuples, sets, intervals, matrices, equations or inequalities
    """
    if isinstance(a, Relational) and isinstance(b, Relational):
        return _same_relation(a, b)
    if isinstance(a, sympy.Interval) and isinstance(b, sympy.Interval):
        ends = (a.left_open, a.right_open) == (b.left_open, b.right_open)
        return ends and _same(a.start, b.start) and _same(a.end, b.end)
    if isinstance(a, sympy.Tuple) and isinstance(b, sympy.Tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase):
        return a.shape == b.shape and all(map(_same, a.flat(), b.flat()))
    for kind in (sympy.FiniteSet, sympy.And):
        if isinstance(a, kind) and isinstance(b, kind):
            return _same_parts(a.args, b.args)
    if isinstance(a, sympy.Set) and isinstance(b, sympy.Set):
        a, b = _evaluated(a), _evaluated(b)
        return a == b or (isinstance(a, sympy.Union) and isinstance(b, sympy.Union) and _same_parts(a.args, b.args))
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        a, b = _evaluated(a), _evaluated(b)
        return a == b or _is_zero(a - b)
    return False


def _same_parts(a: Any, b: Any) -> bool:
    return all(any(_same(x, y) for y in b) for x in a) and all(any(_same(x, y) for x in a) for y in b)


def _same_relation(a: Relational, b: Relational) -> bool:
    sides = [a.lhs, a.rhs, b.lhs, b.rhs]
    if not all(isinstance(side, sympy.Expr) and side.is_finite is not False for side in sides):
        # x in (0, 1), or x < infinity
        if a.rel_op == _REVERSED.get(b.rel_op):
            b = b.reversed
        return a.rel_op == b.rel_op and _same(a.lhs, b.lhs) and _same(a.rhs, b.rhs)
    left, right = _evaluated(a.lhs) - _evaluated(a.rhs), _evaluated(b.lhs) - _evaluated(b.rhs)
    # Both sides may have been multiplied by the same number
    for point in _points(left, right):
        divisor = right.subs(point)
        if _differs_from_zero(divisor, _DIGITS[0]):
            factor = left.subs(point) / divisor
            if a.rel_op in ("==", "!="):
                same_kind = a.rel_op == b.rel_op and _differs_from_zero(factor, _DIGITS[0])
            else:
                kind = b.rel_op if factor.is_positive else _REVERSED.get(b.rel_op) if factor.is_negative else None
                same_kind = a.rel_op == kind
            return same_kind and _is_zero(left - factor * right)
    return bool(left == right and a.rel_op == b.rel_op)


def _evaluated(formula: Any) -> Any:
    # 0.1 is 1/10
    exact = {number: sympy.Rational(str(number)) for number in formula.atoms(sympy.Float)}
    functions = {each: sympy.Symbol(str(each), real=True) for each in formula.atoms(AppliedUndef)}
    return formula.xreplace(exact | functions).subs(sympy.Symbol("i", real=True), sympy.I).doit()


def _points(*formulas: Any) -> list[dict[Any, int]]:
    letters = sorted(set().union(*(formula.free_symbols for formula in formulas)), key=str)
    return [{letter: values[i % len(values)] for i, letter in enumerate(letters)} for values in (_POINTS if letters else [()])]


def _is_zero(difference: Any) -> bool:
    if difference.has(sympy.nan, sympy.zoo):
        return False
    points = [difference.subs(point) for point in _points(difference)]
    if any(_differs_from_zero(point, _DIGITS[0]) for point in points):
        return False
    for proof in (sympy.expand, sympy.simplify):
        if (zero := proof(difference).is_zero) is not None:
            return bool(zero)
    if any(_differs_from_zero(point, _DIGITS[1]) for point in points):
        return False
    zero = difference.equals(0)
    if zero is None:
        raise UndecidedError
    return bool(zero)


def _differs_from_zero(number: Any, digits: int) -> bool:
    """
    :param number: A number, not evaluated
    :param digits: Number of decimal places with which to calculate
    :return: Whether it is certainly not zero
    """
    # sympy marks what rounding errors may have caused with a precision of one bit
    parts = number.evalf(5, maxn=digits).as_real_imag()
    return any(part.is_Number and part != 0 and getattr(part, "_prec", 2) > 1 for part in parts)
