"""``sb3-grpo text --data``: one's own prompts and reward functions, and the table of all answers."""

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from sb3_grpo.cli.runs import positive, say_table
from sb3_grpo.console import UsageError, say
from sb3_grpo.envs import PairsTask
from sb3_grpo.text.callbacks import TextEvaluation

# In the folder of a run
ANSWERS = "answers.csv"
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


def read_data(args: argparse.Namespace) -> PairsTask:
    """
    :param args: the arguments of ``text``; the file's path becomes absolute
    :return: the task
    """
    args.data = os.path.abspath(args.data)
    return PairsTask.from_file(args.data, args.prompt_key or "prompt", args.answer_key)


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
        module, _, function = name.partition(":")
        try:
            functions.append(getattr(importlib.import_module(module or "?"), function or "?"))
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name not in (module, module.split(".")[0], "?"):
                raise
            raise UsageError(
                f"--verifier {name}: {error}. Write exact or math alone, or MODULE:FUNCTION, such as rewards:is_right for a "
                "function in rewards.py"
            ) from error
    return functions[0] if len(functions) == 1 else functions


def mean_rewards(result: TextEvaluation) -> dict[str, float]:
    """
    :param result: how the policy answers
    :return: mean reward, and that of each of its parts, if there are any
    """
    rows = [{"": info["episode"]["r"], **info.get("reward_parts", {})} for info in result.answers]
    return pd.DataFrame(rows).mean().to_dict()


def write_answers(path: Path, result: TextEvaluation, when: str) -> pd.DataFrame:
    """
    Add the answers to the table of all of them.

    :param path: the table
    :param result: how the policy answers the prompts, always the same ones
    :param when: name of the columns
    :return: the table
    """
    answers = result.answers
    if path.exists():
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    else:
        table = pd.DataFrame({name: [info[name] for info in answers] for name in ("prompt", "reference")})
    table[when] = [info["answer"] for info in answers]
    table[f"right_{when}"] = [str(int(info["is_success"])) for info in answers]
    table.to_csv(path, index=False)
    return table


def show_changes(table: pd.DataFrame, path: Path) -> None:
    """
    Print some of the answers that were wrong and are right now, or the other way round.

    :param table: the table of all answers
    :param path: where it is
    """
    changed = table[table.right_before != table.right_after]
    say(f"{len(changed)} answers have changed between right and wrong ({path}), for example")
    rows = []
    for row in changed.head(N_SHOWN).itertuples():
        answers = Text(f"{row.before!s:.40}"), Text("->"), Text(f"{row.after!s:.40}")
        rows.append((Text(f"  {row.prompt!s}"[-60:]), *answers, colored(row.right_after == "1")))
    say_table(rows)


def colored(is_right: bool) -> Text:
    """
    :param is_right: whether an answer is right
    :return: the word for it
    """
    return Text("right", "green") if is_right else Text("wrong", "red")
