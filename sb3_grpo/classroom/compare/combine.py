"""One comparison from several folders: the runs that different machines have made, such as those of the members of a class."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from itertools import product
from typing import Any, Literal

import numpy as np

from sb3_grpo.classroom.compare.definition import default_settings, known_algorithms
from sb3_grpo.classroom.compare.experiment import Experiment, differences, merge
from sb3_grpo.classroom.compare.reading import check_size
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.runs import UNPLANNED
from sb3_grpo.console import UsageError

Run = tuple[str, str, int]
# If a run is in several folders, the one that got furthest counts
_PROGRESS = {UNPLANNED: 0, "missing": 1, "failed": 2, "done": 3}


def combine(parts: Sequence[Results]) -> Results:
    """
    :param parts: results from one or more folders
    :return: all of them in one
    :raises UsageError: if their runs do not compare, or two folders have different results of the same run
    """
    if len(parts) == 1:
        return parts[0]
    import pandas as pd

    experiments = _comparable(parts)
    experiment = reduce(merge, experiments)
    check_size(experiment.envs, experiment.variants, experiment.seeds, "all folders together")
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
        asdict(experiment)
        | {
            "variants": [variant._asdict() for variant in experiment.variants],
            "machine": _common([each.machine for each in experiments]),
            "versions": _common([each.versions for each in experiments]),
        },
        {run: parts[part].configs[run] for run, part in owners.items() if run in parts[part].configs},
        # Such as seeds of one folder with algorithms of another
        runs.assign(status=runs.status.fillna(UNPLANNED), algo=runs.variant.map(algos)),
        joined("evaluations", "inner"),
        joined("diagnostics", "inner"),
        roots={run: parts[part].folder for run, part in owners.items()},
    )


def _common(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in contents[0].items() if all(each.get(key) == value for each in contents)}


def _comparable(parts: Sequence[Results]) -> list[Experiment]:
    """
    :param parts: results from several folders
    :return: their experiments
    :raises UsageError: if two of them differ in a way that prevents comparing their runs
    """
    experiments = [Experiment.load(part.folder) for part in parts]
    algorithms = known_algorithms()
    for index, (now, part) in enumerate(zip(experiments, parts, strict=True)):
        # An algorithm of a package that is not installed has no known defaults
        defaults = {
            variant.name: default_settings(algorithms[variant.algo]) if variant.algo in algorithms else {}
            for variant in now.variants
        }
        for before, other in zip(experiments[:index], parts[:index], strict=True):
            finished = other.runs[other.runs.status == "done"]
            found = differences(before, now, {*zip(finished.env, finished.variant, strict=True)}, defaults)
            # Otherwise, the order of the folders would decide how runs are scored
            found += [
                (f"main_modes of {env}", other.main_mode(env), part.main_mode(env))
                for env in part.envs
                if env in other.envs and other.main_mode(env) != part.main_mode(env)
            ]
            if found:
                listed = "\n".join(f"- {what}: {old} and {new}" for what, old, new in found)
                raise UsageError(
                    f"{other.folder} and {part.folder} have runs that do not compare, made with different settings:\n"
                    f"{listed}\nLeave one of the two out."
                )
    return experiments


def _owners(parts: Sequence[Results]) -> dict[Run, int]:
    """
    :param parts: results from several folders
    :return: for each run, which of them it is taken from
    :raises UsageError: if a run has finished in two of them, with different returns
    """
    owners: dict[Run, int] = {}
    progress: dict[Run, int] = {}
    for index, part in enumerate(parts):
        clashes: dict[int, list[Run]] = {}
        for row in part.runs.itertuples():
            run = (row.env, row.variant, row.seed)
            now = _PROGRESS.get(row.status, 0)
            if now > progress.get(run, -1):
                owners[run], progress[run] = index, now
            elif now == _PROGRESS["done"] and not np.array_equal(
                _returns(part, run), _returns(parts[owners[run]], run), equal_nan=True
            ):
                clashes.setdefault(owners[run], []).append(run)
        for owner, found in clashes.items():
            env, variant, seed = found[0]
            others = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise UsageError(
                f"{parts[owner].folder} and {part.folder} have different results of the same run "
                f"({env}, {variant}, seed {seed}){others}: leave one of the two out, or run it again with other --seeds"
            )
    return owners


def _returns(part: Results, run: Run) -> np.ndarray:
    rows = part.evaluations
    rows = rows[(rows.env == run[0]) & (rows.variant == run[1]) & (rows.seed == run[2])]
    return rows.sort_values(["mode", "target_steps", "final"]).return_mean.to_numpy(float)
