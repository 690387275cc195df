"""Shared by the commands: errors, output, and the environments that they name."""

import difflib
import importlib
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from rich.console import Console
from rich.text import Text
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from sb3_grpo import DAPO, GRPO
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.starts.group_env import importable_id
from sb3_grpo.starts.starts import StartNotSupportedError
from sb3_grpo.utils.entries import parse_value
from sb3_grpo.utils.ranks import rank

ALGORITHMS: dict[str, type[GRPO]] = {"dapo": DAPO, "grpo": GRPO}

# The extra that environments need, by the prefix of their entry point
_EXTRAS = {"ale_py": "atari", "gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
# Games by the module that registers them: their extra, and further modules without which they cannot be trained on
_NEEDED_BY = {"ale_py": ("atari", ["cv2"]), "sb3_grpo.envs.minatar": ("minatar", [])}

OK, USAGE_ERROR, INTERRUPTED = 0, 2, 130


class UsageError(Exception):
    """A user error: its message is printed without a traceback."""


def say(*parts: str | Text, stderr: bool = False) -> None:
    """
    Print a line.

    :param parts: the parts of the line
    :param stderr: whether to print to stderr instead of stdout
    """
    if rank() > 0 and not stderr:
        return  # the first one speaks
    # Text instead of markup: "[box2d]" is not a style
    Console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """
    :param assignment: a string of the form ``key=value``
    :return: the key, and the value that is written there
    """
    key, equals, text = assignment.partition("=")
    if not equals:
        raise UsageError(f"--set {assignment}: expected KEY=VALUE, for example --set group_size=8")
    try:
        return key, parse_value(text)
    except ValueError as error:
        # Accept advantage=outcome: quotes would have to be escaped from the shell
        if re.fullmatch(r"[\w./-]+", text):
            return key, text
        raise UsageError(f"--set {assignment}: {error}") from error


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """
    :param word: an unknown name
    :param known: the known names
    :return: the known names closest to it, if any
    """
    spelled = {name.lower(): name for name in known}
    return [spelled[match] for match in difflib.get_close_matches(word.lower(), spelled, n=4, cutoff=0.6)]


def missing_extra(extra: str, what: str) -> UsageError:
    """
    :param extra: the extra whose packages are missing
    :param what: what needs them
    :return: the error to raise
    """
    return UsageError(f'{what} needs packages that are not installed. Install them with: pip install "sb3-grpo[{extra}]"')


def missing_env_extra(env_id: str, error: Exception) -> UsageError | None:
    """
    :param env_id: id of a registered environment, as given on the command line
    :param error: the error from creating it
    :return: the error to raise if a missing extra is the reason, otherwise ``None``
    """
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        entry_point = str(gym.spec(env_id.rpartition(":")[2]).entry_point)
        for package, extra in _EXTRAS.items():
            if entry_point.startswith(package):
                return missing_extra(extra, env_id)
    return None


def register_games(env_id: str) -> None:
    """
    Import the modules that register an environment if it is an Atari or MinAtar game.

    :param env_id: id of any environment
    :raises UsageError: if the packages of the game are not installed
    """
    module = importable_id(env_id).rpartition(":")[0]
    if module not in _NEEDED_BY:
        return
    extra, others = _NEEDED_BY[module]
    try:
        for name in (module, *others):
            importlib.import_module(name)
    except ImportError as error:
        raise missing_extra(extra, env_id) from error


def find_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """
    :param env_id: id of the environment, as given on the command line
    :return: its Gymnasium spec
    :raises UsageError: if there is no such environment
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError) as error:  # TypeError: for names that start with a dot
            raise UsageError(f"{env_id}: cannot import {module}: {error}") from error
    register_games(name)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        hint = f"{module} was imported, and does not register it." if module else ""
        if close := close_matches(name, gym.registry):
            hint += f" Similar names: {', '.join(close)}."
        if not module:
            hint += f" If a module of yours or another package registers it, write MODULE:{env_id}."
        raise UsageError(f"{error} {hint.strip()}") from error


def policy_for(space: spaces.Space) -> str:
    """
    :param space: Observations
    :return: Name of the policy that they need
    """
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def is_own_error(error: Exception) -> bool:
    """
    :param error: an exception from training
    :return: whether this package raised it deliberately (an episode that never ends, weights that are not finite): its message
        needs no traceback, unlike that of a bug
    """
    # Errors of one environment copy are wrapped in an EnvironmentFault that names the copy
    said = error.__cause__ if isinstance(error, EnvironmentFault) else error
    if not isinstance(said, ImportError | TypeError | ValueError | StartNotSupportedError) or said.__traceback__ is None:
        return False
    *_, (frame, _) = traceback.walk_tb(said.__traceback__)
    line = traceback.extract_tb(said.__traceback__)[-1].line or ""
    # A raise statement: not an error of a C function that was called here
    return str(frame.f_globals.get("__name__")).startswith("sb3_grpo.") and line.startswith("raise ")


def save_model(model: BaseAlgorithm, path: Path) -> None:
    """
    Save a model without pickles if it is GRPO or DAPO and holds only data, so that others can load it without running code.

    :param model: any model
    :param path: the file
    """
    if isinstance(model, GRPO):
        try:
            model.save(path, format="safe")
            return
        except ValueError:
            said = f"{path.name} is saved with pickle, as in Stable-Baselines3. Who loads it has to trust you"
            say(Text("Note: ", "bold yellow"), said)
    model.save(path)
