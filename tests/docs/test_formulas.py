"""Formulas of the site, as Debian's browser draws them."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser import Opened, needs_math_font

ROOT = Path(__file__).resolve().parents[2]


def test_brackets_grow_and_formulas_keep_apart(browser: Any, tmp_path: Path) -> None:
    math = pytest.importorskip("sb3_grpo.classroom.lecture.formulas").math
    small, tall, two = (
        math(latex, display=True) for latex in (r"[x]", r"\left[\frac{a}{b}\right]", r"\frac{a}{b} \qquad \frac{c}{d}")
    )
    css = (ROOT / "docs" / "_static" / "site.css").read_text()
    formulas = "".join(f'<div class="math">{each}</div>' for each in (small, tall, two))
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'><style>{css}</style>{formulas}")
    opened = Opened(browser, page, viewport={"width": 800, "height": 600})
    needs_math_font(opened.page)
    boxes = "elements => elements.map(each => each.getBoundingClientRect()).map(({top, bottom}) => [top, bottom])"
    brackets = [bottom - top for top, bottom in opened.page.eval_on_selector_all("mo", boxes)]
    assert brackets[2] > 1.5 * brackets[0], brackets
    first, second = opened.page.eval_on_selector_all("div:last-child math", boxes)
    assert second[0] > first[1] + 4
