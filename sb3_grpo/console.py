"""Shared by the commands: options, errors and output."""

import argparse
import difflib
import importlib
import inspect
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium as gym
import torch as th
from rich.console import Console
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo import DAPO, GRPO, presets
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.starts.start_queue import importable_id
from sb3_grpo.starts.starts import StartNotSupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALGORITHMS: dict[str, type[GRPO]] = {"dapo": DAPO, "grpo": GRPO}

# The extra that environments need, by the prefix of their entry point
_EXTRAS = {"ale_py": "atari", "gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
# Games by the module that registers them: their extra, and further modules without which they cannot be trained on
_NEEDED_BY = {"ale_py": ("atari", ["cv2"]), "sb3_grpo.envs.minatar": ("minatar", [])}

# Constructor parameters that have their own option or cannot be written as a Python literal
_NOT_SETTABLE = ("self", "policy", "env", "seed", "device", "verbose", "start_sampler", "_init_setup_model")

OK, USAGE_ERROR, INTERRUPTED = 0, 2, 130


class UsageError(Exception):
    """A user error: its message is printed without a traceback."""


def say(*parts: str | Text, stderr: bool = False) -> None:
    """
    Print a line.

    :param parts: the parts of the line
    :param stderr: whether to print to stderr instead of stdout
    """
    # Text instead of markup: "[box2d]" is not a style
    Console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def say_table(rows: Sequence[tuple[Text, ...]]) -> None:
    """
    Print a table without borders.

    :param rows: its cells, row by row
    """
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def positive(text: str) -> int:
    """
    Parse a command-line argument.

    :param text: the argument
    :return: a whole number above 0
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def valid_seed(text: str) -> int:
    """
    Parse a command-line argument.

    :param text: the argument
    :return: a seed that NumPy and PyTorch accept
    """
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**32 - 1, not {text!r}")
    return int(text)


def add_preset(parser: argparse.ArgumentParser, ours: str) -> None:
    """
    Add ``--preset``.

    :param parser: where to add the option
    :param ours: what to call the settings without a preset
    """
    parser.add_argument(
        "--preset",
        choices=presets.PRESETS,
        metavar="NAME",
        help=f"settings from a paper instead of {ours}: {', '.join(presets.PRESETS)}",
    )


def title(algorithm: type[GRPO], preset: str | None, ours: str, task: str) -> str:
    """
    :param algorithm: the algorithm
    :param preset: name of the preset, if any
    :param ours: what to call the settings without a preset
    :param task: the task
    :return: title of a run and its figures
    """
    return f"{algorithm.__name__} ({preset or ours}) on {task}"


def known_settings(algorithm: type[GRPO]) -> dict[str, inspect.Parameter]:
    """
    :param algorithm: the algorithm
    :return: the constructor parameters that ``--set`` can set
    """
    known: dict[str, inspect.Parameter] = {}
    # DAPO's constructor passes on the parameters that it does not name
    for cls in (GRPO, algorithm):
        known |= inspect.signature(cls).parameters
    return {
        name: parameter
        for name, parameter in known.items()
        if name not in _NOT_SETTABLE and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


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
    :param env_id: id of a registered environment
    :param error: the error from creating it
    :return: the error to raise if a missing extra is the reason, otherwise ``None``
    """
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        entry_point = str(gym.spec(env_id).entry_point)
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
        close = close_matches(name, gym.registry)
        known = f"Similar names: {', '.join(close)}" if close else f"Known are: {', '.join(gym.registry)}"
        if not module:
            known += f"\nAn environment of another package needs the module that registers it: MODULE:{env_id}"
        raise UsageError(f"{error}\n{known}") from error


def announce(model: GRPO, title: str, policy: str) -> None:
    """
    Print what will be trained.

    :param model: the model
    :param title: see :func:`title`
    :param policy: name of the policy, as users write it
    """
    threads = th.get_num_threads()
    say(
        Text(title, "bold"),
        f": {policy}, {model.n_envs} copies, seed {model.seed}, {model.device} ({threads} thread{'s' if threads > 1 else ''})",
    )


class ProgressLines(BaseCallback):
    """Print the progress at intervals, where there is no terminal for a progress bar."""

    INTERVAL = 15.0

    def _on_training_start(self) -> None:
        self._begin = self._last = time.perf_counter()

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if now - self._last >= self.INTERVAL:
            self._last = now
            total = self.model._total_timesteps
            rest = ", completing the last groups" if self.num_timesteps >= total else ""
            say(f"{self.num_timesteps:,} of {total:,} steps after {now - self._begin:.0f} s{rest}")
        return True


def is_own_error(error: Exception) -> bool:
    """
    :param error: an exception from training
    :return: whether this package raised it deliberately (an episode that never ends, weights that are not finite): its message
        needs no traceback, unlike that of a bug
    """
    # Errors of one environment copy are wrapped in an EnvironmentFault that names the copy
    said = error.__cause__ if isinstance(error, EnvironmentFault) else error
    if not isinstance(said, ValueError | StartNotSupportedError) or said.__traceback__ is None:
        return False
    last = traceback.extract_tb(said.__traceback__)[-1]
    # A raise statement: not an error of a C function that was called here
    return Path(last.filename).is_relative_to(Path(__file__).parent) and (last.line or "").startswith("raise ")


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
        except ValueError as error:
            say(Text("Note: ", "bold yellow"), f"{path.name} is saved with pickle, as in Stable-Baselines3. {error}")
    model.save(path)


@contextmanager
def curve_figure(path: Path, title: str, xlabel: str, ylabel: str) -> Iterator["Axes"]:
    """
    Draw a figure with a legend. It is saved at the end of the ``with`` block.

    :param path: where to save it
    :param title: its title
    :param xlabel: label of the horizontal axis
    :param ylabel: label of the vertical axis
    :return: the axes to draw on
    """
    # Imported here, because it is slow to import
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    yield axes
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
