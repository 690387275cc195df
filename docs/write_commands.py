"""Write ``commands.md``: all commands and options of ``sb3-grpo``, from its parsers."""

import argparse
import re
import textwrap
from pathlib import Path

from sb3_grpo.cli.main import _make_parser

PAGE = Path(__file__).with_name("commands.md")


def commands_page() -> str:
    """
    :return: the page, as Markdown
    """
    lines = [
        "# Commands",
        "",
        "<!-- Written by python -m docs.write_commands -->",
        "",
        "`sb3-grpo COMMAND`. Those of RL Baselines3 Zoo are in [Tuning](tuning.md).",
    ]
    for name, parser in _subcommands(_make_parser()).items():
        lines += ["", f"## {name}", "", _paragraph(parser.description)]
        lines += ["", "| option | |", "|---|---|", *map(_row, _options(parser))]
        for more, subparser in _subcommands(parser).items():
            lines += ["", f"### {name} {more}", "", _paragraph(subparser.description)]
            lines += ["", "| option | |", "|---|---|", *map(_row, _options(subparser))]
    return "\n".join(lines) + "\n"


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    no_options = (argparse._HelpAction, argparse._SubParsersAction)
    return [each for each in parser._actions if not isinstance(each, no_options) and each.help != argparse.SUPPRESS]


def _row(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    if action.choices and action.metavar is None:
        value = f" {{{','.join(map(str, action.choices))}}}"
    name = f"{action.option_strings[-1]}{value}" if action.option_strings else f"{action.metavar or action.dest}"
    text = (action.help or "") % {**vars(action), "default": action.default}
    return f"| `{name}` | {_in_markdown(text)} |"


def _paragraph(text: str) -> str:
    return textwrap.fill(_in_markdown(text), 100, break_long_words=False, break_on_hyphens=False)


def _in_markdown(text: str) -> str:
    text = re.sub(r"[|<*_]", r"\\\g<0>", " ".join(text.split()))
    # Two hyphens would become a dash
    return re.sub(r"(?<![\w`])--[\w-]+", r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(commands_page())
