"""The page as a whole; what single widgets do is tested beside this file."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from sb3_grpo.classroom.lecture.formulas import math
from sb3_grpo.cli.main import main
from tests.browser import Opened, needs_math_font, serious_findings

MAX_BYTES = 1_500_000


def test_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "page.html"
    assert main(["lecture", "--output", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert "<title>From the policy gradient to DAPO</title>" in path.read_text("utf-8")
    assert path.stat().st_size < MAX_BYTES


def test_no_request(lesson: Opened, lecture: Path) -> None:
    lesson.page.mouse.wheel(0, 20_000)
    assert lesson.requests == [lecture.as_uri()]


def test_no_sideways_scrolling_and_no_formula_is_cut_off_at_its_foot(opened: Any) -> None:
    cut_off = """[...document.querySelectorAll(".scroll")].filter((each) => each.scrollHeight > each.clientHeight + 1)"""
    for width in (390, 1280, 1920):
        opened.set_viewport_size({"width": width, "height": 800})
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.evaluate(f"{cut_off}.map((each) => each.textContent)") == []


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        # A sign, not a difference
        (r"x = -1", '<mo>&#x0003D;</mo><mo form="prefix">&#x02212;</mo>'),
        (r"x - 1", "<mi>x</mi><mo>&#x02212;</mo>"),
        # The name of a function: no space before its bracket
        (r"a \operatorname{clip}(r)", '<mo lspace="0.17em" rspace="0">clip</mo><mo stretchy="false">&#x00028;</mo>'),
        (r"= \max_a r", '<mo>&#x0003D;</mo><msub><mo lspace="0" rspace="0.17em">max</mo>'),
        (r"|o|", '<mo lspace="0" rspace="0" stretchy="false">&#x0007C;</mo><mi>o</mi>'),
        (r"\lvert o \rvert", '<mo lspace="0" rspace="0" stretchy="false">&#x0007C;</mo><mi>o</mi>'),
        # As large as the letter, not raised a second time
        (r"\theta'", '<mrow><mi>&#x003B8;</mi><mo lspace="0" rspace="0">&#x02032;</mo></mrow>'),
        (r"a \qquad b", "<mi>a</mi></mrow></math><math"),
    ],
)
def test_spaces_of_formulas(latex: str, expected: str) -> None:
    assert expected in math(latex, display=True)


def test_roots_reach_from_the_top_of_what_they_cover_to_its_foot(opened: Any) -> None:
    needs_math_font(opened)
    for root in opened.locator("msqrt:visible").all():
        root.scroll_into_view_if_needed()
        sign, covered = root.bounding_box(), root.locator("> *").bounding_box()
        assert sign and covered and sign["x"] + sign["width"] >= covered["x"] + covered["width"]
        strip = {"x": sign["x"], "y": sign["y"] - 5, "width": covered["x"] - sign["x"], "height": sign["height"] + 10}
        ink = imread(BytesIO(opened.screenshot(clip=strip)))[..., 0].min(axis=1) < 0.7
        rows = np.flatnonzero(ink)
        assert rows[-1] - rows[0] >= covered["height"] - 2, root.text_content()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_everybody_can_use_it(browser: Any, lecture: Path, scheme: str) -> None:
    assert serious_findings(browser, lecture, color_scheme=scheme) == []


def test_every_widget_answers_to_the_keyboard_and_has_an_address(opened: Any) -> None:
    for name in opened.evaluate("Object.keys(window.lecture.WIDGETS)"):
        section = opened.locator(f"#{name}")
        control = section.locator("input[type=range], select, input[type=checkbox], button").first
        before = section.inner_html()
        slider = section.locator("input[type=range]")
        if slider.count():
            slider.first.focus()
            opened.keyboard.press("ArrowRight" if slider.first.evaluate("input => input.value === input.min") else "ArrowLeft")
        else:
            control.focus()
            opened.keyboard.press("Space")
        assert section.inner_html() != before, name
        if slider.count():
            assert f"#{name}?" in opened.url


def test_address_restores_a_state(browser: Any, lecture: Path) -> None:
    page = Opened(browser, lecture, "#clip?r=0.7&A=-2.1&low=0.2&high=0.2").page
    assert "the objective is \u22121.68, its gradient zero" in page.locator("#clip").inner_text()


HOSTILE = """#clip?r=abc&A=1e999
#clip?r=-1e308&A=1e308&low=-5&high=1e300
#clip?r=%E0%A4%A
#%E0%A4%A
#../x
#?
#trust-region?a=1e300&b=-1e300&n=-3&delta=-1&rate=1e99
#trust-region?n=1.5
#kl?a=-5&b=0&c=0&show=constructor
#live?lr=constructor&seed=-1.5&groupSize=1e9
#play?kind=__proto__&strength=1e9
#reset?p=5&beta=-1&resets=1e9
#dapo-switches?task=constructor&clip=2&kl=x
#ppo-loop?at=99&step=1.5
#grpo-loop?run=constructor&at=-5&step=1e9""".splitlines()


def test_an_address_cannot_ask_for_what_the_controls_cannot(lesson: Opened) -> None:
    for fragment in HOSTILE:
        lesson.go(fragment)
        name = fragment[1:].split("?")[0]
        if name.replace("-", "").isalpha():
            shown = lesson.page.locator(f"#{name}").inner_text()
            assert not any(word in shown for word in ("NaN", "Infinity", "undefined")), fragment
        assert lesson.complaints == [], fragment
    lesson.go("#clip?r=9&A=-1")
    assert "r = 2.00 and \u00c2 = \u22121.00" in lesson.page.locator("#clip").inner_text()


def test_it_prints(browser: Any, lecture: Path) -> None:
    # The width of a sheet of A4 less its margins
    page = Opened(browser, lecture, viewport={"width": 720, "height": 1000}, color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden() and page.locator(".controls:visible, .guess:visible").count() == 0
    assert page.locator(".chapter > h2:visible").count() == page.locator("section.chapter").count()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_results_are_a_line_that_makes_the_table_of_the_class(opened: Any) -> None:
    n = opened.locator(".exercise").count()
    opened.locator("#student").fill("Ada; L.")
    exercise = opened.locator("#exercise-clip-negative")
    for answer, judgement in (("-1.2", "Not yet"), ("\u22121,5", "Right")):
        exercise.locator("input").fill(answer)
        exercise.locator("button").click()
        assert judgement in exercise.locator("output").inner_text()
    line = opened.locator("#line").inner_text()
    assert line == f"sb3-grpo lecture; Ada, L.; 1 of {n}; clip-negative"
    failed, passed = line.replace("1 of", "0 of"), line.replace("Ada", "<b>Bob</b>").replace("1 of", f"{n} of")
    notebook = "sb3-grpo reading a comparison; Cy; 6 of 10; iqm median"
    opened.locator("#lines").fill(f"{failed}\nsomething else\n{passed}\n{notebook}")
    table = opened.locator("#class-table").inner_text()
    assert "3 lines, 2 passed." in table and "<b>Bob</b>, L." in table and "reading a comparison: iqm" in table


def test_symbols_say_what_they_mean(opened: Any) -> None:
    opened.locator(".symbol").first.focus()
    assert opened.locator("#meaning").is_visible()
    opened.keyboard.press("Tab")
