"""
The results of a comparison as tables for a page: ``python -m benchmarks.tables benchmarks/results/classroom``.

Prints three tables in Markdown: a row for each (environment, algorithm), a short one with a column for each environment, and
one of how far the policies moved in training.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sb3_grpo.compare.findings import interval_text
from sb3_grpo.compare.results import Results, collect
from sb3_grpo.compare.statistics import iqm_interval, mean_over_training
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
    print(long_table(results), short_table(results), stability_table(results), sep="\n\n")


if __name__ == "__main__":
    main()
