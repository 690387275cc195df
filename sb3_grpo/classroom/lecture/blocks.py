"""Markdown with formulas, and with the lecture's own blocks: explained formulas, exercises, widgets, runs, sources."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup
from mdit_py_plugins.attrs import attrs_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from sb3_grpo.classroom.lecture.formulas import explained, math
from sb3_grpo.classroom.lecture.runs import run

# Of a fenced block: the text after its kind, and its content
Block = Callable[[str, str], str]


def markdown(blocks: Mapping[str, Block] | None = None) -> MarkdownIt:
    """
    :param blocks: Fenced blocks that are not code, by their kind (default: those of chapters)
    :return: Markdown parser that supports formulas and these blocks
    """
    blocks = BLOCKS if blocks is None else blocks
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.use(dollarmath_plugin, renderer=lambda latex, options: _math(latex, options["display_mode"])).use(attrs_plugin)
    rules: dict[str, Callable[..., str]] = parser.renderer.rules  # type: ignore[attr-defined]
    fence = rules["fence"]

    def block(tokens: Any, index: int, options: Any, env: Any) -> str:
        kind, _, name = tokens[index].info.strip().partition(" ")
        if kind in blocks:
            return blocks[kind](name, tokens[index].content)
        return fence(tokens, index, options, env)

    rules["fence"] = block
    return parser


def _math(latex: str, display: bool) -> str:
    """
    :param latex: A formula
    :param display: Whether the formula is on its own line
    :return: HTML. A formula on its own line can be scrolled, also by keyboard, if the screen is too narrow
    """
    formula = math(latex, display)
    return f'<div class="scroll" tabindex="0">{formula}</div>' if display else formula


def kept_together(html: str) -> str:
    """
    :param html: Text with formulas
    :return: The same text, without line breaks between a formula and the punctuation after it
    """
    formula = r'(<span class="math inline">(?:(?!</span>).)*</span>)'
    return re.sub(formula + r"([,.;:)?]+)", r'<span class="narrow">\1\2</span>', html)


def _formula(_: str, content: str) -> str:
    """
    :param content: LaTeX, a line of dashes, and lines of the form "symbol: meaning"
    :return: HTML
    """
    latex, symbols = content.split("\n---\n")
    meanings = (line.split(": ", 1) for line in symbols.strip().splitlines())
    return explained(latex, {symbol: markdown().renderInline(meaning) for symbol, meaning in meanings})


def _exercise(name: str, content: str) -> str:
    """
    :param name: Name of the exercise
    :param content: Question, line of dashes, answer and tolerance, line of dashes, solution
    :return: HTML
    """
    question, answer, solution = content.split("\n---\n")
    value, tolerance = answer.split()
    render = markdown().render
    return (
        f'<form class="exercise" id="exercise-{name}" data-answer="{float(value):.10g}" data-tolerance="{float(tolerance):g}">'
        f'{render(question)}<label>Your answer <input inputmode="decimal" autocomplete="off" size="8"></label> '
        "<button>Check</button> <output></output>"
        f"<details><summary>Solution</summary>{render(solution)}</details></form>"
    )


def _widget(name: str, title: str) -> str:
    """
    :param name: Name of the widget
    :param title: Heading of the widget
    :return: HTML, to be filled in by the script
    """
    title = title.strip()
    return f'<section class="widget" data-widget="{name}" id="{name}" aria-label="{title}"><h3>{title}</h3></section>'


def _guess(_: str, content: str) -> str:
    """
    :param content: Question, line of dashes, answer
    :return: HTML that shows the answer on demand
    """
    question, answer = map(markdown().renderInline, content.strip().split("\n---\n"))
    return f'<details class="guess"><summary><strong>Guess first.</strong> {question}</summary><p>{answer}</p></details>'


def _source(name: str, _: str) -> str:
    """
    :param name: ``module.function`` within the package
    :return: HTML with the location of the function and its source code
    """
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(f"sb3_grpo.{module}"), attribute)
    where = f"sb3_grpo/{module.replace('.', '/')}.py, line {inspect.getsourcelines(thing)[1]}"
    code = Markup.escape(inspect.getsource(thing).rstrip())
    return (
        f'<details class="source"><summary><code>{attribute}</code> in {where}</summary>'
        f'<pre tabindex="0"><code>{code}</code></pre></details>'
    )


# Fenced blocks of chapters
BLOCKS: dict[str, Block] = {
    "formula": _formula,
    "exercise": _exercise,
    "guess": _guess,
    "widget": _widget,
    "run": run,
    "source": _source,
}
