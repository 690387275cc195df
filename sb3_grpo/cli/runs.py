"""A run of ``train`` or ``text``: its folder, training, results, and how it is resumed."""

import argparse
import json
import shlex
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch as th
from rich.console import Console
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo import GRPO, TrainingCheckpoint, presets
from sb3_grpo.checkpoint.training import Stateful
from sb3_grpo.cli.settings import known_settings
from sb3_grpo.common.callbacks import ClampedProgressBarCallback, mean_return
from sb3_grpo.console import (
    ALGORITHMS,
    INTERRUPTED,
    OK,
    UsageError,
    is_own_error,
    save_model,
    say,
)
from sb3_grpo.starts.starts import StartNotSupportedError
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.machine import describe_machine, versions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In the folder of a run
CHECKPOINTS, CONFIG, MODEL = "checkpoints", "config.json", "model.zip"


class Outcome(NamedTuple):
    """
    The outcome of training.

    :param interrupted: whether Ctrl-C or SIGTERM ended it
    :param seconds: duration of training in seconds
    :param steps: number of environment steps
    :param error: the exception that ended it, if any
    """

    interrupted: bool
    seconds: float
    steps: int
    error: Exception | None = None

    @property
    def is_complete(self) -> bool:
        """Whether training ran to its end."""
        return self.error is None and not self.interrupted

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


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
        self._mean_return = ""

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if now - self._last >= self.INTERVAL:
            self._last = now
            total = self.model._total_timesteps
            rest = ", completing the last groups" if self.num_timesteps >= total else ""
            say(f"{self.num_timesteps:,} of {total:,} steps after {now - self._begin:.0f} s{self._mean_return}{rest}")
        return True

    def _on_rollout_end(self) -> None:
        if said := mean_return(self.model):
            self._mean_return = f", {said}"


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


def make_output(args: argparse.Namespace, name: str) -> Path:
    """
    :param args: the arguments, including ``algo`` and ``output``
    :param name: name of the folder, without its number, if the user has not chosen one
    :return: the folder for the results, which holds no model yet
    """
    folder = Path("runs") / args.algo
    try:
        if args.output is None:
            return _new_run(folder, name)
        output: Path = args.output
        has_checkpoints, has_model = (output / CHECKPOINTS).exists(), (output / MODEL).exists()
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot make the folder {args.output or folder}: {error}") from error
    if has_checkpoints:
        quoted = shlex.quote(str(output))
        raise UsageError(f"{output} has a run that is not complete: go on with --resume {quoted}, or choose another --output")
    if has_model:
        raise UsageError(f"{output} has a model of an earlier run: choose another folder with --output")
    return output


def _new_run(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / f"{name}_{number}"
        try:
            # Fails if the folder exists, so that runs that start at the same moment get folders of their own
            path.mkdir()
            return path
        except FileExistsError:
            number += 1


def add_saving(parser: argparse.ArgumentParser) -> None:
    """
    Add ``--save-freq`` and ``--resume``.

    :param parser: where to add the options
    """
    add_save_freq(parser)
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="resume an interrupted or killed run with all of its options; it ends as if it had never stopped. train also "
        "accepts another --device",
    )


def add_save_freq(parser: argparse.ArgumentParser) -> None:
    """
    Add ``--save-freq``.

    :param parser: where to add the option
    """
    parser.add_argument(
        "--save-freq",
        type=positive,
        metavar="STEPS",
        help="steps between checkpoints (default: at most one per minute). They are removed when the run is complete",
    )


def arguments_of(args: argparse.Namespace) -> argparse.Namespace:
    """
    :param args: the arguments of a command that resumes the run in ``args.resume``
    :return: the arguments the run was started with, except for ``device`` if ``--device`` is given
    """
    folder, given = args.resume, [each for each in args.argv[1:] if each.startswith("--")]
    more = [each for each in given if not each.startswith(("--res", "--device"))]
    if more:
        raise UsageError(f"--resume takes all options but --device from the run: leave out {' '.join(more)}")
    try:
        arguments = dict(json.loads((folder / CONFIG).read_text())["arguments"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} is not the folder of a run that could go on: its {CONFIG} cannot be read ({error})"
        ) from error
    if arguments.get("command") != args.command:
        raise UsageError(f"{folder} is not a run of {args.command}, but of {arguments.get('command')}")
    if not (folder / CHECKPOINTS).exists():
        raise UsageError(f"{folder} has no checkpoints: the run is complete, or ended before its training began")
    if any(each.startswith("--device") for each in given):
        arguments["device"] = args.device
    return argparse.Namespace(**{**arguments, "output": folder, "resume": folder, "argv": args.argv})


def resumed_model(args: argparse.Namespace, env: Any) -> GRPO:
    """
    :param args: the arguments of an interrupted run
    :param env: its environment, rebuilt
    :return: its model, ready to resume training
    """
    try:
        return ALGORITHMS[args.algo].resume(args.output / CHECKPOINTS, env, device=args.device)
    except (OSError, ValueError, StartNotSupportedError) as error:
        raise UsageError(str(error)) from error


def learn(model: GRPO, args: argparse.Namespace, curve: BaseCallback, also: dict[str, Stateful]) -> Outcome:
    """
    Train and show the progress. Ctrl-C and exceptions end training early; they are returned and not raised, so that what was
    learned can be saved.

    :param model: the model
    :param args: the arguments, including ``timesteps``, ``output`` and ``save_freq``
    :param curve: callback that records the learning curve, called before the progress is shown
    :param also: further objects to save with the checkpoints, by name
    :return: the outcome of training
    """
    progress = ClampedProgressBarCallback() if Console().is_terminal else ProgressLines()
    checkpoint = TrainingCheckpoint(args.output / CHECKPOINTS, args.save_freq, also=also)
    seconds = 0.0 if model.resumption is None else model.resumption.nanoseconds / 1e9
    interrupted, error = False, None
    start = time.perf_counter()
    try:
        with _warnings_as_notes():
            model.learn(args.timesteps, callback=[curve, progress, checkpoint])
    except KeyboardInterrupt:
        interrupted = True
    except Exception as raised:
        error = UsageError(str(raised)) if is_own_error(raised) else raised
    finally:
        seconds += time.perf_counter() - start
        if hasattr(progress, "pbar"):
            progress.pbar.close()
    return Outcome(interrupted, seconds, model.num_timesteps, error)


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print warnings without the line of code that they come from, which is not the user's."""

    def say_note(message: Warning | str, *where: Any) -> None:
        say(Text("Note: ", "bold yellow"), str(message), stderr=True)

    with warnings.catch_warnings():
        warnings.showwarning = say_note  # type: ignore[assignment]
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C inside the ``with`` block."""
    with _handling(lambda number, frame: _interrupt(), signal.SIGTERM):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def signals_wait() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the ``with`` block, while results are being saved."""
    waiting: list[int] = []
    with _handling(lambda number, frame: waiting.append(number), signal.SIGINT, signal.SIGTERM):
        yield
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def save_training(args: argparse.Namespace, model: GRPO, outcome: Outcome, *writes: Callable[[], Any]) -> None:
    """
    Save the model and the other results of training, then remove the checkpoints if training is complete.

    :param args: the arguments
    :param model: the model
    :param outcome: the outcome of training
    :param writes: functions that save the other results
    """
    save_each(lambda: save_model(model, args.output / MODEL), *writes)
    if outcome.is_complete:
        shutil.rmtree(args.output / CHECKPOINTS, ignore_errors=True)


def save_each(*writes: Callable[[], Any]) -> None:
    """
    Save all results that can be saved.

    :param writes: functions that save one result each
    :raises UsageError: at the end, if some of them could not be saved
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
    Report on a run whose results are saved, and end it.

    :param args: the arguments
    :param outcome: the outcome of training
    :param rows: labels and texts about the trained model
    :param unit: name of an environment step, in the plural
    :return: the exit code
    """
    report(args.output, outcome, rows, unit)
    if outcome.is_complete:
        return OK
    say(f"To resume: sb3-grpo {args.command} --resume {shlex.quote(str(args.output))}")
    if outcome.error is not None:
        raise outcome.error
    return INTERRUPTED


def begin_config(path: Path, args: argparse.Namespace, settings: dict[str, Any], model: GRPO, **sections: Any) -> None:
    """
    Write the settings of a run, the package versions and the machine to a file.

    :param path: the file
    :param args: the arguments
    :param settings: the hyperparameters that are set; the others have their defaults
    :param model: the model
    :param sections: further sections, by name
    """
    arguments = {name: value for name, value in vars(args).items() if name not in ("argv", "resume", "run", "set")}
    used = {name: parameter.default for name, parameter in known_settings(type(model)).items()} | settings
    # The values that "auto" resolved to
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
    try:
        _write_config(path, config)
    except OSError as error:
        raise UsageError(f"Cannot write to {path.parent}: {error}") from error


def end_config(path: Path, outcome: Outcome, training: dict[str, Any], **sections: Any) -> None:
    """
    Add the outcome of training to the file.

    :param path: the file that ``begin_config`` wrote
    :param outcome: the outcome of training
    :param training: further measurements from training
    :param sections: further sections, by name
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
    Print the outcome of a run.

    :param output: the folder with the results
    :param outcome: the outcome of training
    :param rows: labels and texts about the trained model
    :param unit: name of an environment step, in the plural
    """
    speed = f"{outcome.seconds:.1f} s, {outcome.steps_per_second:,.0f} {unit}/s"
    rows = [
        ("Interrupted after" if outcome.interrupted or outcome.error else "Training", f"{outcome.steps:,} {unit}, {speed}"),
        *rows,
        ("Saved", f"{output}: {', '.join(sorted(path.name for path in output.iterdir()))}"),
    ]
    say_table([(Text(label, "bold"), Text(text, overflow="fold")) for label, text in rows])
