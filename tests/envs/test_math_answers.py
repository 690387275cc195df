"""The verifier "math": one answer, worked out, and nothing else that takes it back."""

import json
from contextlib import closing

import pytest

pytest.importorskip("math_verify")

from benchmarks.common import RESULTS
from benchmarks.fuzz_answers import hostile_answers
from sb3_grpo.envs.verifiers.math_answers import make_math_verifier
from sb3_grpo.envs.verifiers.runner import Check, VerifierRunner

# Of each reference, what is right and what is not
RIGHT = {
    "42": (
        *(
            "42",
            " 42 ",
            "42.",
            "42.0",
            "+42",
            "042",
            "$42$",
            "$$42$$",
            r"\(42\)",
            r"\[42\]",
            "**42**",
            r"\boxed{42}",
            r"$\boxed{42}$.",
        ),
        *("The answer is 42.", "So the final answer is: $42$.", "Answer: 42", r"6 times 7, hence \boxed{42}.", "6*7\n#### 42"),
        *("4.2e1", r"4.2 \times 10^1", "x = 42", r"First \boxed{42}, again \boxed{42}"),
    ),
    "0.5": (
        "1/2",
        "0.50",
        ".5",
        r"\frac{1}{2}",
        r"$\frac12$",
        r"\dfrac{1}{2}",
        "50%",
        r"50\%",
        "5e-1",
        r"The answer is $\frac{1}{2}$.",
    ),
    "-3/4": ("-3/4", "-0.75", r"-\frac{3}{4}", r"\frac{-3}{4}", "\u22123/4", r"\boxed{-\frac34}", "-75%"),
    "2/4": ("1/2", "0.5"),
    "1234567.5": ("1,234,567.5", "1{,}234{,}567.5", "1234567.50"),
    r"$2\pi+6$": (r"2\pi+6", r"$6+2\pi$", r"\boxed{2\pi + 6}", "2π+6", r"The answer is $6 + 2\pi$."),
    r"\frac{\sqrt{3}}{2}": (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2", r"\boxed{\frac{\sqrt3}{2}}"),
    r"\{1,2\}": (r"\{1,2\}", r"\{2,1\}", r"$\{1, 2\}$"),
    "[0,1)": ("[0,1)", "$[0, 1)$"),
    "x**2+2*x+1": ("x^2+2*x+1", "(x+1)**2"),
    "So 7 each.\n#### 72": ("72", "She has 72.\n#### 72", "72.0"),
    "72 apples": ("72", "72 apples", "The answer is 72 apples."),
    r"90^\circ": (r"90^\circ", r"$90^\circ$"),
    "Paris": ("Paris", "paris", r"\text{Paris}", "The answer is Paris.", r"\boxed{Paris}"),
    "A": ("A", r"\boxed{A}", "The answer is A."),
    "5 cm": ("5 cm", "5cm"),
    "x + m": ("x + m", "m + x"),
}
WRONG = {
    "42": (
        *(
            "",
            "not 42",
            "41 or 42",
            "42 or 41",
            "either 42",
            "42%",
            r"42\%",
            "42j",
            "42i",
            "$42_{7}$",
            "42!",
            "~42",
            r"$\pm 42$",
            "±42",
            "<42",
        ),
        *(
            "$x<42$",
            ">=42",
            r"$\approx 42$",
            "about 42",
            "42?",
            "4 2",
            "42 41",
            "41, 42",
            "42,43",
            "42;41",
            "[42]",
            r"\{42\}",
            r"\{41,42\}",
        ),
        *(
            "41=42",
            "42=41",
            "0x2A",
            "forty-two",
            "٤٢",
            "\uff14\uff12",
            "42\n41",
            "41\n42",
            "21*2",
            r"$21\cdot 2$",
            "-(-42)",
            "84/2",
            "42/1",
            "1e1+32",
        ),
        *(
            r"\sqrt{1764}",
            "42.00000001",
            "-42",
            "42°",
            "42 apples",
            "$42",
            "42 or so",
            "I do not know, 42",
            "It might be 42",
            "42 is wrong",
        ),
        *(
            "The answer is not 42",
            "I doubt that the answer is 42",
            "The answer is 41. The answer is 42",
            "The answer is 42 or 41",
        ),
        *(
            r"\boxed{41}\boxed{42}",
            r"\boxed{42} or 41",
            r"It is not \boxed{42}",
            r"$\neq \boxed{42}$",
            r"-\boxed{42}",
            r"\boxed{42}!",
            r"\boxed{42",
        ),
        *(
            r"\boxed{\boxed{42} or 41}",
            "#### 41\n#### 42",
            "#### 42 or 41",
            "42" * 400,
            "nan",
            "inf",
            "1e999999999",
            "10^{99999999}",
            "42..",
            "4_2",
        ),
    ),
    "0.5": (
        *(
            "1/3",
            "2/4",
            "50",
            "0.5%",
            "5/10",
            "1/2/1",
            "1:2",
            "1/2 or 1/3",
            "not 1/2",
            r"\frac{1}{2}{3}",
            r"\frac{2}{4}",
            r"1-\frac12",
            "0,5",
        ),
        *(
            "half",
            "1/2 apples",
            r"\pm\frac{1}{2}",
            "1/2!",
            "-1/2",
            "[1/2]",
            "1/2j",
            "0.5000001",
            "5e-1e0",
            "1 / 2 / 1",
            "1/-2",
        ),
        *(
            r"\frac{1}{0}",
            "0/0",
            "1//2",
            "0.5 0.5",
            "0.4 < x < 0.6",
            "(0,1)",
            "1/2 = 0.4",
            "0.5 or 0.4",
            r"\frac{1}{2} \lor \frac13",
        ),
    ),
    "-3/4": ("3/4", "--3/4", r"-\frac{-3}{4}", "-(3/4)!", "-6/8", "±3/4", "|3/4|", "-3/4 or 3/4"),
    r"$2\pi+6$": (
        *(
            "12.2831853",
            "12.28",
            r"2\pi\pm6",
            r"2\pi",
            r"2\pi+6 or 7",
            r"2\pi+6+x-x",
            r"2\pi+6\text{ maybe}",
            r"\approx 2\pi+6",
            r"2\pi+6=7",
        ),
        *(
            r"\{2\pi+6, 1\}",
            r"2\pi+6, 7",
            r"(2\pi+6)!",
            r"2\pi+6 \neq 7",
            r"not $2\pi+6$",
            r"2\pi+6\%",
            "2pi plus 6",
            r"[2\pi, 6]",
        ),
    ),
    r"\frac{\sqrt{3}}{2}": (
        r"\pm\frac{\sqrt{3}}{2}",
        "0.8660254",
        r"\frac{\sqrt{3}}{2}i",
        r"\frac{\sqrt{2}}{2}",
        r"\frac{\sqrt{3}}{2}^\circ",
    ),
    r"\{1,2\}": ("1", r"\{1,2,3\}", r"\{1\}", r"\{1,2\} or \{3\}", r"\{1,2\}\cup\{3\}"),
    "[0,1)": ("[0,1]", "(0,1)", "[0,1) or [0,1]", "0", "[0,2)"),
    "72 apples": ("72 pears", "71 apples", "72 apples or pears", "apples", "72%", "not 72 apples"),
    r"90^\circ": ("90", r"91^\circ", r"90^\circ\pm1", "90%"),
    "Paris": ("Pairs", "Paris or London", "not Paris", "Paris, London", "aPris", "", "P a r i s", "Par", "Paris?"),
    "A": ("B", "A or B", "not A", "AB", "A, B", r"\{A,B\}", "A?"),
    # math-verify would take last letters for units, and leave them out
    "5 cm": ("5 m", "5 c", r"\boxed{5 m}"),
    "x + m": ("x", "x + "),
    r"2\pi m": (r"2\pi",),
}
CASES = [(answer, reference, 1.0) for reference, answers in RIGHT.items() for answer in answers]
CASES += [(answer, reference, 0.0) for reference, answers in WRONG.items() for answer in answers]


@pytest.mark.parametrize(("answer", "reference", "score"), CASES)
def test_what_is_accepted(answer: str, reference: str, score: float) -> None:
    verify = make_math_verifier()
    # math-verify has a second for a formula, which a busy machine may not give it
    assert any(verify(answer, reference) == score for _ in range(3 if score else 1))


def test_there_are_as_many_as_promised() -> None:
    n_of_42 = len(RIGHT["42"]) + len(WRONG["42"])
    assert n_of_42 >= 56 and len(CASES) - n_of_42 >= 112


def test_in_the_process_of_the_verifier() -> None:
    runner = VerifierRunner(make_math_verifier(), trusted=False, time_limit=5.0)
    verdicts = runner.score([Check(answer, "42", "6*7=") for answer in ("42", "41 or 42", r"\boxed{42}")])
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 1.0] and not any(verdict.error for verdict in verdicts)
    runner.close()


@pytest.mark.parametrize("blanks", [" ", "\n", ". ", "$"])
def test_a_page_of_blanks_does_not_end_a_training(blanks: str) -> None:
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=5.0)) as runner:
        answer = r"\boxed{42}" + blanks * 50_000
        verdicts = runner.score([Check(each, "42", "6*7=?") for each in (answer, answer + "or so")])
    assert verdicts == [(1.0, None), (0.0, None)]


def test_hostile_answers() -> None:
    verify = make_math_verifier()
    for answer, reference, right in hostile_answers(300, seed=1):
        assert verify(answer, reference) == right, (answer, reference)


def test_the_committed_results() -> None:
    result = json.loads((RESULTS / "trust" / "answers.json").read_text())
    assert result["n"] >= 5000 and result["as_promised"] == result["n"]
