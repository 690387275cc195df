"""The verifier "math": one answer, worked out, and nothing else that takes it back."""

import re
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("latex2sympy2_extended")

from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.envs.verifiers.math_answers import make_math_verifier
from sb3_grpo.envs.verifiers.runner import Check, VerifierRunner
from stress.fuzz_answers import hostile_answers

PAGE = Path(__file__).resolve().parents[2] / "docs/text_tasks.md"

# References, what is right, and what is not
TABLE: list[tuple[str, list[str], list[str]]] = [
    ("42", ["42", " 42 ", "42.0", "+42", "$42$", r"\(42\)", r"\boxed{42}", "The answer is 42."], []),
    ("42", ["So the final answer is: $42$.", "6*7\n#### 42", "4.2e1", "x = 42", r"First \boxed{42}, again \boxed{42}"], []),
    ("42", [], ["", "not 42", "41 or 42", "42%", "42!", "±42", ">=42", "about 42", "41, 42", r"\{41,42\}", "41=42"]),
    ("42", [], ["forty-two", "٤٢", "21*2", "84/2", "42.00000001", "42 apples", "I do not know, 42"]),
    ("42", [], ["The answer is not 42", "The answer is 42. The answer is 41", r"\boxed{41}\boxed{42}"]),
    ("42", [], [r"It is not \boxed{42}", r"\boxed{42", "#### 42\n#### 41", "42" * 400, "nan", "10^{99999999}"]),
    ("0.5", ["1/2", ".5", r"\frac{1}{2}", r"$\frac12$", "50%", "5e-1"], []),
    ("0.5", [], ["1/3", "2/4", "0.5%", "1/2 or 1/3", "not 1/2", r"\frac{1}{2}{3}", "1/2 apples", "-1/2", "0.5000001", "0/0"]),
    ("0.5", [], ["0.4 < x < 0.6"]),
    ("-3/4", ["-3/4", "-0.75", r"-\frac{3}{4}", r"\frac{-3}{4}"], ["3/4", "--3/4", r"-\frac{-3}{4}", "-(3/4)!"]),
    ("1234567.5", ["1,234,567.5", "1{,}234{,}567.5", "1234567.50"], []),
    (r"$2\pi+6$", [r"$6+2\pi$", "2π+6"], []),
    (r"$2\pi+6$", [], ["12.2831853", r"2\pi\pm6", r"2\pi+6 or 7", r"2\pi+6=7", r"(2\pi+6)!", r"\{2\pi+6, 1\}"]),
    (r"\{1,2\}", [r"\{1,2\}", r"\{2,1\}", r"$\{1, 2\}$"], ["1", r"\{1,2,3\}", r"\{1\}", r"\{1,2\} or \{3\}"]),
    ("[0,1)", ["[0,1)", "$[0, 1)$"], ["[0,1]", "(0,1)", "[0,1) or [0,1]", "0"]),
    ("x**2+2*x+1", ["x^2+2*x+1", "(x+1)**2"], []),
    ("Paris", ["Paris", "paris", r"\text{Paris}", "The answer is Paris."], []),
    ("Paris", [], ["Pairs", "Paris or London", "not Paris", "Paris, London"]),
    ("A", ["A", r"\boxed{A}", "The answer is A."], ["B", "A or B", "not A", "AB"]),
    ("5 cm", ["5 cm", "5cm"], ["5 m", "5 c", r"\boxed{5 m}"]),
    ("x + m", ["x + m", "m + x"], ["x", "x + "]),
    ("73", ["**Answer: 73**", "**Final Answer:** 73", "*Answer:* *73*", "### Final Answer\n73", "- **Answer:** `73`"], []),
    ("73", ["```\n73\n```", r"\boxed{\text{73}}", r"$\textbf{Answer:}\ 73$", "$$\n73\n$$", r"\[ \boxed{73}. \]"], []),
    ("73", [r"\boxed{\boxed{73}}", "73,", r"6 + 67, so **\boxed{73}**."], []),
    ("73", [], ["**Answer: 74**", r"\boxed{\text{74}}", "**73** or **74**", "*not* 73", "73**2", r"\text{not }73"]),
    ("73", [], ["**Wrong answer:** 73", "**Answer: 73** or 74"]),
    ("No", ["no", "No.", "NO", r"\text{no}"], ["yes", "on", "not", "N"]),
    ("f(x)=x^2", ["x^2", r"f(x)=x \cdot x"], ["f(x)=x^3"]),
    ("New York", ["new  york", r"\text{New York}"], ["york", "New", "newyork or Boston"]),
    ("B", ["B.", "(B)", r"\text{B}", r"\boxed{\text{B}}"], ["A", r"\text{A}", "(A)", "A or B"]),
    (r"\text{(C)}", ["C", "(C)", r"\text{C}"], ["(B)", r"\text{B}", "B or C"]),
    ("$xy$", ["yx", r"x \cdot y", "x*y"], ["XY", "x+y", "xyz"]),
    ("x", ["x", "$x$", r"\mathbf{x}"], ["X", "y", "2x", r"\mathbf{X}"]),
    ("1000", ["1,000", r"1\,000", "1{,}000", r"1,\!000"], ["1,00", "1.000", "10^4", "1,000,0"]),
    ("0.25", [r"\cfrac{1}{4}", r"\tfrac14", "25 percent", r"25\text{%}"], []),
    ("5/2", [r"2\frac{1}{2}", "2 1/2", "2.5", r"2 \frac12"], [r"2\frac{2}{4}", "2 1/3", r"2\frac{3}{2}", "25"]),
    ("50%", ["0.5", r"50\%", "1/2", "50 percent"], ["50", "0.5%", "5"]),
    ("1e-30", ["10^{-30}", r"1 \times 10^{-30}"], ["1e-31", "0", "10^{-29}"]),
    (r"\frac{1}{2^{99}}", ["2^{-99}", "1/2^{99}", r"\left(\frac12\right)^{99}", "2**-99"], []),
    (r"\frac{1}{2^{99}}", [], [r"\frac{1}{2^{98}}", "0*1", "0", "-2^{-99}"]),
    ("2^{10}", ["1024", "1,024", "4^5", r"2^{5} \times 2^{5}"], ["1023", "1024.0000000001", "2^{11}", "9^{9^{9^9}}"]),
    (r"\sqrt{8}", [r"2\sqrt{2}", r"2\sqrt2", "2√2", "8^{1/2}"], []),
    (r"\sqrt{2}+\sqrt{3}", [r"\sqrt{3}+\sqrt{2}", r"\sqrt{5+2\sqrt{6}}"], []),
    (r"\sqrt{2}+\sqrt{3}", [], ["3.146264369941972", r"\sqrt{5+2\sqrt{6}}+10^{-60}", r"\sqrt{5}"]),
    (r"\frac{1}{20!}", [r"\frac{21}{21!}"], [r"\frac{1}{21!}", "0!-1", "100000!", "((9!)!)!"]),
    (r"\frac{\pi}{4}", [r"\pi/4", "pi/4", r"\dfrac{\pi}{4}", r"0.25\pi"], ["0.7853981633974483", r"\frac{\pi}{3}"]),
    ("x^2+2x+1", ["(x+1)^2", "x² + 2x + 1", "1+2x+x^2"], ["x^2+2x+1+10^{-99}", "x^2+2x", "(x-1)^2"]),
    ("0.5x", [r"\frac{x}{2}", "x/2"], []),
    (r"1-\cos^2 x", [r"\sin^2 x"], []),
    ("f(x)+1", ["1+f(x)"], ["f(x)-1"]),
    ("(3,5)", ["(3, 5)", "(3,5.0)", r"\left(3, \frac{10}{2}\right)"], ["(5,3)", "[3,5]", "3,5", "(3,5+2^{-99})"]),
    (r"\{2^{-99},1\}", [r"\{1,\frac{1}{2^{99}}\}"], [r"\{2^{-98},1\}", r"\{2^{-99},1,2\}", "1"]),
    ("[0,2^{-99})", [r"[0,\frac{1}{2^{99}})"], ["[0,2^{-98})", "[0,2^{-99}]", "0"]),
    (r"(-\infty,0)\cup(1,\infty)", [r"(1,\infty)\cup(-\infty,0)", "(-∞,0) \u222a (1,∞)"], []),
    (r"(-\infty,0)\cup(1,\infty)", [], [r"(-\infty,0)\cup(2,\infty)", r"(-\infty,0)", r"(-\infty,\infty)"]),
    ("x<2", ["2>x"], ["2x<4", "x>2", "x=2", "x<2+2^{-99}", "-x<-2"]),
    (r"1<x\leq 3", [r"1 < x \le 3", r"3 \ge x > 1"], ["1<x<3", r"1\le x\le 3", "x<3"]),
    ("y=2x+3", ["2x-y+3=0", "y = 3+2x", "2y=4x+6", "2x+3"], ["y=2x+4", "x=2y+3", "2x", "y=2x+3+10^{-50}"]),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"\begin{pmatrix} 1 & 2 \\ 3 & \frac{8}{2} \end{pmatrix}"], []),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [], [r"\begin{pmatrix}1&2\\4&3\end{pmatrix}"]),
    (r"5\text{ cm}", ["5", "5 cm", "5cm", r"5\,\mathrm{cm}"], ["5 m", r"6\text{ cm}", "5 cm or 6 cm", r"5\text{ cm}^2"]),
    (r"\$18", ["18", r"\$18", "$18", "18.00", "18 dollars"], ["81", "18%", r"\$19", "18 euros", "18 cents"]),
    ("2 x y", ["2xy"], ["2", "2x", "2XY"]),
    (r"2+3\mathrm{i}", ["2+3i"], ["5", "2"]),
    ("2:15", ["2:15", "**2:15**"], ["4:30", "2/15"]),
    (r"2:15\text{ p.m.}", ["2:15 PM"], ["2:15 AM", "4:30 PM"]),
    (r"\frac{1}{0}", [], [r"\frac{2}{0}"]),
    ("1,1,2", ["1, 1, 2"], ["1,2", "1,2,2"]),
    (r"x>5\text{ or }x<2", ["x > 5 or x < 2"], ["x>5 and x<2", "x>5"]),
    (r"0.2\overline{36}", [r"\frac{13}{55}"], ["0.236"]),
    (r"Six rows: $\boxed{42}$ square units.", ["42", r"It is $\boxed{42}$ square units."], ["41", r"$\boxed{42}$ million"]),
    ("Tom has 84 apples.\n#### 84", ["84 apples", "#### 84"], ["84 pears"]),
    (
        "169",
        ["13*13 = 169", "\\boxed{169}\n\nCheck: 13*13 = 169.", "<think>168?</think>\nThe answer is 169."],
        ["13*13", "168 = 169"],
    ),
    (r"60^\circ", ["60°", r"60^{\circ}", "60 degrees", "60"], ["61°", "60 radians"]),
    ("x=5", ["5", "x = 5"], ["y=5", "2x=5", "x=50"]),
    (r"2\pi m", [], [r"2\pi"]),
    (r"\sin(10^{-30})", [], [r"\sin(10^{-31})", "10^{-30}", "0"]),
    ("45 euros", ["€45", "45 €", "EUR 45", r"\text{€}45", "It costs 45€."], ["$45", "£45", "€45 million", "45 cents", "4€5"]),
    (r"\$53", ["53 USD", r"\$53"], [r"5\$3", "€53"]),
    ("29", ["The cost of her order is **$29.00**.", "<b>29</b>", "It is <span class='a'>29</span>."], ["**$29** or **$30**"]),
    ("29", [], ["<s>29</s> <b>92</b>", "It is <s>29</s> <b>92</b>.", "The cost is **$29** million", "<b>2</b><sub>9</sub>"]),
    ("212", ["<b>212</b>"], ["<b>21</b><sup>2</sup>"]),
    ("441", ["21<sup>2</sup>"], ["21<sub>2</sub>"]),
    ("10", [], ["1<b>0", "1<p>0"]),
    ("34", [r"\color{blue}{\boxed{34}}", r"\boxed{\color{red}{34}}", r"\textcolor{red}{\boxed{34}}", r"\underline{34}"], []),
    ("34", [], [r"\color{red}{\boxed{34}}2", r"-\color{red}{\boxed{34}}", r"\boxed{\color{red}{3}4^2}", r"3^{\boxed{34}}"]),
    ("9", ["So it is 1+4+4=9.\n\n9", "The sum is 9.\n\n**9**", "The sum is\n\n$$9$$", "The sum is\n\\[\n9\n\\]"], []),
    ("9", [], ["It is not 9.\n\n9", "It is not\n9", "The answer is 8.\n\n9", "It is 19.\n\n9", "It is -9.\n\n9", "8\n9"]),
    (
        "9",
        [],
        ["It is about 9.\n\n9", "It is 8 or 9.\n\n9", "We list them.\n\n9", "So x > 9.\n\n9", "The wrong result is 9.\n\n9"],
    ),
    (
        "9",
        ["We get 9.", r"\boxed{\text{The total is } 9}"],
        ["It is 9, which is wrong.", "We never get 9."],
    ),
    ("9", [], [r"\boxed{\text{The total is not } 9}", "We get $2x = 9$", "It would be 9 if x were 1."]),
    ("5:45 PM", ["17:45", "5:45 p.m.", "05:45 pm"], ["5:45", "05:45", "17:54", "17:45 AM", "17/45", "5:45 AM"]),
    ("12:15 AM", ["0:15", "00:15"], ["12:15", "12:15 PM"]),
    (r"5 \text{ PM}", ["5 p.m.", "17:00", "5:00 PM"], ["5", "17", "5 AM"]),
    (
        "7 people",
        ["seven", "Seven people", "The answer is seven.", "7"],
        ["seventy", "seven hundred", "seven dozen", "minus seven"],
    ),
    ("Seven hundred in all, so 7 each\n#### 7", ["seven"], ["seven hundred", "7 hundred", "7 million"]),
    (r"\text{six}", ["6", "six"], ["sixth", "sixteen", "seven"]),
    (
        r"(-\infty,\infty)",
        [r"\mathbb{R}", r"x \in \mathbb{R}", "\u211d", "all real numbers"],
        [r"\mathbb{Q}", r"\mathbb{R}^2"],
    ),
    (r"(-\infty,\infty)", [], [r"\mathbb{R}\setminus\{0\}", r"\mathbb{R}-\{0\}", r"\mathbb{R}^+", "all real numbers but 0"]),
    (r"\mathbb{R}", [r"(-\infty,\infty)", "x∈\u211d"], [r"(0,\infty)", "R"]),
    (r"72^\circ", [r"\angle ABC = 72^\circ", "m∠B = 72"], [r"\angle ABC > 72^\circ", r"\angle ABC = 27^\circ"]),
    ("23", ["AB = 23", "|AB| = 23", "Area = 23", "f(2) = 23"], ["2AB = 23", "AB^2 = 23", "AB < 23", "A = B = 24", "-AB = 23"]),
    (r"\sin 15^\circ", [r"\frac{\sqrt6-\sqrt2}{4}", "sin(15°)"], [r"\sin 15", r"\cos 15^\circ", r"\frac{\sin 15^\circ}{2}"]),
    (r"\sin 15", [r"\sin 15"], [r"\sin 15^\circ"]),
    ("1/2", [], [r"\sin 30^\circ"]),
    ("12", ["The area is 12 square units."], ["The area is 12 units less."]),
    ("2", [], ["2^T", r"2^{\mathrm{T}}", "It is 2, which must be doubled."]),
    ("0", [], [r"\frac{dy}{dx}", "dy/dx"]),
    ("42", [], ["21(2)", "6(7)", r"\frac12(84)", "35{7}", "{35}{7}", r"6\sqrt{49}", "The opposite of it is 42."]),
    ("42", [], ["The total is 42, which we divide by 2 to get 21.", "<think>The answer is 42.", r"\boxed{42}. No, it is 41."]),
    ("42", [], [r"It is minus \boxed{42}.", "The answer is twice **42**.", r"\boxed{42} doubled", r"It exceeds \boxed{42}."]),
    ("42", [], ["the answer is " * 1000 + "42", r"\binom{999999999}{500000000}"]),
    ("18 doubled is 36. #### 36", [], ["36 doubled", "36 dozen"]),
    ("x=72. #### 72", [], [r"72\text{x}", "72 times"]),
    ("2020-01-05", ["2020-01-05"], ["2014"]),
    ("3-2", ["3 - 2"], ["1", "7-6"]),
    (r"\delta", ["δ"], [r"\Delta"]),
    ("i", ["i"], ["I"]),
    (r"1+30^\circ", [r"1+30^\circ"], ["1+30"]),
    ("2:3", ["2 to 3", "2 : 3"], ["3 to 2", "2-3"]),
    ("2", [], [r"4\boxed{2}", r"4 \boxed{2}", r"\sqrt\boxed{2}", r"3(\boxed{2}"]),
]
CASES = [(answer, row[0], 1.0) for row in TABLE for answer in row[1]]
CASES += [(answer, row[0], 0.0) for row in TABLE for answer in row[2]]


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


def test_what_is_not_decided_is_wrong_and_counted() -> None:
    # They are equal to 5,000 decimal places, which proves nothing
    machin = Check(r"4\arctan\frac{1}{5}-\arctan\frac{1}{239}", r"\frac{\pi}{4}", "?")
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=60.0, name="math")) as runner:
        with pytest.warns(UserWarning, match=r"(?s)ArithmeticError: .*neither proved nor disproved.*It counts as 0"):
            assert [verdict.value for verdict in runner.score([machin, machin._replace(answer=r"\pi/4")])] == [0.0, 1.0]
        assert runner.n_errors == 1


@pytest.mark.parametrize("blanks", [" ", "\n", ". ", "$"])
def test_a_page_of_blanks_does_not_end_a_training(blanks: str) -> None:
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=5.0)) as runner:
        answer = r"\boxed{42}" + blanks * 50_000
        verdicts = runner.score([Check(each, "42", "6*7=?") for each in (answer, answer + "or so")])
    assert verdicts[0].value == 1.0
    assert [verdict.error for verdict in verdicts] == [None, None]


@pytest.mark.parametrize("part", ["is\n", "= ", "<b>", "<b ", "so 9\n", "a b c "])
def test_a_page_of_markup_does_not_take_long(part: str) -> None:
    with closing(VerifierRunner(make_math_verifier(), trusted=False, time_limit=5.0)) as runner:
        verdicts = runner.score([Check(part * 20_000 + each, "42", "6*7=?") for each in ("41", "the answer is 42 or so")])
    assert [(verdict.value, verdict.error) for verdict in verdicts] == [(0.0, None)] * 2


def test_hostile_answers() -> None:
    verify = make_math_verifier()
    for answer, reference, right in hostile_answers(100, seed=1):
        assert verify(answer, reference) == right, (answer, reference)


def test_references_without_an_answer_are_named_at_once() -> None:
    pairs = [("6*7=", "42"), ("2*3=", "Two of three.\nHence six."), ("1+1=", r"It is $\boxed{2}$, as desired.")]
    with pytest.warns(UserWarning, match=r"(?s)no answer in 1 references.*Two of three"):
        env = VerifierTextVecEnv(1, task=pairs, verifier="math")
    env.close()


def test_of_a_long_list_the_first_references_are_read() -> None:
    with pytest.warns(UserWarning, match="no answer in 1000 references.*more in a list of more than 1000"):
        VerifierTextVecEnv(1, task=[("?", "$$")] * 1500, verifier="math").close()
