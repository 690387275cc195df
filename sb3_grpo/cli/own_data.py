"""``sb3-grpo text --data``: one's own prompts and reward functions, and the table of all answers."""

import argparse
import csv
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from sb3_grpo.cli.runs import positive, say_table
from sb3_grpo.console import UsageError, say
from sb3_grpo.text.callbacks import TextEvaluation
from sb3_grpo.utils.plugins import import_plugin

N_TEST = 200
N_SHOWN = 5
# What has no use without data, and with them
_ONLY_WITH, _ONLY_WITHOUT = ("prompt_key", "answer_key", "verifier", "chat", "max_answer_tokens"), ("task", "digits")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: where to add the options
    """
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="with --model: your own prompts, in a .jsonl or .csv file with columns prompt and answer, of which a fifth, at "
        f"most {N_TEST}, is held out. Other columns are for reward functions",
    )
    parser.add_argument("--prompt-key", metavar="NAME", help="column of the prompts in --data (default: prompt)")
    parser.add_argument("--answer-key", metavar="NAME", help="column of the answers (default: answer, if there is one)")
    parser.add_argument(
        "--verifier",
        nargs="+",
        metavar="NAME",
        help="with --data: exact, math, or functions, MODULE:FUNCTION: one of an answer and its reference, or one or several "
        "with the signature of TRL's reward functions; an answer is right if each of them gives 1 (default: exact)",
    )
    parser.add_argument(
        "--chat", action="store_true", help="with --data: prompts are messages, in the format of the model, without examples"
    )
    parser.add_argument("--max-answer-tokens", type=positive, metavar="N", help="with --data: longest answer, in tokens")
    parser.set_defaults(verifiers_from=None)


def check_data_options(args: argparse.Namespace) -> None:
    """
    :param args: the arguments of ``text``
    :raises UsageError: if some of them have no use together
    """
    for name in ("task", "data"):
        if getattr(args, name) is not None and args.model is None:
            raise UsageError(f"--{name} is for pretrained language models: give --model, too")
    for name in _ONLY_WITHOUT if args.data else _ONLY_WITH:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no use with --data: leave it out" if args.data else f"{option} needs --data")
    if str(args.task).lower().endswith((".jsonl", ".csv")):
        raise UsageError(f"--task {args.task} is a file: write --data {args.task}")


def find_verifier(args: argparse.Namespace) -> Any:
    """
    :param args: the arguments of ``text``; the folder that functions are imported from is added
    :return: what the environment takes as its verifier
    """
    names = args.verifier
    if names is None or names in (["exact"], ["math"]):
        return names and names[0]
    # As with python -m, which is not how sb3-grpo is called
    args.verifiers_from = args.verifiers_from or os.getcwd()
    sys.path.insert(0, args.verifiers_from)
    functions = []
    for name in names:
        function = import_plugin(name.replace(":", "."))
        if not callable(function):
            raise UsageError(
                f"--verifier {name}: there is no such module or function. Write exact or math alone, or "
                "MODULE:FUNCTION, such as rewards:is_right for a function in rewards.py"
            )
        functions.append(function)
    return functions[0] if len(functions) == 1 else functions


def mean_rewards(result: TextEvaluation) -> dict[str, float]:
    """
    :param result: how the policy answers
    :return: mean reward, and that of each of its parts, if there are any
    """
    rows = [{"": info["episode"]["r"], **info.get("reward_parts", {})} for info in result.answers]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def write_answers(path: Path, result: TextEvaluation, when: str) -> list[dict[str, str]]:
    """
    Add the answers to the table of all of them.

    :param path: the table
    :param result: how the policy answers the prompts, always the same ones
    :param when: name of the columns
    :return: its rows
    """
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, str]] = [*csv.DictReader(file)]
    else:
        rows = [{"prompt": str(info["prompt"]), "reference": info["reference"]} for info in result.answers]
    for row, info in zip(rows, result.answers, strict=True):
        row |= {when: info["answer"], f"right_{when}": str(int(info["is_success"]))}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def show_changes(rows: list[dict[str, str]], path: Path) -> None:
    """
    Print some of the answers that were wrong and are right now, or the other way round.

    :param rows: the rows of the table of all answers
    :param path: where it is
    """
    changed = [row for row in rows if row["right_before"] != row["right_after"]]
    say(f"{len(changed)} answers have changed between right and wrong ({path})", ", for example" if changed else "")
    shown = []
    for row in changed[:N_SHOWN]:
        answers = Text(f"{row['before']:.40}"), Text("->"), Text(f"{row['after']:.40}")
        shown.append((Text(f"  {row['prompt']}"[-60:]), *answers, colored(row["right_after"] == "1")))
    say_table(shown)


def colored(is_right: bool) -> Text:
    """
    :param is_right: whether an answer is right
    :return: the word for it
    """
    return Text("right", "green") if is_right else Text("wrong", "red")
