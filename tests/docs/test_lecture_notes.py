"""The page that says where each item of a lecture is: what it names and links to exists."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from sb3_grpo import GRPO
from sb3_grpo.cli.main import _make_parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lecture_notes.md"
ROWS = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row)})
# Of logged values and of the columns of a comparison: they are words in the source
WORDS = ("group/dead_fraction", "train/approx_kl", "n_policies_in_memory", "n_critic_parameters")
ALGORITHMS = ("GRPO", "DAPO", "PPO")


def check_test(name: str) -> None:
    path, _, function = name.partition("::")
    assert not function or re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def check_arguments(name: str) -> None:
    for argument in re.findall(r"(\w+)=", name):
        assert argument in inspect.signature(GRPO.__init__).parameters


def check_attribute(name: str) -> None:
    package = "benchmarks" if name.startswith("benchmarks.") else "sb3_grpo"
    parts = name.removeprefix("benchmarks.").split(".")
    thing = importlib.import_module(package)
    for at, part in enumerate(parts):
        if not hasattr(thing, part):
            importlib.import_module(".".join([package, *parts[: at + 1]]))
        thing = getattr(thing, part)


def test_every_item_is_there_once() -> None:
    assert sorted(int(row.split("|")[1]) for row in ROWS) == list(range(1, 58))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_exists(name: str) -> None:
    if name.startswith("python -m sb3_grpo "):
        _make_parser().parse_args(name.split()[3:])
    elif name.startswith("tests/"):
        check_test(name)
    elif name in WORDS:
        assert any(name in path.read_text() for path in (ROOT / "sb3_grpo").rglob("*.py"))
    elif name.endswith(".yml"):
        assert (ROOT / name).exists()
    elif "=" in name:
        check_arguments(name)
    elif name not in ALGORITHMS:
        check_attribute(name)


def test_links_lead_somewhere() -> None:
    pytest.importorskip("latex2mathml", reason="needs the extra lecture")
    from sb3_grpo.classroom.lecture.page import lecture_page

    anchors = set(re.findall(r'\bid="([^"]+)"', lecture_page()))
    text = PAGE.read_text()
    linked = re.findall(r'href="lecture_page\.html#([^"?]+)', text)
    assert len(linked) > 50
    assert [anchor for anchor in linked if anchor not in anchors] == []
    for target in re.findall(r"\]\(([^)#]+\.md)", text):
        assert (PAGE.parent / target).exists(), target
