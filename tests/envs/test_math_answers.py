"""The verifier "math": one answer, worked out, and nothing else that takes it back."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from benchmarks.common import RESULTS
from sb3_grpo.envs.verifiers.math_answers import make_math_verifier
from sb3_grpo.envs.verifiers.runner import Check, VerifierRunner
from stress.fuzz_answers import hostile_answers

PAGE = Path(__file__).resolve().parents[2] / "docs/text_tasks.md"

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
    # Markup, wherever it stands
    "73": (
        *(
            "**Answer: 73**",
            "**Final Answer:** 73",
            "**Answer:** **73**",
            "**Answer**: 73",
            "*Answer:* *73*",
            "__Answer:__ 73",
        ),
        *("**The answer is 73.**", "The answer is **73**.", "### Final Answer\n73", "- **Answer:** `73`", "**73**.", "*73*"),
        *("`73`", "```\n73\n```", r"\text{73}", r"\boxed{\text{73}}", r"\mathbf{73}", r"\textbf{Answer: 73}"),
        *(r"\text{The answer is } 73", r"$\textbf{Answer:}\ 73$", r"$\displaystyle 73$", "$$\n73\n$$", r"\[ \boxed{73}. \]"),
        *(r"\boxed{\boxed{73}}", r"\boxed{\text{The answer is 73.}}", "73,", "73;", r"**Answer:** $\boxed{73}$", "`$73$`"),
        r"6 + 67, so **\boxed{73}**.",
    ),
    # Words, whatever their length and case
    "No": ("no", "No.", "NO", r"\text{no}", "**No**", r"\boxed{\text{No}}", "Answer: no"),
    "no": ("No.", "no"),
    "Yes": ("yes", "**Yes.**"),
    "US": ("us", "US", r"\text{US}"),
    "10:30 AM": ("10:30 am", "10:30 AM."),
    "I am": ("i am",),
    "f(x)=x^2": ("x^2", r"f(x)=x \cdot x"),
    "2xy": ("2yx", "2xy", "xy*2"),
    "New York": ("new  york", r"\text{New York}"),
    "B": ("b", "(B)", r"\text{B}", r"\boxed{\text{B}}", r"\text{(B)}", r"\mathrm{B}", "**B**", "$B$"),
    r"\text{(C)}": ("C", "(C)", r"\text{C}", "c"),
    "xy": ("xy", r"$xy$"),
    "$xy$": ("yx", r"x \cdot y", "x*y"),
    "x": ("x", "$x$", r"\mathbf{x}"),
    "X": ("X",),
    # Numbers
    "1000": ("1,000", r"1\,000", "1{,}000", r"1,\!000", r"1\ 000", "10^3", r"10^{3}", r"1 \times 10^3"),
    "0.25": (r"\cfrac{1}{4}", r"\tfrac14", "25 percent", r"25\text{%}", "25 %"),
    "5/2": (r"2\frac{1}{2}", "2 1/2", "2.5", r"2 \frac12", "5/2"),
    "50%": ("0.5", r"50\%", "1/2", "50 percent"),
    "1e-30": ("10^{-30}", r"1 \times 10^{-30}"),
    # Powers and roots
    r"\frac{1}{2^{99}}": ("2^{-99}", r"1/2^{99}", r"\left(\frac12\right)^{99}", "2**-99", r"4 \cdot 2^{-101}"),
    "2^{10}": ("1024", "1,024", r"4^5", r"2^{5} \times 2^{5}"),
    r"\sqrt{8}": (r"2\sqrt{2}", r"2\sqrt2", "2√2", "8^{1/2}", "sqrt(8)", r"\sqrt(8)", r"\sqrt 8"),
    r"\sqrt{2}+\sqrt{3}": (r"\sqrt{3}+\sqrt{2}", r"\sqrt{5+2\sqrt{6}}"),
    r"\frac{1}{20!}": (r"\frac{21}{21!}",),
    r"e^{-50}": (r"\frac{1}{e^{50}}", r"\exp(-50)"),
    r"\frac{\pi}{4}": (r"\pi/4", "pi/4", r"\dfrac{\pi}{4}", r"0.25\pi", r"\arctan 1"),
    r"\ln 6": (r"\ln 2 + \ln 3", "ln(6)"),
    r"\frac{1-i}{2}": (r"\frac{1}{1+i}",),
    # Terms with letters
    "x^2+2x+1": ("(x+1)^2", "x² + 2x + 1", "1+2x+x^2"),
    "x^4+x^3+x^2": ("x^2+x^3+x^4", "x^2(x^2+x+1)"),
    "x^{2024}": (r"x^{2023} \cdot x",),
    "0.5x": (r"\frac{x}{2}", "x/2"),
    "0.3x": ("0.1x+0.2x", "3x/10"),
    r"1-\cos^2 x": (r"\sin^2 x",),
    "f(x)+1": ("1+f(x)",),
    # Tuples, sets, intervals, relations, matrices
    "(3,5)": ("(3, 5)", "(3,5.0)", r"\left(3, \frac{10}{2}\right)"),
    r"\{2^{-99},1\}": (r"\{1,\frac{1}{2^{99}}\}",),
    "1, \\sqrt{2}": (r"\sqrt{2}, 1", r"1,\sqrt2"),
    r"[0,2^{-99})": (r"[0,\frac{1}{2^{99}})",),
    r"(-\infty,0)\cup(1,\infty)": (r"(1,\infty)\cup(-\infty,0)", "(-∞,0) \u222a (1,∞)"),
    r"\emptyset": (r"\varnothing", "∅"),
    "x<2": ("2>x", "2x<4", "-x>-2"),
    r"x \geq 2": (r"x\ge 2", "x >= 2", "x ≥ 2", r"2 \leq x"),
    r"1<x\leq 3": (r"1 < x \le 3", r"3 \ge x > 1"),
    r"x\neq 3": (r"x \ne 3", "x≠3"),
    "y=2x+3": ("2x-y+3=0", "y = 3+2x", "2y=4x+6", "2x+3", "3+2x=y"),
    r"x=1 \text{ or } x=2": ("x=2 or x=1",),
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": (r"\begin{pmatrix} 1 & 2 \\ 3 & \frac{8}{2} \end{pmatrix}",),
    # Units
    r"5\text{ cm}": ("5", "5 cm", "5cm", r"5\,\mathrm{cm}", r"5.0 \text{ cm}", r"\boxed{5\text{ cm}}"),
    r"9\pi\text{ cm}^2": (r"9\pi", r"9\pi \text{ cm}^2", r"9\pi\,\mathrm{cm}^{2}"),
    r"\$18": ("18", r"\$18", "$18", "18.00", r"\$18.00"),
    "60^\\circ": ("60°", r"60^{\circ}", r"60\degree", "60.0°"),
    "18": (
        r"\therefore \boxed{18}",
        "It is 18.\n\\boxed{18}",
        r"\text{Answer: }\boxed{18}",
    ),
    "x=5": ("5", "x = 5"),
    # Not read by sympy, and therefore compared as texts
    "101_2": ("101_2", "$101_2$"),
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
    # The last letters are no units that could be left out
    "5 cm": ("5 m", "5 c", r"\boxed{5 m}"),
    "x + m": ("x", "x + "),
    r"2\pi m": (r"2\pi",),
    "73": (
        *(
            "**Answer: 74**",
            "**Final Answer:** 74",
            "**Answer:** **74**",
            r"\text{74}",
            r"\boxed{\text{74}}",
            "**73** or **74**",
        ),
        *("*not* 73", "**Answer:** not 73", "**Answer:** 73 or 74", "**73", "73**2", r"\text{not }73", "$73$ or $74$"),
        *(r"\text{73?}", "**Wrong answer:** 73", "_73", "73**", "**Answer: 73** or 74", "The answer is **not** 73"),
    ),
    "No": ("yes", "on", "not", "N", "no or yes", "No, yes", "No?"),
    "Yes": ("no", "Yes or no", "y"),
    "US": ("UK", "su", "U"),
    "10:30 AM": ("10:30 pm", "10:30"),
    "f(x)=x^2": ("f(x)=x^3", "f(x)"),
    "2xy": ("2XY", "xy"),
    "New York": ("york", "New", "newyork or Boston"),
    "B": ("A", r"\text{A}", "(A)", "A or B", "B, C", "8", "BB", "not B"),
    r"\text{(C)}": ("(B)", r"\text{B}", "B or C"),
    "x": ("X", "y", "2x", r"\mathbf{X}"),
    "X": ("x",),
    "x+1": ("X+1",),
    "X+2x": ("x+2X",),
    "$xy$": ("XY", "x+y", "xyz"),
    "1000": ("1,00", "1.000", "10^4", "1,000,0", "999.9999999999"),
    "5/2": (r"2\frac{2}{4}", "2 1/3", r"2\frac{3}{2}", "25"),
    "50%": ("50", "0.5%", "5"),
    "1e-30": ("1e-31", "0", "10^{-29}"),
    # Different by less than any tolerance
    r"\frac{1}{2^{99}}": (
        r"\frac{1}{2^{98}}",
        "0*1",
        "0",
        "-2^{-99}",
        "2^{-99}+2^{-200}",
        "1.6e-30",
        "9^9^9^9",
        "(" * 60 + "1" + ")" * 60,
    ),
    "1+2^{-99}": ("1+2^{-98}", "1", "1.0"),
    "2^{10}": ("1023", "1024.0000000001", "2^{11}", "9^{9^{9^9}}", "2^{2^{2^{2^{2^2}}}}"),
    r"\sqrt{2}+\sqrt{3}": ("3.146264369941972", r"\sqrt{5+2\sqrt{6}}+10^{-60}", r"\sqrt{5}"),
    r"\frac{1}{20!}": (r"\frac{1}{21!}", "0!-1", "100000!", "((9!)!)!"),
    "e^{-50}": ("e^{-60}", "0", "e^{50}", "e^{9^{9^{9}}}"),
    r"\sin(10^{-30})": (r"\sin(10^{-31})", "10^{-30}", "0"),
    r"\frac{\pi}{4}": ("0.7853981633974483", r"\frac{\pi}{3}"),
    r"\sqrt{2}": ("1.41421356237", "2^{1/3}"),
    "x^2+2x+1": ("x^2+2x+1+10^{-99}", "x^2+2x", "(x-1)^2"),
    "0.3x": ("0.3x+10^{-30}x", "0.2x"),
    "f(x)+1": ("f(x)-1",),
    "(3,5)": ("(5,3)", "[3,5]", "3,5", "(3,5+2^{-99})"),
    r"\{2^{-99},1\}": (r"\{2^{-98},1\}", r"\{2^{-99},1,2\}", "1"),
    r"[0,2^{-99})": (r"[0,2^{-98})", r"[0,2^{-99}]", "0"),
    r"(-\infty,0)\cup(1,\infty)": (r"(-\infty,0)\cup(2,\infty)", r"(-\infty,0)", r"(-\infty,\infty)"),
    "x<2": ("x>2", "x=2", "x<2+2^{-99}", "-x<-2", "y<2", "2"),
    "x^2+1=0": ("x^2+2=0", "1=0", "x=1"),
    r"1<x\leq 3": (r"1<x<3", r"1\le x\le 3", "x<3"),
    "y=2x+3": ("y=2x+4", "x=2y+3", "2x", r"y=2x+3+10^{-50}"),
    r"x=1 \text{ or } x=2": ("x=1", "x=1 or x=3", "x=1 and x=2"),
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": (r"\begin{pmatrix}1&2\\4&3\end{pmatrix}",),
    r"5\text{ cm}": ("5 m", r"6\text{ cm}", "5 cm or 6 cm", r"5\text{ cm}^2", "cm"),
    r"9\pi\text{ cm}^2": (r"9\text{ cm}^2", r"8\pi", r"9\pi\text{ cm}^3"),
    r"\$18": ("81", "18%", r"\$19"),
    "25": ("2x=5", "2x = 5", "x+2=5"),
    "x=5": ("y=5", "2x=5", "x=50"),
    "x+5": ("x+y=5",),
    # A box around a part of an answer
    "2": (
        r"4\boxed{2}",
        r"4 \boxed{2}",
        r"\sqrt\boxed{2}",
        r"3(\boxed{2}",
        r"10 x\boxed{2}",
        r"2^{3}\boxed{2}",
        r"f(x)\boxed{2}",
    ),
    "60^\\circ": ("60", "61°"),
    "101_2": ("101_3", "101", "5"),
    r"0.\overline{3}": (r"0.\overline{4}", "0"),
}
CASES = [(answer, reference, 1.0) for reference, answers in RIGHT.items() for answer in answers]
CASES += [(answer, reference, 0.0) for reference, answers in WRONG.items() for answer in answers]


@pytest.mark.parametrize(("answer", "reference", "score"), CASES)
def test_what_is_accepted(answer: str, reference: str, score: float) -> None:
    assert make_math_verifier()(answer, reference) == score


def test_the_table_of_the_page() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    cells = [[re.findall("`([^`]+)`", cell) for cell in row] for row in rows if len(row) == 3]
    cases = [(*reference, answer, i) for reference, *both in cells for i in (0, 1) for answer in both[i]]
    verify = make_math_verifier()
    assert len(cases) > 60
    assert [case for case in cases if verify(case[1], case[0]) != 1 - case[2]] == []


def test_there_are_as_many_as_promised() -> None:
    n_of_42 = len(RIGHT["42"]) + len(WRONG["42"])
    assert n_of_42 >= 56 and len(CASES) - n_of_42 >= 112


def test_in_the_process_of_the_verifier() -> None:
    checks = [Check(answer, "42", "6*7=") for answer in ("42", "41 or 42", r"\boxed{42}")]
    checks += [Check(answer, r"\frac{1}{2^{99}}", "2**-99=") for answer in ("2^{-99}", "2^{-98}")]
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=60.0)) as runner:
        assert runner.score(checks) == [(1.0, None), (0.0, None), (1.0, None), (1.0, None), (0.0, None)]


def test_what_is_not_decided_is_wrong_and_counted() -> None:
    # They are equal to 5,000 decimal places, which proves nothing
    machin = Check(r"4\arctan\frac{1}{5}-\arctan\frac{1}{239}", r"\frac{\pi}{4}", "?")
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=60.0, name="math")) as runner:
        with pytest.warns(UserWarning, match=r"(?s)TimeoutError: .* was not decided whether 4.*It counts as 0"):
            assert [verdict.value for verdict in runner.score([machin, machin._replace(answer=r"\pi/4")])] == [0.0, 1.0]
        assert runner.n_errors == 1


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
