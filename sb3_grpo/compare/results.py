"""An experiment's folder, read into tidy tables and into the matrices that the statistics work on."""

import csv
import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_grpo.compare.packed import Configs, is_packed, unpack
from sb3_grpo.compare.reading import MODES, read_config, read_experiment_json, read_result, read_table
from sb3_grpo.console import UsageError, missing_extra
from sb3_grpo.utils.files import replace_text

if TYPE_CHECKING:
    import pandas as pd

KEYS = ["env", "variant", "algo", "seed"]
EVALUATION_COLUMNS = [
    *KEYS,
    "target_steps",
    "steps",
    "seconds",
    "mode",
    "return_mean",
    "return_std",
    "length_mean",
    "success_rate",
    "n_episodes",
    "final",
]
DIAGNOSTIC_COLUMNS = [*KEYS, "steps", "seconds", "key", "value"]
RUN_COLUMNS = [
    *KEYS,
    "status",
    "steps",
    "seconds",
    "steps_per_second",
    "peak_memory_mib",
    "n_parameters",
    "n_critic_parameters",
    "n_policies_in_memory",
    "samples_per_start",
    "discarded_fraction",
    "net_arch",
    "provenance",
    "error",
]
# A reader is told of runs that went further beyond their budget
_OVERSHOOT = 0.05


def import_extra(name: str) -> ModuleType:
    """
    :param name: a module that the extra ``compare`` brings along
    :return: the module
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra("compare", f"The comparison ({error.name})") from error


@dataclass
class Results:
    """
    What the runs of an experiment left.

    :param folder: the experiment's folder
    :param experiment: what ``experiment.json`` says
    :param configs: what the ``config.json`` of each (environment, variant, seed) says
    :param runs: a row for each run that was planned
    :param evaluations: a row for each evaluation
    :param diagnostics: a row for each logged value
    :param notes: what a reader has to know about the data
    """

    folder: Path
    experiment: dict[str, Any]
    configs: dict[tuple[str, str, int], dict[str, Any]]
    runs: "pd.DataFrame"
    evaluations: "pd.DataFrame"
    diagnostics: "pd.DataFrame"
    notes: list[str] = field(default_factory=list)
    _grids: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def envs(self) -> list[str]:
        return list(self.experiment["envs"])

    @property
    def variants(self) -> list[str]:
        return [variant["name"] for variant in self.experiment["variants"]]

    @property
    def modes(self) -> list[str]:
        """The kinds of evaluation that there are."""
        there = set(self.evaluations["mode"])
        return [mode for mode in MODES if mode in there]

    def main_mode(self, env: str) -> str:
        """
        :param env: an environment
        :return: the kind of evaluation whose returns are the scores of its runs, as it was written down before they began
        """
        # Experiments of earlier versions have none
        return self.experiment.get("main_modes", {}).get(env, "deterministic")

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
        :return: what its model was built with, defaults included
        """
        return self.experiment.get("hyperparams", {}).get(env, {}).get(variant, {})

    def _evaluations(self, env: str, mode: str, variant: str | None = None) -> "pd.DataFrame":
        """Evaluations of finished runs only: a run that broke off would otherwise count up to there."""
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
        :return: (n,) mean return of each finished run at the end
        """
        rows = self._evaluations(env, mode, variant).sort_values("seed")
        return rows[rows.final == 1].return_mean.to_numpy(float)

    def untrained(self, env: str, mode: str) -> "pd.DataFrame":
        """
        :param env: an environment
        :param mode: how actions are chosen
        :return: the evaluations of the finished runs before they began to learn
        """
        rows = self._evaluations(env, mode)
        return rows[(rows.target_steps == 0) & (rows.final == 0)]

    def final_success(self, env: str, variant: str, mode: str) -> float:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :return: share of the episodes at the end that succeeded, NaN if the environment does not say
        """
        rows = self._evaluations(env, mode, variant)
        return float(rows[rows.final == 1].success_rate.astype(float).mean())

    def grid(self, env: str, mode: str) -> np.ndarray:
        """
        :param env: an environment
        :param mode: how actions are chosen
        :return: the steps at which every finished run was evaluated
        """
        if (env, mode) not in self._grids:
            rows = self._evaluations(env, mode).drop_duplicates(["variant", "seed", "target_steps"])
            counts = rows.target_steps.value_counts()
            n_runs = len(rows.drop_duplicates(["variant", "seed"]))
            self._grids[env, mode] = np.sort(counts.index[counts == n_runs].to_numpy(float))
        return self._grids[env, mode]

    def curves(self, env: str, variant: str, mode: str, column: str = "return_mean") -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param column: what of the evaluations
        :return: (n, points) a curve of each finished run on the grid
        """
        rows = self._one_evaluation_each(env, variant, mode)
        table = rows.pivot(index="seed", columns="target_steps", values=column)
        return table.reindex(columns=self.grid(env, mode)).to_numpy(float)

    def curves_over_time(self, env: str, variant: str, mode: str, points: int = 50) -> tuple[np.ndarray, np.ndarray]:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param points: how many
        :return: (points,) seconds, up to the end of the fastest run, and (n, points) returns, interpolated linearly
        """
        runs = self._over_time(env, variant, mode)
        grid = np.linspace(max(seconds[0] for seconds, _ in runs), min(seconds[-1] for seconds, _ in runs), points)
        return grid, np.array([np.interp(grid, *run) for run in runs])

    def shortest_time(self, env: str) -> float:
        """
        :param env: an environment in which a run has finished
        :return: seconds of training that the variant with the shortest runs takes there, median over its seeds
        """
        times = [self.done(env, name).seconds.astype(float).median() for name in self.variants]
        return float(np.nanmin(times))

    def returns_after(self, env: str, variant: str, mode: str, seconds: float) -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :param seconds: of training, evaluations left out, as in ``shortest_time``
        :return: (n,) return of each finished run at that time, interpolated linearly; at its end, if that was earlier
        """
        return np.array([np.interp(seconds, *run) for run in self._over_time(env, variant, mode)])

    def _over_time(self, env: str, variant: str, mode: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """
        :param env: an environment
        :param variant: a variant
        :param mode: how actions are chosen
        :return: seconds and returns of each finished run, at its own evaluations
        """
        rows = self._one_evaluation_each(env, variant, mode).sort_values("seconds")
        return [(run.seconds.to_numpy(float), run.return_mean.to_numpy(float)) for _, run in rows.groupby("seed")]

    def _one_evaluation_each(self, env: str, variant: str, mode: str) -> "pd.DataFrame":
        """The evaluation at the end has more episodes; on a curve all points have equally many."""
        rows = self._evaluations(env, mode, variant).sort_values("final", kind="stable")
        return rows.drop_duplicates(["seed", "target_steps"])

    def diagnostic(self, env: str, variant: str, key: str) -> np.ndarray:
        """
        :param env: an environment
        :param variant: a variant
        :param key: a key of the logger
        :return: (n, points - 1) mean of each finished run between two evaluations, NaN where nothing was logged
        """
        import pandas as pd

        rows = self.diagnostics
        rows = rows[(rows.env == env) & (rows.variant == variant) & (rows.key == key)]
        rows = rows.merge(self.done(env, variant)[["seed"]], on="seed")
        grid = self.grid(env, self.main_mode(env))
        if rows.empty or len(grid) < 2:
            return np.empty((0, max(len(grid) - 1, 0)))
        # What the last episodes overshoot the budget by belongs to the last interval
        bins = pd.cut(rows.steps.clip(upper=grid[-1]), grid, labels=False, include_lowest=True)
        table = rows.groupby(["seed", bins]).value.mean().unstack()
        return table.reindex(columns=range(len(grid) - 1)).to_numpy(float)


def run_folder(folder: Path, env: str, variant: str, seed: int) -> Path:
    """
    :param folder: the experiment's
    :param env: an environment
    :param variant: a variant
    :param seed: a seed
    :return: where this run leaves its files
    """
    return folder / "runs" / env / variant / str(seed)


def damage(run: Path) -> str | None:
    """
    :param run: folder of a run that has finished
    :return: what is wrong with it: a disk that was full or a power cut may have taken its results
    """
    try:
        with (run / "evaluations.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("final") == "1"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return f"it has finished, but its evaluations.csv cannot be read ({error})"
    for mode in MODES:
        if not any(row.get("mode") == mode and _is_finite(row.get("return_mean")) for row in rows):
            return f"it has finished, but its evaluations.csv has no final {mode} return"
    return None


def is_done(run: Path) -> bool:
    """
    :param run: folder of a run
    :return: whether it has results
    """
    return (run / "result.json").is_file() and damage(run) is None


def _is_finite(text: str | None) -> bool:
    try:
        return math.isfinite(float(text or ""))
    except ValueError:
        return False


def collect(folder: Path) -> Results:
    """
    Read all runs and write ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``. Packed results are read as they are.

    :param folder: the experiment's
    :return: its results
    """
    import_extra("pandas")
    if not (folder / "experiment.json").is_file():
        raise UsageError(f"{folder} is not the folder of a comparison: it has no experiment.json")
    experiment = read_experiment_json(folder)
    if is_packed(folder):
        configs, tables = unpack(
            folder, {"runs": RUN_COLUMNS, "evaluations": EVALUATION_COLUMNS, "diagnostics": DIAGNOSTIC_COLUMNS}
        )
    else:
        configs, tables = _read_runs(folder, experiment)
        for name, table in tables.items():
            replace_text(folder / f"{name}.csv", table.to_csv(index=False), durable=False)
    results = Results(folder, experiment, configs, **tables)
    _require_finished(results)
    results.notes += _notes(results)
    return results


def _read_runs(folder: Path, experiment: dict[str, Any]) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    """
    :param folder: the experiment's
    :param experiment: what ``experiment.json`` says
    :return: the configuration of each (environment, variant, seed), and the tables of runs, evaluations and diagnostics
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    configs: Configs = {}
    parts_of: dict[str, list[Any]] = {"evaluations.csv": [], "diagnostics.csv": []}
    columns_of = dict(zip(parts_of, (EVALUATION_COLUMNS, DIAGNOSTIC_COLUMNS), strict=True))
    for env, variant, seed in _planned_runs(experiment):
        run = run_folder(folder, env, variant["name"], seed)
        keys = {"env": env, "variant": variant["name"], "algo": variant["algo"], "seed": seed}
        for name, parts in parts_of.items():
            if (run / name).is_file() and not (part := read_table(run / name, columns_of[name])).empty:
                parts.append(part.assign(**keys))
        if (run / "config.json").is_file():
            configs[env, variant["name"], seed] = read_config(run / "config.json")
        rows.append({**_run_row(run), **keys})
    evaluations, diagnostics = (_table(parts, columns_of[name]) for name, parts in parts_of.items())
    runs = pd.DataFrame(rows).reindex(columns=RUN_COLUMNS)
    return configs, {"runs": runs, "evaluations": evaluations, "diagnostics": diagnostics}


def _planned_runs(experiment: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], int]]:
    for env in experiment["envs"]:
        for variant in experiment["variants"]:
            for seed in experiment["seeds"]:
                yield env, variant, seed


def _table(parts: list["pd.DataFrame"], columns: list[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(parts, ignore_index=True).reindex(columns=columns) if parts else pd.DataFrame(columns=columns)


def _run_row(run: Path) -> dict[str, Any]:
    if (run / "result.json").is_file():
        lost = damage(run)
        return read_result(run / "result.json") | ({"status": "done"} if lost is None else {"status": "failed", "error": lost})
    if (run / "error.txt").is_file():
        lines = (run / "error.txt").read_text("utf-8", errors="replace").strip().splitlines()
        return {"status": "failed", "error": lines[-1] if lines else "no message"}
    return {"status": "missing"}


def _require_finished(results: Results) -> None:
    runs = results.runs
    if (runs.status == "done").any():
        return
    failed = runs[runs.status == "failed"]
    message = f"{results.folder} has no finished run yet, so there is nothing to compare"
    if not failed.empty:
        first = failed.iloc[0]
        message += f". {len(failed)} failed, the first ({first.env}, {first.variant}, seed {first.seed}) with: {first.error}"
    raise UsageError(message)


def _notes(results: Results) -> list[str]:
    """What was done about data that are not as planned: nothing is left out silently."""
    notes = []
    for env in results.envs:
        for mode in results.modes:
            rows = results._evaluations(env, mode)
            grid = results.grid(env, mode)
            planned = results.experiment["n_evaluations"] + 1
            for (variant, seed), run in rows.groupby(["variant", "seed"]):
                if (count := run.target_steps.nunique()) != planned:
                    notes.append(
                        f"{env}, {variant}, seed {seed}: {count} {mode} evaluations instead of {planned}. The curves of {env} "
                        f"and the figures derived from them use the {len(grid)} steps at which all runs were evaluated."
                    )
    for (env, variant), run in results.runs[results.runs.status == "done"].groupby(["env", "variant"], sort=False):
        budget, least, steps = results.experiment["timesteps"][env], int(run.steps.min()), int(run.steps.max())
        # A callback of the entry may end the training
        if least < budget:
            notes.append(
                f"{env}, {variant}: a run ended after {least:,} steps of a budget of {budget:,}. From there on its curve has "
                "the returns of its end."
            )
        if steps > (1.0 + _OVERSHOOT) * budget:
            notes.append(
                f"{env}, {variant}: with its last rollout a run made {steps:,} steps, {steps / budget - 1.0:.0%} more than "
                "the budget, before its final evaluation."
            )
    machines = {json.dumps(config["machine"], sort_keys=True) for config in results.configs.values() if "machine" in config}
    if len(machines) > 1:
        notes.append(f"The runs were made on {len(machines)} different machines: their seconds and speeds do not compare.")
    versions = [config["versions"] for config in results.configs.values() if "versions" in config]
    for package in sorted({package for each in versions for package in each}):
        found = sorted({each.get(package, "none") for each in versions})
        if len(found) > 1:
            notes.append(f"The runs were made with different versions of {package}: {', '.join(found)}.")
    planned_runs = {run_folder(results.folder, row.env, row.variant, row.seed) for row in results.runs.itertuples()}
    for extra in sorted({path.parent for path in (results.folder / "runs").rglob("config.json")} - planned_runs):
        notes.append(f"{extra.relative_to(results.folder)} is not part of experiment.json and not in this report.")
    return notes
