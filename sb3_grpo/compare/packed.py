"""The results of a comparison in a few small files: for a repository, a paper's supplement, a mail."""

import json
import lzma
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_grpo.console import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from sb3_grpo.compare.results import Results

Configs = dict[tuple[str, str, int], dict[str, Any]]

_CONFIGS = "configs.json.xz"
_TABLES = {"runs": "runs.csv", "evaluations": "evaluations.csv.xz", "diagnostics": "diagnostics.csv.xz"}


def is_packed(folder: Path) -> bool:
    """
    :param folder: of a comparison
    :return: whether it holds packed results, and no runs
    """
    return (folder / _CONFIGS).is_file() and not (folder / "runs").is_dir()


def pack(results: "Results", target: Path) -> None:
    """
    Write everything that a report is made of: all evaluations, logged values, configurations and final scores.
    A comparison can be reported from it, but not continued.

    :param results: of a comparison
    :param target: folder to write to
    :raises UsageError: if it holds runs
    """
    if (target / "runs").is_dir():
        raise UsageError(f"{target} holds the runs themselves: pack them into another folder")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(results.folder / "experiment.json", target / "experiment.json")
    for name, file in _TABLES.items():
        getattr(results, name).to_csv(target / file, index=False)
    configs = [
        {"env": env, "variant": variant, "seed": seed, "config": config}
        for (env, variant, seed), config in results.configs.items()
    ]
    (target / _CONFIGS).write_bytes(lzma.compress(json.dumps(configs).encode()))


def unpack(folder: Path) -> "tuple[Configs, dict[str, pd.DataFrame]]":
    """
    :param folder: with packed results
    :return: the configuration of each (environment, variant, seed), and the tables of runs, evaluations and diagnostics
    """
    import pandas as pd

    configs = json.loads(lzma.decompress((folder / _CONFIGS).read_bytes()))
    tables = {name: pd.read_csv(folder / file, float_precision="round_trip") for name, file in _TABLES.items()}
    return {(each["env"], each["variant"], each["seed"]): each["config"] for each in configs}, tables
