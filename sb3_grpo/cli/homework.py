"""``sb3-grpo homework``: a homework sheet for students, its tests, its points, and everyone's curves in one report."""

import argparse
from pathlib import Path

from rich.text import Text

from sb3_grpo.classroom.homework.sheets import SHEETS, new
from sb3_grpo.cli.compare import FAILED, check_extra, write_report
from sb3_grpo.cli.runs import positive
from sb3_grpo.console import OK, UsageError, say


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "homework",
        help="hand out, check and grade homework on GRPO and DAPO",
        description="Homework on GRPO and DAPO: students write the functions, train with them, and compare.",
    )
    others = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sheet = others.add_parser(
        "new",
        help="write a sheet into a folder",
        description="Write a sheet into a folder: a handout, and what students work with. No file is overwritten.",
    )
    sheet.add_argument("folder", type=Path, help="folder to write to")
    sheet.add_argument(
        "--sheet",
        choices=SHEETS,
        default="control",
        help="functions that train CartPole, or a small transformer; or questions on a comparison (default: %(default)s)",
    )
    sheet.add_argument("--solution", action="store_true", help="with solutions and answers, for lecturers")
    sheet.set_defaults(run=_new)
    check = others.add_parser(
        "check",
        help="try the functions, and say what is wrong with them",
        description="Try the functions, and say what is wrong with them. The tests for points are others.",
    )
    check.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="folder with student.py (default: the current one)"
    )
    check.set_defaults(run=_check)
    grade = others.add_parser(
        "grade",
        help="give points to students' functions",
        description="Give points to students' functions: hidden tests, and a short training that must end with the same "
        "policy as with the package's functions. Each student's functions run in a process of their own with a time limit.",
    )
    grade.add_argument("folders", metavar="folder", nargs="+", type=Path, help="folder of a student, with student.py in it")
    grade.add_argument("--output", type=Path, default=Path("grades"), help="folder to write to (default: %(default)s)")
    grade.add_argument("--workers", type=positive, help="students at the same time (default: one per CPU core)")
    grade.set_defaults(run=_grade)
    collect = others.add_parser(
        "collect",
        help="make one report of all students' comparisons",
        description="Make one report of all students' comparisons: a curve for each student, or for all whose functions "
        "train the same policies, next to the package's.",
    )
    collect.add_argument("folders", metavar="folder", nargs="+", type=Path, help="folder of a student")
    collect.add_argument("--variant", default="my DAPO", help="variant whose curve is shown (default: %(default)s)")
    collect.add_argument("--output", type=Path, default=Path("class"), help="folder to write to (default: %(default)s)")
    collect.set_defaults(run=_collect)


def _new(args: argparse.Namespace) -> int:
    for path in new(args.folder, args.sheet, args.solution):
        say("Written: ", str(path))
    return OK


def _check(args: argparse.Namespace) -> int:
    from sb3_grpo.classroom.homework.grading import check
    from sb3_grpo.classroom.homework.student import FILE, Student

    path = args.folder / FILE
    if not path.is_file():
        raise UsageError(f"There is no {path}: go to the folder of your homework, or name it")
    with Student(path, quiet=False) as student:
        results = check(student, hidden=False)
    for result in results:
        mark = Text("wrong  ", "red") if result.problem else Text("right  ", "green")
        say(mark, f"{result.name}{': ' if result.problem else ''}{result.problem}")
    n_right = sum(not result.problem for result in results)
    say(f"{n_right} of {len(results)} tests are passed.")
    return OK if n_right == len(results) else FAILED


def _grade(args: argparse.Namespace) -> int:
    from sb3_grpo.classroom.homework.grading import grade_all, points_csv
    from sb3_grpo.utils.files import replace_text

    grades = []
    for grade in grade_all(args.folders, args.workers):
        grades.append(grade)
        remark = Text(f" ({grade.remark})" if grade.remark else "", "yellow")
        say(Text(grade.student, "bold"), f": {grade.points} of {grade.possible}", remark)
        folder = args.output / grade.student
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "results.json", grade.gradescope(), durable=False)
        replace_text(args.output / "points.csv", points_csv(grades))
    say(Text("Points: ", "bold"), str(args.output / "points.csv"))
    return OK


def _collect(args: argparse.Namespace) -> int:
    check_extra()
    from sb3_grpo.classroom.homework.collecting import collect_class

    curves, left_out = collect_class(args.folders, args.variant, args.output)
    for same in curves:
        if len(same) > 1:
            say(Text("The same curve: ", "bold"), ", ".join(same))
    for student, why in left_out.items():
        say(Text("Left out: ", "bold yellow"), f"{student}: {why}")
    return write_report(args.output)
