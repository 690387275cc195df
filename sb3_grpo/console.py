"""What the commands share: options, errors, and what they print."""

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

# What the environments of a package need, by the beginning of their entry point
_EXTRAS = {"ale_py": "atari", "gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
# What is imported in addition to the module that registers them: without it, they cannot be learned
_NEEDED_BY = {"ale_py": ("atari", ["cv2"]), "sb3_grpo.envs.minatar": ("minatar", [])}

# Constructor parameters with an option of their own, or that no Python literal can express
_NOT_SETTABLE = ("self", "policy", "env", "n_envs", "seed", "device", "verbose", "start_sampler", "_init_setup_model")

OK, USAGE_ERROR, INTERRUPTED = 0, 2, 130


class UsageError(Exception):
    """A mistake of the user, who needs the message and not the traceback."""


def say(*parts: str | Text, stderr: bool = False) -> None:
    """
    Print a line.

    :param parts: what it consists of
    :param stderr: print it there instead of stdout
    """
    # No markup in strings: "[box2d]" is not a style
    Console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def say_table(rows: Sequence[tuple[Text, ...]]) -> None:
    """
    Print a table without lines.

    :param rows: its cells
    """
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def positive(text: str) -> int:
    """
    :param text: as on the command line
    :return: a number above 0
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def valid_seed(text: str) -> int:
    """
    :param text: as on the command line
    :return: a seed that NumPy and PyTorch take
    """
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**32 - 1, not {text!r}")
    return int(text)


def add_preset(parser: argparse.ArgumentParser, ours: str) -> None:
    """
    :param parser: where to add the option
    :param ours: what the settings are called without it
    """
    parser.add_argument(
        "--preset",
        choices=presets.PRESETS,
        metavar="NAME",
        help=f"the settings of a paper instead of {ours}: {', '.join(presets.PRESETS)}",
    )


def title(algorithm: type[GRPO], preset: str | None, ours: str, task: str) -> str:
    """
    :param algorithm: the algorithm
    :param preset: name of the preset, if there is one
    :param ours: what the settings are called without
    :param task: what is learned
    :return: what to call a training and its results
    """
    return f"{algorithm.__name__} ({preset or ours}) on {task}"


def known_settings(algorithm: type[GRPO]) -> dict[str, inspect.Parameter]:
    """
    :param algorithm: the algorithm
    :return: the constructor parameters that ``--set`` can set
    """
    known: dict[str, inspect.Parameter] = {}
    # DAPO's constructor passes on what it does not name
    for cls in (GRPO, algorithm):
        known |= inspect.signature(cls).parameters
    return {
        name: parameter
        for name, parameter in known.items()
        if name not in _NOT_SETTABLE and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """
    :param word: what the user wrote
    :param known: what can be written
    :return: what the user may have meant
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
    :param error: why it cannot be made
    :return: the error to raise, if the reason is that an extra is not installed
    """
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        entry_point = str(gym.spec(env_id).entry_point)
        for package, extra in _EXTRAS.items():
            if entry_point.startswith(package):
                return missing_extra(extra, env_id)
    return None


def register_games(env_id: str) -> None:
    """
    Import what registers the environment if it is a game of Atari or MinAtar.

    :param env_id: id of any environment
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
    :param env_id: as on the command line
    :return: what Gymnasium knows of the environment
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError) as error:  # TypeError: of names that begin with a dot
            raise UsageError(f"{env_id}: cannot import {module}: {error}") from error
    register_games(name)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        close = close_matches(name, gym.registry)
        known = f"Similar names: {', '.join(close)}" if close else f"Known are: {', '.join(gym.registry)}"
        raise UsageError(f"{error}\n{known}") from error


def announce(model: GRPO, title: str, policy: str) -> None:
    """
    Say what will be trained.

    :param model: the model
    :param title: see :func:`title`
    :param policy: the policy as users call it
    """
    threads = th.get_num_threads()
    say(
        Text(title, "bold"),
        f": {policy}, {model.n_envs} copies, seed {model.seed}, {model.device} ({threads} thread{'s' if threads > 1 else ''})",
    )


class ProgressLines(BaseCallback):
    """Says now and then how far the training is, where there is no terminal to draw a bar on."""

    INTERVAL = 15.0

    def _on_training_start(self) -> None:
        self._begin = self._last = time.perf_counter()

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if now - self._last >= self.INTERVAL:
            self._last = now
            total = self.model._total_timesteps
            rest = ", until the last groups are complete" if self.num_timesteps >= total else ""
            say(f"{self.num_timesteps:,} of {total:,} steps after {now - self._begin:.0f} s{rest}")
        return True


def is_own_error(error: Exception) -> bool:
    """
    :param error: what training raised
    :return: whether this package has said it (an episode that never ends, a spoiled policy): such words need no traceback, a
        defect does
    """
    # What a copy of the environment refuses is named with the copy
    said = error.__cause__ if isinstance(error, EnvironmentFault) else error
    if not isinstance(said, ValueError | StartNotSupportedError) or said.__traceback__ is None:
        return False
    last = traceback.extract_tb(said.__traceback__)[-1]
    # Not what a function in C has refused that was called here
    return Path(last.filename).is_relative_to(Path(__file__).parent) and (last.line or "").startswith("raise ")


def save_model(model: BaseAlgorithm, path: Path) -> None:
    """
    Save a model so that others can load it without running anything, where it is ours and has nothing but data.

    :param model: any model
    :param path: the file
    """
    if isinstance(model, GRPO):
        try:
            model.save(path, format="safe")
            return
        except ValueError as error:
            say(Text("Note: ", "bold yellow"), f"{path.name} is saved with pickles, as Stable-Baselines3 does. {error}")
    model.save(path)


@contextmanager
def curve_figure(path: Path, title: str, xlabel: str, ylabel: str) -> Iterator["Axes"]:
    """
    A figure with a legend that is saved at the end of the ``with`` block.

    :param path: where to save it
    :param title: its title
    :param xlabel: what is on the horizontal axis
    :param ylabel: what is on the vertical axis
    :return: the axes to draw on
    """
    # Only now, because it takes long to import
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    yield axes
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
