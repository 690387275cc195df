"""What the runs show: curves of each combination, and effects of each switch with intervals."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.switches.tasks import N_POINTS, TASKS, Arm, Task, factorial, five, ordered
from sb3_grpo.classroom.compare.statistics import CONFIDENCE, RESAMPLES, Interval, iqm

Row = dict[str, Any]


class Measured(NamedTuple):
    """
    :param task: The task
    :param seeds: Seeds that all combinations have
    :param curves: (seeds, points) for each combination, in the order of the seeds
    :param rows: All runs of these seeds
    """

    task: Task
    seeds: tuple[int, ...]
    curves: dict[Arm, np.ndarray]
    rows: list[Row]

    @property
    def grid(self) -> np.ndarray:
        """
        :return: (points,) steps
        """
        return np.linspace(0, self.task.timesteps, N_POINTS + 1)

    def over_training(self, arms: Sequence[Arm]) -> np.ndarray:
        """
        :param arms: Combinations
        :return: (seeds, arms) mean score over training
        """
        return np.stack([np.trapezoid(self.curves[arm], axis=1) / N_POINTS for arm in arms], axis=1)

    def finals(self, arm: Arm) -> np.ndarray:
        """
        :param arm: A combination
        :return: (seeds,) final scores
        """
        return self.curves[arm][:, -1]


def measured(rows: Sequence[Row], name: str) -> Measured:
    """
    :param rows: All runs
    :param name: Name of a task
    :return: The runs of its combinations, with the seeds that all of them have
    """
    task = TASKS[name]
    of: dict[Arm, dict[int, Row]] = {arm: {} for arm in task.arms}
    for row in rows:
        if row["task"] == name and tuple(row["on"]) in of:
            of[tuple(row["on"])][row["seed"]] = row
    seeds = tuple(sorted(set.intersection(*(set(runs) for runs in of.values()))))
    curves = {arm: np.array([runs[seed]["scores"] for seed in seeds]) for arm, runs in of.items()}
    return Measured(task, seeds, curves, [runs[seed] for runs in of.values() for seed in seeds])


def difference(with_it: np.ndarray, without: np.ndarray) -> Interval:
    """
    A seed begins identically in all combinations, so the bootstrap draws seeds, each with all of its runs.

    :param with_it: (seeds, arms) scores
    :param without: (seeds, arms) scores
    :return: Difference between the interquartile means over all runs
    """
    n_seeds = len(with_it)
    drawn = np.random.default_rng(0).integers(n_seeds, size=(RESAMPLES, n_seeds))
    # Runs come first
    values = iqm(with_it[drawn].reshape(RESAMPLES, -1).T) - iqm(without[drawn].reshape(RESAMPLES, -1).T)
    ends = np.percentile(values, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return Interval(float(iqm(with_it.ravel()) - iqm(without.ravel())), *ends.tolist())


def effect(found: Measured, name: str, others: Sequence[Arm]) -> Interval:
    """
    :param found: The measurements
    :param name: Name of a switch
    :param others: Combinations without it
    :return: What the switch adds to the mean over training, over all of these
    """
    with_it = [ordered({*arm, name}) for arm in others]
    return difference(found.over_training(with_it), found.over_training(list(others)))


class Effects(NamedTuple):
    """
    Effects of a switch.

    :param alone: On top of GRPO
    :param last: On top of the other four
    :param main: On top of any of the 16 combinations of the others, ``None`` if they were not all measured
    """

    alone: Interval
    last: Interval
    main: Interval | None


def effects(found: Measured) -> dict[str, Effects]:
    """
    :param found: The measurements
    :return: Effects of each switch
    """
    names = five(found.task.overlong)
    combinations = factorial(found.task.overlong)
    is_complete = set(combinations) <= set(found.curves)
    of = {}
    for name in names:
        without = [arm for arm in combinations if name not in arm]
        main = effect(found, name, without) if is_complete else None
        of[name] = Effects(effect(found, name, [()]), effect(found, name, [ordered(set(names) - {name})]), main)
    return of
