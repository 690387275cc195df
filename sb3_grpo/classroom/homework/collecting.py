"""All students' comparisons in one."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sb3_grpo.classroom.compare.collect import collect, combine, pack
from sb3_grpo.classroom.compare.experiment import FILE
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.homework.grading import by_name
from sb3_grpo.console import UsageError


def collect_class(folders: Sequence[Path], variant: str, target: Path) -> tuple[list[list[str]], dict[str, str]]:
    """
    Make one comparison of the students' comparisons: a variant for each student, or for all with the same returns, and those
    that are not the student's own of the first one.

    :param folders: folders of students, with a comparison in each
    :param variant: name of the student's variant
    :param target: folder to write to
    :return: the students of each curve: those whose runs have the same returns to the last digit share one; and why others
        are left out
    """
    curves: dict[tuple[float, ...], list[str]] = {}
    parts: list[Results] = []
    left_out: dict[str, str] = {}
    for student, folder in by_name(folders).items():
        try:
            results = collect(_comparison(folder))
            if variant not in results.variants:
                raise UsageError(f"its comparison has no variant {variant!r}, only {', '.join(results.variants)}")
        except UsageError as error:
            left_out[student] = str(error)
            continue
        rows = results.evaluations[results.evaluations.variant == variant]
        students = curves.setdefault(tuple(rows.sort_values(["env", "seed", "mode", "target_steps"]).return_mean), [])
        students.append(student)
        if len(students) == 1:
            parts.append(results)
    if not parts:
        raise UsageError(f"None of the folders has a comparison: {left_out}")
    others = {name: name for name in parts[0].variants if not name.startswith("my ")}
    named = [
        _renamed(results, {variant: _curve_name(students)} | (others if results is parts[0] else {}))
        for results, students in zip(parts, curves.values(), strict=True)
    ]
    pack(combine(named), target)
    return [*curves.values()], left_out


def _curve_name(students: list[str]) -> str:
    # Names of variants become names of folders
    first = re.sub(r"[^\w+.-]+", " ", students[0]).strip(" .") or "student"
    return first if len(students) == 1 else f"{first} and {len(students) - 1} more"


def _comparison(folder: Path) -> Path:
    found = sorted(path.parent for path in folder.rglob(FILE))
    if len(found) != 1:
        raise UsageError(f"there are {len(found)} comparisons in {folder}, one is needed")
    return found[0]


def _renamed(results: Results, names: Mapping[str, str]) -> Results:
    """The variants in ``names``, with other names."""
    experiment = dict(results.experiment)
    experiment["variants"] = [
        {**each, "name": names[each["name"]]} for each in experiment["variants"] if each["name"] in names
    ]
    for key in ("hyperparams", "networks"):
        experiment[key] = {
            env: {names[name]: each for name, each in of_env.items() if name in names}
            for env, of_env in experiment[key].items()
        }
    tables = {
        key: table[table.variant.isin([*names])].assign(variant=lambda rows: rows.variant.map(names))
        for key in ("runs", "evaluations", "diagnostics")
        for table in [getattr(results, key)]
    }
    configs = {(env, names[name], seed): each for (env, name, seed), each in results.configs.items() if name in names}
    return dataclasses.replace(results, experiment=experiment, configs=configs, **tables)
