"""``--set KEY=VALUE``: set hyperparameters on the command line."""

import argparse
import importlib.util
import inspect
import re
import textwrap
import types
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from sb3_grpo import GRPO
from sb3_grpo.console import ALGORITHMS, UsageError, close_matches, missing_extra
from sb3_grpo.utils.entries import parse_value

# Constructor parameters that have their own option or cannot be written as a Python literal
_NOT_SETTABLE = ("policy", "env", "n_envs", "seed", "device", "verbose", "start_sampler", "_init_setup_model")


def add_set(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: where to add the option
    """
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a hyperparameter to a Python value, for example --set group_size=8; can be repeated, and overrides --preset",
    )


def known_settings(algorithm: type[GRPO]) -> dict[str, inspect.Parameter]:
    """
    :param algorithm: the algorithm
    :return: the constructor parameters that ``--set`` can set
    """
    known = inspect.signature(algorithm).parameters
    return {name: parameter for name, parameter in known.items() if name not in _NOT_SETTABLE}


def describe_settings() -> str:
    """
    :return: a list of all hyperparameters and their defaults, for ``--help``
    """
    known = {name: known_settings(algorithm) for name, algorithm in ALGORITHMS.items()}
    lines = []
    for key, parameter in known["grpo"].items():
        own = known["dapo"][key].default
        dapo = f" (dapo: {own!r})" if own != parameter.default else ""
        lines.append(f"  {key}={parameter.default!r}{dapo}")
    return "hyperparameters for --set and their defaults:\n" + "\n".join(lines)


def parse_settings(algorithm: type[GRPO], assignments: Sequence[str]) -> dict[str, Any]:
    """
    :param algorithm: the algorithm
    :param assignments: strings of the form ``key=value``
    :return: keyword arguments for the constructor of the algorithm
    """
    known = known_settings(algorithm)
    settings = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment}: expected KEY=VALUE, for example --set group_size=8")
        if key not in known:
            close = close_matches(key, known)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            all_known = textwrap.fill(", ".join(known), 100)
            raise UsageError(f"--set {assignment}: there is no hyperparameter {key!r}.{hint} These are known:\n{all_known}")
        settings[key] = _parse_value(assignment, text, known[key].annotation)
    if settings.get("tensorboard_log") and importlib.util.find_spec("tensorboard") is None:
        raise missing_extra("tensorboard", "tensorboard_log")
    return settings


def _parse_value(assignment: str, text: str, annotation: Any) -> Any:
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    classes = [get_origin(kind) or kind for kind in kinds]
    try:
        value = parse_value(text)
    except ValueError:
        # Accept advantage=outcome: quotes would have to be escaped from the shell
        if str in classes and re.fullmatch(r"[\w./-]+", text):
            return text
        raise UsageError(f"--set {assignment}: {text} is not a Python value (True and False are written like this)") from None
    fits = bool in classes if isinstance(value, bool) else isinstance(value, tuple(classes))
    if not fits and not (float in classes and type(value) is int):
        names = " or ".join("None" if cls is type(None) else cls.__name__ for cls in classes if cls.__module__ == "builtins")
        raise UsageError(f"--set {assignment}: {text} is {type(value).__name__}, expected {names}")
    return value
