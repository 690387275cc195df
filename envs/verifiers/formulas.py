"""Compares mathematical answers exactly. What cannot be read with certainty, from its beginning to its end, equals nothing."""

import math
import re
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from sb3_grpo.envs.verifiers.markup import FUNCTIONS, NUMBER, final_answer, plain, reference_answer

# Python cannot be interrupted while it calculates 9^{9^9}
_MAX_EXPONENT = 5000
# Longer answers are endless reasoning, or designed to take time
_MAX_LENGTH = 500

# All that latex2sympy reads as it is meant
_READABLE = re.compile(
    rf"(?a:(?:\\(?:{FUNCTIONS}|frac|binom|pi|infty|cup|[lr]floor|[lr]ceil|ne|le|ge|emptyset|"
    r"(?:var)?(?i:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega))(?![A-Za-z])|\\[{}]|"
    r"[A-Za-z0-9\s.,;%=<>+*/^_(){}|![\]-])+)"
)
_UNCERTAIN = re.compile(
    r"""(?ax)
    (?<![\\A-Za-z])[A-Za-z]{4}  # a word
    |(?:(?<![\\A-Za-z])(?!(?<=\d)[eE][-+]?\d)[A-Za-z]+|[)}!]|[\d.]\s)\s*[\d.]  # a number behind something else: x2, 2 3
    |[\d.]_  # a number of another base
    |\.\d*\.|!!|--|[)}]\s*!|\d{4}\s*!  # 3.4.5, x!!, (x)!, 1000!
    |(?<!sqrt)\[[^,]*[])]  # [5]
    |(?<![\\A-Za-z])[A-Za-z]\(\s*-?[\d.]+\s*\)  # f(2)
    |\^\{[^{}]*\}\s*\^  # x^2^3
    |\^[{(\s]*T  # a transpose, which sympy leaves out for real numbers
    |\\frac\s*\{\s*d|(?<![\\A-Za-z])d[a-z]\s*/  # dy/dx
    |(?<![\\A-Za-z])[A-Za-z]*I|\\Gamma  # the imaginary unit and a function for sympy
    |\d\s*\{|(?<![\w}\]^\\\s])\{[^{}]*\}\s*\{  # 6{7}, which would be a sum
    |\\binom(?!\s*\{[\da-df-zA-Z\s+-]{1,5}\}\s*\{[\da-df-zA-Z\s+-]{1,5}\})  # or it takes long
    |/\s*(?:[\w.]+|\\[A-Za-z]+|\([^()]*\))\s*[A-Za-z(\\]  # 1/2x
    |\\(?:FUNCTIONS)(?![A-Za-z])[^-+*(){}]*/  # \sin x/2
    |(?:^|[,{])\s*([^,()[\]{}]+)\s*,(?:.*,)?\s*\1\s*(?:,|\\}|$)  # 1, 1, which would be a set
    |(?:[({[][^)}\]]*){9}  # nine brackets in one another
    """.replace("FUNCTIONS", FUNCTIONS)
)
_REPEATING = re.compile(r"(?a)(\d*\.)(\d*)\\overline\{(\d+)\}")
# A number that is worked out, and what is still to be calculated
_WORKED_OUT = re.compile(
    rf"(?a)[-+]?\s*(?:{NUMBER}\s*%?|(?:{NUMBER}\s*\*\s*)?10\s*\^\{{[-+]?\d+\}}|\d*\\frac\{{-?\d+\}}\{{-?\d+\}})"
)
_CALCULATION = re.compile(
    r"(?<=[\w)}!])(?<!\d[eE])\s*(?:[-+/(]|\*(?!\s*10\s*\^)|\\(?!frac|overline)|\|[^|]+\|)|\}\s*\\|"
    r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln)"
)
_FRACTION = re.compile(r"\\frac\{-?(\d+)\}\{-?(\d+)\}")
_NAMED = re.compile(
    r"(?:^|(?<=,))\s*(?:(?:[A-Za-z]|\\vec\s*\{\w\}|\\[a-z]+)\s*(?:_\{\w+\}|\(\w+\))?|\([a-z](?:,\s*[a-z])+\)|"
    r"m?\s*\\angle\s*\{?\w{1,3}\}?|\|?[A-Z]{2,4}\|?|\\overline\s*\{[A-Z]{2}\}|\[[A-Z]{3,}\]|"
    r"(?:\\text\{)?(?i:area|perimeter|volume|length|distance|total|sum|speed|cost)\}?)\s*="
)
# A word that is the same in capitals, other than AB, which may be a segment or a product
_WORD = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{4,}|(?:[A-Z][a-z]{2}|(?i:yes|no))(?![A-Za-z]))")
# Numbers joined by -, as in dates, scores and ranges
_JOINED = re.compile(r"\(*[\d.]+%?(?:\s*-\s*[\d.]+%?)+\)*|\(*\d+(?:\s*/\s*\d+){2,}\)*")
# A word that does not change the number before it. In a formula, a degree may belong to only the last number
_UNIT = re.compile(
    r"(?!\s*+.+[^\d.\s].*\\text\{degree)(.*\S)\s*\\text\{(?![^{}]*(?:dozen|hundred|thousand|[mb]illion|hal[fv]|square[ds]|cubed|factorial|doubl|tripl|"
    r"twice|\b(?:minu|plu|time|les|more|fewer|percent|pair|root|third|quarter)\b|th\b))([^{}]*)\}"
)
_KNOWN_UNIT = re.compile(
    r"(?:/?(?:(?:kilo|centi|milli)?(?:meter|gram|liter)|foot|inch|mile|yard|pound|ounce|second|minute|hour|day|week|month|year|"
    r"degree|radian|dollar|euro|yen|unit)[23]?)+"
)


def verify_math(answer: str, reference: str) -> bool:
    """
    :param answer: Text written by an agent
    :param reference: The right answer, or a solution that ends with it
    :return: Whether the answer is right. An ``ArithmeticError`` is raised if that is neither proved nor disproved
    """
    right, found = reference_answer(reference), final_answer(answer)
    if not right:
        raise ValueError(
            f"the verifier math finds no answer in the reference {reference!r:.200}. Write a number, a formula or a solution "
            "with \\boxed{} or ####, or take verifier='exact'"
        )
    if found is None or len(found[0]) > _MAX_LENGTH:
        return False
    # What follows a box may be its unit
    return _is_same(plain(" ".join(found) if _unit(right, reference)[1] else found[0]), right, reference)


def _is_same(a: str, b: str, reference: str) -> bool:
    if _text(a) == _text(b):
        return True
    if "=" not in b:
        # x = 5 is 5, and 6! = 720 is 720
        a, *sides = _NAMED.sub("", a).split("=")
        if sides:
            return _is_same(sides.pop(), b, reference) and all(_is_same(side, f"({b})", reference) for side in (a, *sides))
    elif "=" not in a and b.count("=") == 1:
        b = _NAMED.sub("", b)
    (a, unit_a), (b, unit_b) = _unit(a, reference), _unit(b, reference)
    value, right = _read(a), _read(b)
    if value is None or right is None or _JOINED.fullmatch(b) or (unit_a and unit_b and unit_a != unit_b):
        return False
    if _WORKED_OUT.fullmatch(b):
        if _CALCULATION.search(a) or any(math.gcd(*map(int, parts)) > 1 for parts in _FRACTION.findall(a)):
            return False
    # For sympy, [5,3] is (5,3), and \{1,1,2\} is \{1,2\}
    if not isinstance(right, sympy.Expr) and any(a.count(sign) != b.count(sign) for sign in ",;["):
        return False
    return _are_equal(value, right)


def _text(text: str) -> str:
    """
    :param text: A text in plain notation
    :return: The same for texts that only differ in blanks, in the case of words, or in the brackets of a choice
    """
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = _WORD.sub(lambda word: word[0].lower(), " ".join(text.split()))
    return re.sub(r"\s+(?!\w)|(?<!\w)\s+|(?<=\d)\s+(?=[a-z])|^\((?=\w\))|(?<=^\(\w)\)", "", text)


def _unit(text: str, reference: str) -> tuple[str, str]:
    """
    :param text: A text in plain notation
    :param reference: May name a unit
    :return: The amount, and the unit that follows it, if it is known or named in the reference
    """
    found = _UNIT.fullmatch(text)
    # A noun in the plural, or the last word
    named = found and rf"(?<![A-Za-z])(?=[A-Za-z]{{3}}){re.escape(found[2])}(?:e?s\b|(?![A-Za-z])[^A-Za-z\d]*$)"
    return found.groups() if found and (_KNOWN_UNIT.fullmatch(found[2]) or re.search(named, reference)) else (text, "")  # type: ignore


def _read(text: str) -> Any:
    """
    :param text: A formula in plain notation
    :return: What sympy makes of it, None if it cannot be read with certainty
    """
    # 0.2(36) is 0.20 + 36/990
    text = _REPEATING.sub(
        lambda found: rf"({found[1]}{found[2]}0+\frac{{{found[3]}}}{{{'9' * len(found[3])}{'0' * len(found[2])}}})", text
    )
    if _UNCERTAIN.search(text) or not _READABLE.fullmatch(text):
        return None
    text = re.sub(rf"({NUMBER})\s*(%?)", lambda part: sympy.latex(sympy.Rational(part[1]) / (100 if part[2] else 1)), text)
    # 2(3) would be a mixed number
    text = re.sub(r"(?<=\d)\s*\(", "*(", text)
    try:
        value = _evaluated(
            latex2sympy(
                text, is_real=True, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False)
            )
        )
    except Exception:
        return None
    return None if value in (sympy.true, sympy.false) or value.has(sympy.nan, sympy.zoo) else value


def _evaluated(formula: Any) -> Any:
    if not formula.args:
        return sympy.I if str(formula) == "i" else formula
    parts = [_evaluated(part) for part in formula.args]
    if isinstance(formula, sympy.Pow) and parts[1].is_number and abs(parts[1]) > _MAX_EXPONENT:
        raise OverflowError
    value = formula.func(*parts)
    return value.reversed if isinstance(value, sympy.Gt | sympy.Ge) else value


def _are_equal(a: Any, b: Any) -> bool:
    if a == b:
        return True
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        zero = (a - b).equals(0)
        if zero is None:
            raise ArithmeticError(f"it was neither proved nor disproved that {a} equals {b}")
        return bool(zero)
    if a.func != b.func or len(a.args) != len(b.args):
        return False
    if isinstance(a, sympy.Eq) and len(b.free_symbols) > 1:
        # y = 2x + 3 is 2x - y = -3; an equation with only one variable has to be solved
        ratio = sympy.simplify((a.lhs - a.rhs) / (b.lhs - b.rhs))
        return bool(ratio.is_number and ratio.is_nonzero)
    return all(map(_are_equal, a.args, b.args))
