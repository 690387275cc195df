"""The sheets: a folder with a handout for students, and stubs of what they write."""

import ast
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from sb3_grpo.classroom.homework.exercises import EXERCISES
from sb3_grpo.classroom.homework.student import FILE
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_text

_HANDOUTS = files("sb3_grpo.classroom.homework") / "handouts"
# What a sheet has besides its handout
_OTHERS = {
    "control": {FILE: _HANDOUTS / "solution.py", "hw.yml": _HANDOUTS / "hw.yml"},
    "text": {FILE: _HANDOUTS / "solution.py"},
    "reading": {"reading_a_comparison.ipynb": files("sb3_grpo.notebooks") / "reading_a_comparison.ipynb"},
}
SHEETS = tuple(_OTHERS)


def new(folder: Path, sheet: str, solution: bool) -> list[Path]:
    """
    :param folder: folder to write to
    :param sheet: one of ``SHEETS``
    :param solution: whether to write the solutions and answers, for lecturers
    :return: the files written
    :raises UsageError: if one of them exists
    """
    sources = {"README.md": _HANDOUTS / f"{sheet}.md", **_OTHERS[sheet]}
    if solution:
        sources["ANSWERS.md"] = _HANDOUTS / f"{sheet}_answers.md"
    texts = {name: source.read_text("utf-8") for name, source in sources.items()}
    if FILE in texts and not solution:
        texts[FILE] = stubs(texts[FILE], {exercise.function for exercise in EXERCISES})
    for name in texts:
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists already, and is not overwritten: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [folder / name for name in sorted(texts)]


def stubs(source: str, names: Collection[str]) -> str:
    """
    :param source: a module with solutions, each with a docstring
    :param names: functions to empty
    :return: the same without their bodies
    """
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            docstring, *body = node.body
            lines[docstring.end_lineno : body[-1].end_lineno] = ["    raise NotImplementedError\n"]
    return "".join(lines)
