"""The tables of an experiment's runs, and the matrices that the statistics are computed from."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_grpo.classroom.compare.runs import MODES, UNPLANNED
from sb3_grpo.console import missing_extra

if TYPE_CHECKING:
    import pandas as pd


def import_extra(name: str) -> ModuleType:
    """
    :param name: a module that the extra ``compare`` installs
    :return: the module
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra("compare", f"The comparison ({error.name})") from error


@dataclass
class Results:
    """
    The results of an experiment's runs.

    :param folder: folder of the experiment
    :param experiment: content of ``experiment.json``
    :param configs: content of ``config.json`` for each (environment, variant, seed)
    :param runs: one row per planned run
    :param evaluations: one row per evaluation
    :param diagnostics: one row per logged value
    :param notes: what a reader has to know about the data
    :param roots: for each (environment, variant, seed) of combined results, the folder that its run comes from
    """

    folder: Path
    experiment: dict[str, Any]
    configs: dict[tuple[str, str, int], dict[str, Any]]
    runs: "pd.DataFrame"
    evaluations: "pd.DataFrame"
    diagnostics: "pd.DataFrame"
    notes: list[str] = field(default_factory=list)
    roots: dict[tuple[str, str, int], Path] = field(default_factory=dict)
    _grids: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def envs(self) -> list[str]:
        return list(self.experiment["envs"])

    @property
    def variants(self) -> list[str]:
        return [variant["name"] for variant in self.experiment["variants"]]

    @property
    def modes(self) -> list[str]:
        """The kinds of evaluation in the results."""
        there = set(self.evaluations["mode"])
        return [mode for mode in MODES if mode in there]

    def main_mode(self, env: str) -> str:
        """
        :param env: an environment
        :return: the kind of evaluation whose returns are the scores of its runs, as recorded before they began
        """
        # Not recorded by earlier versions
        return self.experiment.get("main_modes", {}).get(env, "deterministic")

    def progress(self) -> str:
        """
        :return: for example "10 of 12 runs finished, 1 failed, 1 missing"
        """
        counts = self.planned.status.value_counts()
        rest = "".join(f", {counts[status]} {status}" for status in ("failed", "missing") if status in counts)
        return f"{counts.get('done', 0)} of {len(self.planned)} runs finished{rest}"

    @property
    def planned(self) -> "pd.DataFrame":
        """The rows of the runs that were asked for, in one of the folders of combined results."""
        return self.runs[self.runs.status != UNPLANNED]

    def done(self, env: str, variant: str) -> "pd.DataFrame":
        """
        :param env: an environment
        :param variant: a variant
        :return: the rows of its finished runs
        """
        runs = self.runs
        return runs[(runs.env == env) & (runs.variant == variant) & (runs.status == "done")]

    def hyperparams(self, env: str, variant: str) -> dict[str, str]:
        """
        :param env: an environment
        :param variant: a variant
        :return: the hyperparameters of its model, including defaults
        """
        return self.experiment.get("hyperparams", {}).get(env, {}).get(variant, {})

    def finished_evaluations(self, env: str, mode: str, variant: str | None = None) -> "pd.DataFrame":
        """
        :param env: an environment
        :param mode: how actions are chosen
        :param variant: only evaluations of this variant
        :return: evaluations of finished runs only: otherwise, an aborted run would count up to the point where it ended
        """
        rows = self.evaluations[(self.evaluations.env == env) & (self.evaluations["mode"] == mode)]
        if variant is not None:
            rows = rows[rows.variant == variant]
        done = self.runs[(self.runs.status == "done") & (self.runs.env == env)]
        return rows.merge(done[["variant", "seed"]], on=["variant", "seed"])

    def final_scores(self, env: str, variant: str, mode: str) -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :return: (n,) mean final return of each finished run
        """
        rows = self.finished_evaluations(env, mode, variant).sort_values("seed")
        return rows[rows.final == 1].return_mean.to_numpy(float)

    def untrained(self, env: str, mode: str) -> "pd.DataFrame":
        """
        :param env: an environment
        :param mode: how actions are chosen
        :return: the evaluations of finished runs before training
        """
        rows = self.finished_evaluations(env, mode)
        return rows[(rows.target_steps == 0) & (rows.final == 0)]

    def final_success(self, env: str, variant: str, mode: str) -> float:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :return: success rate in the final evaluations, NaN if the environment does not report success
        """
        rows = self.finished_evaluations(env, mode, variant)
        return float(rows[rows.final == 1].success_rate.astype(float).mean())

    def grid(self, env: str, mode: str) -> np.ndarray:
        """
        :param env: an environment
        :param mode: how actions are chosen
        :return: the steps at which every finished run was evaluated
        """
        if (env, mode) not in self._grids:
            rows = self.finished_evaluations(env, mode).drop_duplicates(["variant", "seed", "target_steps"])
            counts = rows.target_steps.value_counts()
            n_runs = len(rows.drop_duplicates(["variant", "seed"]))
            self._grids[env, mode] = np.sort(counts.index[counts == n_runs].to_numpy(float))
        return self._grids[env, mode]

    def curves(self, env: str, variant: str, mode: str, column: str = "return_mean") -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param column: column of the evaluations
        :return: (n, points) one curve per finished run, on the grid
        """
        rows = self._one_evaluation_each(env, variant, mode)
        table = rows.pivot(index="seed", columns="target_steps", values=column)
        return table.reindex(columns=self.grid(env, mode)).to_numpy(float)

    def curves_over_time(self, env: str, variant: str, mode: str, points: int = 50) -> tuple[np.ndarray, np.ndarray]:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param points: number of points
        :return: (points,) seconds up to the end of the fastest run, and (n, points) linearly interpolated returns
        """
        runs = self._over_time(env, variant, mode)
        grid = np.linspace(max(seconds[0] for seconds, _ in runs), min(seconds[-1] for seconds, _ in runs), points)
        return grid, np.array([np.interp(grid, *run) for run in runs])

    def shortest_time(self, env: str) -> float:
        """
        :param env: an environment in which a run has finished
        :return: training time in seconds of the variant with the shortest runs, median over its seeds
        """
        times = [self.done(env, name).seconds.astype(float).median() for name in self.variants]
        return float(np.nanmin(times))

    def returns_after(self, env: str, variant: str, mode: str, seconds: float) -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param seconds: training time without evaluations, as in ``shortest_time``
        :return: (n,) linearly interpolated return of each finished run at that time, or at its end if that was earlier
        """
        return np.array([np.interp(seconds, *run) for run in self._over_time(env, variant, mode)])

    def _over_time(self, env: str, variant: str, mode: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :return: seconds and returns of each finished run at its own evaluations
        """
        rows = self._one_evaluation_each(env, variant, mode).sort_values("seconds")
        return [(run.seconds.to_numpy(float), run.return_mean.to_numpy(float)) for _, run in rows.groupby("seed")]

    def _one_evaluation_each(self, env: str, variant: str, mode: str) -> "pd.DataFrame":
        """Keep one evaluation per point: not the final one, which has more episodes than the other points of a curve."""
        rows = self.finished_evaluations(env, mode, variant).sort_values("final", kind="stable")
        return rows.drop_duplicates(["seed", "target_steps"])

    def diagnostic(self, env: str, variant: str, key: str) -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param key: a key of the logger
        :return: (n, points - 1) mean of each finished run between successive evaluations, NaN where nothing was logged
        """
        import pandas as pd

        rows = self.diagnostics
        rows = rows[(rows.env == env) & (rows.variant == variant) & (rows.key == key)]
        rows = rows.merge(self.done(env, variant)[["seed"]], on="seed")
        grid = self.grid(env, self.main_mode(env))
        if rows.empty or len(grid) < 2:
            return np.empty((0, max(len(grid) - 1, 0)))
        # Steps beyond the budget, from the last episodes, belong to the last interval
        bins = pd.cut(rows.steps.clip(upper=grid[-1]), grid, labels=False, include_lowest=True)
        table = rows.groupby(["seed", bins]).value.mean().unstack()
        return table.reindex(columns=range(len(grid) - 1)).to_numpy(float)
