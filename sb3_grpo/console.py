"""What the commands share: options, the training itself, and the results that it leaves."""

import argparse
import difflib
import importlib
import inspect
import json
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import torch as th
from rich.console import Console
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, presets
from sb3_grpo.checkpoint.training import Stateful
from sb3_grpo.common.callbacks import ClampedProgressBarCallback
from sb3_grpo.starts.starts import StartNotSupportedError
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.machine import describe_machine, versions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALGORITHMS: dict[str, type[GRPO]] = {"dapo": DAPO, "grpo": GRPO}

# What the environments of a package need, by the beginning of their entry point
_EXTRAS = {"ale_py": "atari", "gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}

# Constructor parameters with an option of their own, or that no Python literal can express
_NOT_SETTABLE = ("self", "policy", "env", "n_envs", "seed", "device", "verbose", "start_sampler", "_init_setup_model")

OK, USAGE_ERROR, INTERRUPTED = 0, 2, 130

# In the folder of a run
CHECKPOINTS, CONFIG, MODEL = "checkpoints", "config.json", "model.zip"


class UsageError(Exception):
    """A mistake of the user, who needs the message and not the traceback."""


class Outcome(NamedTuple):
    """
    What came out of the training.

    :param interrupted: Ctrl-C or SIGTERM ended it
    :param seconds: how long it took
    :param steps: how many steps the environments made
    :param error: what else ended it
    """

    interrupted: bool
    seconds: float
    steps: int
    error: Exception | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the training came to its end."""
        return self.error is None and not self.interrupted

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


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


def register_atari(env_id: str) -> None:
    """
    Import what registers the environment if it is an Atari game.

    :param env_id: id of any environment
    """
    if "ALE/" not in env_id and "NoFrameskip-v" not in env_id:
        return
    try:
        # ale-py registers its environments when it is imported
        importlib.import_module("ale_py")
        importlib.import_module("cv2")
    except ImportError as error:
        raise missing_extra("atari", env_id) from error


def find_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """
    :param env_id: as on the command line
    :return: what Gymnasium knows of the environment
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"{env_id}: cannot import {module}: {error}") from error
    register_atari(name)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        close = close_matches(name, gym.registry)
        known = f"Similar names: {', '.join(close)}" if close else f"Known are: {', '.join(gym.registry)}"
        raise UsageError(f"{error}\n{known}") from error


def make_output(args: argparse.Namespace, name: str) -> Path:
    """
    :param args: the arguments, among them ``algo`` and ``output``
    :param name: what a folder of this run is called, if the user has not chosen one
    :return: the folder for the results, without a model in it
    """
    output: Path = args.output or _new_run(Path("runs") / args.algo, name)
    if (output / CHECKPOINTS).exists():
        raise UsageError(f"{output} has a run that is not complete: go on with --resume {output}, or choose another --output")
    if (output / MODEL).exists():
        raise UsageError(f"{output} has a model of an earlier run: choose another folder with --output")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot make the folder {output}: {error}") from error
    return output


def _new_run(folder: Path, name: str) -> Path:
    number = 1
    while (folder / f"{name}_{number}").exists():
        number += 1
    return folder / f"{name}_{number}"


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


def is_own_error(error: ValueError | StartNotSupportedError) -> bool:
    """
    :param error: what training raised
    :return: whether this package has said it (an episode that never ends, a spoiled policy): such words need no traceback, a
        defect does
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    # Not what a function in C has refused that was called here
    return Path(last.filename).is_relative_to(Path(__file__).parent) and (last.line or "").startswith("raise ")


def add_saving(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: where to add the options
    """
    parser.add_argument(
        "--save-freq",
        type=positive,
        metavar="STEPS",
        help="steps from one checkpoint to the next (default: one in a minute). They are removed when the run is complete",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="go on with a run that was interrupted or killed, with all of its options: it ends as if it had not been",
    )


def arguments_of(folder: Path, argv: Sequence[str], command: str) -> argparse.Namespace:
    """
    :param folder: of a run that was interrupted
    :param argv: the arguments of this one
    :param command: what has to have begun the run
    :return: the arguments of the one that began it
    """
    more = [each for each in argv if each.startswith("--") and not each.startswith("--res")]
    if more:
        raise UsageError(f"--resume takes all options from the run: leave out {' '.join(more)}")
    try:
        arguments = json.loads((folder / CONFIG).read_text())["arguments"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} is not the folder of a run that could go on: its {CONFIG} cannot be read ({error})"
        ) from error
    if arguments.get("command") != command:
        raise UsageError(f"{folder} is not a run of {command}, but of {arguments.get('command')}")
    if not (folder / CHECKPOINTS).exists():
        raise UsageError(f"{folder} has no checkpoints: the run is complete, or ended before its training began")
    return argparse.Namespace(**{**arguments, "output": folder, "resume": folder, "argv": argv})


def resumed_model(args: argparse.Namespace, env: Any) -> GRPO:
    """
    :param args: of a run that was interrupted
    :param env: its environment, made anew
    :return: its model, in the middle of its training
    """
    try:
        return ALGORITHMS[args.algo].resume(args.output / CHECKPOINTS, env, device=args.device)
    except (OSError, ValueError, StartNotSupportedError) as error:
        raise UsageError(str(error)) from error


def learn(model: GRPO, args: argparse.Namespace, curve: BaseCallback, also: dict[str, Stateful]) -> Outcome:
    """
    Train and show the progress. Ctrl-C ends the training early, and what ends it is no reason not to save what was learned.

    :param model: the model
    :param args: the arguments, among them ``timesteps``, ``output`` and ``save_freq``
    :param curve: called at each step, before the progress is shown
    :param also: what is saved with the checkpoints
    :return: what came out of it
    """
    progress = ClampedProgressBarCallback() if Console().is_terminal else ProgressLines()
    checkpoint = TrainingCheckpoint(args.output / CHECKPOINTS, args.save_freq, also=also)
    seconds = 0.0 if model.resumption is None else model.resumption.nanoseconds / 1e9
    interrupted, error = False, None
    start = time.perf_counter()
    try:
        model.learn(args.timesteps, callback=[curve, progress, checkpoint])
    except KeyboardInterrupt:
        interrupted = True
    except Exception as raised:
        own = isinstance(raised, ValueError | StartNotSupportedError) and is_own_error(raised)
        error = UsageError(str(raised)) if own else raised
    finally:
        seconds += time.perf_counter() - start
        if hasattr(progress, "pbar"):
            progress.pbar.close()
    return Outcome(interrupted, seconds, model.num_timesteps, error)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is like Ctrl-C in the ``with`` block."""
    with _handling(lambda number, frame: _interrupt(), signal.SIGTERM):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the ``with`` block: results are being saved."""
    waiting: list[int] = []
    with _handling(lambda number, frame: waiting.append(number), signal.SIGINT, signal.SIGTERM):
        yield
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # others cannot have handlers
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def save_training(args: argparse.Namespace, model: GRPO, outcome: Outcome, *writes: Callable[[], Any]) -> None:
    """
    Save the model and what else there is after the training, whose checkpoints are not needed any more if it is complete.

    :param args: the arguments
    :param model: the model
    :param outcome: of the training
    :param writes: what saves other results
    """
    save_each(lambda: model.save(args.output / MODEL), *writes)
    if outcome.is_complete:
        shutil.rmtree(args.output / CHECKPOINTS, ignore_errors=True)


def save_each(*writes: Callable[[], Any]) -> None:
    """
    Save all results that can be saved.

    :param writes: what saves one of them
    """
    problems = []
    with signals_wait():
        for write in writes:
            try:
                write()
            except OSError as error:
                problems.append(str(error))
    if problems:
        raise UsageError(f"Not all results could be saved. {' '.join(problems)}")


def finish(args: argparse.Namespace, outcome: Outcome, rows: Sequence[tuple[str, str]], unit: str = "steps") -> int:
    """
    The end of a run whose results are saved.

    :param args: the arguments
    :param outcome: of the training
    :param rows: labels, and what the command has to say of the trained model
    :param unit: what the environments' steps are called
    :return: the exit code
    """
    report(args.output, outcome, rows, unit)
    if outcome.is_complete:
        return OK
    say(f"To go on: python -m sb3_grpo {args.command} --resume {args.output}")
    if outcome.error is not None:
        raise outcome.error
    return INTERRUPTED


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


def begin_config(path: Path, args: argparse.Namespace, settings: dict[str, Any], model: GRPO, **sections: Any) -> None:
    """
    Write down what is going to be run, and on what.

    :param path: the file
    :param args: the arguments
    :param settings: the hyperparameters that are not the defaults
    :param model: the model
    :param sections: what else belongs to the command
    """
    arguments = {name: value for name, value in vars(args).items() if name not in ("argv", "resume", "run", "set")}
    used = {name: parameter.default for name, parameter in known_settings(type(model)).items()} | settings
    # What "auto" has become
    used |= {name: getattr(model, name) for name, value in used.items() if value == "auto" and hasattr(model, name)}
    if model.default_policy_kwargs:
        used["policy_kwargs"] = model.default_policy_kwargs | (used["policy_kwargs"] or {})
    config = {
        "arguments": {**arguments, "output": str(path.parent)},
        "hyperparameters": used,
        "policy": type(model.policy).__name__,
        "versions": versions(),
        "machine": {
            **describe_machine(),
            "torch_threads": th.get_num_threads(),
            "device": th.cuda.get_device_name(model.device) if model.device.type == "cuda" else str(model.device),
        },
        "training": None,
        **sections,
    }
    _write_config(path, config)


def end_config(path: Path, outcome: Outcome, training: dict[str, Any], **sections: Any) -> None:
    """
    Write down what came out.

    :param path: the file, as ``begin_config`` wrote it
    :param outcome: of the training
    :param training: what else the command measured while it trained
    :param sections: what else belongs to the command
    """
    ended = {} if outcome.error is None else {"error": str(outcome.error)}
    measured = {
        "interrupted": outcome.interrupted,
        **ended,
        "steps": outcome.steps,
        **training,
        "seconds": outcome.seconds,
        "steps_per_second": outcome.steps_per_second,
    }
    _write_config(path, {**json.loads(path.read_text()), "training": measured, **sections})


def _write_config(path: Path, config: dict[str, Any]) -> None:
    with replace_file(path) as file:
        file.write(f"{json.dumps(config, indent=2, default=str)}\n".encode())


def report(output: Path, outcome: Outcome, rows: Sequence[tuple[str, str]], unit: str = "steps") -> None:
    """
    Print what came out.

    :param output: the folder with the results
    :param outcome: of the training
    :param rows: labels, and what the command has to say of the trained model
    :param unit: what the environments' steps are called
    """
    speed = f"{outcome.seconds:.1f} s, {outcome.steps_per_second:,.0f} {unit}/s"
    rows = [
        ("Interrupted after" if outcome.interrupted or outcome.error else "Training", f"{outcome.steps:,} {unit}, {speed}"),
        *rows,
        ("Saved", f"{output}: {', '.join(sorted(path.name for path in output.iterdir()))}"),
    ]
    say_table([(Text(label, "bold"), Text(text, overflow="fold")) for label, text in rows])
