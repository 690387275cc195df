"""The RL Zoo's plots, which can be saved here."""

import argparse
import sys
from pathlib import Path

import matplotlib

from sb3_grpo.console import UsageError, say


def plot() -> None:
    """Run one of the plot tools with the arguments in ``sys.argv``."""
    import rl_zoo3.plots
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        description="all_plots collects evaluations and prints a table, plot_from_file draws what all_plots has saved, "
        "plot_train draws training returns. Each has its own -h.",
    )
    parser.add_argument("tool", choices=("all_plots", "plot_from_file", "plot_train"))
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="save the figures in FOLDER instead of showing them")
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        return parser.print_help()
    options, rest = parser.parse_known_args(sys.argv[1:])
    if options.save is None and matplotlib.get_backend().lower() == "agg" and not {"-h", "--no-display"} & set(rest):
        raise UsageError("There is no display to show figures on: save them with --save FOLDER")
    sys.argv = [f"{sys.argv[0]} {options.tool}", *rest]
    show = pyplot.show
    if options.save is not None:
        matplotlib.use("Agg")
        pyplot.show = lambda: _save_figures(options.save)  # type: ignore[assignment]
    try:
        getattr(rl_zoo3.plots, options.tool)()
    finally:
        pyplot.show = show


def _save_figures(folder: Path) -> None:
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        path = folder / f"{(str(figure.get_label()) or f'figure {number}').replace(' ', '_')}.png"
        figure.savefig(path, dpi=120)
        say(f"Saved {path}")
