import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_commands_is_current() -> None:
    script = runpy.run_path(str(DOCS / "write_commands.py"))
    assert script["PAGE"].read_text() == script["commands_page"](), "run python -m docs.write_commands"
