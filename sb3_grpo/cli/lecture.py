"""``sb3-grpo lecture``: the lecture as one HTML file."""

import argparse
import webbrowser
from pathlib import Path

from sb3_grpo.console import OK, missing_extra, say


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "lecture",
        help="write a page that teaches the policy gradient, TRPO, PPO, GRPO, DAPO and ProRL",
        description="Write one HTML file with formulas, widgets and exercises. It works offline.",
    )
    parser.add_argument("--output", type=Path, default=Path("lecture.html"), help="file to write (default: lecture.html)")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.set_defaults(run=run_lecture)


def run_lecture(args: argparse.Namespace) -> int:
    """
    :param args: the parsed arguments
    :return: the exit code
    """
    try:
        from sb3_grpo.classroom.lecture.page import write_lecture
    except ModuleNotFoundError as error:
        raise missing_extra("lecture", f"The lecture ({error.name})") from error
    path = write_lecture(args.output)
    say("The lecture is in ", str(path))
    if args.open:
        webbrowser.open(path.resolve().as_uri())
    return OK
