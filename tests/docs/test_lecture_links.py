"""Pages that link to parts of the lecture: these parts exist, as do the arguments named beside them."""

import inspect
import re
from pathlib import Path

import pytest

from sb3_grpo import GRPO

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_links_lead_to_parts_of_the_lecture() -> None:
    pytest.importorskip("latex2mathml", reason="needs the extra lecture")
    from sb3_grpo.classroom.lecture.page import lecture_page

    anchors = set(re.findall(r'\bid="([^"]+)"', lecture_page()))
    linked = {
        (path.name, anchor)
        for path in DOCS.rglob("*.md")
        for anchor in re.findall(r'lecture_page\.html#([^"?]+)', path.read_text("utf-8"))
    }
    assert len(linked) > 25
    assert {link for link in linked if link[1] not in anchors} == set()


def test_arguments_in_the_table_of_topics_exist() -> None:
    rows = [line.split("|") for line in (DOCS / "lecture.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    names = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row[3])]
    assert len(names) > 10
    assert set(names) <= set(inspect.signature(GRPO.__init__).parameters)
