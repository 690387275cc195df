"""
The verifiers "exact" and "math", and what counts as the answer to a math problem: a single number or formula, fully worked
out, and not retracted by anything else in the text. docs/text_tasks.md explains this in words.
"""

import re
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import cloudpickle

from sb3_grpo.envs.verifiers.markup import final_answer, plain

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# No exponents, as a model may also answer 1e999999999
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)
_MAX_EXPONENT = 400

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_DECIMAL = re.compile(rf"(?P<sign>[-+]?)\s*(?P<number>{_NUMBER})(?P<percent>\s*\\?%)?", re.ASCII)
_POWER_OF_TEN = re.compile(
    rf"(?P<sign>[-+]?)(?P<number>{_NUMBER})(?:[eE](?P<plain>[-+]?\d+)|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{(?P<braced>[-+]?\d+)\}}|(?P<bare>\d)))",
    re.ASCII,
)
_TEN = re.compile(r"^([-+]?)(?=10\s*\^)", re.ASCII)
_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?:(?P<n>\d+)\s+)?(?P<above>\d+)\s*/\s*(?P<below>\d+)|"
    r"(?P<whole>\d+)?\s*\\frac\s*(?:\{\s*(?P<inner>-?\d+)\s*\}\s*\{\s*(?P<under>\d+)\s*\}|(?P<one>\d)\s*(?P<two>\d)))",
    re.ASCII,
)
_VARIABLE = re.compile(r"(?P<name>[A-Za-z](?:\([A-Za-z]\))?)\s*=(?!=)\s*(?P<value>[^=<>]*)")
_MONEY = re.compile(r"(?<![^-+])\\?\$\s*(?=[\d.])")
_UNIT = re.compile(
    r"(?P<amount>.+?)(?:\s*\\text\s*\{\s*(?P<text>[^{}]*?)\s*\}|(?<=[\d}])\s+(?P<plain>[A-Za-z][A-Za-z ]{2,}))"
    r"(?P<power>\s*\^.*)?"
)
_DEGREES = re.compile(r"\s*\^\\circ$")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
# Without brackets and operators, and not 2xy
_TALK = re.compile(r"(?:\d[\d.:,]*+(?![^\W_])|[^\W\d_]|[\s.:,'])+")
_CHOICE = re.compile(r"[A-J]|\([A-J]\)")
# Marks that change the meaning of a formula are only allowed if the reference has them, too
_MARKS = re.compile(
    r"\\(?:pm|mp|approx|sim|simeq|ne|le|ge|in|notin|cup|cap|circ|text|lor|land|vee|wedge|to|mod|"
    r"equiv|ldots|dots|cdots|not|overline|bar|hat|lfloor|lceil|binom|log)(?![A-Za-z])|\\[{}%]|[=<>,:;_!?%|&@#~'\[\]]|\b(?:and|or)\b"
)
# latex2sympy leaves these out, therefore formulas with them are compared as texts
_NOT_READ = re.compile(
    r"'|\d\s*_|!!|[\d.]\s*\\(?:overline|bar)|\\(?:approx|sim|p?mod|equiv|l?dots|cdots|mid|circ)(?![A-Za-z])"
)
_COMMANDS = re.compile(r"\\(?:begin|end)\s*\{\w+\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|sqrt|log|ln|exp|pi|infty|frac|oo", re.ASCII)
_FORMULA = re.compile(r"[0-9A-Za-z\s.\\+*/^_=<>(){}\[\],;!%|&':-]+", re.ASCII)


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
        from sb3_grpo.envs.verifiers.formulas import equal_formulas
    except ImportError as error:
        raise ImportError('Comparing mathematics needs latex2sympy2_extended: pip install "sb3-grpo[text]"') from error

    # Unpickling this function imports sympy, before the time limit of the first answer begins
    def verify_math(answer: str, reference: str) -> float:
        # Solutions of GSM8K end with #### and the answer
        right = reference.rpartition("####")[2].strip()
        expected = final_answer(right) or plain(right)
        if not re.search(r"\w", expected):
            raise ValueError(
                f"the verifier math finds nothing in the reference {reference!r:.200}. Write a number or a formula, or take "
                "verifier='exact'"
            )
        found = final_answer(answer)
        if answer.strip() == right:
            return 1.0
        if found is None:
            return 0.0
        if is_words(expected, has_signs=bool(re.search(r"\$|\\[(\[]", right))):
            return float(_words_of(found) == _words_of(expected))
        found, expected = _without_variables(*_without_units(found, expected))
        value = value_of(found)
        if (number := value_of(expected, worked_out=False)) is not None:
            return float(value == number)
        if "".join(found.split()) == "".join(expected.split()):
            return 1.0
        if _NOT_READ.search(expected) or (value is None and not may_equal(found, expected)):
            return 0.0
        return float(equal_formulas(found if value is None else value, expected))

    return verify_math


def math_equivalent(answer: str, reference: str) -> bool:
    """
    Whether an answer is mathematically equal to the reference: 1/2 and 0.5, and formulas compared by sympy. The answer is the
    whole text, or the part in ``\\boxed{}``, after ``####`` or after "the answer is" at its end, see docs/text_tasks.md. Only
    works in the main thread of a process. Raises a ``TimeoutError`` if equality was neither proved nor disproved.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    return bool(make_math_verifier()(answer, reference))


def value_of(text: str, worked_out: bool = True) -> Fraction | None:
    """
    :param text: any text
    :param worked_out: whether a fraction must be in lowest terms: 84/2 may just repeat the question
    :return: the value of a decimal number, a percentage, a fraction, a mixed number, or a number times a power of ten; None
        for other texts
    """
    if match := _DECIMAL.fullmatch(text):
        return _signed(match["sign"], _decimal(match["number"])) / (100 if match["percent"] else 1)
    if match := _POWER_OF_TEN.fullmatch(_TEN.sub(r"\g<1>1*", text)):
        exponent = match["plain"] or match["braced"] or match["bare"]
        if len(exponent) <= 4 and abs(int(exponent)) <= _MAX_EXPONENT:
            return _signed(match["sign"], _decimal(match["number"])) * Fraction(10) ** int(exponent)
    if match := _FRACTION.fullmatch(text):
        whole = match["n"] or match["whole"]
        above, below = (
            int(match["above"] or match["inner"] or match["one"]),
            int(match["below"] or match["under"] or match["two"]),
        )
        if below and not ((match["sign"] or whole) and above < 0) and not (whole and above >= below):
            value = Fraction(above, below)
            if not worked_out or value.denominator == below > 1:
                return _signed(match["sign"], value + int(whole or 0))
    return None


def _decimal(number: str) -> Fraction:
    return Fraction(number.replace(",", "").rstrip("."))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def is_words(text: str, has_signs: bool) -> bool:
    """
    :param text: a reference
    :param has_signs: whether there were dollar signs or the like around it
    :return: whether it consists of words, not of a formula or a number with a unit
    """
    unit = _UNIT.fullmatch(text)
    if unit and not _letters(unit["amount"]):
        return False
    if not has_signs and (_CHOICE.fullmatch(text) or (_TALK.fullmatch(text) and _words(text, 2))):
        return True
    return bool(_words(text)) or "\\text" in text


def _words_of(text: str) -> str:
    """
    :param text: an answer
    :return: the same for the same words: B, b and (B)
    """
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", _TEXT.sub(r"\1", text).strip())
    return " ".join(re.sub(r"(?<=\d)\s+(?=[A-Za-z])", "", text).casefold().split())


def _words(text: str, n_letters: int = 3) -> list[str]:
    """
    :param text: a formula or words
    :param n_letters: the least number of letters of a word
    :return: the words in it that are not commands, functions or products of two variables
    """
    found = re.findall(r"[^\W\d_]+", _FUNCTIONS.sub(" ", _COMMANDS.sub(" ", text)))
    return [word for word in found if len(word) >= n_letters and word not in ("and", "or")]


def _letters(text: str) -> set[str]:
    return {*re.findall(r"[A-Za-z]", _FUNCTIONS.sub(" ", _COMMANDS.sub(" ", re.sub(r"\b(?:and|or)\b", " ", text))))}


def _without_units(answer: str, reference: str) -> tuple[str, str]:
    """
    :param answer: a final answer
    :param reference: the right answer
    :return: both without the unit of the reference, which the answer may have, or must have in the case of degrees
    """
    if _DEGREES.search(reference) and _DEGREES.search(answer):
        return _DEGREES.sub("", answer), _DEGREES.sub("", reference)
    if _MONEY.search(reference):
        return _MONEY.sub("", answer), _MONEY.sub("", reference)
    match = _UNIT.fullmatch(reference)
    if not match or _letters(match["amount"]):
        return answer, reference
    amount, unit = match["amount"], _joined((match["text"] or match["plain"]) + (match["power"] or ""))
    if unit == "dollars":
        answer = _MONEY.sub("", answer)
    words = _TEXT.sub(r"\1", answer)
    ends = (start for start in range(len(words)) if _joined(words[start:]) == unit)
    return words[: next(ends, None)].strip(), amount


def _joined(text: str) -> str:
    return re.sub(r"[\s{}]", "", text).casefold()


def _without_variables(answer: str, reference: str) -> tuple[str, str]:
    """
    :param answer: a final answer
    :param reference: the right answer
    :return: what both say of a variable, x = 5 as 5; nothing is left out if they name different ones, or are equations
    """
    named = [_VARIABLE.fullmatch(text) for text in (answer, reference)]
    found, right = (match["value"] if match else text for match, text in zip(named, (answer, reference), strict=True))
    if "=" in answer and "=" in reference:
        same_name = all(named) and named[0]["name"] == named[1]["name"]  # type: ignore[index]
        return (found, right) if same_name and value_of(right, worked_out=False) is not None else (answer, reference)
    return found, right


def may_equal(answer: str, reference: str) -> bool:
    """
    :param answer: a final answer
    :param reference: a formula
    :return: whether the answer is a formula that may be compared with the reference: without letters or marks (plus-minus,
        a unit, a list, a relation) that the reference does not have
    """
    if not _FORMULA.fullmatch(answer) or _words(answer) or _NOT_READ.search(answer):
        return False
    return _marks(answer) <= _marks(reference) and _letters(answer) <= _letters(reference)


def _marks(text: str) -> set[str]:
    # x > 2 may be written as 2 < x
    return {*_MARKS.findall(text.replace(">", "<").replace("\\ge", "\\le"))}
