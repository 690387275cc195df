"""The runs of a benchmark, several at a time, each in a process of its own."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from rich.progress import Progress

from benchmarks import common

Job = dict[str, Any]  # what tells a run from others


def origin() -> dict[str, Any]:
    """
    :return: The origin of a row
    """
    here = common.machine()
    versions = {package: here["versions"][package] for package in ("torch", "stable_baselines3")}
    return {"commit": here["commit"], "machine": here["cpu"], "versions": versions}


def run_missing(path: Path, jobs: list[Job], run: Callable[[Job], dict[str, Any]], n_processes: int) -> None:
    """
    Run what has no row yet. A row is appended when its run ends; a run that fails is reported, and the others go on.

    :param path: The rows, JSON in lines
    :param jobs: All runs
    :param run: Runs a job in a process of its own, and returns its result
    :param n_processes: Number of runs at a time
    """
    made, done = origin(), common.rows(path)
    missing = [job for job in jobs if not any(job.items() <= row.items() for row in done)]
    path.parent.mkdir(exist_ok=True)
    lock = Lock()

    def one(job: Job) -> None:
        try:
            row = job | run(job) | made
        except RuntimeError as error:
            progress.print(f"{job}: {str(error).strip().splitlines()[-1]}")
        else:
            with lock, path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        progress.advance(bar)

    with Progress() as progress, ThreadPoolExecutor(n_processes) as pool:
        bar = progress.add_task("runs", total=len(missing))
        list(pool.map(one, missing))
