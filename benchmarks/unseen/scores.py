"""
Scores of the runs on a list of tasks, and what may be said about them. This fixes what the rules of the lists leave open:

- A score is 0 at the return of a random policy and 1 at the reference of the task. For figures over several tasks it is
  clipped to ``CLIP``: a single run that walks over the cliff in every step would otherwise be at -8.7. The probability of
  improvement only asks which of two runs is higher, and uses unclipped scores.
- Tasks are combined if every algorithm shown has a run there. If a run is missing, the page says so.
- A run's seconds are its steps at the speed of the algorithm on the task (``clock.py``), measured for all algorithms in turn;
  lists without such a measurement have the seconds that the runs themselves took.
- Equal seconds, for two algorithms on a task: the time is what the faster of the two needs, median over its runs. Its runs
  count with their final score, those of the other with their last evaluation by then, or as a random policy if there is none
  yet. From one evaluation to the next, steps double (the oldest rows: a fifth of a run), so this discards up to half of what
  the slower one has done by then, and all of it if the other ends before its first evaluation. So it is also read at its next
  evaluation, which adds as much: what it had learned by then lies between the two, unless it forgets. A verdict is given only
  if it holds both ways.
- PPO with ``VecNormalize`` has PPO's runs where GRPO and DAPO do not normalise observations: where actions are discrete.
- "above" and "below": the interval of the probability of improvement excludes 0.5. "level": it does not, and the interval of
  the difference of the IQMs lies within ``MARGIN``, fixed before any run on the test list. Otherwise "undecided".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.unseen.clock import rates
from benchmarks.unseen.run import NORMALIZED, OURS, PEERS, PPO_16
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo.classroom.compare.statistics import Interval, bootstrap, iqm, probability_of_improvement

CLIP = (-0.5, 1.1)
# Difference of the IQMs that is still called level
MARGIN = 0.05

Row = dict[str, Any]
Scores = list[np.ndarray]  # (n,) for each task, normalised, not clipped
Read = Callable[[Row, float, float], float]  # a run at a time


class Runs(NamedTuple):
    """
    The runs shown.

    :param list: Name of the list
    :param design: Design of GRPO and DAPO
    :param paper: Design of the runs of ``grpo-paper``
    :param of: For each algorithm that has any, its runs on each task
    :param common: Tasks on which all of these have runs
    """

    list: str
    design: str
    paper: str
    of: dict[str, dict[str, list[Row]]]
    common: list[Task]


class Pair(NamedTuple):
    """
    An algorithm against another.

    :param difference: Its IQM minus the other's
    :param improvement: Probability that one of its runs is above one of the other's on the same task, mean over the tasks
    """

    difference: Interval
    improvement: Interval

    @property
    def word(self) -> str:
        # A small difference that shows nearly everywhere is not level: the IQM leaves out half of the runs
        if self.improvement.excludes(0.5):
            return "above" if self.improvement.value > 0.5 else "below"
        within = -MARGIN <= self.difference.low and self.difference.high <= MARGIN
        return "level" if within else "undecided"


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """
    :param row: A run
    :return: What distinguishes it from other runs
    """
    return row["list"], row["task"], row["algo"], row["seed"], row["design"]


def designs(found: Sequence[Row], name: str, algos: Sequence[str] = ("grpo", "dapo")) -> list[str]:
    """
    :param found: All rows
    :param name: Name of a list
    :param algos: Algorithms of ours. The paper's settings are not ours to choose, so their runs are no look at a list
    :return: The designs that the list was looked at with, in the order of the first look
    """
    return list(dict.fromkeys(row["design"] for row in found if row["list"] == name and row["algo"] in algos))


def select(found: Sequence[Row], name: str, design: str) -> Runs:
    """
    :param found: All rows
    :param name: Name of a list
    :param design: Design of GRPO and DAPO
    :return: The runs shown
    """
    # The paper's settings do not need new runs for each of our designs: the newest are shown
    paper = (designs(found, name, ["grpo-paper"]) or [design])[-1]
    tasks = {task.env_id: task for task in LISTS[name]}
    of: dict[str, dict[str, list[Row]]] = {algo: {env_id: [] for env_id in tasks} for algo in (*PEERS, *OURS)}
    once = {key(row): row for row in found if row["task"] in tasks and row["seed"] < SEEDS[name]}
    speeds = rates(name)
    for row in sorted(once.values(), key=lambda row: row["seed"]):
        wanted = paper if row["algo"] == "grpo-paper" else design
        # Those with 16 copies are shown next to speeds that were measured in turn, or not yet
        if row["list"] == name and row["design"] in ("", wanted) and (speeds or row["algo"] not in PPO_16):
            rate = speeds.get((row["task"], row["algo"]))
            own = {} if rate is None else {"seconds": [steps / rate for steps in row["steps"]]}
            of[row["algo"]][row["task"]].append(row | own)
    of = {algo: runs for algo, runs in of.items() if any(runs.values())}
    for plain, normalized in NORMALIZED.items():
        if plain in of and normalized in of:
            of[normalized] |= {env_id: of[plain][env_id] for env_id, task in tasks.items() if not task.is_continuous}
    return Runs(name, design, paper, of, common_tasks(of, name))


def common_tasks(of: Mapping[str, Mapping[str, Sequence[Row]]], name: str) -> list[Task]:
    """
    :param of: The runs of each algorithm on each task
    :param name: Name of a list
    :return: Tasks on which all of these have runs
    """
    return [task for task in LISTS[name] if of and all(runs[task.env_id] for runs in of.values())]


def final_returns(runs: Sequence[Row]) -> np.ndarray:
    """
    :param runs: Runs of an algorithm on a task
    :return: (n,) their final returns
    """
    return np.array([run["returns"][-1] for run in runs])


def scores(runs: Runs, algo: str) -> Scores:
    """
    :param runs: The runs shown
    :param algo: One of their algorithms
    :return: Final scores of its runs, on the tasks that are combined
    """
    return [task.normalised(final_returns(runs.of[algo][task.env_id])) for task in runs.common]


def median_seconds(runs: Sequence[Row]) -> float:
    """
    :param runs: Runs of an algorithm on a task
    :return: Their median seconds
    """
    return float(np.median([run["seconds"][-1] for run in runs]))


def last_by(run: Row, seconds: float, low: float) -> float:
    """
    :param run: A row
    :param seconds: Seconds of training
    :param low: Return of a random policy
    :return: Return at the last evaluation by then
    """
    evaluations = zip(run["seconds"], run["returns"], strict=True)
    return next((value for at, value in reversed(list(evaluations)) if at <= seconds), low)


def first_after(run: Row, seconds: float, low: float) -> float:
    """
    :param run: A row
    :param seconds: Seconds of training
    :param low: Return of a random policy, as for ``last_by``
    :return: Return at the first evaluation that is not earlier, or else at the end
    """
    evaluations = zip(run["seconds"], run["returns"], strict=True)
    return next((value for at, value in evaluations if at >= seconds), run["returns"][-1])


def scores_at_equal_seconds(runs: Runs, first: str, second: str, read: Read = last_by) -> tuple[Scores, Scores]:
    """
    :param runs: The runs shown
    :param first: An algorithm
    :param second: Another
    :param read: How a run of the slower one is read
    :return: Scores of both when the faster one has ended
    """
    both: tuple[Scores, Scores] = ([], [])
    for task in runs.common:
        pair = [runs.of[algo][task.env_id] for algo in (first, second)]
        needs = [median_seconds(of_one) for of_one in pair]
        for part, of_one, needed in zip(both, pair, needs, strict=True):
            # Half of the faster one's runs end a little after its median: they count as ended
            ended = needed == min(needs)
            values = final_returns(of_one) if ended else np.array([read(run, min(needs), task.low) for run in of_one])
            part.append(task.normalised(values))
    return both


def clipped(samples: Scores) -> Scores:
    """
    :param samples: Scores
    :return: The same within ``CLIP``
    """
    return [np.clip(sample, *CLIP) for sample in samples]


def against(first: Scores, second: Scores) -> Pair:
    """
    :param first: Scores of an algorithm
    :param second: Scores of another on the same tasks
    :return: How they compare
    """
    n_tasks = len(first)

    def statistics(*drawn: np.ndarray) -> np.ndarray:
        xs, ys = drawn[:n_tasks], drawn[n_tasks:]
        improvement = np.mean([probability_of_improvement(x, y) for x, y in zip(xs, ys, strict=True)])
        middle_x, middle_y = (iqm(np.clip(np.concatenate(each), *CLIP)) for each in (xs, ys))
        return np.array([middle_x - middle_y, improvement])

    band = bootstrap(statistics, [*first, *second])
    return Pair(*(Interval(*(float(part[i]) for part in band)) for i in range(2)))


def at_equal_seconds(runs: Runs, algo: str, other: str = "ppo") -> list[Pair]:
    """
    :param runs: The runs shown
    :param algo: One of their algorithms
    :param other: Another
    :return: The pair, with the last evaluation of the slower one and with its next one
    """
    return [against(*scores_at_equal_seconds(runs, algo, other, read)) for read in (last_by, first_after)]


def say(pairs: Sequence[Pair]) -> str:
    """
    :param pairs: The same two algorithms in several ways
    :return: What can be said about them if it holds in all of these
    """
    words = {pair.word for pair in pairs}
    return words.pop() if len(words) == 1 else "undecided"
