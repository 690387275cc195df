"""Tables and curves of comparisons (``sb3-grpo compare``), from their packed results in ``benchmarks/results``."""

import math
from functools import cache

import numpy as np

from benchmarks.blocks import Writers, markdown, picture, steps_text, task_name
from benchmarks.common import RESULTS
from benchmarks.figures import draw_curves, label
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import interval_text, number
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import Interval, compare, iqm_curve, iqm_interval


@cache
def comparison(name: str) -> Results:
    """
    :param name: A folder in ``benchmarks/results``
    :return: The comparison
    """
    return collect(RESULTS / name)


def scores(found: Results, env: str, variant: str) -> np.ndarray:
    """
    :param found: A comparison
    :param env: One of its environments
    :param variant: One of its variants
    :return: (n,) mean final return of each run, in the evaluations that count
    """
    return found.final_scores(env, variant, found.main_mode(env))


def seeds(found: Results, envs: list[str], variants: list[str]) -> list[int]:
    """
    :param found: A comparison
    :param envs: Some of its environments
    :param variants: Some of its variants
    :return: How many seeds a variant has on an environment: the fewest and the most, or one number if all have as many
    """
    numbers = {len(found.done(env, variant)) for env in envs for variant in variants} - {0}
    return sorted({min(numbers), max(numbers)})


def kind(found: Results) -> str:
    """
    :param found: A comparison
    :return: Kind of the evaluations that its scores come from
    """
    sampled = [env for env in found.envs if found.main_mode(env) == "stochastic"]
    if len(sampled) == len(found.envs):
        return "stochastic"
    return f"deterministic (on {', '.join(sampled)}: stochastic)" if sampled else "deterministic"


def curves(image: str, name: str, envs: str = "", variants: str = "") -> str:
    """
    :param image: Name of the picture
    :param name: A folder in ``benchmarks/results``
    :param envs: Only these, with commas
    :param variants: Only these, with commas
    :return: Learning curves
    """
    found = comparison(name)
    shown = [env for env in found.envs if env in envs.split(",") or not envs]
    names = [variant for variant in found.variants if variant in variants.split(",") or not variants]
    drawn = {}
    for variant in names:
        returns = {env: found.curves(env, variant, found.main_mode(env)) for env in shown}
        drawn[variant] = [
            (found.grid(env, found.main_mode(env)), iqm_curve(each)) if each.size else None for env, each in returns.items()
        ]
    titles = [task_name(env) for env in shown]
    draw_curves(image, titles, drawn)
    n_seeds = seeds(found, shown, names)
    interval = ", with its 95% bootstrap interval" if max(n_seeds) > 2 else ""
    caption = f"{' to '.join(map(str, n_seeds))} seeds: IQM of {kind(found)} evaluations during training{interval}."
    return picture(image, f"Learning curves: {', '.join(titles)}", caption)


def finals(name: str, variants: str = "") -> str:
    """
    :param name: A folder in ``benchmarks/results``
    :param variants: Only these, with commas
    :return: A row for each variant, with the IQM of its final scores on each environment
    """
    found = comparison(name)
    names = [variant for variant in found.variants if variant in variants.split(",") or not variants]
    rows, seconds = [], []
    for variant in names:
        samples = [scores(found, env, variant) for env in found.envs]
        rows.append([label(variant), *(interval_text(iqm_interval([each])) if each.size else "" for each in samples)])
        medians = [found.done(env, variant).seconds.astype(float).median() for env in found.envs]
        seconds.append(f"{label(variant)} {', '.join(f'{each:,.0f}' for each in medians if not math.isnan(each))}")
    n_seeds, budgets = seeds(found, found.envs, names), found.experiment["timesteps"]
    table = markdown(["", *(f"{task_name(env)}, {steps_text(budgets[env])}" for env in found.envs)], rows)
    spread = "IQM and its 95% interval" if max(n_seeds) > 2 else "mean over the seeds"
    return (
        f"{table}\n\n*Mean return of {found.experiment['n_final_episodes']} {kind(found)} episodes after training: {spread}; "
        f"{' to '.join(map(str, n_seeds))} seeds. Median seconds of a run: {'; '.join(seconds)}.*"
    )


def pairs(*names: str) -> str:
    """
    :param names: Folders in ``benchmarks/results``, whose tasks are put together
    :return: A row for GRPO and DAPO, a column for each algorithm that they are compared with
    """
    found = [comparison(name) for name in names]

    def samples(variant: str) -> list[np.ndarray]:
        return [scores(each, env, variant) for each in found for env in each.envs]

    def improvement(first: str, second: str) -> Interval:
        return compare(first, second, samples(first), samples(second)).improvement

    ours, theirs = ("grpo", "dapo"), [name for name in found[0].variants if name not in ("grpo", "dapo")]
    rows = [[label(name), *(interval_text(improvement(name, peer), 1.0) for peer in theirs)] for name in ours]
    n_tasks = sum(len(each.envs) for each in found)
    return (
        f"{markdown(['', *(f'against {label(peer)}' for peer in theirs)], rows)}\n\n*Probability that a run ends above one of "
        f"the other at equal steps, mean over {number(n_tasks)} tasks, and its 95% interval.*"
    )


WRITERS: Writers = {"curves": curves, "finals": finals, "pairs": pairs}
