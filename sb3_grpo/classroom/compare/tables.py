"""The tables of the report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import (
    Interval,
    cost_at_threshold,
    iqm_counts,
    iqm_interval,
    mean_interval,
    mean_over_training,
)
from sb3_grpo.console import UsageError, find_env

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Table:
    """
    A table.

    :param columns: titles of the columns, the first of which contains the row titles
    :param rows: cells
    :param notes: notes below the table
    """

    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def final_table(results: Results, env: str, mode: str) -> Table:
    """
    :param results: results of the experiment
    :param env: an environment
    :param mode: how actions are chosen
    :return: returns at the end of training
    """
    table = Table(["Variant", "IQM (95% interval)", "Mean", "Median", "Lowest to highest seed", "Success", "Seeds"])
    for name in results.variants:
        scores = results.final_scores(env, name, mode)
        planned = ((results.planned.env == env) & (results.planned.variant == name)).sum()
        seeds = str(len(scores)) if len(scores) == planned else f"{len(scores)} of {planned}"
        if not len(scores):
            table.rows.append([name, "-", "-", "-", "-", "-", seeds])
            continue
        success = results.final_success(env, name, mode)
        table.rows.append(
            [
                name,
                interval_text(iqm_interval([scores])),
                number(scores.mean()),
                number(float(np.median(scores))),
                f"{number(scores.min())} to {number(scores.max())}",
                f"{success:.0%}" if not np.isnan(success) else "-",
                seeds,
            ]
        )
    if all(row[5] == "-" for row in table.rows):
        table.columns.pop(5)
        for row in table.rows:
            row.pop(5)
    return table


def runs_table(results: Results, env: str, mode: str) -> Table:
    """
    :param results: results of the experiment
    :param env: an environment
    :param mode: how actions are chosen
    :return: the final return of every run
    """
    seeds = results.experiment["seeds"]
    table = Table(["Variant", *(f"Seed {seed}" for seed in seeds)])
    for name in results.variants:
        scores = dict(zip(sorted(results.done(env, name).seed), results.final_scores(env, name, mode), strict=True))
        table.rows.append([name, *(number(scores.get(seed, np.nan)) for seed in seeds)])
    return table


def overall_table(envs: Sequence[str], scores: dict[str, list[np.ndarray]], intervals: dict[str, Interval]) -> Table:
    """
    :param envs: the environments that are combined
    :param scores: normalised final scores of each variant on each of them
    :param intervals: IQM of these scores
    :return: the scores of all environments together
    """
    table = Table(["Variant", "Normalised final score, IQM (95% interval)", "Mean (95% interval)", "Runs that the IQM counts"])
    for name, samples in scores.items():
        counts = ", ".join(f"{env} {count}" for env, count in zip(envs, iqm_counts(samples), strict=True))
        iqm, mean = (interval_text(interval, 1.0) for interval in (intervals[name], mean_interval(samples)))
        table.rows.append([name, iqm, mean, counts])
    table.notes.append(
        "The IQM leaves out the lowest and the highest quarter of all runs together, so an environment on which a variant is "
        "good or bad throughout may hardly be in it. The mean has all runs, failures with their full weight."
    )
    return table


def threshold_of(env: str) -> float | None:
    """
    :param env: id of an environment
    :return: the return at which Gymnasium considers it solved, if specified
    """
    try:
        return find_env(env).reward_threshold
    except UsageError:
        # From a package that is not installed where the report is created
        return None


def efficiency_table(results: Results, env: str, mode: str) -> Table:
    """
    :param results: results of the experiment
    :param env: an environment
    :param mode: how actions are chosen
    :return: how fast returns rose
    """
    threshold, grid = threshold_of(env), results.grid(env, mode)
    table = Table(["Variant", "Mean return over training, IQM (95% interval)"])
    if threshold is None:
        table.notes.append("Gymnasium has no return from which this environment counts as solved.")
    else:
        table.columns += [f"Runs that reached {number(threshold)}", "Median steps until then", "Median seconds until then"]
        table.notes.append(
            "A run that never reached it counts as infinitely slow; “never” says that this is the median. Looked at in "
            "evaluations only: what happened between two of them is not seen."
        )
    seconds = results.shortest_time(env)
    table.columns.append(f"Return after {number(seconds)} s, IQM (95% interval)")
    table.notes.append(
        f"{number(seconds)} s is what the runs of the fastest variant took (median). Returns at that time are interpolated "
        "between evaluations. A run that had ended earlier counts with its last evaluation."
    )
    for name in results.variants:
        curves = results.curves(env, name, mode)
        if not curves.size:
            continue
        row = [name, interval_text(iqm_interval([mean_over_training(grid, curves)]))]
        if threshold is not None:
            costs = [results.curves(env, name, mode, column) for column in ("steps", "seconds")]
            reached = [cost_at_threshold(curves, cost, threshold) for cost in costs]
            medians = [float(np.median(cost)) for cost in reached]
            row += [f"{np.isfinite(reached[0]).sum()} of {len(curves)}"]
            row += ["never" if np.isinf(median) else number(median) for median in medians]
        row.append(interval_text(iqm_interval([results.returns_after(env, name, mode, seconds)])))
        table.rows.append(row)
    return table


def cost_table(results: Results) -> Table:
    """
    :param results: results of the experiment
    :return: speed, memory and sizes
    """
    columns = {
        "steps": "Steps made",
        "steps_per_second": "Steps per second",
        "seconds": "Seconds of training",
        "peak_memory_mib": "Peak memory (MiB)",
        "n_parameters": "Parameters",
        "n_critic_parameters": "of these critic",
        "n_policies_in_memory": "Policies in memory",
        "discarded_fraction": "Steps in dropped groups",
    }
    table = Table(["Environment", "Variant", *columns.values()])
    for env in results.envs:
        for name in results.variants:
            done = results.done(env, name)
            if done.empty:
                continue
            medians = {column: median(done[column]) for column in columns}
            cells = [number(medians[column]) for column in list(columns)[:-1]]
            dropped = medians["discarded_fraction"]
            table.rows.append([env, name, *cells, "-" if np.isnan(dropped) else f"{dropped:.1%}"])
    table.notes.append(
        "Medians over the seeds. The last rollout may go over the budget. Seconds are those of training, without evaluations, "
        "of runs that may share the machine. Memory is that of the whole process, with Python and PyTorch. "
        "Target networks count as critics: they choose no actions."
    )
    return table


def median(column: "pd.Series") -> float:
    values = column.astype(float).dropna()
    return float(values.median()) if len(values) else np.nan


def tuning_table(results: Results) -> Table:
    """
    :param results: results of the experiment
    :return: where each variant's hyperparameters come from, and its network
    """
    table = Table(["Environment", "Variant", "Hyperparameters come from", "Network"])
    for env in results.envs:
        for name in results.variants:
            done = results.done(env, name)
            if done.empty:
                continue
            texts = (" / ".join(map(str, done[column].dropna().unique())) for column in ("provenance", "net_arch"))
            table.rows.append([env, name, *(text or "not stated" for text in texts)])
    return table


def network_statements(results: Results) -> list[str]:
    """
    :param results: results of the experiment
    :return: whether the variants have the same networks on each environment
    """
    same, statements = [], []
    for env in results.envs:
        actors: dict[str, tuple[str, set[float]]] = {}
        for name in results.variants:
            done = results.done(env, name)
            if len(done):
                counts = done.n_parameters.astype(float) - done.n_critic_parameters.astype(float)
                actors[name] = " / ".join(sorted(set(done.net_arch.astype(str)))), set(counts.dropna())
        if len(actors) < 2:
            continue
        if len({frozenset(counts) for _, counts in actors.values()}) == 1:
            same.append(env)
            continue
        sizes = "; ".join(
            f"{name} has {' or '.join(number(count) for count in sorted(counts)) or 'unknown'} ({layers})"
            for name, (layers, counts) in actors.items()
        )
        statements.append(f"The policies on {env} differ in size, so that not only the algorithms are compared: {sizes}.")
    if same:
        where = "all environments" if len(same) == len(results.envs) else ", ".join(same)
        statements.insert(0, f"Without critics, all variants have equally many parameters on {where} (counted).")
    return statements
