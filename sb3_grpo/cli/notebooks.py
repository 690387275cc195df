"""``sb3-grpo notebooks``: exercises for JupyterLab."""

import argparse
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sb3_grpo.console import OK, missing_extra, say
from sb3_grpo.utils.files import replace_text

_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "notebooks",
        help="copy the notebooks with exercises, and open them in JupyterLab",
        description="Copy the notebooks with exercises into a folder, and open it in JupyterLab.\n"
        "Notebooks that already exist are left unchanged.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("notebooks"), help="folder to copy to (default: %(default)s)")
    parser.add_argument(
        "--solutions", action="store_true", help="fill in the solutions, and write NAME_solutions.ipynb: for lecturers"
    )
    parser.add_argument("--copy-only", action="store_true", help="do not open JupyterLab")
    parser.set_defaults(run=_notebooks)


def _notebooks(args: argparse.Namespace) -> int:
    if not args.copy_only and importlib.util.find_spec("jupyterlab") is None:
        raise missing_extra("notebooks", "JupyterLab (--copy-only does without)")
    args.output.mkdir(parents=True, exist_ok=True)
    for path in copy_notebooks(args.output, args.solutions):
        say("Copied: ", str(path))
    if args.copy_only:
        return OK
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(args.output)])


def copy_notebooks(folder: Path, solutions: bool) -> list[Path]:
    """
    :param folder: where to copy them
    :param solutions: whether to fill in the solutions
    :return: the files written; existing files are kept
    """
    written = []
    ours = importlib.import_module("sb3_grpo.notebooks")
    for source in sorted(Path(ours.__path__[0]).glob("*.ipynb")):
        target = folder / (f"{source.stem}_solutions.ipynb" if solutions else source.name)
        if not target.exists():
            text = source.read_text(encoding="utf-8")
            # A part of a notebook would be left unchanged by the next copy
            replace_text(target, fill_in(text) if solutions else text)
            written.append(target)
    return written


def fill_in(text: str) -> str:
    """
    :param text: a notebook, as JSON. A cell tagged ``solution`` has a code block that solves the preceding ``exercise`` cell
    :return: the notebook with each solution in the cell of its exercise
    """
    notebook = json.loads(text)
    exercise: dict[str, Any] = {}
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "exercise" in tags:
            exercise = cell
        elif "solution" in tags:
            [code] = _PYTHON.findall("".join(cell["source"]))
            exercise["source"] = code.rstrip("\n").splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
