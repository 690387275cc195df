"""
The results of a comparison as tables for a page: ``python -m benchmarks.tables benchmarks/results/classroom``.

Prints tables in Markdown: a row for each (environment, algorithm); a short one with a column for each environment; returns at
equal time; pairs of algorithms over all environments; and how far the policies moved in training.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sb3_grpo.compare.findings import all_together, find_overall, interval_text, normalised_scores, scale
from sb3_grpo.compare.results import Results, collect
from sb3_grpo.compare.statistics import holm, iqm_interval, mean_over_training, normalised
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
        [name.upper(), *(_iqm_text(results.final_scores(env, name, mode)) for env in results.envs)]
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
        if not any(len(results.done(env, name)) for name in results.variants):
            continue
        seconds = results.shortest_time(env)
        returns = [results.returns_after(env, name, mode, seconds) for name in results.variants]
        rows.append([env, f"{seconds:.0f}", *map(_iqm_text, returns)])
    return markdown(["task", "seconds", *(name.upper() for name in results.variants)], rows)


def _iqm_text(scores: np.ndarray) -> str:
    """
    :param scores: (n,) of the runs of a variant
    :return: their IQM with its interval, nothing where no run has finished
    """
    return interval_text(iqm_interval([scores])) if scores.size else ""


def pairs_at_the_end(results: Results) -> str:
    """
    :param results: of the comparison
    :return: a row for each pair of variants: their normalised final scores over all environments
    """
    envs, scores = normalised_scores(results, results.modes[0])
    return _pairs("final", results, envs, scores)


def pairs_at_equal_time(results: Results, others_time: float = 1.0) -> str:
    """
    :param results: of the comparison
    :param others_time: how many times as long as GRPO and DAPO the others may train
    :return: a row for each pair of variants: their normalised scores over all environments at the time at which the fastest
        variant ends
    """
    mode = results.modes[0]
    envs, _ = normalised_scores(results, mode)
    scores: dict[str, list[np.ndarray]] = {}
    for env in envs:
        ends, seconds = scale(results, env, mode), results.shortest_time(env)
        for variant in results.experiment["variants"]:
            factor = 1.0 if variant["algo"] in ("grpo", "dapo") else others_time
            returns = results.returns_after(env, variant["name"], mode, factor * seconds)
            if returns.size:
                scores.setdefault(variant["name"], []).append(normalised(returns, ends.low, ends.high))
    others = "" if others_time == 1.0 else f", {others_time:g} times as much for others"
    return _pairs(f"equal time{others}", results, envs, scores)


def _pairs(what: str, results: Results, envs: list[str], scores: dict[str, list[np.ndarray]]) -> str:
    """
    :param what: the scores are
    :param results: of the comparison
    :param envs: the environments that can be put together
    :param scores: of each variant on each of them
    :return: a row for each pair of variants
    """
    if not envs:
        return f"No environment can be put together ({what})."
    found = find_overall(scores)
    rows = [
        [
            f"{pair.first.upper()} against {pair.second.upper()}",
            *(interval_text(interval, 1.0) for interval in (pair.difference, pair.improvement)),
            f"{p_value:.2g}",
        ]
        for pair, p_value in zip(found, holm([pair.p_value for pair in found]), strict=True)
    ]
    columns = [f"{what}, {all_together(results, envs)}", "difference of the IQMs", "probability of improvement", "p (Holm)"]
    return markdown(columns, rows)


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
    parser.add_argument(
        "--others-time", type=float, default=1.0, help="how many times as long others than GRPO and DAPO train"
    )
    args = parser.parse_args()
    results = collect(args.folder)
    for table in (long_table, short_table, equal_time_table, pairs_at_the_end):
        print(table(results), end="\n\n", flush=True)
    print(pairs_at_equal_time(results, args.others_time), stability_table(results), sep="\n\n")


if __name__ == "__main__":
    main()
