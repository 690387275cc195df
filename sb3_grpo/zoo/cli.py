"""The commands of ``python -m sb3_grpo.zoo``."""

import argparse
import importlib
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rl_zoo3.utils
import yaml
from rich.text import Text
from rl_zoo3.enjoy import enjoy
from rl_zoo3.train import train

from sb3_grpo.console import INTERRUPTED, OK, USAGE_ERROR, UsageError, find_env, is_own_error, parse_assignment, say
from sb3_grpo.utils.ranks import n_ranks
from sb3_grpo.zoo.evaluation import acting
from sb3_grpo.zoo.going_on import as_model
from sb3_grpo.zoo.hub import load, push

PROGRAM = "sb3_grpo.zoo"
# Where errors are about what the user has written, and where they may be a defect nevertheless
_EXPLAINED = ("gymnasium", "huggingface_sb3", "optuna", "rl_zoo3", "sb3_contrib", "sqlalchemy", "stable_baselines3")
_DEFECTS = (ArithmeticError, AttributeError, NameError, RuntimeError)
# Hyperparameters that name classes
_WITH_CLASSES = ("policy_kwargs", "replay_buffer_class")


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param argv: the arguments; ``sys.argv[1:]`` if ``None``
    :return: the exit code
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description="The RL Zoo's own commands, with grpo, dapo and ppo_mask added to the algorithms. Each has its own -h.",
    )
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="see COMMAND -h")
    options = parser.parse_args(argv)
    name, arguments = options.command, options.arguments
    packages: list[str] = []
    before = sys.argv
    try:
        if n_ranks() > 1:
            raise UsageError("the RL Zoo runs in one process: with torchrun, use -m sb3_grpo train")
        if name in _WITH_AGENT:
            arguments, packages = _prepared(name, arguments)
        sys.argv = [f"{PROGRAM} {name}", *arguments]
        with _own_scripts(packages):
            _COMMANDS[name]()
    except KeyboardInterrupt:
        say(Text("Interrupted", "bold yellow"), stderr=True)
        return INTERRUPTED
    except Exception as error:
        message = _explanation(error)
        if message is None:
            raise
        say(Text("Error: ", "bold red"), message, stderr=True)
        return USAGE_ERROR
    finally:
        sys.argv = before
    return OK


def _prepared(command: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """
    Register the environment.

    :param command: name of a command that trains or loads an agent
    :param arguments: its arguments
    :return: the arguments for the RL Zoo, which knows neither ``--env module:Id`` nor folders of checkpoints, and whose
        other commands do not look where ``train`` writes; and what registers environments
    """
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {command}", add_help=False)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--gym-packages", nargs="*", default=[])
    if command == "train":
        parser.add_argument("-i", "--trained-agent")
        parser.add_argument("-params", "--hyperparams", nargs="+", default=[])
        # As in sb3-grpo train
        parser.add_argument("--preset")
        parser.add_argument("--set", action="append", default=[])
    elif command == "record_training" and shutil.which("ffmpeg") is None:
        raise UsageError("record_training joins videos with the program ffmpeg, which is not installed")
    options, rest = parser.parse_known_args(arguments)
    if command == "train" and {"-h", "--help"} & {*rest}:
        # The RL Zoo's parser, which prints the rest, does not know them
        say(
            "--set NAME=VALUE sets a hyperparameter (sb3-grpo train -h lists those of grpo and dapo), --preset NAME takes "
            "those of a paper. In addition:\n"
        )
    for package in options.gym_packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UsageError(f"--gym-packages {package}: {error}") from error
    env = find_env(options.env)
    packages = [*options.gym_packages, *options.env.split(":")[:-1]]
    # The last one of an option counts
    rest = ["-f", "logs", *rest, "--env", env.id]
    if command == "train":
        if options.trained_agent:
            rest += ["-i", as_model(options.trained_agent)]
        params = [
            *options.hyperparams,
            *([f"preset:{options.preset!r}"] if options.preset else []),
            *map(_as_param, options.set),
        ]
        rest += ["-params", *params] if params else []
    return rest, packages


def _as_param(assignment: str) -> str:
    """
    :param assignment: ``key=value``, as for ``--set``
    :return: the same for RL Zoo's ``-params``
    """
    key, value = parse_assignment(assignment)
    # Names of classes are read with those of the configuration files
    return f"{key}:{(assignment.partition('=')[2] if key in _WITH_CLASSES else value)!r}"


def _explanation(error: Exception) -> str | None:
    """
    :param error: an exception from a command
    :return: a message for the user, if this is a mistake that needs no traceback; otherwise ``None``
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_code is rl_zoo3.utils.StoreDict.__call__.__code__ for frame in frames):
        return (
            f"{error}. Options like -params take name:value, each value as in Python: -params group_size:8 "
            """"policy_kwargs:dict(net_arch=[64, 64])" "policy:'MlpPolicy'\""""
        )
    if isinstance(error, UsageError | ImportError | OSError | yaml.YAMLError) or is_own_error(error):
        return str(error)
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0]
    if package in _EXPLAINED and not isinstance(error, _DEFECTS):
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _own_scripts(packages: list[str]) -> Iterator[None]:
    """
    The RL Zoo starts scripts of its own, in which grpo and dapo would not be registered: start the commands here instead.

    :param packages: what registers environments
    """

    def call(command: Any, **kwargs: Any) -> int:
        for start, name in (["python", "enjoy.py"], "enjoy"), (["python", "-m", "rl_zoo3.record_video"], "record_video"):
            if command[: len(start)] == start:
                command = [sys.executable, "-m", PROGRAM, name, *command[len(start) :], "--gym-packages", *packages]
        return zoo_call(command, **kwargs)

    zoo_call = subprocess.call
    subprocess.call = call  # type: ignore[assignment]
    try:
        yield
    finally:
        subprocess.call = zoo_call


def _script(module: str) -> Callable[[], Any]:
    """
    :param module: name of a module of the RL Zoo that is a script
    :return: function that runs it
    """
    return lambda: runpy.run_module(f"rl_zoo3.{module}", run_name="__main__")


_WITH_AGENT = ("train", "enjoy", "record_video", "record_training")
_COMMANDS: dict[str, Callable[[], Any]] = {
    "train": train,
    "enjoy": acting(enjoy),
    "record_video": acting(_script("record_video")),
    "record_training": _script("record_training"),
    "benchmark": _script("benchmark"),
    "push_to_hub": push,
    "load_from_hub": load,
}
