"""The functions of the homework: the right ones, the arguments to try them with, and common mistakes."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch as th

from sb3_grpo.classroom.homework import mistakes
from sb3_grpo.classroom.homework.mistakes import Function
from sb3_grpo.classroom.homework.sandbox import evaluate
from sb3_grpo.classroom.homework.student import Student
from sb3_grpo.classroom.lecture.judge import problem_of
from sb3_grpo.common.advantages import group_advantages
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate, step_weights
from sb3_grpo.groups.group import live_groups

# From a generator of random numbers, any number of cases: the first one is worked out by hand
Cases = Callable[[th.Generator], Iterator[tuple[Any, ...]]]
_VISIBLE, _HIDDEN = (3, 0), (8, 1729)  # number of cases, seed


class Exercise(NamedTuple):
    """
    What is tried of a function.

    :param function: its name
    :param points: points for a right one
    :param right: the right function
    :param cases: what it is called with
    :param mistakes: functions with a mistake, by what to say about it
    :param gradient_of: the argument by which it is differentiated; ``None``: its values are compared, not a gradient
    """

    function: str
    points: int
    right: Function
    cases: Cases
    mistakes: dict[str, Function]
    gradient_of: int | None = None

    @property
    def name(self) -> str:
        """For tables and messages."""
        return self.function if self.gradient_of is None else f"{self.function}, gradient"

    def problem(self, student: Student, hidden: bool) -> str:
        """
        :param student: the student's functions
        :param hidden: whether to try other cases than the student can
        :return: what is wrong, empty if nothing is
        """
        n_cases, seed = _HIDDEN if hidden else _VISIBLE
        cases = [*itertools.islice(self.cases(th.Generator().manual_seed(seed)), n_cases)]
        compared = "values" if self.gradient_of is None else "gradient"

        def students(*arguments: Any) -> th.Tensor:
            return student.call(self.function, *arguments, gradient_of=self.gradient_of)[compared]

        def ours(function: Function) -> Function:
            return lambda *arguments: evaluate(function, arguments, self.gradient_of)[compared]

        wrong = {idea: ours(mistake) for idea, mistake in self.mistakes.items()}
        # Which class of error it is says nothing to students
        return problem_of(students, ours(self.right), cases, wrong).removeprefix("StudentError: ")


def _random_groups(generator: th.Generator) -> tuple[th.Tensor, th.Tensor]:
    n_groups, size, longest = (int(th.randint(low, high, (), generator=generator)) for low, high in ((2, 5), (3, 9), (4, 12)))
    lengths = th.randint(1, longest + 1, (n_groups, size), generator=generator)
    mask = th.arange(longest) < lengths[..., None]
    return th.where(mask, th.randn(mask.shape, generator=generator), 0.0), mask


def _groups(generator: th.Generator) -> Iterator[tuple[Any, ...]]:
    # Outcomes 3.8, 5.2 and 6.1, advantages -1.06, 0.14 and 0.92
    yield th.tensor([[[3.8, 0.0], [2.0, 3.2], [6.1, 0.0]]]), th.tensor([[[True, False], [True, True], [True, False]]])
    while True:
        rewards, mask = _random_groups(generator)
        # A dead group, in which nothing may become NaN
        rewards[0] = th.where(th.arange(mask.shape[-1]) == 0, 1.0, 0.0)
        yield rewards, mask


def _overlong(generator: th.Generator) -> Iterator[tuple[Any, ...]]:
    yield th.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]]), th.tensor([[[True, True, True], [True, True, False]]]), 1, 5
    while True:
        rewards, mask = _random_groups(generator)
        yield rewards, mask, mask.shape[-1] // 3, mask.shape[-1] - 1


def _steps(generator: th.Generator, *clip_ranges: tuple[float, ...]) -> Iterator[tuple[Any, ...]]:
    yield th.tensor([1.35, 0.7, 1.35, 0.7]).log(), th.tensor([1.0, -2.0, -1.0, 1.0]), *clip_ranges[0]
    while True:
        for clip_range in clip_ranges:
            n = int(th.randint(20, 60, (), generator=generator))
            yield 0.4 * th.randn(n, generator=generator), th.randn(n, generator=generator), *clip_range


def _log_probs(generator: th.Generator) -> Iterator[tuple[Any, ...]]:
    yield th.tensor([0.5, 0.9]).log(), th.tensor([0.25, 0.9]).log()
    while True:
        n = int(th.randint(20, 60, (), generator=generator))
        yield -th.rand(n, generator=generator), -th.rand(n, generator=generator)


def _episodes(generator: th.Generator) -> Iterator[tuple[Any, ...]]:
    yield th.tensor([0, 0, 0, 1]), 2
    while True:
        n_episodes = int(th.randint(3, 9, (), generator=generator))
        others = th.randint(0, n_episodes, (30,), generator=generator)
        yield th.cat([th.arange(n_episodes), others]).sort().values, n_episodes


def _outcomes(generator: th.Generator) -> Iterator[tuple[Any, ...]]:
    yield (th.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),)
    for n_members in itertools.cycle((8, 7, 9)):
        # The standard deviation of a single row of equal numbers is not 0
        yield (th.full((1, n_members), 0.1),)
        yield (th.randint(0, 2, (50, 3), generator=generator).float(),)


def _ppo(log_ratio: th.Tensor, advantages: th.Tensor, clip_range: float) -> th.Tensor:
    return clipped_surrogate(log_ratio, advantages, clip_range, clip_range)


def _and_gradient(exercise: Exercise, points: int) -> list[Exercise]:
    return [exercise, exercise._replace(points=points, mistakes=mistakes.GRADIENT, gradient_of=0)]


_CLIP_RANGES = (0.2, 0.28), (0.1, 0.3)
EXERCISES = [
    Exercise("group_advantage", 10, group_advantages, _groups, mistakes.GROUP_ADVANTAGE),
    *_and_gradient(Exercise("ppo_loss", 5, _ppo, lambda g: _steps(g, (0.2,), (0.1,)), mistakes.PPO_LOSS), 3),
    *_and_gradient(Exercise("dapo_loss", 8, clipped_surrogate, lambda g: _steps(g, *_CLIP_RANGES), mistakes.DAPO_LOSS), 4),
    *_and_gradient(Exercise("k3", 4, lambda p, q: kl_estimate(p, q, "k3"), _log_probs, mistakes.K3), 2),
    Exercise("token_average", 6, lambda e, n: step_weights(e, n, "step"), _episodes, mistakes.TOKEN_AVERAGE),
    Exercise("live", 4, live_groups, _outcomes, mistakes.LIVE),
    Exercise("overlong", 4, mistakes.overlong, _overlong, mistakes.OVERLONG),
]
