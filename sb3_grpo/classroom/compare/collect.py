"""Read the folder of an experiment into tidy tables."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_grpo.classroom.compare.packed import Configs, is_packed, unpack
from sb3_grpo.classroom.compare.reading import MODES, read_config, read_experiment_json, read_table
from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.classroom.compare.runs import DIAGNOSTIC_COLUMNS, EVALUATION_COLUMNS, RUN_COLUMNS, run_folder, run_row
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_text
from sb3_grpo.utils.parameters import short_repr

if TYPE_CHECKING:
    import pandas as pd

# Runs that exceed their budget by more than this share are reported to the reader
_OVERSHOOT = 0.05


def collect(folder: Path) -> Results:
    """
    Read all runs and write ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``. Packed results are read as they are.

    :param folder: folder of the experiment
    :return: its results
    """
    import_extra("pandas")
    if not (folder / "experiment.json").is_file():
        raise UsageError(f"{folder} is not the folder of a comparison: {_what_else(folder)}")
    experiment = read_experiment_json(folder)
    if is_packed(folder):
        configs, tables = unpack(
            folder, {"runs": RUN_COLUMNS, "evaluations": EVALUATION_COLUMNS, "diagnostics": DIAGNOSTIC_COLUMNS}
        )
        _require_planned(folder, experiment, tables["runs"])
        _require_final_returns(folder, tables)
    else:
        configs, tables = _read_runs(folder, experiment)
        for name, table in tables.items():
            replace_text(folder / f"{name}.csv", table.to_csv(index=False), durable=False)
    results = Results(folder, experiment, configs, **tables)
    _require_finished(results)
    results.notes += _notes(results)
    return results


def _what_else(folder: Path) -> str:
    if folder.is_file():
        return "it is a file. Unpack it first, and give the folder that is in it"
    inside = sorted(path.parent for path in folder.glob("*/experiment.json"))
    hint = f". Did you mean {inside[0]}?" if inside else ""
    if not inside and (folder / "report.html").is_file():
        hint = (
            ", only a report, which does not hold the results: ask for the whole folder, or for what compare pack makes of it"
        )
    return f"it has no experiment.json{hint}"


def _require_planned(folder: Path, experiment: dict[str, Any], runs: "pd.DataFrame") -> None:
    """
    :param folder: folder with packed results
    :param experiment: content of its ``experiment.json``
    :param runs: its table of runs
    :raises UsageError: if the table does not have one row for each planned run
    """
    planned = Counter((env, variant["name"], seed) for env, variant, seed in _planned_runs(experiment))
    if Counter(zip(runs.env, runs.variant, runs.seed, strict=True)) != planned:
        raise UsageError(
            f"{folder} is damaged: its runs.csv does not have one row for each run of experiment.json. "
            "Pack the comparison again"
        )


def _require_final_returns(folder: Path, tables: "dict[str, pd.DataFrame]") -> None:
    """
    :param folder: folder with packed results
    :param tables: their tables
    :raises UsageError: if a finished run has no final return
    """
    runs, evaluations = tables["runs"], tables["evaluations"]
    finals = evaluations[(evaluations.final == 1) & np.isfinite(evaluations.return_mean)]
    there = {*zip(finals.env, finals.variant, finals.seed, finals["mode"], strict=True)}
    for run in runs[runs.status == "done"].itertuples():
        for mode in MODES:
            if (run.env, run.variant, run.seed, mode) not in there:
                raise UsageError(
                    f"{folder} is damaged: the run {run.env}, {run.variant}, seed {run.seed} has finished, but there is no "
                    f"final {mode} return of it. Pack the comparison again"
                )


def _read_runs(folder: Path, experiment: dict[str, Any]) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    """
    :param folder: folder of the experiment
    :param experiment: content of ``experiment.json``
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
        rows.append({**run_row(run), **keys})
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
    """Describe how data that are not as planned were handled: nothing is left out silently."""
    notes = []
    for env in results.envs:
        for mode in results.modes:
            rows = results.finished_evaluations(env, mode)
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
        # A callback in the entry may end the training early
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
    notes += _unlike_planned(results)
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


def _unlike_planned(results: Results) -> list[str]:
    """Describe finished runs made with other settings than those of the experiment, such as runs from another folder."""
    counts: Counter[str] = Counter()
    for run in results.runs[results.runs.status == "done"].itertuples():
        config = results.configs.get((run.env, run.variant, run.seed), {})
        entry = config.get("hyperparameters")
        made = {"timesteps": config.get("timesteps"), "algo": config.get("algo")} | (entry if isinstance(entry, dict) else {})
        planned = {"timesteps": results.experiment["timesteps"][run.env], "algo": run.algo}
        planned |= results.hyperparams(run.env, run.variant)
        # Other versions may know other parameters
        unlike = [key for key in planned if made.get(key) not in (None, planned[key])]
        listed = ", ".join(f"{key} {short_repr(made[key])} instead of {short_repr(planned[key])}" for key in unlike)
        counts[f"{run.env}, {run.variant}: {listed}"] += bool(unlike)
    return [
        f"Finished runs made with other settings than experiment.json says: {count} of {unlike}."
        for unlike, count in counts.items()
        if count
    ]
