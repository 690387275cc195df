"""Points for students' functions: hidden tests, and a training that ends like the package's."""

import csv
import io
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch as th

from sb3_grpo.classroom.homework import equality
from sb3_grpo.classroom.homework.exercises import EXERCISES
from sb3_grpo.classroom.homework.student import FILE, Student
from sb3_grpo.console import UsageError

_NOT_TRIED = "not tried, because the function is not right yet"
# Seconds until a student's process has begun to grade, and without a word from it afterwards
_START, _SILENCE = 300.0, 30.0


class Result(NamedTuple):
    """
    What a test says.

    :param name: name of the test
    :param possible: points for a right function
    :param problem: what is wrong, empty if nothing is
    """

    name: str
    possible: int
    problem: str

    @property
    def points(self) -> int:
        return 0 if self.problem else self.possible


class Grade(NamedTuple):
    """
    The points of a student.

    :param student: name of the folder
    :param results: what each test says
    :param remark: what the lecturer should know
    """

    student: str
    results: list[Result]
    remark: str = ""

    @property
    def points(self) -> int:
        return sum(each.points for each in self.results)

    @property
    def possible(self) -> int:
        return sum(each.possible for each in self.results)

    def gradescope(self) -> str:
        """The content of Gradescope's ``results.json``."""
        tests = [
            {"name": each.name, "score": each.points, "max_score": each.possible, "output": each.problem or "right"}
            for each in self.results
        ]
        return json.dumps({"score": self.points, "output": self.remark, "tests": tests}, indent=2) + "\n"


def grade_all(folders: Sequence[Path], workers: int | None) -> Iterator[Grade]:
    """
    :param folders: folders of students
    :param workers: number of students at the same time, ``None``: one per CPU core
    :return: the points of each one, as they come
    """
    named = by_name(folders)
    with ThreadPoolExecutor(min(workers or os.cpu_count() or 1, len(named))) as pool:
        try:
            for future in as_completed([pool.submit(_grade_apart, name, folder) for name, folder in named.items()]):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _grade_apart(name: str, folder: Path) -> Grade:
    """
    :param name: name of the student
    :param folder: the student's folder
    :return: the points, from a process of their own: whatever ends it ends nothing else
    """
    # Hand-ins may lie in a folder of their own. Without a file, there are no points
    path, *others = sorted(folder.rglob(FILE), key=lambda path: (len(path.parts), path)) or [folder / FILE]
    remark = f"{path} is graded, not {', '.join(map(str, others))}" if others else ""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # What a process that is killed leaves behind lies in there
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        process = context.Process(target=_send_grade, args=(sender, name, path, temporary), daemon=True)
        process.start()
        sender.close()
        graded, limit = None, _START
        try:
            while graded is None and receiver.poll(limit):
                graded, limit = receiver.recv(), _SILENCE
            problem = f"was stopped: it has said nothing for {limit:.0f} s"
        except EOFError:
            process.join(_SILENCE)
            problem = f"has ended with exit code {process.exitcode}"
            if process.exitcode == -signal.SIGKILL:
                problem += " (killed, as when there is no memory left)"
        process.kill()
        process.join()
    graded = graded or grade(name, path, f"the process that grades it {problem}")
    return graded._replace(remark=remark or graded.remark)


def _send_grade(connection: Connection, name: str, path: Path, temporary: str) -> None:
    tempfile.tempdir = temporary
    # Neither Ctrl-C nor a signal to this group is meant for the other process
    os.setsid()
    with ThreadPoolExecutor(1) as pool:
        graded = pool.submit(grade, name, path)
        while not graded.done():
            connection.send(None)
            wait([graded], 1.0)
        connection.send(graded.result())


def grade(name: str, path: Path, problem: str = "") -> Grade:
    """
    :param name: name of the student
    :param path: the student's file
    :param problem: why no function can be called, empty if they can
    :return: the points
    """
    th.set_num_threads(1)
    with Student(path, problem=problem) as student:
        results = check(student, hidden=True)
        wrong = {exercise.function for exercise, each in zip(EXERCISES, results, strict=True) if each.problem}
        found = equality.differences(student, [function for function in equality.POINTS if function not in wrong])
    for function, possible in equality.POINTS.items():
        results.append(Result(f"{function}, training", possible, found.get(function, _NOT_TRIED)))
    return Grade(name, results, problem)


def check(student: Student, hidden: bool) -> list[Result]:
    """
    :param student: the student's functions
    :param hidden: whether to try other cases than the student can
    :return: what each test says
    """
    results: list[Result] = []
    for exercise in EXERCISES:
        # The gradient of a function comes after its values
        wrong = {each.name for each in results if each.problem}
        problem = _NOT_TRIED if exercise.function in wrong else exercise.problem(student, hidden)
        results.append(Result(exercise.name, exercise.points, problem))
    return results


def by_name(folders: Sequence[Path]) -> dict[str, Path]:
    """
    :param folders: folders of students
    :return: the same by the names of the students
    :raises UsageError: if two are the same
    """
    named: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"There is no folder {folder}")
        if (other := named.setdefault(folder.resolve().name, folder)) != folder:
            raise UsageError(f"{other} and {folder} have the same name, which is that of the student")
    return named


def points_csv(grades: Sequence[Grade]) -> str:
    """
    :param grades: points of students
    :return: a table with one row for each
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["student", "points", "of", *(result.name for result in grades[0].results)])
    for each in sorted(grades):
        writer.writerow([each.student, each.points, each.possible, *(result.points for result in each.results)])
    return table.getvalue()
