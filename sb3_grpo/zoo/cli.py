"""The commands of ``python -m sb3_grpo.zoo``."""

import argparse
import difflib
import importlib
import inspect
import re
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import rl_zoo3.utils
import yaml
from huggingface_sb3 import EnvironmentName
from rich.text import Text
from rl_zoo3 import ALGOS
from rl_zoo3.enjoy import enjoy
from rl_zoo3.train import train

from sb3_grpo.console import INTERRUPTED, OK, USAGE_ERROR, UsageError, is_own_error, register_games, say
from sb3_grpo.utils.files import no_room
from sb3_grpo.zoo.experiment import GroupExperimentManager
from sb3_grpo.zoo.going_on import as_model
from sb3_grpo.zoo.plots import plot
from sb3_grpo.zoo.runs import latest_finished_run

PROGRAM = "sb3_grpo.zoo"
_SEARCH = ("-optimize", "--optimize-hyperparameters")
# Options of train that the RL Zoo ignores without one of the others
_NEEDS = {
    **dict.fromkeys(("--n-trials", "--max-total-trials", "--n-jobs", "--n-startup-trials", "--n-evaluations"), _SEARCH),
    **dict.fromkeys(("--sampler", "--pruner", "--no-optim-plots", "--optimization-log-path"), _SEARCH),
    **dict.fromkeys(("--storage", "--study-name"), (*_SEARCH, "--trial-id")),
    **dict.fromkeys(("--wandb-project-name", "--wandb-entity", "--wandb-group", "-tags", "--wandb-tags"), ("--track",)),
}
# Options of train that it ignores in a search. --eval-freq too, as its help says
_NOT_IN_A_SEARCH = (
    *("--save-freq", "--save-replay-buffer", "--log-interval", "--no-clip"),
    *("-tb", "--tensorboard-log", "-P", "--progress"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param argv: the arguments; ``sys.argv[1:]`` if ``None``
    :return: the exit code
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    usage = f"usage: python -m {PROGRAM} {{{','.join(_COMMANDS)}}} [-h] ..."
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{usage}\n\nThe RL Zoo's own commands, with grpo and dapo added to the algorithms. Each has its own -h.")
        return OK if arguments else USAGE_ERROR
    name = arguments.pop(0)
    if name not in _COMMANDS:
        say(Text("Error: ", "bold red"), f"Unknown command {name!r}. {usage}", stderr=True)
        return USAGE_ERROR
    try:
        if name == "train":
            _check_options(arguments)
            arguments = _name_models(arguments)
        # The RL Zoo does not have this option
        no_clip = name == "train" and "--no-clip" in arguments
        arguments = [argument for argument in arguments if not (no_clip and argument == "--no-clip")]
        with (
            _replace_attributes(GroupExperimentManager, leaves_clip=not no_clip),
            _program_arguments([f"{PROGRAM} {name}", *_import_modules(arguments)]),
        ):
            _COMMANDS[name]()
    except KeyboardInterrupt:
        say(Text("Interrupted", "bold yellow"), stderr=True)
        return INTERRUPTED
    except Exception as error:
        message = str(error) if isinstance(error, UsageError) else _mistake(error, arguments)
        if message is None:
            raise
        say(Text("Error: ", "bold red"), message, stderr=True)
        return USAGE_ERROR
    return OK


def _check_options(arguments: list[str]) -> None:
    """
    :param arguments: the arguments of ``train``
    :raises UsageError: if an option would have no effect
    """
    written = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]

    def is_given(option: str) -> bool:
        # Like argparse, which takes --optimize for --optimize-hyperparameters
        return any(each == option or (len(each) > 5 and option.startswith(each)) for each in written)

    for option, needed in _NEEDS.items():
        if is_given(option) and not any(map(is_given, needed)):
            raise UsageError(f"{option} has no effect without {' or '.join(needed)}: leave it out, or give both")
    # A training that goes on is no search, which is said later
    is_search = any(map(is_given, _SEARCH)) and not any(map(is_given, ("-i", "--trained-agent")))
    for option in _NOT_IN_A_SEARCH:
        if is_given(option) and is_search:
            raise UsageError(f"{option} has no effect in a search ({_SEARCH[1]}): leave it out")


def _mistake(error: Exception, arguments: list[str]) -> str | None:
    """
    :param error: an exception from the RL Zoo
    :param arguments: the arguments of the command
    :return: a message for the user, if this is a common mistake that needs no traceback; otherwise ``None``
    """
    said = str(error)
    if is_own_error(error):
        return said
    refused = "not found in gym registry|^Hyperparameters not found for|^Invalid value for"
    if isinstance(error, ValueError) and re.search(refused, said):
        return said
    if isinstance(error, ValueError) and re.match("(Observation|Action) spaces do not match", said):
        return f"The agent was trained on another environment than --env, or with other wrappers. {said}"
    if isinstance(error, TypeError) and "was raised from the environment creator" in said:
        return f"--env-kwargs, or env_kwargs of the entry: {said}"
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--env")
    options, _ = parser.parse_known_args(arguments)
    if isinstance(error, KeyError) and options.env in error.args:
        return (
            f"There is no environment {options.env}. If another package registers it, name its module: "
            f"--env MODULE:{options.env}, or --gym-packages MODULE"
        )
    if isinstance(error, gym.error.DependencyNotInstalled):
        return said
    if isinstance(error, ImportError) and re.search("install W&B|tensorboard is not installed", said):
        return said
    if isinstance(error, PermissionError | FileExistsError | NotADirectoryError) or no_room(error) is not None:
        return f"A file or folder cannot be written or read: {said}"
    if isinstance(error, AssertionError) and "trained_agent must be a valid path" in said:
        return f"--trained-agent: {said}"
    not_a_value = isinstance(error, NameError | SyntaxError | TypeError | ValueError)
    if not_a_value and _comes_from(error, rl_zoo3.utils.StoreDict.__call__):
        return (
            f"{said}. Options like -params take name:value, each value as in Python: -params group_size:8 "
            """"policy_kwargs:dict(net_arch=[64, 64])" "policy:'MlpPolicy'\""""
        )
    if isinstance(error, yaml.YAMLError):
        return f"This is not YAML (the file of --conf-file, or one next to a trained agent): {said}"
    if isinstance(error, ValueError) and "You are about to download a model from the HF hub" in said:
        return f"There is no such trained agent in the folder. What you trained is in another one: -f logs. {said}"
    if isinstance(error, AssertionError | ValueError) and re.match(r"The .* folder was not found|No model found for", said):
        return f"{said}. Agents are in the folder that -f names, as train has left them there"
    unexpected = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", said)
    algorithm = ALGOS.get(options.algo)
    lineage = algorithm.__mro__ if algorithm is not None else ()
    if isinstance(error, TypeError) and unexpected and algorithm and unexpected[1] in [cls.__name__ for cls in lineage]:
        # The class with the full signature: DAPO passes the parameters without a default of its own on to GRPO
        takes_all = next(cls for cls in lineage if cls.__name__ == unexpected[1])
        known = [name for name in inspect.signature(takes_all).parameters if not name.startswith("_")]
        close = difflib.get_close_matches(unexpected[2], known, n=1)
        hint = f"you maybe meant {close[0]}?" if close else f"but {', '.join(known)}."
        return f"{algorithm.__name__} has no hyperparameter {unexpected[2]}, {hint}"
    return None


def _comes_from(error: BaseException, function: Any) -> bool:
    return any(frame.f_code is function.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


def _import_modules(arguments: list[str]) -> list[str]:
    """
    Import the modules that register the environment.

    :param arguments: the arguments of the command
    :return: the same arguments, with ``--env module:Id``, which the RL Zoo does not understand, replaced by ``--env Id``
    """
    done = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        if previous == "--env" or argument.startswith("--env="):
            register_games(argument.removeprefix("--env=").rpartition(":")[2])
        match = re.fullmatch(r"(--env=)?([\w.]+):([^:]+)", argument)
        if match and (match[1] or previous == "--env"):
            try:
                importlib.import_module(match[2])
            except ModuleNotFoundError as error:
                raise UsageError(f"{match[0]}: there is no module {error.name!r}") from error
            argument = f"{match[1] or ''}{match[3]}"
        done.append(argument)
    return done


def _name_models(arguments: list[str]) -> list[str]:
    """
    :param arguments: the arguments of ``train``
    :return: the same arguments, with a folder of checkpoints replaced by the model of its newest checkpoint
    """
    done = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, path = argument.partition("=")
        if previous in ("-i", "--trained-agent"):
            argument = as_model(argument)
        elif equals and option == "--trained-agent":
            argument = f"{option}={as_model(path)}"
        done.append(argument)
    return done


@contextmanager
def _replace_attributes(owner: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _program_arguments(arguments: list[str]) -> Any:
    return _replace_attributes(sys, argv=arguments)


def _script(module: str) -> None:
    """
    Run a tool of the RL Zoo that is a script, and that calls other tools of the RL Zoo.

    :param module: name of its module
    """
    zoo_call, zoo_trained_models = subprocess.call, rl_zoo3.utils.get_trained_models
    ours = {("python", "enjoy.py"): "enjoy", ("python", "-m", "rl_zoo3.record_video"): "record_video"}

    def call(command: Any, **kwargs: Any) -> int:
        for start, name in ours.items():
            # This starts another process, where grpo and dapo would not be registered
            if isinstance(command, list) and tuple(command[: len(start)]) == start:
                rest = [part.gym_id if isinstance(part, EnvironmentName) else part for part in command[len(start) :]]
                command = [sys.executable, "-m", PROGRAM, name, *rest]
        return zoo_call(command, **kwargs)

    def trained_models(log_folder: str) -> dict[str, tuple[str, str]]:
        # benchmark also uses the id in file names, where it must not contain a slash (ALE/Pong-v5)
        return {model: (algo, EnvironmentName(env)) for model, (algo, env) in zoo_trained_models(log_folder).items()}

    with (
        _replace_attributes(subprocess, call=call),
        _replace_attributes(rl_zoo3.utils, get_latest_run_id=latest_finished_run, get_trained_models=trained_models),
    ):
        runpy.run_module(f"rl_zoo3.{module}", run_name="__main__")


def _record_training() -> None:
    if shutil.which("ffmpeg") is None and not {"-h", "--help"} & set(sys.argv):
        raise UsageError("record_training joins videos with the program ffmpeg, which is not installed")
    _script("record_training")


_COMMANDS: dict[str, Callable[[], None]] = {
    "train": train,
    "enjoy": enjoy,
    "record_video": lambda: _script("record_video"),
    "record_training": _record_training,
    "benchmark": lambda: _script("benchmark"),
    "plot": plot,
}
