"""Read the results of comparisons: from one folder, from packed files, or from the folders of several machines."""

import json
import lzma
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sb3_grpo.classroom.compare.experiment import (
    FILE,
    Experiment,
    check_config,
    check_texts,
    differences,
    merge,
    parse_json,
    read_experiment_json,
    reading,
)
from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.classroom.compare.runs import (
    CONFIG,
    DIAGNOSTIC_COLUMNS,
    ERROR,
    EVALUATION_COLUMNS,
    MODES,
    RESULT,
    RUN_COLUMNS,
    UNPLANNED,
    is_done,
    run_folder,
)
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_file, replace_text
from sb3_grpo.utils.parameters import Number, short_repr

if TYPE_CHECKING:
    import pandas as pd

Run = tuple[str, str, int]
Configs = dict[Run, dict[str, Any]]

_CONFIGS = "configs.json.xz"
_PACKED = {"runs": "runs.csv", "evaluations": "evaluations.csv.xz", "diagnostics": "diagnostics.csv.xz"}
_COLUMNS = {"runs": RUN_COLUMNS, "evaluations": EVALUATION_COLUMNS, "diagnostics": DIAGNOSTIC_COLUMNS}
_TEXTS = ("env", "variant", "algo", "mode", "key", "status", "net_arch", "provenance", "error")
_NUMBER = Number(none="what was not measured")
# Runs that exceed their budget by more than this share are reported to the reader
_OVERSHOOT = 0.05
# If a run is in several folders, the one that got furthest counts
_PROGRESS = {"missing": 1, "failed": 2, "done": 3}


def collect(folder: Path) -> Results:
    """
    Read all runs and write ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``. Packed results are read as they are.

    :param folder: folder of the experiment
    :return: its results
    """
    import_extra("pandas")
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder} is not the folder of a comparison: {_what_else(folder)}")
    _check_links(folder)
    experiment = read_experiment_json(folder)
    if is_packed(folder):
        configs, tables = _unpack(folder)
        planned = Counter(product(experiment["envs"], _names(experiment), experiment["seeds"]))
        if Counter(_runs_in(tables["runs"])) != planned:
            raise UsageError(
                f"{folder} is damaged: its runs.csv does not have one row for each run. Pack the comparison again"
            )
    else:
        configs, tables = _read_runs(folder, experiment)
        for name, table in tables.items():
            replace_text(folder / f"{name}.csv", table.to_csv(index=False), durable=False)
    results = Results(folder, experiment, configs, **tables)
    _check_finished(results)
    results.notes += _notes(results)
    return results


def is_packed(folder: Path) -> bool:
    """
    :param folder: folder of a comparison
    :return: whether it holds packed results and no runs
    """
    return (folder / _CONFIGS).is_file() and not (folder / "runs").is_dir()


def pack(results: Results, target: Path) -> None:
    """
    Write everything a report needs in a few small files: evaluations, logged values, configurations and final scores.
    Packed results are enough for a report, but not for continuing the comparison.

    :param results: results of a comparison
    :param target: folder to write to
    :raises UsageError: if the folder holds runs, or packed runs that are not among these
    """
    if (target / "runs").is_dir():
        raise UsageError(f"{target} holds the runs themselves: name another folder to write to, as the last one")
    if is_packed(target):
        _check_links(target)
        _, tables = _unpack(target)
        lost = {*_runs_in(tables["runs"], done=True)} - {*_runs_in(results.runs, done=True)}
        if lost:
            raise UsageError(
                f"{target}, the folder to write to, holds packed results, and {len(lost)} of its runs would be lost: "
                "name another folder, as the last one"
            )
    target.mkdir(parents=True, exist_ok=True)
    replace_text(target / FILE, json.dumps(results.experiment, indent=2) + "\n")
    texts = {file: getattr(results, name).to_csv(index=False) for name, file in _PACKED.items()}
    configs = [{"env": run[0], "variant": run[1], "seed": run[2], "config": each} for run, each in results.configs.items()]
    for name, text in {**texts, _CONFIGS: json.dumps(configs)}.items():
        with replace_file(target / name) as file:
            file.write(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())


def combine(parts: Sequence[Results]) -> Results:
    """
    :param parts: results from one or more folders, such as those of the members of a class
    :return: all of them in one
    :raises UsageError: if their runs do not compare, or two folders have different results of the same run
    """
    if len(parts) == 1:
        return parts[0]
    import pandas as pd

    experiments = [Experiment.of(part.experiment) for part in parts]
    _check_comparable(parts, experiments)
    experiment = reduce(merge, experiments)
    experiment.machine, experiment.versions = (
        {key: value for key, value in first.items() if all(each.get(key) == value for each in others)}
        for first, *others in ([each.machine for each in experiments], [each.versions for each in experiments])
    )
    owners = _owners(parts)
    algos = {variant.name: variant.algo for variant in experiment.variants}
    keys = ["env", "variant", "seed", "part"]
    planned = pd.DataFrame(
        [(*run, owners.get(run, -1)) for run in product(experiment.envs, algos, experiment.seeds)], columns=keys
    )

    def joined(name: str, how: Literal["left", "inner"]) -> "pd.DataFrame":
        """The rows of each run, in the order of the plan, from the part that it is taken from."""
        tables = [getattr(part, name) for part in parts]
        # As objects: pandas warns if a column without values has another type than those of the others
        rows = pd.concat([table.astype(object).assign(part=index) for index, table in enumerate(tables)]).infer_objects()
        return planned.merge(rows, on=keys, how=how)[tables[0].columns]

    runs = joined("runs", "left")
    return Results(
        parts[0].folder,
        experiment.content(),
        {run: parts[part].configs[run] for run, part in owners.items() if run in parts[part].configs},
        # Such as seeds of one folder with algorithms of another
        runs.assign(status=runs.status.fillna(UNPLANNED), algo=runs.variant.map(algos)),
        joined("evaluations", "inner"),
        joined("diagnostics", "inner"),
        roots={run: parts[part].folder for run, part in owners.items()},
    )


def _what_else(folder: Path) -> str:
    if folder.is_file():
        return "it is a file. Unpack it first, and give the folder that is in it"
    inside = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not inside and (folder / "report.html").is_file():
        return f"it has no {FILE}, only a report: ask for the whole folder, or for what compare pack makes of it"
    return f"it has no {FILE}" + (f". Did you mean {inside[0]}?" if inside else "")


def _check_links(folder: Path) -> None:
    """What reads and writes in a folder follows symbolic links, which may lead outside if others have made them."""
    root = folder.resolve()
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise UsageError(
                f"{path} is a link to {os.readlink(path)}, outside of {folder}: put the file or folder itself there"
            )


def _names(experiment: dict[str, Any]) -> dict[str, str]:
    """The algorithm of each variant."""
    return {variant["name"]: variant["algo"] for variant in experiment["variants"]}


def _runs_in(runs: "pd.DataFrame", done: bool = False) -> list[Run]:
    runs = runs[runs.status == "done"] if done else runs
    return [*zip(runs.env, runs.variant, runs.seed, strict=True)]


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        return dict(parse_json(path.read_text("utf-8")))


def _read_table(path: Path, columns: list[str]) -> "pd.DataFrame":
    import pandas as pd

    with reading(path):
        # A variant may be named 1.0 or NA
        texts: dict[str, Any] = {"dtype": dict.fromkeys(_TEXTS, str), "keep_default_na": False, "na_values": [""]}
        table = pd.read_csv(path, float_precision="round_trip", **texts)
        for column in columns:
            if column not in _TEXTS:
                table[column] = pd.to_numeric(table[column])
        # Only finished runs have steps
        rows = table[table.status == "done"] if columns is RUN_COLUMNS else table
        for column in {"steps", "target_steps"} & {*columns}:
            if rows[column].isna().any():
                raise ValueError(f"{column} is missing in a row")
        return table[columns]


def _unpack(folder: Path) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    path = folder / _CONFIGS
    with reading(path):
        content = parse_json(lzma.decompress(path.read_bytes()))
        configs = {(each["env"], each["variant"], each["seed"]): check_config(dict(each["config"])) for each in content}
    return configs, {name: _read_table(folder / file, _COLUMNS[name]) for name, file in _PACKED.items()}


def _read_runs(folder: Path, experiment: dict[str, Any]) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    """
    :param folder: folder of the experiment
    :param experiment: content of ``experiment.json``
    :return: the configuration of each run, and the tables of runs, evaluations and diagnostics
    """
    import pandas as pd

    configs: Configs = {}
    rows: list[dict[str, Any]] = []
    tables: dict[str, list[pd.DataFrame]] = {"evaluations": [], "diagnostics": []}
    for env, (variant, algo), seed in product(experiment["envs"], _names(experiment).items(), experiment["seeds"]):
        run = run_folder(folder, env, variant, seed)
        keys = {"env": env, "variant": variant, "algo": algo, "seed": seed}
        rows.append({**_run_row(run), **keys})
        if (run / CONFIG).is_file():
            with reading(run / CONFIG):
                configs[env, variant, seed] = check_config(_read_json(run / CONFIG))
        for name, parts in tables.items():
            if is_done(run):
                parts.append(_read_table(run / f"{name}.csv", _COLUMNS[name]).assign(**keys))
    joined = {
        name: pd.concat(parts, ignore_index=True)
        if (parts := [each for each in tables[name] if len(each)])
        else pd.DataFrame()
        for name in tables
    }
    joined["runs"] = pd.DataFrame(rows)
    return configs, {name: joined[name].reindex(columns=columns) for name, columns in _COLUMNS.items()}


def _run_row(run: Path) -> dict[str, Any]:
    """The row of a run in the table: its result, or why there is none."""
    if is_done(run):
        result = _read_json(run / RESULT)
        with reading(run / RESULT):
            for column in RUN_COLUMNS:
                if column not in _TEXTS:
                    _NUMBER.check(column, result.get(column))
                elif result.get(column) is not None:
                    check_texts(column, result[column], 0)
            return {**result, "steps": int(result["steps"]), "seconds": float(result["seconds"]), "status": "done"}
    if (run / ERROR).is_file():
        lines = (run / ERROR).read_text("utf-8", errors="replace").strip().splitlines()
        return {"status": "failed", "error": lines[-1] if lines else "no message"}
    return {"status": "missing"}


def _check_finished(results: Results) -> None:
    """
    :param results: results of a comparison
    :raises UsageError: if no run has finished, or one of them does not have one final return of each kind
    """
    runs, evaluations = results.runs, results.evaluations
    if not (runs.status == "done").any():
        message = f"{results.folder} has no finished run yet, so there is nothing to compare"
        failed = runs[runs.status == "failed"]
        if not failed.empty:
            first = failed.iloc[0]
            message += (
                f". {len(failed)} failed, the first ({first.env}, {first.variant}, seed {first.seed}) with: {first.error}"
            )
        raise UsageError(message)
    finals = defaultdict(list)
    for row in evaluations[evaluations.final == 1].itertuples():
        finals[row.env, row.variant, row.seed, row.mode].append(row.return_mean)
    for run, mode in product(_runs_in(runs, done=True), MODES):
        returns = finals[(*run, mode)]
        if len(returns) != 1 or not np.isfinite(returns[0]):
            found = (
                f"there are {len(returns)} final {mode} returns" if len(returns) > 1 else f"there is no final {mode} return"
            )
            raise UsageError(
                f"{results.folder} is damaged: the run {run[0]}, {run[1]}, seed {run[2]} has finished, but {found} of it. "
                "Delete the folder of this run and run the comparison again"
            )


def _check_comparable(parts: Sequence[Results], experiments: Sequence[Experiment]) -> None:
    """
    :param parts: results from several folders
    :param experiments: their experiments
    :raises UsageError: if two of them differ in a way that prevents comparing their runs
    """
    for index, (now, part) in enumerate(zip(experiments, parts, strict=True)):
        for before, other in zip(experiments[:index], parts[:index], strict=True):
            done = {run[:2] for run in _runs_in(other.runs, done=True)}
            if found := differences(before, now, done):
                listed = "\n".join(f"- {what}: {old} and {new}" for what, old, new in found)
                raise UsageError(
                    f"{other.folder} and {part.folder} have runs that do not compare, made with different settings:\n"
                    f"{listed}\nLeave one of the two out."
                )


def _owners(parts: Sequence[Results]) -> dict[Run, int]:
    """
    :param parts: results from several folders
    :return: for each run, which of them it is taken from
    :raises UsageError: if a run has finished in two of them, with different returns
    """
    owners: dict[Run, int] = {}
    progress: dict[Run, int] = {}
    for index, part in enumerate(parts):
        for run, status in zip(_runs_in(part.runs), part.runs.status, strict=True):
            now = _PROGRESS.get(status, 0)
            if now > progress.get(run, -1):
                owners[run], progress[run] = index, now
            elif status == "done" and not np.array_equal(
                _returns(part, run), _returns(parts[owners[run]], run), equal_nan=True
            ):
                raise UsageError(
                    f"{parts[owners[run]].folder} and {part.folder} have different results of the same run ({run[0]}, "
                    f"{run[1]}, seed {run[2]}): leave one of the two out, or run it again with other --seeds"
                )
    return owners


def _returns(part: Results, run: Run) -> np.ndarray:
    rows = part.evaluations
    rows = rows[(rows.env == run[0]) & (rows.variant == run[1]) & (rows.seed == run[2])]
    return rows.sort_values(["mode", "target_steps", "final"]).return_mean.to_numpy(float)


def _notes(results: Results) -> list[str]:
    """Describe how data that are not as planned were handled: nothing is left out silently."""
    notes = [*_uneven_evaluations(results), *_other_budgets(results), *_other_settings(results)]
    configs = results.configs.values()
    machines = {json.dumps(config["machine"], sort_keys=True) for config in configs if "machine" in config}
    if len(machines) > 1:
        notes.append(f"The runs were made on {len(machines)} different machines: their seconds and speeds do not compare.")
    versions = [config["versions"] for config in configs if "versions" in config]
    for package in sorted({package for each in versions for package in each}):
        found = sorted({each.get(package, "none") for each in versions})
        if len(found) > 1:
            notes.append(f"The runs were made with different versions of {package}: {', '.join(found)}.")
    planned = {run_folder(results.folder, *run) for run in _runs_in(results.runs)}
    for extra in sorted({path.parent for path in (results.folder / "runs").rglob(CONFIG)} - planned):
        notes.append(f"{extra.relative_to(results.folder)} is not part of experiment.json and not in this report.")
    return notes


def _uneven_evaluations(results: Results) -> Iterator[str]:
    planned = results.experiment["n_evaluations"] + 1
    for env, mode in product(results.envs, results.modes):
        for (variant, seed), run in results.finished_evaluations(env, mode).groupby(["variant", "seed"]):
            if (count := run.target_steps.nunique()) != planned:
                yield (
                    f"{env}, {variant}, seed {seed}: {count} {mode} evaluations instead of {planned}. The curves of {env} and "
                    f"the figures derived from them use the {len(results.grid(env, mode))} steps at which all runs were "
                    "evaluated."
                )


def _other_budgets(results: Results) -> Iterator[str]:
    done = results.runs[results.runs.status == "done"]
    for (env, variant), run in done.groupby(["env", "variant"], sort=False):
        budget, least, steps = results.experiment["timesteps"][env], int(run.steps.min()), int(run.steps.max())
        # A callback in the entry may end the training early
        if least < budget:
            yield (
                f"{env}, {variant}: a run ended after {least:,} steps of a budget of {budget:,}. From there on its curve has "
                "the returns of its end."
            )
        if steps > (1.0 + _OVERSHOOT) * budget:
            yield (
                f"{env}, {variant}: with its last rollout a run made {steps:,} steps, {steps / budget - 1.0:.0%} more than "
                "the budget, before its final evaluation."
            )


def _other_settings(results: Results) -> Iterator[str]:
    """Finished runs made with other settings than those of the experiment, such as runs from another folder."""
    counts: Counter[str] = Counter()
    for run in results.runs[results.runs.status == "done"].itertuples():
        config = results.configs.get((run.env, run.variant, run.seed), {})
        made = {"timesteps": config.get("timesteps"), "algo": config.get("algo")} | dict(config.get("hyperparameters") or {})
        planned = {"timesteps": results.experiment["timesteps"][run.env], "algo": run.algo}
        planned |= results.hyperparams(run.env, run.variant)
        # Other versions may know other parameters
        unlike = [key for key in planned if made.get(key) not in (None, planned[key])]
        listed = ", ".join(f"{key} {short_repr(made[key])} instead of {short_repr(planned[key])}" for key in unlike)
        counts[f"{run.env}, {run.variant}: {listed}"] += bool(unlike)
    for settings, count in counts.items():
        if count:
            yield f"Finished runs made with other settings than experiment.json says: {count} of {settings}."
