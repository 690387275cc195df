"""The RL Zoo's plots, which here report what they leave out and can be saved."""

import argparse
import itertools
import sys
from pathlib import Path

import matplotlib
import numpy as np

from sb3_grpo.console import UsageError, say

_TOOLS = ("all_plots", "plot_from_file", "plot_train")


def plot() -> None:
    """Run one of the plot tools with the arguments in ``sys.argv``."""
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        description="The RL Zoo's plots. all_plots collects evaluations and prints a table, plot_from_file draws what "
        "all_plots has saved, plot_train draws training returns. Each has its own -h.",
    )
    parser.add_argument("tool", choices=_TOOLS)
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="save the figures as PNG in FOLDER instead of showing them"
    )
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        parser.print_help()
        return
    options, arguments = parser.parse_known_args(sys.argv[1:])
    arguments = _as_in_file_names(arguments)
    if options.tool == "all_plots":
        arguments = _check_evaluations(arguments)
    sys.argv = [f"{sys.argv[0]} {options.tool}", *arguments]
    try:
        # Only imported when needed: rliable fails with versions of arch or pandas other than those of the extra
        import rl_zoo3.plots
    except (ImportError, TypeError) as error:
        raise UsageError(
            f'The plots need seaborn and rliable, which cannot be imported: pip install "sb3-grpo[zoo]" ({error})'
        ) from error

    show = pyplot.show
    if options.save is not None:
        matplotlib.use("Agg")
        pyplot.show = lambda: _save_figures(options.save)  # type: ignore[assignment]
    elif matplotlib.get_backend().lower() == "agg" and not {"-h", "--help", "--no-display"} & set(arguments):
        raise UsageError("There is no display to show figures on: save them with --save FOLDER")
    try:
        getattr(rl_zoo3.plots, options.tool)()
    finally:
        pyplot.show = show


def _as_in_file_names(arguments: list[str]) -> list[str]:
    """
    :param arguments: the arguments of a plot tool
    :return: the same arguments, with environment ids written as in folder names: ``MinAtar-Breakout-v1``
    """
    done, is_env = [], False
    for argument in arguments:
        if argument.startswith("-"):
            is_env = argument.partition("=")[0] in ("-e", "--env")
        done.append(argument.replace("/", "-") if is_env else argument)
    return done


def _save_figures(folder: Path) -> None:
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        path = folder / f"{(str(figure.get_label()) or f'figure {number}').replace(' ', '_')}.png"
        figure.savefig(path, dpi=120)
        say(f"Saved {path}")


def _check_evaluations(arguments: list[str]) -> list[str]:
    """
    Report which runs ``all_plots`` leaves out: those with fewer evaluations than the longest run of the same algorithm.

    :param arguments: the arguments of ``all_plots``
    :return: the same arguments; by default, curves are not cut, and the number of runs is printed with each result
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", "--algos", nargs="+", default=[])
    parser.add_argument("-e", "--env", nargs="+", default=[])
    parser.add_argument("-f", "--exp-folders", nargs="+", default=[])
    parser.add_argument("-max", "--max-timesteps", type=int)
    parser.add_argument("-min", "--min-timesteps", type=int, default=-1)
    parser.add_argument("-print", "--print-n-trials", action="store_true")
    options, _ = parser.parse_known_args(arguments)
    if {"-h", "--help"} & set(arguments):
        return arguments
    for name, values in (("-a", options.algos), ("-e", options.env), ("-f", options.exp_folders)):
        if not values:
            raise UsageError(f"all_plots needs {name}: -a ALGOS -e ENVIRONMENTS -f LOG_FOLDERS")
    until = {
        f"{folder}/{algo}: {env}": _check_runs(Path(folder) / algo.lower(), env, options.max_timesteps, options.min_timesteps)
        for folder, algo, env in itertools.product(options.exp_folders, options.algos, options.env)
    }
    longest = max(until.values())
    missing = "; ".join(where for where, last in until.items() if not last)
    if not longest:
        raise UsageError(
            f"There is no evaluation to plot ({missing}). train evaluates every 25,000 steps, or as often as --eval-freq says"
        )
    if missing:
        say(f"Warning: without any evaluation, so 0.0 in the table: {missing}", stderr=True)
    if options.max_timesteps is None:
        # By default, the RL Zoo cuts at 2 million steps
        arguments = [*arguments, "--max-timesteps", str(longest)]
    return arguments if options.print_n_trials else [*arguments, "--print-n-trials"]


def _check_runs(log_path: Path, env: str, max_timesteps: int | None, min_timesteps: int) -> int:
    """
    :param log_path: folder with the runs of an algorithm
    :param env: part of the runs' names
    :param max_timesteps: step at which curves are cut, ``None`` for no cut
    :param min_timesteps: minimum length of a run; above 0, curves of different lengths are made equally long
    :return: step of the last evaluation of all runs, 0 if there is none
    """
    steps: dict[str, np.ndarray] = {}
    for path in sorted(log_path.glob(f"*{env}*")):
        if (path / "evaluations.npz").is_file():
            with np.load(path / "evaluations.npz") as log:
                evaluated = log["timesteps"]
            steps[path.name] = evaluated if max_timesteps is None else evaluated[evaluated <= max_timesteps]
        elif path.is_dir():
            say(f"{path}: no evaluations, left out", stderr=True)
    most = max((len(evaluated) for evaluated in steps.values()), default=0)
    short = {name: evaluated[-1] if len(evaluated) else 0 for name, evaluated in steps.items() if len(evaluated) < most}
    if short and min_timesteps <= 0:
        listed = ", ".join(f"{name} (until step {last:,})" for name, last in short.items())
        say(
            f"Warning: {log_path}: {len(short)} of {len(steps)} runs of {env} have fewer evaluations than the longest, and "
            f"are left out of the mean and the table: {listed}. To keep them, cut all: --max-timesteps {min(short.values())}",
            stderr=True,
        )
    return max((int(evaluated[-1]) for evaluated in steps.values() if len(evaluated)), default=0)
