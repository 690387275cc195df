"""Pages that are written by a program are those that it writes."""

import pytest

pytest.importorskip("rliable")
pytest.importorskip("matplotlib")

from benchmarks.pages import ARGUMENTS, arguments_page, groups_of_arguments
from sb3_grpo.common.arguments import ARGUMENTS as KINDS


def test_the_page_of_arguments() -> None:
    meanings = {name: meaning for group in groups_of_arguments().values() for name, meaning in group.items()}
    assert {*KINDS} <= {*meanings} and all(meanings.values())
    rewrite = "from benchmarks.pages import *; ARGUMENTS.write_text(arguments_page())"
    assert ARGUMENTS.read_text(encoding="utf-8") == arguments_page(), f"Write it again: python -c '{rewrite}'"
