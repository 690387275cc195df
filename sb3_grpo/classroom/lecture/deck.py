"""The slides of the class, with what is said and done at each of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import jinja2

from sb3_grpo.classroom.lecture.blocks import BLOCKS, kept_together, markdown
from sb3_grpo.classroom.lecture.runs import curves_of_all

# How fast notes are read aloud
WORDS_PER_MINUTE = 130
_MINUTES = re.compile(r"^```notes minutes=([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Slide:
    """
    :param number: Its number, from 1 on
    :param section: The part of the class that it belongs to
    :param title: Title
    :param body: HTML
    :param conclusion: HTML of what stands beside the body; may be empty
    :param notes: HTML of what is said, asked and done
    :param words: Number of words of the notes
    :param work: Minutes for what is done and asked, beside the words
    :param begin: Minute at which it begins
    :param minutes: How long it takes
    :param optional: Whether it can be left out
    :param more: Identifier of the part of a chapter with more about it; may be empty
    """

    number: int
    section: str
    title: str
    body: str
    conclusion: str
    notes: str
    words: int
    work: float
    begin: float
    minutes: float
    optional: bool
    more: str

    @property
    def clock(self) -> str:
        """
        :return: Its first minute, such as 1:05
        """
        hours, minutes = divmod(int(self.begin), 60)
        return f"{hours}:{minutes:02}"


def read_slides(environment: jinja2.Environment, numbers: Mapping[str, Any]) -> list[Slide]:
    """
    Of ``slides.md``, where a heading begins a section, one of the second level a slide, and the blocks ``conclusion`` and
    ``notes`` are what their names say. After ``notes`` stand ``minutes=``, ``work=``, ``more=`` and ``optional``.

    :param environment: Environment that inserts the numbers into the text
    :param numbers: What the text may name
    :return: The slides, in their order
    """
    text = (files("sb3_grpo.classroom.lecture") / "slides.md").read_text("utf-8")
    parts = [part.split("\n## ") for part in f"\n{text}".split("\n# ")[1:]]
    minutes = {name.strip(): sum(map(float, _MINUTES.findall("".join(each)))) for name, *each in parts}
    slides: list[Slide] = []
    for section, *each in parts:
        for source in each:
            rendered = environment.from_string(source).render(agenda=minutes, **numbers)
            slides.append(_slide(rendered, section.strip(), slides[-1] if slides else None))
    return slides


def _slide(text: str, section: str, before: Slide | None) -> Slide:
    """
    :param text: Title and content of a slide, in Markdown
    :param section: The part of the class that it belongs to
    :param before: The slide before it
    :return: The slide
    """
    parser = markdown(BLOCKS | {"widget": _widget, "curves": lambda *_: curves_of_all()})
    title, _, content = text.partition("\n")
    tokens, blocks = [], {"conclusion": ("", "")}
    for token in parser.parse(content):
        kind, _, arguments = token.info.partition(" ")
        if token.type == "fence" and kind in ("conclusion", "notes"):
            blocks[kind] = arguments, token.content
        else:
            tokens.append(token)
    (_, concluded), (arguments, said) = blocks["conclusion"], blocks["notes"]
    given = dict(pair.partition("=")[::2] for pair in arguments.split())
    return Slide(
        number=before.number + 1 if before else 1,
        section=section,
        title=parser.renderInline(title),
        body=kept_together(parser.renderer.render(tokens, parser.options, {})),
        conclusion=kept_together(parser.render(concluded)),
        notes=parser.render(said),
        words=len(said.split()),
        work=float(given.get("work", 0)),
        begin=before.begin + before.minutes if before else 0,
        minutes=float(given["minutes"]),
        optional="optional" in given,
        more=given.get("more", ""),
    )


def sections(slides: list[Slide]) -> dict[str, list[Slide]]:
    """
    :param slides: All slides
    :return: The same by section
    """
    found: dict[str, list[Slide]] = {}
    for slide in slides:
        found.setdefault(slide.section, []).append(slide)
    return found


def _widget(name: str, _: str) -> str:
    """
    :param name: Name of a widget and, after a question mark, its state
    :return: HTML, to be filled in by the script when the slide is shown
    """
    widget, _, state = name.partition("?")
    return f'<section class="widget" data-widget="{widget}" data-state="{escape(state)}"></section>'
