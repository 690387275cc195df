"""``sb3-grpo compare poster``: a finished comparison on one page that can be read from two metres."""

import base64
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from PIL import Image

from sb3_grpo.classroom.compare import curves, figures
from sb3_grpo.classroom.compare.clips import Clip, env_clip
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import listed
from sb3_grpo.classroom.compare.report import Report, facts_of, machines_of, seeds_each
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import MIN_SEEDS, iqm_interval
from sb3_grpo.classroom.compare.tables import threshold_of
from sb3_grpo.classroom.pictures import NO_DATE, drawing
from sb3_grpo.console import UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure, SubFigure

# Width and height in inches, of equal width: letters have the same size on both
SIZES = {"16:9": (16.54, 9.30), "a3": (16.54, 11.69)}
MAX_ENVS = 9
# In points: text to be read, labels, and what only those read who come close
_TEXT, _LABEL, _SMALL = 24.0, 18.0, 11.0
_MARGIN = 36.0
_RC: dict[Any, Any] = {
    "font.size": _LABEL,
    "axes.titlesize": _LABEL,
    "axes.labelsize": _LABEL,
    "lines.linewidth": 3.5,
    "lines.markersize": 10.0,
    # Text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "poster",
}


def make_posters(folder: Path) -> list[Path]:
    """
    :param folder: folder of the experiment
    :return: the posters, each as PDF and SVG, next to the report
    :raises UsageError: if runs are unfinished, or there are too many environments for a page
    """
    results = collect(folder)
    _check(results)
    report = Report(results)
    paths = []
    with drawing(), rc_context(_RC):
        for size, inches in SIZES.items():
            figure = _draw(report, *inches)
            for suffix, metadata in ((".pdf", {"CreationDate": None}), (".svg", NO_DATE)):
                paths.append(folder / f"poster-{size.replace(':', 'x')}{suffix}")
                figure.savefig(paths[-1], metadata=metadata)
    return paths


def _check(results: Results) -> None:
    unfinished = results.planned[results.planned.status != "done"]
    if not unfinished.empty:
        runs = [f"{run.env}, {run.variant}, seed {run.seed} ({run.status})" for run in unfinished.itertuples()]
        rest = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
        raise UsageError(
            f"{results.folder}: {results.progress()}, and a poster is for finished comparisons. To do: "
            f"{'; '.join(runs[:5])}{rest}. Run the command of the comparison again, or look at the results so far with "
            "sb3-grpo compare report"
        )
    if len(results.envs) > MAX_ENVS:
        raise UsageError(
            f"{results.folder} has {len(results.envs)} environments, and a poster has room for {MAX_ENVS}: "
            "see all of them with sb3-grpo compare report"
        )


class _Page:
    """A figure with texts above and below, one after the other, that leave the room between them to the panels."""

    def __init__(self, width: float, height: float):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        # A dot is a point
        self.figure: Figure = Figure(figsize=(width, height), dpi=72.0)
        # Knows how wide texts are
        FigureCanvasAgg(self.figure)
        self.width, self.height = 72.0 * width, 72.0 * height
        self.room = self.width - 2 * _MARGIN
        self.top, self.bottom = self.height - _MARGIN, _MARGIN

    def add(self, text: str, sizes: Sequence[float], n_lines: int = 1, at_top: bool = True, **kwargs: Any) -> None:
        """
        :param text: a text, to be broken into lines
        :param sizes: sizes of its letters, in points: the first with which it takes no more lines, or the last one
        :param n_lines: how many lines
        :param at_top: put it below what is at the top already, otherwise above what is at the bottom
        :param kwargs: for matplotlib
        """
        y, align = (self.top, "top") if at_top else (self.bottom, "bottom")
        drawn = self.figure.text(_MARGIN / self.width, y / self.height, "", va=align, linespacing=1.2, **kwargs)
        for size in sizes:
            drawn.set_fontsize(size)
            for n_letters in range(int(self.room / (0.45 * size)), 1, -1):
                lines = textwrap.wrap(text, n_letters, break_on_hyphens=False)
                drawn.set_text("\n".join(lines))
                if drawn.get_window_extent().width <= self.room:
                    break
            if len(lines) <= n_lines:
                break
        taken = drawn.get_window_extent().height + 8.0
        self.top, self.bottom = (self.top - taken, self.bottom) if at_top else (self.top, self.bottom + taken)

    def add_legend(self, lines: "dict[str, Artist]") -> None:
        """Explain lines, by their names, below what is at the top already."""
        kind: dict[str, Any] = {"frameon": False, "borderpad": 0.0, "borderaxespad": 0.0, "handlelength": 3.0}
        kind |= {"loc": "upper left", "bbox_to_anchor": (_MARGIN / self.width, self.top / self.height), "fontsize": _TEXT}
        for n_columns in range(len(lines), 0, -1):
            drawn = self.figure.legend(lines.values(), lines, ncols=n_columns, **kind)
            if n_columns == 1 or drawn.get_window_extent().width <= self.room:
                break
            drawn.remove()
        self.top -= drawn.get_window_extent().height + 8.0

    def finish(self) -> "Figure":
        """Give the panels the room that is left."""
        left, low = _MARGIN / self.width, self.bottom / self.height
        rect = (left, low, 1.0 - 2 * left, self.top / self.height - low)
        self.figure.set_layout_engine("constrained", rect=rect)
        return self.figure


def _draw(report: Report, width: float, height: float) -> "Figure":
    results, page = report.results, _Page(width, height)
    budgets = sorted({results.experiment["timesteps"][env] for env in results.envs})
    facts, same_machine = dict(facts_of(results)), len(machines_of(results)) < 2
    env, clip = next(((env, clip) for env in results.envs if (clip := env_clip(results, env))), ("", None))
    # The more panels there are, the less room for stills
    ratios = [2 * min(len(results.envs), 3), 1] if clip else [1]
    panels, *stills = page.figure.subfigures(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    drawn = _draw_panels(panels, report, same_machine)
    where = listed(results.envs) if len(results.envs) < 3 else f"{len(results.envs)} environments"
    page.add(f"{listed(results.variants)} on {where}", (40.0, 36.0, 32.0, 28.0), weight="bold")
    page.add(report.headline, (36.0, 32.0, 28.0, _TEXT), n_lines=2)
    page.add_legend(drawn)
    page.add(" ".join(f"{name}: {facts[name]}." for name in ("Command", "Versions") if name in facts), [_SMALL], at_top=False)
    notes = [
        f"{seeds_each(results)}, {' to '.join(f'{each:,}' for each in dict.fromkeys((budgets[0], budgets[-1])))} steps.",
        f"Thick lines: interquartile mean of the seeds, with its 95% interval (from {MIN_SEEDS} seeds on).",
        "Thin: each seed.",
        f"Next to them: returns at the end{', and at equal time, that of the fastest' if same_machine else ''}.",
    ]
    if clip:
        _draw_stills(stills[0], clip)
        notes.append(f"Pictures: {env}, untrained and trained.")
    page.add(" ".join(notes), [_LABEL], at_top=False)
    return page.finish()


def _draw_panels(figure: "SubFigure", report: Report, same_machine: bool) -> "dict[str, Artist]":
    """
    Draw the learning curves on each environment, and beside them the final scores, and those at equal time if seconds compare.
    """
    results = report.results
    n_columns = {1: 1, 2: 2, 4: 2}.get(len(results.envs), 3)
    beside = 0.8 + 0.25 * len(results.variants)
    ratios = [4.5, beside, beside] if same_machine else [4.5, beside]
    grid = figure.subplots(
        -(-len(results.envs) // n_columns), n_columns * len(ratios), squeeze=False, width_ratios=ratios * n_columns
    )
    cells = grid.reshape(-1, len(ratios))
    drawn: dict[str, Artist] = {}
    for env, (axes, final, *equal) in zip(results.envs, cells, strict=False):
        mode, names = results.main_mode(env), curves.with_runs(results, env)
        lines = curves.over_steps(results, env)
        figures.draw_curves(axes, lines, report.look, threshold_of(env), 3, every_run=True)
        drawn |= {name: line for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        if len(results.envs) > 1:
            axes.set_title(env, loc="left")
        axes.locator_params("y", nbins=4)
        scores = {name: results.final_scores(env, name, mode) for name in names}
        seconds = results.shortest_time(env)
        early = {name: results.returns_after(env, name, mode, seconds) for name in names}
        if not any(np.isnan(line.band.low).all() for line in lines):
            # Intervals and scores decide: a single run that was far below for a while would leave no height to the others
            shown = np.concatenate([*scores.values(), *early.values(), *(np.ravel(line.band) for line in lines)])
            if margin := 0.05 * np.ptp(shown):
                axes.set_ylim(shown.min() - margin, shown.max() + margin)
        for where, values, label in zip((final, *equal), (scores, early), ("End", _time(seconds)), strict=False):
            where.sharey(axes)
            with rc_context({"lines.markersize": 5.0 + 6.0 / n_columns}):
                finals = {name: (each, iqm_interval([each])) for name, each in values.items()}
                figures.draw_finals(where, finals, report.look, label)
    for axes in cells[len(results.envs) :].flat:
        axes.remove()
    figure.supxlabel("Environment steps", size=_LABEL)
    figure.supylabel("Return", size=_LABEL)
    return drawn


def _time(seconds: float) -> str:
    if seconds >= 1000.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds:.{1 if seconds < 10.0 else 0}f} s"


def _draw_stills(figure: "SubFigure", clip: Clip) -> None:
    """The last images of up to four agents, one below the other."""
    panels = clip.panels[:4]
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False).flat, panels, strict=True):
        axes.set_title(textwrap.fill(panel.name, 15), size=_LABEL)
        axes.imshow(Image.open(io.BytesIO(base64.b64decode(panel.still.partition(",")[2]))))
        axes.axis("off")
