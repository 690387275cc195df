"""Distribute the runs of an experiment to workers, and show their progress."""

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sb3_grpo.classroom.clips.stored import DESCRIPTION
from sb3_grpo.classroom.compare.experiment import Experiment, Job
from sb3_grpo.classroom.compare.pools import Key, LocalPool, Pool
from sb3_grpo.classroom.compare.worker import failure

# In seconds: a worker does not wait long for its next run, and updating the table costs little
_POLL, _SHOW = 0.05, 0.5


@dataclass
class Row:
    """
    The runs of a variant on an environment.

    :param timesteps: budget of each run
    :param n_runs: number of runs
    :param n_done: number of runs with results
    :param n_failed: number of failed runs
    :param running: progress of current runs, see ``Progress``
    :param ended: progress of runs that ended in this process
    """

    timesteps: int
    n_runs: int
    n_done: int = 0
    n_failed: int = 0
    running: dict[int, list[float]] = field(default_factory=dict)
    ended: list[list[float]] = field(default_factory=list)

    @property
    def steps_left(self) -> float:
        """Steps left over all runs."""
        begun = sum(min(progress[0], self.timesteps) for progress in self.running.values())
        return (self.n_runs - self.n_done - self.n_failed) * self.timesteps - begun

    def speed(self, column: int) -> float | None:
        """
        :param column: 1 for steps per second of training, 2 for steps per second including evaluations
        :return: speed of one run; None if not known yet
        """
        known = [progress for progress in [*self.ended, *self.running.values()] if progress[column] > 0]
        return sum(progress[0] for progress in known) / sum(progress[column] for progress in known) if known else None


class Board:
    """
    Shows the progress of the runs: a live table in a terminal, lines elsewhere.

    :param experiment: the experiment
    :param folder: folder of the experiment
    :param console: console to print to
    """

    def __init__(self, experiment: Experiment, folder: Path, console: Console):
        self._folder = folder
        self._console = console
        self._begun: dict[Key, float] = {}
        self._rows = {
            (env, variant.name): Row(experiment.timesteps[env], len(experiment.seeds))
            for env in experiment.envs
            for variant in experiment.variants
        }
        self._n_runs = len(experiment.jobs())
        self._n_workers = 1
        self._live: Live | None = None
        for job in experiment.jobs():
            self._rows[job.env, job.variant.name].n_done += job.is_done(folder)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table inside the ``with`` block."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self._render(), console=self._console, auto_refresh=False) as self._live:
            yield
            self._live.update(self._render(), refresh=True)

    def update(self, progress: dict[Key, list[float]]) -> None:
        """
        :param progress: progress of each current run
        """
        for (env, variant), row in self._rows.items():
            row.running = {key[2]: value or [0, 0, 0] for key, value in progress.items() if key[:2] == (env, variant)}
        self._n_workers = max(self._n_workers, len(progress))
        for key in progress:
            self._begun.setdefault(key, time.perf_counter())
        if self._live is not None:
            self._live.update(self._render(), refresh=True)

    def expected_seconds(self, job: Job) -> float:
        """
        :param job: a run
        :return: expected duration, if it is as fast as earlier runs of its variant; infinite if there are none yet
        """
        row = self._rows[job.env, job.variant.name]
        speed = row.speed(2)
        return inf if speed is None else row.timesteps / speed

    def end(self, job: Job, key: Key) -> str | None:
        """
        :param job: a run that has ended
        :param key: its key
        :return: its traceback if it has failed
        """
        row = self._rows[job.env, job.variant.name]
        last = row.running.pop(job.seed, [])
        # A run that was interrupted has already taken some time before
        seconds = max([time.perf_counter() - self._begun.pop(key, time.perf_counter()), *last[2:]])
        folder = job.folder(self._folder)
        error = failure(folder)
        if error is None:
            row.n_done += 1
            steps, trained, outcome = _outcome(folder)
            row.ended.append([steps, trained, seconds])
            outcome = f"{outcome}, {trained:.1f} s of training"
        else:
            row.n_failed += 1
            outcome = f"failed: {error.strip().splitlines()[-1]}"
        if self._live is None or error is not None:
            n_ended = sum(row.n_done + row.n_failed for row in self._rows.values())
            style = "" if error is None else "bold red"
            line = Text.assemble(f"[{n_ended}/{self._n_runs}] ", (f"{job}: {outcome}", style))
            self._console.print(line, soft_wrap=True, highlight=False)
        if error is not None and row.n_failed == 1:
            # Others of this variant will most likely fail for the same reason
            self._console.print(Text(error.rstrip(), "dim"), soft_wrap=True, highlight=False)
            self._console.print(Text(f"The traceback is in {folder / 'error.txt'}", "dim"), soft_wrap=True)
        return error

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("environment", "variant"):
            table.add_column(column)
        for column in ("finished", "running", "failed", "steps/s", "time left"):
            table.add_column(column, justify="right")
        left = self._seconds_left()
        for (env, variant), row in self._rows.items():
            speed = row.speed(1)
            table.add_row(
                env,
                variant,
                f"{row.n_done}/{row.n_runs}",
                str(len(row.running) or ""),
                Text(str(row.n_failed or ""), "bold red"),
                "" if speed is None else f"{speed:,.0f}",
                _duration(left[env, variant]) if row.steps_left > 0 else "",
            )
        n_done = sum(row.n_done for row in self._rows.values())
        known = [seconds for seconds in left.values() if seconds is not None]
        total = _duration(sum(known)) if len(known) == len(left) else "not known yet"
        return Group(table, Text(f"{n_done} of {self._n_runs} runs finished, time left: {total}", "bold"))

    def _seconds_left(self) -> dict[tuple[str, str], float | None]:
        """Seconds left for each row, if all workers took turns at it."""
        speeds = {key: row.speed(2) for key, row in self._rows.items()}
        known = [speed for speed in speeds.values() if speed is not None]
        # Until the speed of a variant is known, assume that it is as slow as the others
        typical = len(known) / sum(1 / speed for speed in known) if known else None
        left: dict[tuple[str, str], float | None] = {}
        for key, row in self._rows.items():
            speed = speeds[key] or typical
            left[key] = None if speed is None and row.steps_left else row.steps_left / (speed or 1) / self._n_workers
        return left


def _duration(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))


def _outcome(folder: Path) -> tuple[float, float, str]:
    """Steps, seconds of training, and a description of the final return."""
    with (folder / "evaluations.csv").open(newline="") as file:
        last = [row for row in csv.DictReader(file) if row["final"] == "1"]
    returns = ", ".join(f"{float(row['return_mean']):.1f} ({row['mode']})" for row in last)
    return float(last[0]["steps"]), float(last[0]["seconds"]), f"final return {returns}"


def run_jobs(experiment: Experiment, folder: Path, pool: Pool, board: Board) -> int:
    """
    Execute all runs that have no results yet. If this is interrupted, finished runs are kept.

    :param experiment: the experiment
    :param folder: folder of the experiment
    :param pool: pool that executes the runs
    :param board: board that shows their progress
    :return: number of failed runs
    """
    jobs = [job for job in experiment.jobs() if not job.is_done(folder)]
    n_failed = 0
    shown = -inf
    try:
        with board.shown():
            for running, ended in _give_out(jobs, experiment, folder, pool, board.expected_seconds):
                for job, key in ended:
                    n_failed += board.end(job, key) is not None
                if (now := time.monotonic()) - shown >= _SHOW:
                    shown = now
                    board.update({key: progress for key, progress in pool.progress().items() if key in running})
    finally:
        pool.close()
    return n_failed


def without_clip(experiment: Experiment, folder: Path) -> list[Job]:
    """
    :param experiment: the experiment
    :param folder: folder of the experiment
    :return: finished runs with neither a clip nor a reason for its absence: they were interrupted after writing their
        result, or executed without clips
    """
    return [job for job in experiment.jobs() if job.is_done(folder) and not (job.folder(folder) / DESCRIPTION).is_file()]


def make_clips(jobs: Sequence[Job], experiment: Experiment, folder: Path, pool: LocalPool) -> None:
    """
    Record the clips of finished runs.

    :param jobs: the runs
    :param experiment: the experiment
    :param folder: folder of the experiment
    :param pool: pool on this machine, where the models are
    """
    try:
        for _ in _give_out(jobs, experiment, folder, pool, lambda job: inf):
            pass
    finally:
        pool.close()


def _give_out(
    jobs: Sequence[Job], experiment: Experiment, folder: Path, pool: Pool, expected_seconds: Callable[[Job], float]
) -> Iterator[tuple[dict[Key, Job], list[tuple[Job, Key]]]]:
    """
    :param jobs: runs to execute
    :param experiment: the experiment
    :param folder: folder of the experiment
    :param pool: pool that executes them
    :param expected_seconds: function that returns the expected duration of a run, as far as known at that time
    :return: repeatedly until all have ended: the current runs, and those that have just ended
    """
    waiting = list(jobs)
    running: dict[Key, Job] = {}
    while waiting or running:
        while waiting and len(running) < pool.capacity:
            # Longest runs of a seed first: otherwise, idle workers would wait for the last of them
            job = max((job for job in waiting if job.seed == waiting[0].seed), key=expected_seconds)
            waiting.remove(job)
            key = (job.env, job.variant.name, job.seed)
            pool.start(key, experiment.settings(job), job.folder(folder))
            running[key] = job
        ended = [(running.pop(key), key) for key in pool.take_ended()]
        yield running, ended
        time.sleep(_POLL)
