"""The tables of the report, as frames of texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_grpo.classroom.compare.curves import with_runs
from sb3_grpo.classroom.compare.findings import Finding, Scale, about_ppo, interval_text, number
from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.classroom.compare.statistics import (
    cost_at_threshold,
    iqm_interval,
    mean_interval,
    mean_over_training,
)
from sb3_grpo.console import UsageError, find_env

if TYPE_CHECKING:
    import pandas as pd

# How actions were chosen, in words
MODE_WORDS = {"deterministic": "most likely actions", "stochastic": "sampled actions"}


def _frame(rows: Iterable[dict[str, str]]) -> "pd.DataFrame":
    frame: pd.DataFrame = import_extra("pandas").DataFrame(list(rows))
    # What applies to no row has no column
    return frame.loc[:, (frame != "-").any()].fillna("-")


def pairs_table(results: Results, findings: Sequence[Finding]) -> dict[tuple[str, ...], dict[str | None, Finding]]:
    """
    :param results: results of the experiment
    :param findings: all findings
    :return: for each pair of variants, those with PPO first, the finding on each environment and on all together
    """
    pairs: dict[tuple[str, ...], dict[str | None, Finding]] = {}
    for finding in [*about_ppo(results, findings), *findings]:
        pairs.setdefault(finding.comparison[:2], {})[finding.env] = finding
    return pairs


def final_table(results: Results, env: str) -> "pd.DataFrame":
    """
    :param results: results of the experiment
    :param env: an environment
    :return: returns at the end of training
    """
    return _frame(
        {
            "Variant": name,
            "Actions": MODE_WORDS[mode].removesuffix(" actions"),
            "IQM (95% interval)": interval_text(iqm_interval([scores])),
            "Mean": number(scores.mean()),
            "Median": number(float(np.median(scores))),
            "Success": f"{success:.0%}" if not np.isnan(success := results.final_success(env, name, mode)) else "-",
            "Runs, seed by seed": ", ".join(number(score) for score in scores),
        }
        for mode in sorted(results.modes, key=results.main_mode(env).__ne__)
        for name in results.variants
        if len(scores := results.final_scores(env, name, mode))
    )


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


def efficiency_table(results: Results, env: str) -> "pd.DataFrame":
    """
    :param results: results of the experiment
    :param env: an environment
    :return: how fast returns rose
    """
    mode, threshold, seconds = results.main_mode(env), threshold_of(env), results.shortest_time(env)
    rows = []
    for name in with_runs(results, env):
        curves = results.curves(env, name, mode)
        over_training = iqm_interval([mean_over_training(results.grid(env, mode), curves)])
        row = {"Variant": name, "Mean return over training, IQM (95% interval)": interval_text(over_training)}
        row[f"Return after {number(seconds)} s, IQM (95% interval)"] = interval_text(
            iqm_interval([results.returns_after(env, name, mode, seconds)])
        )
        if threshold is not None:
            for unit in ("steps", "seconds"):
                reached = cost_at_threshold(curves, results.curves(env, name, mode, unit), threshold)
                row[f"Runs that reached {number(threshold)}"] = f"{np.isfinite(reached).sum()} of {len(curves)}"
                median = float(np.median(reached))
                row[f"Median {unit} until then"] = "never" if np.isinf(median) else number(median)
        rows.append(row)
    return _frame(rows)


def overall_table(scores: dict[str, list[np.ndarray]]) -> "pd.DataFrame":
    """
    :param scores: normalised final scores of each variant on each environment
    :return: the scores of all environments together
    """
    return _frame(
        {
            "Variant": name,
            "Normalised final score, IQM (95% interval)": interval_text(iqm_interval(samples), 1.0),
            "Mean (95% interval)": interval_text(mean_interval(samples), 1.0),
        }
        for name, samples in scores.items()
    )


def scale_table(scales: dict[str, Scale], envs: Sequence[str]) -> "pd.DataFrame":
    """
    :param scales: the returns that are normalised to 0 and 1 on each environment
    :param envs: the environments that are combined
    :return: these returns
    """
    return _frame(
        {
            "Environment": env,
            "0 is": number(scale.low),
            "1 is": number(scale.high),
            "Combined": "yes" if env in envs else "no",
        }
        for env, scale in scales.items()
    )


def cost_table(results: Results) -> "pd.DataFrame":
    """
    :param results: results of the experiment
    :return: speed, memory, sizes, and where hyperparameters come from
    """
    columns = {
        "steps": "Steps made",
        "steps_per_second": "Steps per second",
        "seconds": "Seconds of training",
        "peak_memory_mib": "Peak memory (MiB)",
        "n_parameters": "Parameters",
        "n_critic_parameters": "of these critic",
        "discarded_fraction": "Steps in dropped groups",
    }
    rows = []
    for env in results.envs:
        for name in with_runs(results, env):
            done = results.done(env, name)
            medians = done[list(columns)].astype(float).median()
            row = {"Environment": env, "Variant": name}
            row |= {title: number(medians[column]) for column, title in columns.items()}
            if not np.isnan(dropped := medians.discarded_fraction):
                row[columns["discarded_fraction"]] = f"{dropped:.1%}"
            row |= {title: _all_of(done[column]) for column, title in (("net_arch", "Network"), ("provenance", "Tuning"))}
            rows.append(row)
    return _frame(rows)


def _all_of(column: "pd.Series[Any]") -> str:
    return " / ".join(map(str, column.dropna().unique())) or "not stated"


def network_statements(results: Results) -> list[str]:
    """
    :param results: results of the experiment
    :return: where the policies of the variants differ in size
    """
    statements = []
    for env in results.envs:
        sizes = {}
        for name in with_runs(results, env):
            done = results.done(env, name)
            actor = (done.n_parameters.astype(float) - done.n_critic_parameters.astype(float)).dropna().unique()
            sizes[name] = " or ".join(map(number, sorted(actor))) or "unknown"
        if len({*sizes.values()}) > 1:
            each = ", ".join(f"{name} {size}" for name, size in sizes.items())
            statements.append(
                f"On {env}, policies differ in size, so that not only algorithms are compared: {each} parameters."
            )
    return statements
