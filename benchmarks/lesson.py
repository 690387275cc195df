"""
The commands that a lecturer types in class: ``python -m benchmarks.lesson``, on a machine that has nothing else to do.

They stand in the notes of the lecture's slides. Each is run in a folder of its own; how long it took and what it said goes to
``benchmarks/results/lesson.json``, and from there, with the minutes of the slides, to the lesson plan
(``python -m benchmarks.pages lesson_plan``).
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from html import unescape
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.blocks import Writers, markdown
from benchmarks.common import RESULTS, ROOT, machine, read_result
from sb3_grpo.classroom.lecture.deck import sections
from sb3_grpo.classroom.lecture.page import slides

_COMMAND = re.compile(r"<code>(sb3-grpo (?:compare|train) [^<]*)</code>")


def commands() -> list[str]:
    """
    :return: The commands in the notes, in their order
    """
    return [unescape(command) for slide in slides() for command in _COMMAND.findall(slide.notes)]


def run(command: str) -> dict[str, Any]:
    """
    :param command: A command
    :return: How long it took, and what a class is shown of it
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        program = [sys.executable, "-m", "sb3_grpo", *shlex.split(command)[1:]]
        done = subprocess.run(program, cwd=folder, env=environment, check=True, capture_output=True, text=True)
        seconds = round(time.perf_counter() - begun)
        said = _compared(Path(folder) / "comparisons") if " compare " in command else _trained(done.stdout + done.stderr)
    return {"command": command, "seconds": seconds, "said": said}


def _compared(folder: Path) -> list[str]:
    from sb3_grpo.classroom.compare.collect import collect
    from sb3_grpo.classroom.compare.report import Report

    (only,) = folder.iterdir()
    return [Report(collect(only)).headline]


def _trained(printed: str) -> list[str]:
    shown = re.findall(r"^(?:Note:|Evaluation|Solved).*(?:\n {12}.*)*", printed, re.MULTILINE)
    return [re.sub(r"\s+", " ", line).strip() for line in shown]


def lesson_minutes() -> str:
    """
    :return: A row for each part of the class
    """
    rows, begin = [], 0.0
    for name, each in sections(slides()).items():
        minutes, spared = sum(slide.minutes for slide in each), [slide for slide in each if slide.optional]
        numbers = f"{each[0].number} to {each[-1].number}"
        cut = "; ".join(f"{slide.title} ({slide.minutes:g})" for slide in spared)
        rows.append([f"{begin:g}", name, f"{minutes:g}", numbers, cut])
        begin += minutes
    return markdown(["from minute", "part", "minutes", "slides", "can be cut (minutes saved)"], rows)


def lesson_commands() -> str:
    """
    :return: What the commands said and how long they took
    """
    result = read_result("lesson.json")
    rows = [[f"`{each['command']}`", str(each["seconds"]), "; ".join(each["said"])] for each in result["commands"]]
    return markdown(
        ["command", f"seconds ({result['machine']['cpu']}, {result['machine']['cores']} cores)", "what it says"], rows
    )


WRITERS: Writers = {writer.__name__: writer for writer in (lesson_minutes, lesson_commands)}


def main() -> None:
    """Run the commands."""
    result = {"machine": machine(), "commands": [run(command) for command in track(commands(), "lesson")]}
    (RESULTS / "lesson.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
