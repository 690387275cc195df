"""
The verifiers "exact" and "math", and whether two answers to a mathematical problem are the same. docs/text_tasks.md explains
this in words.
"""

import re
import sys
import unicodedata
from collections.abc import Callable
from decimal import Decimal

import cloudpickle

# The process that runs verifiers does not import this package: it is sent the functions below
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# With at most three digits in an exponent, as a model may also answer 1e999999999
_DECIMAL = re.compile(r"(?a)[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*(?:[eE][-+]?\d{1,3})?|\.\d+)")


def is_equivalent(answer: str, reference: str) -> bool:
    """
    Whether two texts are equal up to surrounding white space, or are the same decimal number: 7 and 07.0, 1,000 and 1e3.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    # Full-width digits, and the minus sign of typesetting
    answer, reference = (unicodedata.normalize("NFKC", text.strip()).replace("\u2212", "-") for text in (answer, reference))
    numbers = [Decimal(text.replace(",", "")) for text in (answer, reference) if _DECIMAL.fullmatch(text)]
    return answer == reference or (len(numbers) == 2 and numbers[0] == numbers[1])


def make_math_verifier() -> Callable[[str, str], bool]:
    """
    :return: :func:`math_equivalent` as a function that runs in a process without this package
    """
    try:
        from sb3_grpo.envs.verifiers import formulas, markup
    except ImportError as error:
        raise ImportError('Comparing mathematics needs latex2sympy2_extended: pip install "sb3-grpo[text]"') from error
    for module in (formulas, markup):
        cloudpickle.register_pickle_by_value(module)
    # Unpickling this function imports sympy, before the time limit of the first answer begins
    return formulas.verify_math


def math_equivalent(answer: str, reference: str) -> bool:
    """
    Whether an answer is mathematically equal to the reference: 1/2 and 0.5, and formulas compared by sympy. The answer is the
    whole text, or what the text states to be its answer in the end, see docs/text_tasks.md. Raises an
    ``ArithmeticError`` if equality was neither proved nor disproved.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    return make_math_verifier()(answer, reference)
