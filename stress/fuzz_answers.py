"""
Answers that try to be accepted as right by the verifier "math": hedges, lists, relations, units, look-alikes, and plain noise
around a right or a wrong answer. Whether an answer is right is known from how it is built.

    python -m stress.fuzz_answers --answers 5000
"""

import random
import time
from collections.abc import Iterator
from fractions import Fraction

from sb3_grpo.envs.verifiers.math_answers import make_math_verifier
from stress.common import Tally, parse

# Around the right answer: it stays right
ACCEPTED = (
    *("{}", " {}\n", "{}.", "${}$", "$${}$$", r"\({}\)", r"\[{}\]", "**{}**", r"\boxed{{{}}}", r"Thus $\boxed{{{}}}$."),
    *("The answer is {}.", "The final answer is: ${}$.", "Answer: {}", "Some reasoning, 1 + 1 = 2.\n#### {}", "x = {}"),
    *("First this, then that.\nSo the answer is {}.", "**Answer: {}**", "**Final Answer:** {}", "**Answer:** **{}**"),
    *("*Answer*: `{}`", r"\text{{{}}}", r"$\boxed{{\mathbf{{{}}}}}$"),
)
# Around a right answer: no longer an answer. {1} is a wrong one
TAKEN_BACK = (
    *("not {}", "{} or {1}", "{1} or {}", "either {} or {1}", "{}, {1}", "{1}, {}", "{}; {1}", "{}\n{1}", "{1}\n{}"),
    *("{} {1}", "maybe {}", "{}?", "{}!", "~{}", r"\pm {}", r"$\pm{}$", "±{}", "<{}", ">= {}", r"\approx {}", "about {}"),
    *("{}j", "{}_{{7}}", "[{}]", r"\{{{}\}}", r"\{{{},{1}\}}", "{} apples", "{} million", "{} = {1}", "{1} = {}", "{} != {1}"),
    *(r"{} \neq {1}", r"\boxed{{{1}}}\boxed{{{}}}", r"\boxed{{{}}} or {1}", r"not \boxed{{{}}}"),
    *(r"It is never $\boxed{{{}}}$", r"\boxed{{{}", r"\boxed{{{} or {1}}}", "#### {}\n#### {1}", "#### {} or {1}"),
    *("The answer is not {}", "The answer is {}. The answer is {1}.", "I doubt that the answer is {}"),
    *("The answer is {} or {1}", "I do not know, {}", "{} is wrong", "it is wrong to say {}", "({}) or ({1})"),
    *(r"{} \lor {1}", r"{} \cup {1}", "{}, or rather {1}", "{}..{1}", "{} - {1} + {1}", "{} + 0*x", "0 + {}", "1*{}"),
    *("import os; {}", "__import__('os') or {}", "{} #", "'{}'", "f({})"),
    *("print({})", "[{}][0]", "{} if True else {1}", "\u202e{}", "{}\x00", "{}e0e0"),
    *("0x{}"),
)
NOISE = "0123456789+-*/^_=<>(){}[]$\\,.;:!?%&|#~'\" abcxyzijnotorπ\u00d7\u2212\n\t"
HARD = (
    *("9^{9^{9^{9}}}", r"\sqrt{" * 60 + "2" + "}" * 60, "(" * 400 + "1" + ")" * 400, "1" * 400, "1e999999999"),
    *("10^{999999999}", "9**9**9**9", r"\int_0^1 \sin(x^x) dx", r"\sum_{n=1}^{\infty} \frac{1}{n^{n^n}}", "100000!"),
    *(r"\frac{" * 100, "$" * 500, "\\" * 500, r"\boxed{" * 200, "", "{" * 300, "x" * 500, "nan", "inf", "-inf", "1/0"),
    *("0/0", r"\frac{0}{0}", "None", "True", "\ud7ff" * 50, "=" * 300, "a_{" * 100),
)


def _power(rng: random.Random, exponent: int) -> str:
    """
    :param rng: to draw from
    :param exponent: a number
    :return: one way to write 2 to the power of minus this number
    """
    return rng.choice(("2^{-%d}", r"\frac{1}{2^{%d}}", r"1/2^{%d}")) % exponent


def _written(rng: random.Random, value: Fraction) -> str:
    """
    :param rng: to draw from
    :param value: a number
    :return: one way to write it that needs no further calculation
    """
    ways = [str(value)]
    if value.denominator == 1:
        ways += [f"{value}.0"]
        if value >= 1000:
            ways += [f"{value.numerator:,}"]
    else:
        sign = "-" if value < 0 else ""
        ways += [rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"]
        if value.denominator in (2, 4, 5, 8, 10, 20):
            ways += [f"{float(value)}", f"{float(value * 100):g}%"]
    return rng.choice(ways)


def hostile_answers(n: int, seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """
    :param n: how many
    :param seed: random seed
    :return: answers, references, and their scores
    """
    rng = random.Random(seed)
    for _ in range(n):
        # Not 0 or 1, so that noise is hardly ever right
        right = Fraction(rng.choice((1, -1)) * rng.randint(2, 5000), rng.choice((1, 1, 1, 2, 3, 4, 5, 7, 8, 12, 20)))
        wrong = right + Fraction(rng.choice((-1, 1)) * rng.randint(1, 9), rng.choice((1, 2, 3)))
        reference = str(right)
        written, other = _written(rng, right), _written(rng, wrong)
        kinds = ("accepted", "wrong", "taken back", "noise", "hard", "tiny")
        kind = rng.choices(kinds, (15, 15, 45, 15, 5, 5))[0]
        if kind == "accepted":
            yield rng.choice(ACCEPTED).format(written), reference, 1.0
        elif kind == "wrong":
            yield rng.choice(ACCEPTED).format(other), reference, 0.0
        elif kind == "taken back":
            template = rng.choice(TAKEN_BACK)
            if "%" in written or (template in ("{}j", "0x{}", "{}e0e0") and "\\" in written):
                written = str(right)
            yield (
                template.replace("{}", "\0")
                .replace("{1}", other)
                .replace("\0", written)
                .replace("{{", "{")
                .replace("}}", "}"),
                reference,
                0.0,
            )
        elif kind == "noise":
            length = rng.randint(1, 30)
            text = "".join(rng.choice(NOISE) for _ in range(length))
            yield f"{text[: length // 2]}{rng.choice((written, other))}{text[length // 2 :]}?", reference, 0.0
        elif kind == "hard":
            yield rng.choice(HARD), rng.choice((reference, r"\frac{1}{2^{99}}")), 0.0
        else:
            exponent, written_exponent = rng.choice(((99, 99), (99, 98), (350, 350), (350, 351)))
            yield _power(rng, written_exponent), _power(rng, exponent), float(written_exponent == exponent)


def main() -> None:
    """Score the answers, and save the results."""
    n_answers, seed = parse(__doc__, "--answers", 5000)
    verify, tally, slowest = make_math_verifier(), Tally(), 0.0
    for answer, reference, right in hostile_answers(n_answers, seed):
        begin = time.perf_counter()
        try:
            score = verify(answer, reference)
            outcome = "right" if score == right else f"score {score:g}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        slowest = max(slowest, time.perf_counter() - begin)
        tally.add(f"worth {right:g}", outcome, answer=answer[:200], reference=reference)
    tally.write(
        "answers",
        'generated answers to the verifier "math"',
        "1 for the right value, 0 for everything else",
        slowest_seconds=round(slowest, 2),
    )


if __name__ == "__main__":
    main()
