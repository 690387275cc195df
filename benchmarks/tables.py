"""
The results of a comparison as tables for a page: ``python -m benchmarks.tables benchmarks/results/classroom``.

Prints tables in Markdown: one with a row for each (environment, algorithm); a short one with a column for each environment;
returns at equal time; how far the policies moved in training; and the algorithms over all environments, over several
comparisons if several folders are given.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import all_together, find_overall, interval_text, normalised_scores, scale
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import holm, iqm_interval, mean_over_training, normalise


def label(name: str) -> str:
    """
    :param name: Of a variant
    :return: The same; algorithms in capitals
    """
    return name.upper() if name in ("ppo", "trpo", "a2c", "grpo", "dapo") else name


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    :param columns: column titles
    :param rows: cells
    :return: a table in Markdown
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def long_table(results: Results) -> str:
    """
    :param results: results of the comparison
    :return: a row for each environment and variant
    """
    columns = [
        "task",
        "algorithm",
        "final return: mean",
        "IQM (interval)",
        "over training: IQM (interval)",
        "seconds",
        "final return, seed by seed",
    ]
    rows = []
    for env in results.envs:
        mode = results.main_mode(env)
        for name in results.variants:
            scores = results.final_scores(env, name, mode)
            if not len(scores):
                continue
            over_training = mean_over_training(results.grid(env, mode), results.curves(env, name, mode))
            rows.append(
                [
                    env,
                    label(name),
                    f"{scores.mean():.1f}",
                    interval_text(iqm_interval([scores])),
                    interval_text(iqm_interval([over_training])),
                    f"{results.done(env, name).seconds.astype(float).median():.0f}",
                    ", ".join(f"{score:.0f}" for score in scores),
                ]
            )
    return markdown(columns, rows)


def short_table(results: Results) -> str:
    """
    :param results: results of the comparison
    :return: a row for each variant, with the IQM of its final scores on each environment
    """
    budgets = results.experiment["timesteps"]
    rows = [
        [label(name), *(_iqm_text(results.final_scores(env, name, results.main_mode(env))) for env in results.envs)]
        for name in results.variants
    ]
    return markdown(["", *(f"{env}, {steps_text(budgets[env])}" for env in results.envs)], rows)


def steps_text(steps: int) -> str:
    """
    :param steps: number of steps
    :return: the same in thousands or millions
    """
    return f"{steps // 1000}k" if steps < 1_000_000 else f"{steps / 1_000_000:g}M"


def equal_time_table(results: Results) -> str:
    """
    :param results: results of the comparison
    :return: a row for each environment, with the IQM of the returns when the fastest variant ends
    """
    rows = []
    for env in results.envs:
        if not any(len(results.done(env, name)) for name in results.variants):
            continue
        seconds = results.shortest_time(env)
        returns = [results.returns_after(env, name, results.main_mode(env), seconds) for name in results.variants]
        rows.append([env, f"{seconds:.0f}", *map(_iqm_text, returns)])
    return markdown(["task", "seconds", *(label(name) for name in results.variants)], rows)


def _iqm_text(scores: np.ndarray) -> str:
    """
    :param scores: (n,) scores of the runs of a variant
    :return: their IQM with its interval, empty if no run has finished
    """
    return interval_text(iqm_interval([scores])) if scores.size else ""


Scores = dict[str, list[np.ndarray]]  # normalised, for each variant on each environment


def scores_at_equal_time(results: Results, others_time: float = 1.0) -> tuple[list[str], Scores]:
    """
    :param results: results of the comparison
    :param others_time: how many times as long as GRPO and DAPO the others may train
    :return: like ``normalised_scores``, but when the fastest variant ends
    """
    envs, _ = normalised_scores(results)
    scores: Scores = {}
    for env in envs:
        ends, seconds = scale(results, env), results.shortest_time(env)
        for variant in results.experiment["variants"]:
            factor = 1.0 if variant["algo"] in ("grpo", "dapo") else others_time
            returns = results.returns_after(env, variant["name"], results.main_mode(env), factor * seconds)
            if returns.size:
                scores.setdefault(variant["name"], []).append(normalise(returns, ends.low, ends.high))
    return envs, scores


def pairs_at_the_end(comparisons: Sequence[Results]) -> str:
    """
    :param comparisons: with the same variants
    :return: a row for each variant and each pair of variants: their normalised final scores over all environments
    """
    return _overall("final", comparisons, [normalised_scores(each) for each in comparisons])


def pairs_at_equal_time(comparisons: Sequence[Results], others_time: float = 1.0) -> str:
    """
    :param comparisons: with the same variants
    :param others_time: how many times as long as GRPO and DAPO the others may train
    :return: the same when the fastest variant ends
    """
    others = "" if others_time == 1.0 else f", {others_time:g} times as much for the others"
    return _overall(f"equal time{others}", comparisons, [scores_at_equal_time(each, others_time) for each in comparisons])


def _overall(what: str, comparisons: Sequence[Results], parts: Sequence[tuple[list[str], Scores]]) -> str:
    """
    :param what: what the scores are
    :param comparisons: comparisons whose environments are combined
    :param parts: for each, the environments that can be combined, and the scores
    :return: a row for each variant, and one for each pair of variants
    """
    together = [all_together(results, envs) for results, (envs, _) in zip(comparisons, parts, strict=True) if envs]
    if not together:
        return f"No environments can be combined ({what})."
    names = [name for name in parts[0][1] if all(name in scores for envs, scores in parts if envs)]
    pooled = {name: [part for _, scores in parts for part in scores.get(name, [])] for name in names}
    found = find_overall(pooled)
    rows = [
        [
            f"{label(pair.first)} against {label(pair.second)}",
            *(interval_text(interval, 1.0) for interval in (pair.difference, pair.improvement)),
            f"{p_value:.2g}",
        ]
        for pair, p_value in zip(found, holm([pair.p_value for pair in found]), strict=True)
    ]
    title = f"{what}, {' and '.join(together)}"
    iqms = markdown([title, "IQM"], [[label(name), interval_text(iqm_interval(pooled[name]), 1.0)] for name in names])
    return f"{iqms}\n\n{markdown([title, 'difference of the IQMs', 'probability of improvement', 'p (Holm)'], rows)}"


def stability_table(results: Results) -> str:
    """
    :param results: results of the comparison
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
            if "approx_kl" in runs:  # TRPO logs none of these
                rows.append([env, label(name), *cells])
    return markdown(columns, rows)


def _begin_and_end(runs: list[np.ndarray]) -> str:
    """
    :param runs: logged values of each run
    :return: medians over the runs
    """
    return f"{np.median([run[0] for run in runs]):.2g} to {np.median([run[-1] for run in runs]):.2g}" if runs else ""


def _middle_and_largest(runs: list[np.ndarray]) -> str:
    """
    :param runs: logged values of each run
    :return: median over the runs of their medians, and the largest value of all runs
    """
    return f"{np.median([np.median(run) for run in runs]):.2g} ({max(run.max() for run in runs):.2g})" if runs else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of comparisons; of several, only what is over all environments")
    parser.add_argument(
        "--others-time", type=float, default=1.0, help="how many times as long others than GRPO and DAPO train"
    )
    args = parser.parse_args()
    comparisons = [collect(folder) for folder in args.folders]
    if len(comparisons) == 1:
        for table in (long_table, short_table, equal_time_table, stability_table):
            print(table(comparisons[0]), end="\n\n", flush=True)
    print(pairs_at_the_end(comparisons), pairs_at_equal_time(comparisons, args.others_time), sep="\n\n")


if __name__ == "__main__":
    main()
