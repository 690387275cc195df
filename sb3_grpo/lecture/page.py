"""The page: chapters in Markdown, widgets in JavaScript, and values of the package's functions, in one HTML file."""

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
from sb3_grpo.lecture.arithmetic import EXAMPLES, GRIDS
from sb3_grpo.lecture.formulas import explained, math
from sb3_grpo.lecture.golden import golden_values
from sb3_grpo.utils.html import script_json, source_of

HERE = files("sb3_grpo.lecture")
# By the names of their files: what the links at the top of the page say
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
}
# What is learned in the page, and played
LEARNING = ("chance.js", "networks.js", "tasks.js", "learning.js", "training.js")
# In the order in which they need each other
SCRIPTS = ("golden.js", *LEARNING, "math", "ui.js", "widgets", "exercises.js", "page.js")


def write_lecture(path: Path) -> Path:
    """
    :param path: Where to write the page, a file
    :return: The same
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lecture_page(), encoding="utf-8")
    return path


def lecture_page() -> str:
    """
    :return: HTML
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.globals["n"] = _number
    script = _script()
    chapters = {name: _chapter(environment, name) for name in CHAPTERS}
    return environment.from_string(_asset("page.html")).render(
        version=sb3_grpo.__version__,
        chapters=chapters,
        names=CHAPTERS,
        titles={name: _title(name) for name in CHAPTERS},
        style=_asset("page.css"),
        script=script,
        # Only this script may run, and nothing may be fetched
        script_source=source_of(script),
        data=script_json({"golden": golden_values(GRIDS), **_recorded()}),
    )


def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text("utf-8")


def _script() -> str:
    parts = ['"use strict";']
    for name in SCRIPTS:
        if name.endswith(".js"):
            parts.append(_asset(name))
        else:
            # In a block each: what one of them names is not seen by the others
            folder = (HERE / "assets" / name).iterdir()
            parts += [f"{{\n{each.read_text('utf-8')}}}" for each in sorted(folder, key=lambda each: each.name)]
    return "\n".join(parts)


def _recorded() -> dict[str, Any]:
    """
    :return: What real runs left, by the name of its file
    """
    recorded = (each for each in (HERE / "data").iterdir() if each.name.endswith(".json"))
    return {each.name.removesuffix(".json"): json.loads(each.read_text("utf-8")) for each in recorded}


def _title(name: str) -> str:
    """
    :param name: Of a chapter
    :return: Its first heading
    """
    return (HERE / "chapters" / f"{name}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")


def _number(value: float, digits: int = 2) -> str:
    """
    :param value: A number
    :param digits: Behind the point
    :return: As people write it: a minus, not a hyphen, and no -0
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _chapter(environment: jinja2.Environment, name: str) -> Markup:
    """
    :param environment: For the numbers in the text
    :param name: Of a chapter
    :return: HTML, each part in a section of its own
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
    :param heading: Of a part
    :return: What an address calls it
    """
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _markdown() -> MarkdownIt:
    """
    :return: Markdown with formulas, and with blocks of this page's own
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
    :param display: Whether it has a line of its own
    :return: HTML: on a line of its own it scrolls, also by keyboard, where the screen is too narrow
    """
    formula = math(latex, display)
    return f'<div class="scroll" tabindex="0">{formula}</div>' if display else formula


def _kept_together(html: str) -> str:
    """
    :param html: Text with formulas
    :return: The same, with no line that begins with the comma behind a formula
    """
    formula = r'(<span class="math inline">(?:(?!</span>).)*</span>)'
    return re.sub(formula + r"([,.;:)?]+)", r'<span class="narrow">\1\2</span>', html)


def _formula(_: str, content: str) -> str:
    """
    :param content: LaTeX, a line of dashes, and lines "symbol: meaning"
    :return: HTML
    """
    latex, symbols = content.split("\n---\n")
    meanings = (line.split(": ", 1) for line in symbols.strip().splitlines())
    return explained(latex, {symbol: _markdown().renderInline(meaning) for symbol, meaning in meanings})


def _exercise(name: str, content: str) -> str:
    """
    :param name: Of the exercise
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
    :param name: Of the widget
    :param title: Its heading
    :return: HTML that the script fills
    """
    title = title.strip()
    return f'<section class="widget" data-widget="{name}" id="{name}" aria-label="{title}"><h3>{title}</h3></section>'


def _source(name: str, _: str) -> str:
    """
    :param name: ``module.function`` within the package
    :return: HTML: where the function is, and its source
    """
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(f"sb3_grpo.{module}"), attribute)
    where = f"sb3_grpo/{module.replace('.', '/')}.py, line {inspect.getsourcelines(thing)[1]}"
    code = Markup.escape(inspect.getsource(thing).rstrip())
    return (
        f'<details class="source"><summary><code>{attribute}</code> in {where}</summary>'
        f'<pre tabindex="0"><code>{code}</code></pre></details>'
    )


# Blocks of three backticks that are not code: what stands behind the kind, and the content
BLOCKS: dict[str, Callable[[str, str], str]] = {
    "formula": _formula,
    "exercise": _exercise,
    "widget": _widget,
    "source": _source,
}
