"""The results of a comparison in a few small files: for a repository, the supplement of a paper, or an e-mail."""

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_grpo.classroom.compare.reading import read_configs, read_table
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_file

if TYPE_CHECKING:
    import pandas as pd

    from sb3_grpo.classroom.compare.results import Results

Configs = dict[tuple[str, str, int], dict[str, Any]]

_CONFIGS = "configs.json.xz"
_TABLES = {"runs": "runs.csv", "evaluations": "evaluations.csv.xz", "diagnostics": "diagnostics.csv.xz"}


def is_packed(folder: Path) -> bool:
    """
    :param folder: folder of a comparison
    :return: whether it holds packed results and no runs
    """
    return (folder / _CONFIGS).is_file() and not (folder / "runs").is_dir()


def pack(results: "Results", target: Path) -> None:
    """
    Write everything a report needs: all evaluations, logged values, configurations and final scores.
    Packed results are enough for a report, but not for continuing the comparison.

    :param results: results of a comparison
    :param target: folder to write to
    :raises UsageError: if the folder holds runs, or these results, or packed runs that are not among these
    """
    if (target / "runs").is_dir():
        raise UsageError(f"{target} holds the runs themselves: name another folder to write to, as the last one")
    sources = list(dict.fromkeys([results.folder, *results.roots.values()]))
    if target.resolve() in {source.resolve() for source in sources}:
        raise UsageError(f"{target} is what is to be packed: choose another folder")
    lost = _finished(target) - _finished_of(results.runs)
    if lost:
        listed = ", ".join(map(str, sources))
        raise UsageError(
            f"{target}, the folder to write to, holds packed results, {len(lost)} runs of which are not in {listed}: "
            "name another folder, as the last one"
        )
    target.mkdir(parents=True, exist_ok=True)
    _write(target / "experiment.json", json.dumps(results.experiment, indent=2) + "\n")
    for name, file in _TABLES.items():
        _write(target / file, getattr(results, name).to_csv(index=False))
    configs = [
        {"env": env, "variant": variant, "seed": seed, "config": config}
        for (env, variant, seed), config in results.configs.items()
    ]
    _write(target / _CONFIGS, json.dumps(configs))


def _write(path: Path, text: str) -> None:
    # Without room, the earlier file stays, and the results can be packed again
    content = text.encode()
    with replace_file(path) as file:
        file.write(lzma.compress(content) if path.suffix == ".xz" else content)


def _finished(target: Path) -> set[tuple[str, str, int]]:
    path = target / _TABLES["runs"]
    return _finished_of(read_table(path, ["seed"])) if is_packed(target) else set()


def _finished_of(runs: "pd.DataFrame") -> set[tuple[str, str, int]]:
    done = runs[runs.status == "done"]
    return {*zip(done.env, done.variant, done.seed, strict=True)}


def unpack(folder: Path, columns: Mapping[str, list[str]]) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    """
    :param folder: folder with packed results
    :param columns: columns of each table
    :return: the configuration of each (environment, variant, seed), and the tables of runs, evaluations and diagnostics
    :raises UsageError: if a column is missing
    """
    configs = read_configs(folder / _CONFIGS)
    tables = {name: read_table(folder / file, columns[name], float_precision="round_trip") for name, file in _TABLES.items()}
    for name, table in tables.items():
        if missing := [column for column in columns[name] if column not in table]:
            raise UsageError(f"{folder / _TABLES[name]} has no column {missing[0]}. Pack the comparison again")
    return configs, tables
