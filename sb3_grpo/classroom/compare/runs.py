"""The folder of a run: its files, and whether the run has finished."""

import csv
import math
from pathlib import Path
from typing import Any

from sb3_grpo.classroom.compare.reading import MODES, read_result

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
# Status of a run of combined results that was not planned in any of their folders
UNPLANNED = "unplanned"


def run_folder(folder: Path, env: str, variant: str, seed: int) -> Path:
    """
    :param folder: folder of the experiment
    :param env: an environment
    :param variant: a variant
    :param seed: a seed
    :return: folder for the files of this run
    """
    return folder / "runs" / env / variant / str(seed)


def damage(run: Path) -> str | None:
    """
    :param run: folder of a finished run
    :return: what is wrong with its files, if anything: a full disk or a power cut may have destroyed results
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


def run_row(run: Path) -> dict[str, Any]:
    """
    :param run: folder of a run
    :return: its row in the table of runs: its result, or why there is none
    """
    if (run / "result.json").is_file():
        lost = damage(run)
        return read_result(run / "result.json") | ({"status": "done"} if lost is None else {"status": "failed", "error": lost})
    if (run / "error.txt").is_file():
        lines = (run / "error.txt").read_text("utf-8", errors="replace").strip().splitlines()
        return {"status": "failed", "error": lines[-1] if lines else "no message"}
    return {"status": "missing"}
