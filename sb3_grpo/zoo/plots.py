"""The RL Zoo's plots, which can be saved here."""

import argparse
import sys
from pathlib import Path

import matplotlib

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
