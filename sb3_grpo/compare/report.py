"""``python -m sb3_grpo compare report``: tables, pictures and the page from what the runs left."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from sb3_grpo.compare import figures, tables
from sb3_grpo.compare.figures import Line, Style
from sb3_grpo.compare.findings import all_together, find_in, find_overall, judge, normalised_scores, scale
from sb3_grpo.compare.lecture import KL_KEYS, lecture_table
from sb3_grpo.compare.page import EnvSection, Overall, Page, Picture, write_page
from sb3_grpo.compare.results import Results, collect
from sb3_grpo.compare.statistics import Band, Comparison, iqm_curve, iqm_interval, performance_profile

# What is drawn under which title: the first key that a variant logged, and what it is multiplied with
DIAGNOSTICS: dict[str, tuple[tuple[str, float], ...]] = {
    "Dead groups (share of groups)": (("group/dead_fraction", 1.0),),
    "Clipped at the low side (share of steps)": (("train/clip_fraction_low", 1.0),),
    "Clipped at the high side (share of steps)": (("train/clip_fraction_high", 1.0),),
    "Clipped in all (share of steps)": (("train/clip_fraction", 1.0),),
    "Entropy of the policy (nats)": (("train/entropy", 1.0), ("train/entropy_loss", -1.0)),
    "KL divergence per update": tuple((key, 1.0) for key in KL_KEYS),
    "KL divergence from the reference": (("train/kl_ref", 1.0),),
}
_PROFILE_POINTS = 101


def make_report(folder: Path) -> Path:
    """
    Collect the runs of an experiment into ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``, draw the pictures into
    ``figures/``, and write ``report.html``. May be called while runs are still going on: it tells which are missing.

    :param folder: the experiment's
    :return: the page
    """
    results = collect(folder)
    look = figures.styles(results.variants)
    mode = results.modes[0]
    pictures: dict[str, dict[str, list[Picture]]] = {}
    compared: list[tuple[str | None, Comparison]] = []
    console = Console(stderr=True)
    # None: all environments together
    for env in track([*results.envs, None], "Report", console=console, transient=True, disable=not console.is_terminal):
        if env is None:
            overall = _overall(results, mode, look, compared)
        elif any(len(results.done(env, name)) for name in results.variants):
            pictures[env] = _env_pictures(results, env, look)
            compared += [(env, comparison) for comparison in find_in(results, env, mode)]
    findings = judge(compared)
    sections = [
        EnvSection(
            env=env,
            pictures=env_pictures,
            final={mode: tables.final_table(results, env, mode) for mode in results.modes},
            efficiency=tables.efficiency_table(results, env, mode),
            findings=[finding for finding in findings if finding.env == env],
        )
        for env, env_pictures in pictures.items()
    ]
    page = Page(
        results=results,
        mode=mode,
        look=look,
        overall=overall,
        sections=sections,
        cost=tables.cost_table(results),
        tuning=tables.tuning_table(results),
        networks=tables.network_statements(results),
        lecture=lecture_table(results, mode),
    )
    return write_page(page)


def _file_name(results: Results, kind: str, env: str = "") -> Path:
    return results.folder / "figures" / re.sub(r"[^\w.+-]+", "_", f"{kind}_{env}" if env else kind)


def _env_pictures(results: Results, env: str, look: dict[str, Style]) -> dict[str, list[Picture]]:
    """Draw everything about one environment; the pictures by the part of the page that they belong to."""
    made: dict[str, list[Picture]] = {}
    for mode in results.modes:
        name = _file_name(results, "curves_steps" if mode == results.modes[0] else f"curves_steps_{mode}", env)
        grid = results.grid(env, mode)
        lines = [
            Line(variant, grid, iqm_curve(curves), curves)
            for variant in results.variants
            if (curves := results.curves(env, variant, mode)).size
        ]
        threshold = tables.threshold_of(env)
        ylabel = f"Return ({mode})"
        figures.draw_curves(name, env, "Environment steps", ylabel, lines, look, threshold)
        made.setdefault(f"curves {mode}", []).append(
            Picture(name, f"{env}: return against environment steps, {mode} actions. IQM over the seeds, 95% interval.")
        )
    mode = results.modes[0]
    made[f"curves {mode}"].append(_time_picture(results, env, mode, look))
    made["final"] = [_final_picture(results, env, mode, look)]
    if picture := _diagnostics_picture(results, env, mode, look):
        made["diagnostics"] = [picture]
    return made


def _time_picture(results: Results, env: str, mode: str, look: dict[str, Style]) -> Picture:
    data = {
        variant: results.curves_over_time(env, variant, mode)
        for variant in results.variants
        if results.curves(env, variant, mode).size
    }
    unit, divisor = ("minutes", 60.0) if max(grid[-1] for grid, _ in data.values()) > 300 else ("seconds", 1.0)
    lines = [Line(name, grid / divisor, iqm_curve(curves), curves) for name, (grid, curves) in data.items()]
    path = _file_name(results, "curves_time", env)
    figures.draw_curves(path, env, f"Training time ({unit})", f"Return ({mode})", lines, look, tables.threshold_of(env))
    return Picture(
        path,
        f"{env}: return against training time, evaluations left out. IQM over the seeds with its 95% interval. "
        "A curve ends where the variant's fastest run has ended.",
    )


def _final_picture(results: Results, env: str, mode: str, look: dict[str, Style]) -> Picture:
    scores = {name: values for name in results.variants if (values := results.final_scores(env, name, mode)).size}
    path = _file_name(results, "final", env)
    intervals = {name: iqm_interval([values]) for name, values in scores.items()}
    figures.draw_scores(path, f"{env}: final return", f"Return ({mode})", scores, intervals, look)
    return Picture(path, f"{env}: final return of every run (small), IQM (large) and its 95% interval (bar).")


def _diagnostics_picture(results: Results, env: str, mode: str, look: dict[str, Style]) -> Picture | None:
    panels: dict[str, list[Line]] = {}
    for title, keys in DIAGNOSTICS.items():
        for name in results.variants:
            logged_as = ((sign, results.diagnostic(env, name, key, mode)) for key, sign in keys)
            values = next((sign * values for sign, values in logged_as if values.size), np.empty((0, 0)))
            if not values.size:
                continue
            # Where no run has logged anything, nothing is drawn
            logged = ~np.isnan(values).all(axis=0)
            values, x = values[:, logged], results.grid(env, mode)[1:][logged]
            if len(x):
                band = Band(np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))
                panels.setdefault(title, []).append(Line(name, x, band, values))
    if not panels:
        return None
    path = _file_name(results, "diagnostics", env)
    figures.draw_diagnostics(path, f"{env}: during training", "Environment steps", panels, look)
    return Picture(
        path,
        f"{env}: logged while training. Mean over the seeds, with the range from the lowest to the highest seed. PPO counts "
        "every ratio outside the clip range as clipped, GRPO and DAPO only those where clipping cuts the gradient off.",
    )


def _overall(
    results: Results, mode: str, look: dict[str, Style], compared: Sequence[tuple[str | None, Comparison]]
) -> Overall:
    """Everything about all environments together."""
    envs, scores = normalised_scores(results, mode)
    overall = Overall(envs, {env: scale(results, env, mode) for env in results.envs})
    if not envs:
        return overall
    where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
    pooled = {name: np.concatenate(values) for name, values in scores.items()}
    lowest = min(0.0, *(float(values.min()) for values in pooled.values()))
    thresholds = np.linspace(max(lowest, -0.5), 1.1, _PROFILE_POINTS)
    profiles = {name: performance_profile(values, thresholds) for name, values in scores.items()}
    path = _file_name(results, "performance_profiles")
    figures.draw_profiles(path, f"Performance profiles, {where}", thresholds, profiles, look)
    overall.pictures.append(
        Picture(
            path,
            "Performance profiles: the share of runs whose normalised final score is above τ, with 95% intervals. "
            "Higher is better.",
        )
    )
    if len(envs) > 1:
        path = _file_name(results, "aggregate_iqm")
        overall.intervals = {name: iqm_interval(values) for name, values in scores.items()}
        title = f"Final score, {where}"
        figures.draw_scores(path, title, "Normalised score", pooled, overall.intervals, look)
        caption = f"Normalised final scores on {where}: every run (small), IQM (large), 95% interval (bar)."
        overall.pictures.insert(0, Picture(path, caption))
        compared = [(None, comparison) for comparison in find_overall(scores)]
        overall.table = tables.overall_table(envs, scores, overall.intervals)
        overall.findings = judge(compared, all_together(results, envs))
    # Of one environment, if there is only one to put together
    pairs = [comparison for env, comparison in compared if env in (None, envs[0])]
    if pairs:
        path = _file_name(results, "probability_of_improvement")
        rows = [(comparison.first, comparison.second, comparison.improvement) for comparison in pairs]
        figures.draw_improvements(path, f"Probability of improvement, {where}", rows, look)
        overall.pictures.append(
            Picture(
                path,
                "Probability of improvement: how often a run of the left variant ends higher than one of the right, "
                "with 95% intervals.",
            )
        )
    return overall
