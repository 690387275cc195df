"""
The verifiers "exact" and "math", and what counts as the answer to a math problem: a single number or formula, fully worked
out, and not retracted by anything else in the text. docs/text_tasks.md explains this in words.
"""

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import cloudpickle

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# No exponents, as a model may also answer 1e999999999
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)

# Longer answers are endless reasoning, or designed to take time
_MAX_LENGTH = 500
_MAX_EXPONENT = 400
_TRANSLATED = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "π": "\\pi ", "\u00d7": "\\times ", "·": "\\cdot ", "∞": "\\infty ", "\u00a0": " "}
)

_NUMBER = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_DECIMAL = re.compile(rf"(?P<sign>[-+]?)\s*(?P<number>{_NUMBER})(?P<percent>\s*\\?%)?", re.ASCII)
_POWER_OF_TEN = re.compile(
    rf"(?P<sign>[-+]?)(?P<number>{_NUMBER})(?:[eE](?P<plain>[-+]?\d+)|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{(?P<braced>[-+]?\d+)\}}|(?P<bare>\d)))",
    re.ASCII,
)
_TEN = re.compile(r"^([-+]?)(?=10\s*\^)", re.ASCII)
_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<above>\d+)\s*/\s*(?P<below>\d+)|\\[dt]?frac\s*(?:\{\s*(?P<inner>-?\d+)\s*\}\s*\{\s*(?P<under>\d+)\s*\}|(?P<one>\d)\s*(?P<two>\d)))",
    re.ASCII,
)
# Delimiters around an answer, removed once
_SIGNS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
_VARIABLE = re.compile(r"[A-Za-z]\s*=\s*(?=[^=])")
_PHRASE = re.compile(r"(?i)\banswer\s*(?:is\s*:|is\b|:|=)")
_BEFORE_PHRASE = re.compile(
    r"(?i)(?:\s|,|:|\*|#|(?:so|thus|hence|then|therefore|and|finally|in conclusion|the|my|our|final|correct|right)\b)*"
)
# Right before a box, these retract its content
_TAKEN_BACK = re.compile(
    r"(?i)(?:\b(?:not|never|nor|neither|either|or|maybe|perhaps|possibly|except|unless|than|about|around|approximately|roughly|"
    r"almost|wrong|incorrect|false)|n't|[<>~≈≠±]|\\(?:neq?|approx|pm|sim|lnot|neg)|[-+*/^!_])\W*$"
)
# Possessive: with backtracking, a box and a page of blanks would exceed the time limit of an answer
_AFTER_BOX = re.compile(r"[\s$.*]*+(?:\\[)\]])?[\s$.*]*+")
# Marks that change the meaning of a formula are only allowed if the reference has them, too
_MARKS = re.compile(
    r"\\(?:pm|mp|approx|sim|simeq|neq?|lt|gt|leq?|geq?|in|notin|cup|cap|circ|degree|text\w*|mathrm|lor|land|vee|wedge|to|mod|"
    r"equiv|ldots|dots|cdots|not|overline|bar|hat|lfloor|lceil|binom|log|quad)(?![A-Za-z])|\\[{}%,;]|[=<>,;_!?%|&@#~°\[\]]"
)
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|sqrt|log|ln|exp|pi|infty|frac|oo", re.ASCII)
_FORMULA = re.compile(r"[0-9A-Za-z\s.\\+*/^_=<>(){}\[\],;!%|&'-]+", re.ASCII)


def is_equivalent(answer: str, reference: str) -> bool:
    """
    Whether two texts are equal up to surrounding white space, or are the same number: 7 and 07.0.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    answer, reference = answer.strip(), reference.strip()
    if answer == reference:
        return True
    if _PLAIN_NUMBER.fullmatch(answer) and _PLAIN_NUMBER.fullmatch(reference):
        return Decimal(answer) == Decimal(reference)
    return False


def make_math_verifier() -> Callable[[str, str], float]:
    """
    :return: :func:`math_equivalent` as a function that runs in a process without this package
    """
    try:
        import math_verify
    except ImportError as error:
        raise ImportError('Comparing mathematics needs the package math-verify: pip install "sb3-grpo[text]"') from error

    # Do not strip units, as the last letter may be a variable: "x + m" must keep its m, and "5 m" is not "5 cm"
    latex = math_verify.LatexExtractionConfig()
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=False))
    extraction = [latex, math_verify.ExprExtractionConfig()]

    # Unpickling this function imports math_verify, before the time limit of the first answer begins
    def verify_math(answer: str, reference: str) -> float:
        # It warns about answers that are too hard for it, but these are merely wrong
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        # Solutions of GSM8K end with #### and the answer
        right = reference.rpartition("####")[2].strip()
        expected, unit = with_unit(final_answer(right) or right)
        found = final_answer(answer)
        if (number := value_of(expected, worked_out=False)) is not None:
            if found is not None and unit and found.casefold().endswith(unit.casefold()):
                found = found[: -len(unit)].strip()
            return float(answer.strip() == right or (found is not None and value_of(found) == number))
        if is_text(expected):
            return float(answer.strip() == right or (found is not None and same_text(found, expected)))
        # Parsing and comparing an answer take less than the environment's default limit, as an answer that is too hard is not
        # a failure of the verifier. The reference gets two attempts: it may exceed a second by chance, and is required
        gold = math_verify.parse(_with_signs(right), extraction, parsing_timeout=1) or math_verify.parse(
            _with_signs(right), extraction, parsing_timeout=1
        )
        if not gold:
            raise ValueError(
                f"math-verify finds nothing in the reference {reference!r:.200}, or not within 1 s. Write a number or a "
                "formula, or take verifier='exact'"
            )
        if answer.strip() == right or (found is not None and "".join(found.split()) == "".join(expected.split())):
            return 1.0
        if found is None or not may_equal(found, expected):
            return 0.0
        target = math_verify.parse(_with_signs(found), extraction, parsing_timeout=1)
        return float(math_verify.verify(gold, target, timeout_seconds=2))

    return verify_math


def math_equivalent(answer: str, reference: str) -> bool:
    """
    Whether an answer is mathematically equal to the reference: 1/2 and 0.5, and formulas compared by math-verify. The answer
    is the whole text, or the part in ``\\boxed{}``, after ``####`` or after "the answer is" at its end, see
    docs/text_tasks.md. Only works in the main thread of a process.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    return bool(make_math_verifier()(answer, reference))


def _with_signs(formula: str) -> str:
    """
    :param formula: A reference
    :return: The reference with the delimiters without which only numbers would be found in it
    """
    has_signs = re.search(r"(?<!\\)(?:\$|\\boxed|\\[(\[])", formula)
    # Units would be read as products of letters
    if has_signs or re.fullmatch(r"[-+\d.,]+%?(?:\s+[A-Za-z]{4,})+\.?", formula):
        return formula
    # Convert Python's notation: 1e-05 and x**2
    formula = re.sub(r"^([-+]?[0-9.]+)[eE]([-+]?[0-9]+)$", r"\1 \\cdot 10^{\2}", formula)
    return f"${formula.replace('**', '^')}$"


def value_of(text: str, worked_out: bool = True) -> Fraction | None:
    """
    :param text: any text
    :param worked_out: whether a fraction must be in lowest terms: 84/2 may just repeat the question
    :return: the value of a decimal number, a percentage, a fraction, or a number times a power of ten; None for other texts
    """
    if match := _DECIMAL.fullmatch(text):
        return _signed(match["sign"], _decimal(match["number"])) / (100 if match["percent"] else 1)
    if match := _POWER_OF_TEN.fullmatch(_TEN.sub(r"\g<1>1*", text)):
        exponent = match["plain"] or match["braced"] or match["bare"]
        if len(exponent) <= 4 and abs(int(exponent)) <= _MAX_EXPONENT:
            return _signed(match["sign"], _decimal(match["number"])) * Fraction(10) ** int(exponent)
    if match := _FRACTION.fullmatch(text):
        above, below = (
            int(match[a] or match[b] or match[c]) for a, b, c in (("above", "inner", "one"), ("below", "under", "two"))
        )
        if below and not (match["sign"] and above < 0):
            value = Fraction(above, below)
            if not worked_out or value.denominator == below > 1:
                return _signed(match["sign"], value)
    return None


def _decimal(number: str) -> Fraction:
    return Fraction(re.sub(r"[^\d.]", "", number).rstrip("."))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def final_answer(text: str) -> str | None:
    """
    :param text: text written by an agent
    :return: its single final answer, without delimiters around it, None if there is none or more than one
    """
    text = text.strip().translate(_TRANSLATED).strip()
    if "\\boxed" in text or "\\fbox" in text:
        found = _boxed(text)
    elif "####" in text:
        found = text.rpartition("####")[2] if text.count("####") == 1 else None
    elif phrases := [*_PHRASE.finditer(text)]:
        found = _after_phrase(text, phrases)
    else:
        found = text
    if found is None or "\n" in found.strip() or len(found) > _MAX_LENGTH:
        return None
    return _bare(found)


def _boxed(text: str) -> str | None:
    contents, position = [], 0
    while match := re.compile(r"\\(?:boxed|fbox)\s*\{").search(text, position):
        depth, position = 1, match.end()
        while depth and position < len(text):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        if depth or _TAKEN_BACK.search(text[max(0, match.start() - 60) : match.start()].rstrip("$ \\([")):
            return None
        contents.append(text[match.end() : position - 1])
    if not contents or len(set(contents)) > 1 or not _AFTER_BOX.fullmatch(text[position:]):
        return None
    return contents[0]


def _after_phrase(text: str, phrases: list[re.Match[str]]) -> str | None:
    phrase = phrases[-1]
    before = re.split(r"[.!?]\s|\n", text[: phrase.start()])[-1]
    return text[phrase.end() :] if len(phrases) == 1 and _BEFORE_PHRASE.fullmatch(before) else None


def _bare(text: str) -> str:
    text = text.strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    for begin, end in _SIGNS:
        inside = text[len(begin) : -len(end)]
        if text.startswith(begin) and text.endswith(end) and inside and begin[-1] not in inside[:1] and "$" not in inside:
            text = inside.strip()
            break
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    match = _VARIABLE.match(text)
    return text[match.end() :].strip() if match else text


def _words(text: str) -> list[str]:
    """
    :param text: a formula or words
    :return: the words in it that are not commands, functions or products of two variables
    """
    plain = _FUNCTIONS.sub(" ", _COMMANDS.sub(" ", text))
    return re.findall(r"[^\W\d_]{3,}", plain)


def with_unit(text: str) -> tuple[str, str]:
    """
    :param text: a reference such as "72 apples", or an amount in dollars
    :return: the number and the unit after it (empty for dollars), or the whole reference and an empty unit
    """
    if money := re.fullmatch(rf"\\\$\s*([-+]?(?:{_NUMBER}))", text, re.ASCII):
        return money[1], ""
    match = re.fullmatch(rf"([-+]?(?:{_NUMBER}))\s+([A-Za-z][A-Za-z ]{{2,}}?)\.?", text, re.ASCII)
    return (match[1], match[2]) if match else (text, "")


def is_text(text: str) -> bool:
    """
    :param text: a reference
    :return: whether it consists of words, not a formula
    """
    return bool(_words(text)) or "\\text" in text


def same_text(answer: str, reference: str) -> bool:
    """
    :param answer: the agent's answer
    :param reference: the right answer
    :return: whether they are the same words
    """
    plain = [" ".join(re.sub(r"\\text\w*\s*\{([^{}]*)\}", r"\1", each).casefold().split()) for each in (answer, reference)]
    return plain[0] == plain[1]


def may_equal(answer: str, reference: str) -> bool:
    """
    :param answer: a final answer
    :param reference: a formula
    :return: whether the answer is a formula that may be compared with the reference: without letters or marks (plus-minus,
        a unit, a list, a relation) that the reference does not have
    """
    if not _FORMULA.fullmatch(answer) or _words(answer) or value_of(answer) is not None:
        return False
    if re.search(r"\^\s*\{?\s*[-+]?\d{4,}|\d{30,}|\^[^^]*\^[^^]*\^", answer) and answer != reference:
        return False
    if {*_MARKS.findall(answer)} - {*_MARKS.findall(reference)}:
        return False
    return _letters(answer) <= _letters(reference)


def _letters(text: str) -> set[str]:
    return {*re.findall(r"[A-Za-z]", _FUNCTIONS.sub(" ", _COMMANDS.sub(" ", text)))}
