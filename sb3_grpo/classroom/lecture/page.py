"""Builds the page: one HTML file with chapters in Markdown, widgets in JavaScript and recorded runs."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import sb3_grpo
from sb3_grpo.classroom.lecture.blocks import kept_together, markdown
from sb3_grpo.classroom.lecture.deck import Slide, read_slides, sections
from sb3_grpo.classroom.lecture.examples import EXAMPLES
from sb3_grpo.classroom.lecture.html import script_json, source_of
from sb3_grpo.classroom.lecture.runs import kls

HERE = files("sb3_grpo.classroom.lecture")
REPOSITORY = "https://github.com/sb3-grpo/sb3-grpo"
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
SCRIPTS = ("math.js", "math", *LEARNING, "ui.js", "game.js", "widgets", "exercises.js", "slides.js", "page.js")


def write_lecture(path: Path, home: str = REPOSITORY) -> Path:
    """
    :param path: File to write the page to
    :param home: Where the name of the package leads
    :return: The same path
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lecture_page(home), encoding="utf-8")
    return path


def lecture_page(home: str = REPOSITORY) -> str:
    """
    :param home: Where the name of the package leads
    :return: The page, as HTML
    """
    environment = _environment()
    script = _script()
    chapters = {name: _chapter(environment, name) for name in CHAPTERS}
    return environment.from_string(_asset("page.html")).render(
        version=sb3_grpo.__version__,
        home=home,
        chapters=chapters,
        names=CHAPTERS,
        titles={name: _title(name) for name in CHAPTERS},
        sections=sections(slides()),
        style=_asset("page.css") + _asset("slides.css"),
        script=script,
        # Content security policy: only this script may run, and nothing may be fetched
        script_source=source_of(script),
        data=script_json(_recorded()),
    )


def slides() -> list[Slide]:
    """
    :return: The slides of the class
    """
    return read_slides(_environment(), EXAMPLES)


def _environment() -> jinja2.Environment:
    """
    :return: Environment that inserts numbers into texts
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.globals |= {"n": _number, "kls": kls}
    return environment


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
    parser = markdown()
    tokens = parser.parse(text)
    begins = [index for index, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h2"]
    parts = [tokens[begin:end] for begin, end in zip(begins, [*begins[1:], len(tokens)], strict=True)]
    html = "".join(
        f'<section class="part" id="{name}-{_slug(part[1].content)}">'
        f"{parser.renderer.render(part, parser.options, {})}</section>"
        for part in parts
    )
    return Markup(kept_together(html))


def _slug(heading: str) -> str:
    """
    :param heading: Heading of a part
    :return: Its name in URLs
    """
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
