"""The command line: ``sb3-grpo train --algo dapo --env CartPole-v1``, ``text``, ``compare`` and others."""

import argparse
import sys
from collections.abc import Sequence

from rich.text import Text

import sb3_grpo
from sb3_grpo.console import INTERRUPTED, USAGE_ERROR, UsageError, is_own_error, say


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param argv: the arguments; ``sys.argv[1:]`` if ``None``
    :return: the exit code
    """
    argv = sys.argv[1:] if argv is None else argv
    # As with python -m: environments and functions of the user's lie in the current folder
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        args, unknown = _make_parser().parse_known_args(argv)
        if unknown:
            raise UsageError(f"unknown: {' '.join(unknown)}. Add --help to the command to see its options")
        args.argv = argv
        return args.run(args)
    except KeyboardInterrupt:
        say(Text("Interrupted", "bold yellow"), stderr=True)
        return INTERRUPTED
    except Exception as error:
        if not (isinstance(error, UsageError | OSError) or is_own_error(error)):
            raise
        say(Text("Error: ", "bold red"), str(error), stderr=True)
        return USAGE_ERROR


def _make_parser() -> argparse.ArgumentParser:
    # Imported only here, where main handles Ctrl-C: this takes a while
    from sb3_grpo.cli import compare, homework, hub, lecture, notebooks, text, train

    parser = argparse.ArgumentParser(prog="sb3-grpo", description=sb3_grpo.__doc__)
    parser.add_argument("--version", action="version", version=f"sb3-grpo {sb3_grpo.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in train, text, compare, lecture, notebooks, homework, hub:
        module.add_command(commands)
    return parser
