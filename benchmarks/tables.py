"""Tables and curves of comparisons (``python -m sb3_grpo compare``), from their packed results in ``benchmarks/results``."""

from functools import cache, cached_property

import numpy as np
import pandas as pd

from benchmarks.blocks import Writers, markdown, picture
from benchmarks.common import RESULTS, read_result
from benchmarks.figures import draw_curves, label
from benchmarks.numbers import interval_text, number, steps_text
from sb3_grpo.classroom.compare.statistics import Interval, bootstrap, iqm_curve, iqm_interval, probability_of_improvement

Samples = list[np.ndarray]  # scores of the runs, for each task


class Comparison:
    """
    The finished runs of a comparison.

    :param name: A folder in ``benchmarks/results``
    """

    def __init__(self, name: str):
        self.name = name
        self.experiment = read_result(f"{name}/experiment.json")
        runs = pd.read_csv(RESULTS / name / "runs.csv")
        self.runs = runs[runs.status == "done"]
        self.envs: list[str] = self.experiment["envs"]
        self.variants = [variant["name"] for variant in self.experiment["variants"]]
        self.modes = {env: self.experiment.get("main_modes", {}).get(env, "deterministic") for env in self.envs}

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations that count: of finished runs, with sampled or with the most likely actions."""
        rows = pd.read_csv(RESULTS / self.name / "evaluations.csv.xz")
        rows = rows.merge(self.runs[["env", "variant", "seed"]], on=["env", "variant", "seed"])
        return rows[rows["mode"] == rows.env.map(self.modes)]

    def of(self, env: str, variant: str) -> pd.DataFrame:
        """
        :param env: An environment
        :param variant: A variant
        :return: Its evaluations
        """
        rows = self.evaluations
        return rows[(rows.env == env) & (rows.variant == variant)].sort_values("seed")

    def finals(self, env: str, variant: str) -> np.ndarray:
        """
        :param env: An environment
        :param variant: A variant
        :return: (n,) mean final return of each run
        """
        rows = self.of(env, variant)
        return rows[rows.final == 1].return_mean.to_numpy(float)

    def curve(self, env: str, variant: str) -> pd.DataFrame:
        """
        :param env: An environment
        :param variant: A variant
        :return: A row for each run, a column for each number of steps at which all of them were evaluated
        """
        # Not the final evaluation, which has more episodes than the other points
        rows = self.of(env, variant).sort_values("final", kind="stable").drop_duplicates(["seed", "target_steps"])
        return rows.pivot(index="seed", columns="target_steps", values="return_mean").dropna(axis="columns")

    def kind(self) -> str:
        """
        :return: Kind of the evaluations that its scores come from
        """
        sampled = [env for env, mode in self.modes.items() if mode == "stochastic"]
        if len(sampled) == len(self.envs):
            return "stochastic"
        return f"deterministic (on {', '.join(sampled)}: stochastic)" if sampled else "deterministic"


@cache
def comparison(name: str) -> Comparison:
    """
    :param name: A folder in ``benchmarks/results``
    :return: The comparison
    """
    return Comparison(name)


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
        tables = [found.curve(env, variant) for env in shown]
        drawn[variant] = [
            (table.columns.to_numpy(float), iqm_curve(table.to_numpy())) if table.size else None for table in tables
        ]
    draw_curves(image, shown, drawn)
    kind, n_seeds = found.kind(), len(found.experiment["seeds"])
    interval = ", with its 95% bootstrap interval" if n_seeds > 2 else ""
    caption = f"{n_seeds} seeds: IQM of {kind} evaluations during training{interval}."
    return picture(image, f"Learning curves: {', '.join(shown)}", caption)


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
        samples = [found.finals(env, variant) for env in found.envs]
        rows.append([label(variant), *(interval_text(iqm_interval([each])) if each.size else "" for each in samples)])
        of_variant = found.runs[found.runs.variant == variant].groupby("env").seconds.median()
        seconds.append(f"{label(variant)} {', '.join(f'{of_variant[env]:,.0f}' for env in found.envs if env in of_variant)}")
    n_seeds, budgets = len(found.experiment["seeds"]), found.experiment["timesteps"]
    table = markdown(["", *(f"{env}, {steps_text(budgets[env])}" for env in found.envs)], rows)
    spread = "IQM over the seeds and its 95% interval" if n_seeds > 2 else "mean over the seeds"
    return (
        f"{table}\n\n*Mean return of {found.experiment['n_final_episodes']} {found.kind()} episodes after training: {spread}; "
        f"{n_seeds} seeds. Seconds of a run, median: {'; '.join(seconds)}.*"
    )


def improvement(firsts: Samples, seconds: Samples) -> Interval:
    """
    :param firsts: Scores of a variant
    :param seconds: Scores of another on the same tasks
    :return: Probability that a run of the first ends above one of the second on the same task, mean over the tasks
    """
    n_tasks = len(firsts)

    def mean(*drawn: np.ndarray) -> np.ndarray:
        pairs = zip(drawn[:n_tasks], drawn[n_tasks:], strict=True)
        return np.array([np.mean([probability_of_improvement(*pair) for pair in pairs])])

    return Interval(*(float(part[0]) for part in bootstrap(mean, [*firsts, *seconds])))


def pairs(*names: str) -> str:
    """
    :param names: Folders in ``benchmarks/results``, whose tasks are put together
    :return: A row for GRPO and DAPO, a column for each algorithm that they are compared with
    """
    found = [comparison(name) for name in names]

    def samples(variant: str) -> Samples:
        return [each.finals(env, variant) for each in found for env in each.envs]

    ours, theirs = ("grpo", "dapo"), [name for name in found[0].variants if name not in ("grpo", "dapo")]
    rows = [
        [label(name), *(interval_text(improvement(samples(name), samples(peer)), 1.0) for peer in theirs)] for name in ours
    ]
    n_tasks = sum(len(each.envs) for each in found)
    return (
        f"{markdown(['', *(f'against {label(peer)}' for peer in theirs)], rows)}\n\n*Probability that a run ends above one of "
        f"the other algorithm at equal steps, mean over the {number(n_tasks)} tasks, and its 95% interval.*"
    )


WRITERS: Writers = {"curves": curves, "finals": finals, "pairs": pairs}
