"""Builds the page: one HTML file with chapters in Markdown, widgets in JavaScript and recorded runs."""

import importlib
import inspect
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from mdit_py_plugins.attrs import attrs_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

import sb3_grpo
from sb3_grpo.classroom.lecture.examples import EXAMPLES
from sb3_grpo.classroom.lecture.formulas import explained, math
from sb3_grpo.classroom.lecture.html import script_json, source_of
from sb3_grpo.classroom.lecture.runs import kls, run

HERE = files("sb3_grpo.classroom.lecture")
# File name of each chapter and the text of its link at the top of the page
CHAPTERS = {
    "vpg": "Policy gradient",
    "trpo": "TRPO",
    "ppo": "PPO",
    "grpo": "GRPO",
    "dapo": "DAPO",
    "prorl": "ProRL",
    "agents": "Agents",
    "side_by_side": "Side by side",
    "mistakes": "Mistakes",
    "summary": "Summary",
}
# Scripts and folders of scripts, in the order of their dependencies
LEARNING = ("chance.js", "networks.js", "cartpole.js", "learning.js", "training.js")
SCRIPTS = ("math.js", "math", *LEARNING, "ui.js", "game.js", "widgets", "exercises.js", "page.js")


def write_lecture(path: Path) -> Path:
    """
    :param path: File to write the page to
    :return: The same path
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lecture_page(), encoding="utf-8")
    return path


def lecture_page() -> str:
    """
    :return: The page, as HTML
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.globals |= {"n": _number, "kls": kls}
    script = _script()
    chapters = {name: _chapter(environment, name) for name in CHAPTERS}
    return environment.from_string(_asset("page.html")).render(
        version=sb3_grpo.__version__,
        chapters=chapters,
        names=CHAPTERS,
        titles={name: _title(name) for name in CHAPTERS},
        style=_asset("page.css"),
        script=script,
        # Content security policy: only this script may run, and nothing may be fetched
        script_source=source_of(script),
        data=script_json(_recorded()),
    )


def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text("utf-8")


def _script() -> str:
    parts = ['"use strict";']
    for name in SCRIPTS:
        if name.endswith(".js"):
            parts.append(_asset(name))
        else:
            # In a block each, so that they do not see each other's names
            folder = (HERE / "assets" / name).iterdir()
            parts += [f"{{\n{each.read_text('utf-8')}}}" for each in sorted(folder, key=lambda each: each.name)]
    return "\n".join(parts)


def _recorded() -> dict[str, Any]:
    """
    :return: Recorded data that the script reads, by file name
    """
    recorded = (each for each in (HERE / "data").iterdir() if each.name.endswith(".json") and each.name != "runs.json")
    return {each.name.removesuffix(".json"): json.loads(each.read_text("utf-8")) for each in recorded}


def _title(name: str) -> str:
    """
    :param name: Name of a chapter
    :return: Its first heading
    """
    return (HERE / "chapters" / f"{name}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")


def _number(value: float, digits: int = 2) -> str:
    """
    :param value: A number
    :param digits: Number of decimal places
    :return: Formatted number, with a minus sign instead of a hyphen, and without -0
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _chapter(environment: jinja2.Environment, name: str) -> Markup:
    """
    :param environment: Environment that inserts the numbers into the text
    :param name: Name of a chapter
    :return: HTML, with one section per part
    """
    text = (HERE / "chapters" / f"{name}.md").read_text("utf-8")
    text = environment.from_string(text).render(**EXAMPLES)
    markdown = _markdown()
    tokens = markdown.parse(text)
    begins = [index for index, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h2"]
    parts = [tokens[begin:end] for begin, end in zip(begins, [*begins[1:], len(tokens)], strict=True)]
    html = "".join(
        f'<section class="part" id="{name}-{_slug(part[1].content)}">'
        f"{markdown.renderer.render(part, markdown.options, {})}</section>"
        for part in parts
    )
    return Markup(_kept_together(html))


def _slug(heading: str) -> str:
    """
    :param heading: Heading of a part
    :return: Its name in URLs
    """
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _markdown() -> MarkdownIt:
    """
    :return: Markdown parser that supports formulas and this page's own blocks
    """
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.use(dollarmath_plugin, renderer=lambda latex, options: _math(latex, options["display_mode"])).use(attrs_plugin)
    rules: dict[str, Callable[..., str]] = markdown.renderer.rules  # type: ignore[attr-defined]
    fence = rules["fence"]

    def block(tokens: Any, index: int, options: Any, env: Any) -> str:
        kind, _, name = tokens[index].info.strip().partition(" ")
        if kind in BLOCKS:
            return BLOCKS[kind](name, tokens[index].content)
        return fence(tokens, index, options, env)

    rules["fence"] = block
    return markdown


def _math(latex: str, display: bool) -> str:
    """
    :param latex: A formula
    :param display: Whether the formula is on its own line
    :return: HTML. A formula on its own line can be scrolled, also by keyboard, if the screen is too narrow
    """
    formula = math(latex, display)
    return f'<div class="scroll" tabindex="0">{formula}</div>' if display else formula


def _kept_together(html: str) -> str:
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
    return explained(latex, {symbol: _markdown().renderInline(meaning) for symbol, meaning in meanings})


def _exercise(name: str, content: str) -> str:
    """
    :param name: Name of the exercise
    :param content: Question, line of dashes, answer and tolerance, line of dashes, solution
    :return: HTML
    """
    question, answer, solution = content.split("\n---\n")
    value, tolerance = answer.split()
    markdown = _markdown()
    return (
        f'<form class="exercise" id="exercise-{name}" data-answer="{float(value):.10g}" data-tolerance="{float(tolerance):g}">'
        f'{markdown.render(question)}<label>Your answer <input inputmode="decimal" autocomplete="off" size="8"></label> '
        "<button>Check</button> <output></output>"
        f"<details><summary>Solution</summary>{markdown.render(solution)}</details></form>"
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
    question, answer = map(_markdown().renderInline, content.strip().split("\n---\n"))
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


# Fenced blocks that are not code. Arguments of the functions: the text after the kind, and the content
BLOCKS: dict[str, Callable[[str, str], str]] = {
    "formula": _formula,
    "exercise": _exercise,
    "guess": _guess,
    "widget": _widget,
    "run": run,
    "source": _source,
}
