"""
The results of a comparison as tables for a page: ``python -m benchmarks.tables benchmarks/results/classroom``.

Prints two tables in Markdown: a row for each (environment, algorithm), and a short one with a column for each environment.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the comparison")
    results = collect(parser.parse_args().folder)
    print(long_table(results), short_table(results), sep="\n\n")


if __name__ == "__main__":
    main()
