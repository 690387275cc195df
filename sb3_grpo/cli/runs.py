"""A run of ``train`` or ``text``: its options, folder, training, results, and how it is resumed."""

import argparse
import json
import os
import shlex
import shutil
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import get_latest_run_id

from sb3_grpo import GRPO, TrainingCheckpoint, presets
from sb3_grpo.cli.settings import NOT_SETTABLE
from sb3_grpo.common.callbacks import ClampedProgressBarCallback, Curve, mean_return
from sb3_grpo.console import ALGORITHMS, INTERRUPTED, OK, UsageError, save_model, say
from sb3_grpo.utils.files import replace_text
from sb3_grpo.utils.machine import describe_machine, versions
from sb3_grpo.utils.ranks import RankLost, gather, n_ranks, rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In the folder of a run
ANSWERS, CHECKPOINTS, CONFIG, MODEL = "answers.csv", "checkpoints", "config.json", "model.zip"


def say_table(rows: Sequence[tuple[Text, ...]]) -> None:
    """
    Print a table without borders.

    :param rows: its cells, row by row
    """
    if rank() > 0:
        return
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


def _valid_seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**32 - 1, not {text!r}")
    return int(text)


def add_run_options(parser: argparse.ArgumentParser, name: str) -> None:
    """
    Add the options that ``train`` and ``text`` share.

    :param parser: where to add the options
    :param name: name of the default folder
    """
    parser.add_argument("--seed", type=_valid_seed, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--output", type=Path, help=f"folder for the results (default: a new runs/ALGO/{name}_NUMBER)")
    parser.add_argument(
        "--preset",
        choices=presets.PRESETS,
        metavar="NAME",
        help=f"settings from a paper in place of the defaults: {', '.join(presets.PRESETS)}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a hyperparameter to a Python value, for example --set group_size=8; can be repeated, and overrides --preset",
    )
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
        help="steps between checkpoints of grpo and dapo (default: at most one per minute), removed when the run is complete",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """
    :param folder: folder of a run
    :return: what its ``config.json`` says
    :raises UsageError: if it is no such folder
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
        return {**config, "arguments": {**config["arguments"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} is not the folder of a run: {CONFIG} cannot be read ({error})") from error


def run_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """
    :param args: the arguments of a command
    :return: the same arguments, or those that the run in ``args.resume`` was started with, except for ``device`` if
        ``--device`` is given
    """
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if restarted and args.output is not None and (args.output / CHECKPOINTS).exists():
        args.resume, args.argv = args.output, args.argv[:1]
    if args.resume is None:
        return args
    folder, given = args.resume, [each.partition("=")[0] for each in args.argv[1:] if each.startswith("--")]
    # Options may be abbreviated
    more = [each for each in given if not ("--resume".startswith(each) or "--device".startswith(each))]
    if more:
        raise UsageError(f"--resume takes all options but --device from the run: leave out {' '.join(more)}")
    arguments = read_config(folder)["arguments"]
    if arguments.get("command") != args.command:
        raise UsageError(f"{folder} is not a run of {args.command}, but of {arguments.get('command')}")
    if not (folder / CHECKPOINTS).exists():
        raise UsageError(f"{folder} has no checkpoints: the run is complete, or ended before its training began")
    if any("--device".startswith(each) for each in given):
        arguments["device"] = args.device
    return argparse.Namespace(**{**arguments, "output": folder, "resume": folder})


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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.legend()
    figure.savefig(path, dpi=120)


def make_output(output: Path | None, folder: Path, name: str) -> Path:
    """
    :param output: the folder that the user has chosen, if any
    :param folder: where to make a new folder otherwise
    :param name: its name, without a number
    :return: an existing folder for the results, without those of an earlier run
    """
    while output is None:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{name}_{get_latest_run_id(str(folder), name) + 1}"
        try:
            # Fails if the folder exists, so that runs that start at the same moment get folders of their own
            new.mkdir()
            return new
        except FileExistsError:
            continue
    if (output / CHECKPOINTS).exists():
        quoted = shlex.quote(str(output))
        raise UsageError(f"{output} has a run that is not complete: go on with --resume {quoted}, or choose another --output")
    for name in MODEL, ANSWERS:
        if (output / name).exists():
            raise UsageError(f"{output} has a file {name} already: choose another folder with --output")
    output.mkdir(parents=True, exist_ok=True)
    return output


class Run:
    """
    A run with its folder, which begins or is resumed.

    :param args: the arguments; without ``output``, it is set to a new folder
    :param task: what is learned, as in the title
    :param curve: callback that records the learning curve, called before the progress is shown
    """

    def __init__(self, args: argparse.Namespace, task: str, curve: Curve):
        self.args = args
        preset = f" ({args.preset})" if args.preset else ""
        self.title = f"{ALGORITHMS[args.algo].__name__}{preset} on {task}"
        self.curve = curve
        self.config: dict[str, Any] = {}
        self.interrupted = False
        self.error: Exception | RankLost | None = None
        self.seconds, self.steps = 0.0, 0

    @property
    def output(self) -> Path:
        """The folder."""
        return self.args.output

    @property
    def is_complete(self) -> bool:
        """Whether training ran to its end."""
        return self.error is None and not self.interrupted

    def make_model(self, policy: str, env: Any, name: str, settings: dict[str, Any]) -> GRPO:
        """
        Make the model, and the folder of the run.

        :param policy: name of the policy
        :param env: the environment
        :param name: name of the folder, without its number
        :param settings: the hyperparameters that are set
        :return: the model
        """
        args = self.args
        try:
            model = ALGORITHMS[args.algo](policy, env, seed=args.seed, device=args.device, **settings)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        # The folder of the first rank is that of all
        args.output = gather(make_output(args.output, Path("runs", args.algo), name) if rank() == 0 else None)[0]
        arguments = {name: value for name, value in vars(args).items() if name not in ("argv", "resume", "run", "set")}
        machine = {**describe_machine(), "device": str(model.device)}
        self.config = {
            "command": f"{command()} {shlex.join(args.argv)}",
            "arguments": arguments,
            "hyperparameters": {name: value for name, value in model.settings.items() if name not in NOT_SETTABLE},
            "policy": type(model.policy).__name__,
        }
        self.write_config(versions=versions(), machine=machine, training=None, evaluation=None)
        return model

    def resumed_model(self, env: Any) -> GRPO:
        """
        :param env: the environment, rebuilt
        :return: the model, ready to resume training
        """
        self.config = read_config(self.output)
        return ALGORITHMS[self.args.algo].resume(self.output / CHECKPOINTS, env, device=self.args.device)

    def write_config(self, **sections: Any) -> None:
        """
        :param sections: sections to add to ``config.json``, or to replace there
        """
        self.config |= sections
        if rank() > 0:
            return
        replace_text(self.output / CONFIG, f"{json.dumps(self.config, indent=2, default=str)}\n")

    def learn(self, model: GRPO, policy: str) -> None:
        """
        Train and show the progress. Ctrl-C, SIGTERM and exceptions end training early, so that what was learned is saved.

        :param model: the model
        :param policy: name of the policy, as users write it
        """
        processes = f" in {n_ranks()} processes" if n_ranks() > 1 else ""
        resumed = f", from step {model.num_timesteps:,} on" if self.args.resume is not None else ""
        what = f"{policy}, {model.n_copies} copies{processes}, seed {model.seed}, {model.device}{resumed}"
        say(Text(self.title, "bold"), f": {what}")
        progress = ClampedProgressBarCallback() if Console().is_terminal else ProgressLines()
        checkpoint = TrainingCheckpoint(self.output / CHECKPOINTS, self.args.save_freq, also={"curve": self.curve})
        seconds = 0.0 if model.resumption is None else model.resumption.nanoseconds / 1e9
        start = time.perf_counter()
        sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _say_note  # type: ignore[assignment]
                model.learn(self.args.timesteps, callback=[self.curve, progress, checkpoint])
        except KeyboardInterrupt:
            self.interrupted = True
        except (Exception, RankLost) as raised:
            self.error = raised
        finally:
            signal.signal(signal.SIGTERM, sigterm)
            progress.on_training_end()
        self.seconds, self.steps = seconds + time.perf_counter() - start, model.num_timesteps

    def save(self, model: GRPO, **measured: Any) -> None:
        """
        Save the model and what is known of its training, then remove the checkpoints if training is complete.

        :param model: the model
        :param measured: further measurements from training
        """
        save_model(model, self.output / MODEL)
        training = {"interrupted": self.interrupted, "steps": self.steps, **measured, "seconds": self.seconds}
        training |= {} if self.error is None else {"error": str(self.error)}
        self.write_config(training={**training, "steps_per_second": self.steps / self.seconds})
        if self.is_complete:
            shutil.rmtree(self.output / CHECKPOINTS, ignore_errors=True)

    def finish(self, rows: Sequence[tuple[str, str]], unit: str = "steps") -> int:
        """
        Report on the run, whose results are saved, and end it.

        :param rows: labels and texts about the trained model
        :param unit: name of an environment step, in the plural
        :return: the exit code
        """
        took = f"{self.steps:,} {unit}, {self.seconds:.1f} s, {self.steps / self.seconds:,.0f} {unit}/s"
        saved = ", ".join(sorted(path.name for path in self.output.iterdir()))
        rows = [("Training" if self.is_complete else "Interrupted after", took), *rows, ("Saved", f"{self.output}: {saved}")]
        say_table([(Text(label, "bold"), Text(text, overflow="fold")) for label, text in rows])
        if not self.is_complete:
            say(f"To resume: {command()} {self.args.command} --resume {shlex.quote(str(self.output))}")
        return self.end()

    def end(self) -> int:
        """
        End the run.

        :return: the exit code
        """
        if self.error is not None:
            raise self.error
        return OK if self.is_complete else INTERRUPTED


def command() -> str:
    """
    :return: how this program is called
    """
    return "sb3-grpo" if n_ranks() == 1 else f"torchrun --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m sb3_grpo"


def _say_note(message: Warning | str, *where: Any) -> None:
    """Print a warning without the line of code that it comes from, which is not the user's."""
    say(Text("Note: ", "bold yellow"), str(message), stderr=True)
