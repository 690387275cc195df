"""
Measurements of time and memory. Each figure is taken in a process of its own; subjects take turns, so that other work on the
machine hits all of them, and ratios are taken within a round.

Imports nothing of this package: the memory of a process that trains SB3's PPO must not include it.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
Round = dict[str, dict[str, float]]  # figures of each subject


class Stopwatch:
    """
    Adds up the time spent in functions.

    :param clock: CPU seconds by default, which other work on the machine hardly changes
    """

    def __init__(self, clock: Callable[[], float] = time.process_time):
        self.clock = clock
        self.spent: dict[str, float] = defaultdict(float)

    def watch(self, owner: Any, name: str) -> None:
        """
        :param owner: An object
        :param name: Name of its method that is watched from now on
        """
        method = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            begin = self.clock()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent[name] += self.clock() - begin

        setattr(owner, name, watched)


def peak_memory_mib() -> float:
    """
    :return: Peak memory of this process in MiB
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(module: str, *options: Any, n_threads: int | None = 1, **environment: str) -> Any:
    """
    :param module: A module with a command line
    :param options: Its options
    :param n_threads: Number of OpenMP threads, ``None``: as libraries choose it
    :param environment: Further environment variables
    :return: The last line that it prints, as JSON
    :raises RuntimeError: If it fails
    """
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    threads = {} if n_threads is None else {"OMP_NUM_THREADS": str(n_threads)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *map(str, options)],
        cwd=ROOT,
        env={**inherited, **threads, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"python -m {module} {' '.join(map(str, options))} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one_round(subjects: Iterable[str], module: str, *options: Any, **environment: Any) -> Round:
    """
    :param subjects: What is measured, in turn
    :param module: A module with an option ``--one SUBJECT`` that prints figures
    :param options: Its other options
    :param environment: Environment variables
    :return: The figures of each subject
    """
    figures = {}
    for subject in subjects:
        figures[subject] = in_process(module, *options, "--one", subject, **environment)
        print(f"{subject:20}", {key: float(f"{value:.4g}") for key, value in figures[subject].items()}, flush=True)
    return figures


def medians(rounds: list[Round]) -> Round:
    """
    :param rounds: All rounds
    :return: Medians of each subject's figures
    """
    return {
        subject: {key: float(np.median([each[subject][key] for each in rounds])) for key in figures}
        for subject, figures in rounds[0].items()
    }


def ratio(rounds: list[Round], subject: str, key: str, peer: str, peer_key: str | None = None) -> float:
    """
    :param rounds: All rounds
    :param subject: A subject
    :param key: One of its figures
    :param peer: What it is compared with
    :param peer_key: The peer's figure, the same by default
    :return: Median of the ratios within a round
    """
    return float(np.median([each[subject][key] / each[peer][peer_key or key] for each in rounds]))
