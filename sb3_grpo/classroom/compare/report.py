"""``python -m sb3_grpo compare report``: tables, pictures and the page from the results of the runs."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from sb3_grpo.classroom.compare import figures, pictures, tables
from sb3_grpo.classroom.compare.clips import env_clip
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.curves import EnvCurves, env_curves
from sb3_grpo.classroom.compare.figures import Style
from sb3_grpo.classroom.compare.findings import all_together, find_in, find_overall, judge, normalised_scores, scale
from sb3_grpo.classroom.compare.headline import few_seeds, headline
from sb3_grpo.classroom.compare.lecture import lecture_table
from sb3_grpo.classroom.compare.live import live_data
from sb3_grpo.classroom.compare.page import EnvSection, Overall, Page, write_page
from sb3_grpo.classroom.compare.pictures import MODE_WORDS, File
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import Comparison, iqm_interval, performance_profile


def make_report(folder: Path) -> Path:
    """
    Collect the runs of an experiment into ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``, draw the pictures into
    ``figures/``, and write ``report.html``. May be called while runs are still in progress: it reports which are missing.

    :param folder: folder of the experiment
    :return: the page
    """
    results = collect(folder)
    look = figures.styles(results.variants)
    drawn: list[EnvCurves] = []
    files: dict[str, dict[str, list[File]]] = {}
    compared: list[tuple[str | None, Comparison]] = []
    console = Console(stderr=True)
    # None: all environments together
    for env in track([*results.envs, None], "Report", console=console, transient=True, disable=not console.is_terminal):
        if env is None:
            overall = _overall(results, look, compared)
        elif any(len(results.done(env, name)) for name in results.variants):
            drawn.append(env_curves(results, env))
            files[env] = _draw_files(results, drawn[-1], look)
            compared += [(env, comparison) for comparison in find_in(results, env)]
    findings = judge(compared)
    sections = [
        EnvSection(
            env=curves.env,
            curves=pictures.curves_picture(curves, place, look),
            curve_files=files[curves.env]["curves"],
            final=pictures.final_picture(curves, look, *files[curves.env]["final"]),
            diagnostics=pictures.diagnostics_picture(curves, place, look, *files[curves.env]["diagnostics"])
            if curves.diagnostics
            else None,
            tables={each: tables.final_table(results, curves.env, each) for each in results.modes},
            runs=tables.runs_table(results, curves.env, curves.mode),
            efficiency=tables.efficiency_table(results, curves.env, curves.mode),
            findings=[finding for finding in findings if finding.env == curves.env],
            clip=env_clip(results, curves.env),
        )
        for place, curves in enumerate(drawn)
    ]
    everything = [*findings, *overall.findings]
    page = Page(
        results=results,
        look=look,
        headline=headline(results, everything, overall.envs, {each.env: each.intervals for each in drawn}),
        few_seeds=few_seeds(results, everything),
        overall=overall,
        sections=sections,
        cost=tables.cost_table(results),
        tuning=tables.tuning_table(results),
        networks=tables.network_statements(results),
        lecture=lecture_table(results),
        data=live_data(look, drawn, overall.scales, overall.profiles),
    )
    return write_page(page)


def _path(results: Results, file: File) -> Path:
    return results.folder / "figures" / file.name


def _file(label: str, kind: str, env: str = "") -> File:
    return File(label, re.sub(r"[^\w.+-]+", "_", f"{kind}_{env}" if env else kind))


def _draw_files(results: Results, curves: EnvCurves, look: dict[str, Style]) -> dict[str, list[File]]:
    """Draw everything about one environment into files next to the page; return the files by content."""
    env, mode = curves.env, curves.mode
    steps = [
        (each, _file(f"steps, {MODE_WORDS[each]}", "curves_steps" if each == mode else f"curves_steps_{each}", env))
        for each in (mode, *(other for other in results.modes if other != mode))
    ]
    for each, file in steps:
        ylabel = f"Return ({each})"
        lines = curves.steps[each]
        figures.draw_curves(_path(results, file), env, "Environment steps", ylabel, lines, look, curves.threshold)
    time = _file(f"{curves.unit}, {MODE_WORDS[mode]}", "curves_time", env)
    xlabel, ylabel = f"Training time ({curves.unit})", f"Return ({mode})"
    figures.draw_curves(_path(results, time), env, xlabel, ylabel, curves.time[mode], look, curves.threshold)
    final = _file("final return", "final", env)
    title = f"{env}: final return"
    figures.draw_scores(_path(results, final), title, ylabel, curves.finals, curves.intervals, look)
    diagnostics = _file("during training", "diagnostics", env)
    if curves.diagnostics:
        title = f"{env}: during training"
        figures.draw_diagnostics(_path(results, diagnostics), title, "Environment steps", curves.diagnostics, look)
    return {"curves": [file for _, file in steps] + [time], "final": [final], "diagnostics": [diagnostics]}


def _overall(results: Results, look: dict[str, Style], compared: Sequence[tuple[str | None, Comparison]]) -> Overall:
    """Everything about all environments together."""
    envs, scores = normalised_scores(results)
    overall = Overall(envs, {env: scale(results, env) for env in results.envs})
    if not envs:
        return overall
    where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
    pooled = {name: np.concatenate(values) for name, values in scores.items()}
    lowest = min(0.0, *(float(values.min()) for values in pooled.values()))
    # Hundredths, including 0.5, which the text of the picture refers to, and 1
    thresholds = np.arange(math.floor(100 * max(lowest, -0.5)), 111) / 100
    profiles = {name: performance_profile(values, thresholds) for name, values in scores.items()}
    overall.profiles = thresholds, profiles
    file = _file("profiles", "performance_profiles")
    figures.draw_profiles(_path(results, file), f"Performance profiles, {where}", thresholds, profiles, look)
    overall.pictures.append(pictures.profiles_picture(where, thresholds, profiles, look, file))
    if len(envs) > 1:
        overall.intervals = {name: iqm_interval(values) for name, values in scores.items()}
        file = _file("final score", "aggregate_iqm")
        title = f"Final score, {where}"
        figures.draw_scores(_path(results, file), title, "Normalised score", pooled, overall.intervals, look)
        overall.pictures.insert(0, pictures.aggregate_picture(where, pooled, overall.intervals, look, file))
        compared = [(None, comparison) for comparison in find_overall(scores)]
        overall.table = tables.overall_table(envs, scores, overall.intervals)
        overall.findings = judge(compared, all_together(results, envs))
    # From one environment, if there is only one to combine
    pairs = [comparison for env, comparison in compared if env in (None, envs[0])]
    if pairs:
        file = _file("probability of improvement", "probability_of_improvement")
        rows = [(comparison.first, comparison.second, comparison.improvement) for comparison in pairs]
        figures.draw_improvements(_path(results, file), f"Probability of improvement, {where}", rows, look)
        overall.pictures.append(pictures.improvements_picture(where, pairs, look, file))
    return overall
