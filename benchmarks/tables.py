"""
The results of a comparison as tables for a page: ``python -m benchmarks.tables benchmarks/results/classroom``.

Prints tables in Markdown: a row for each (environment, algorithm); a short one with a column for each environment; returns at
equal time; pairs of algorithms over all environments; and how far the policies moved in training.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sb3_grpo.compare.findings import find_overall, interval_text, normalised_scores, scale
from sb3_grpo.compare.results import Results, collect
from sb3_grpo.compare.statistics import iqm_interval, mean_over_training, normalised
from sb3_grpo.compare.tables import median


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    :param columns: their titles
    :param rows: cells
    :return: a table
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def long_table(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each environment and variant
    """
    mode = results.modes[0]
    columns = [
        "task",
        "algorithm",
        "final: mean",
        "IQM (interval)",
        "over training: IQM (interval)",
        "seconds",
        "final, seed by seed",
    ]
    rows = []
    for env in results.envs:
        for name in results.variants:
            scores = results.final_scores(env, name, mode)
            if not len(scores):
                continue
            over_training = mean_over_training(results.grid(env, mode), results.curves(env, name, mode))
            rows.append(
                [
                    env,
                    name.upper(),
                    f"{scores.mean():.1f}",
                    interval_text(iqm_interval([scores])),
                    interval_text(iqm_interval([over_training])),
                    f"{median(results.done(env, name).seconds):.0f}",
                    ", ".join(f"{score:.0f}" for score in scores),
                ]
            )
    return markdown(columns, rows)


def short_table(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each variant, with the IQM of its final scores on each environment
    """
    mode, budgets = results.modes[0], results.experiment["timesteps"]
    rows = [
        [name.upper(), *(interval_text(iqm_interval([results.final_scores(env, name, mode)])) for env in results.envs)]
        for name in results.variants
    ]
    return markdown(["", *(f"{env}, {budgets[env] / 1000:.0f}k" for env in results.envs)], rows)


def equal_time_table(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each environment, with the IQM of the returns at the time at which the fastest variant ends
    """
    mode, rows = results.modes[0], []
    for env in results.envs:
        seconds = results.shortest_time(env)
        returns = [results.returns_after(env, name, mode, seconds) for name in results.variants]
        rows.append(
            [env, f"{seconds:.0f}", *(interval_text(iqm_interval([values])) if values.size else "" for values in returns)]
        )
    return markdown(["task", "seconds", *(name.upper() for name in results.variants)], rows)


def overall_table(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each pair of variants: differences of normalised scores over all environments, at equal steps and at
        equal time
    """
    mode = results.modes[0]
    envs, finals = normalised_scores(results, mode)
    timed: dict[str, list[np.ndarray]] = {name: [] for name in finals}
    for env in envs:
        ends, seconds = scale(results, env, mode), results.shortest_time(env)
        for name, scores in timed.items():
            scores.append(normalised(results.returns_after(env, name, mode, seconds), ends.low, ends.high))
    rows = []
    for at_end, in_time in zip(find_overall(finals), find_overall(timed), strict=True):
        both = (at_end.difference, at_end.improvement, in_time.difference, in_time.improvement)
        rows.append(
            [f"{at_end.first.upper()} against {at_end.second.upper()}", *(interval_text(interval, 1.0) for interval in both)]
        )
    columns = ["", "final: difference of IQM", "probability of improvement", "equal time: difference of IQM"]
    return markdown([*columns, "probability of improvement"], rows)


def stability_table(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each environment and variant: how far the policy moved in training
    """
    columns = ["task", "algorithm", "entropy", "std", "KL", "clipped", "below", "above", "largest ratio"]
    moved = ["approx_kl", "clip_fraction", "clip_fraction_low", "clip_fraction_high", "ratio_max"]
    rows = []
    for env in results.envs:
        for name in results.variants:
            logged = results.diagnostics
            logged = logged[(logged.env == env) & (logged.variant == name)].sort_values("steps")
            runs = {
                key.removeprefix("train/"): [run.value.to_numpy() for _, run in of_key.groupby("seed")]
                for key, of_key in logged.groupby("key")
            }
            runs["entropy"] = [-run for run in runs.get("entropy_loss", [])]
            cells = [_begin_and_end(runs.get(key, [])) for key in ("entropy", "std")]
            cells += [_middle_and_largest(runs.get(key, [])) for key in moved]
            if "approx_kl" in runs:  # TRPO logs none of it
                rows.append([env, name.upper(), *cells])
    return markdown(columns, rows)


def _begin_and_end(runs: list[np.ndarray]) -> str:
    """
    :param runs: what was logged in each run
    :return: medians over the runs
    """
    return f"{np.median([run[0] for run in runs]):.2g} to {np.median([run[-1] for run in runs]):.2g}" if runs else ""


def _middle_and_largest(runs: list[np.ndarray]) -> str:
    """
    :param runs: what was logged in each run
    :return: median over the runs of their medians, and the largest value of all
    """
    return f"{np.median([np.median(run) for run in runs]):.2g} ({max(run.max() for run in runs):.2g})" if runs else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the comparison")
    results = collect(parser.parse_args().folder)
    tables = [long_table, short_table, equal_time_table, overall_table, stability_table]
    print(*(table(results) for table in tables), sep="\n\n")


if __name__ == "__main__":
    main()
