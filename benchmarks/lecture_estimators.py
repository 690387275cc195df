"""
Exact bias and noise of gradient estimates, for the lecture: ``python -m benchmarks.lecture_estimators`` writes
``sb3_grpo/classroom/lecture/data/estimators.json``.

A walk begins in the middle of a corridor of five places and has at most ten steps; stepping off the right end pays 1.
All walks are listed, so nothing is sampled.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th
from torch.nn import functional as F

from benchmarks.lecture_data import short, write
from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals

LOGITS = (0.3, -0.2, 0.1, 0.0, 0.4)
N_PLACES, N_STEPS, START = 5, 10, 2


def values_of(logits: th.Tensor) -> th.Tensor:
    """
    :param logits: (5,) logits of going right
    :return: (10, 5) values of the places at each step
    """
    right, values = logits.sigmoid(), [th.zeros(N_PLACES, dtype=th.float64)]
    for _ in range(N_STEPS):
        after = F.pad(values[-1], (1, 1))
        values.append(right * (after[2:] + F.one_hot(th.tensor(N_PLACES - 1), N_PLACES)) + (1.0 - right) * after[:-2])
    return th.stack(values[:0:-1])


def until_it_leaves(moves: tuple[int, ...]) -> tuple[int, ...]:
    """
    :param moves: Ten moves
    :return: The moves within the corridor, and the one that leaves it
    """
    places = itertools.accumulate(moves, initial=START)
    return moves[: next((t for t, place in enumerate(places) if not 0 <= place < N_PLACES), N_STEPS)]


class Corridor:
    """
    All N walks: their probability (N,), and by step rewards, exact values, the mask (N, 10) and the gradients of the log
    probabilities of the actions (N, 10, 5); and the gradient of the expected return (5,).
    """

    def __init__(self) -> None:
        logits = th.tensor(LOGITS, dtype=th.float64, requires_grad=True)
        values = values_of(logits)
        (self.gradient,) = th.autograd.grad(values[0, START], logits)
        values, right = values.detach(), logits.detach().sigmoid()
        walks = sorted({until_it_leaves(moves) for moves in itertools.product((-1, 1), repeat=N_STEPS)})
        self.probability, self.mask = th.ones(len(walks), dtype=th.float64), th.zeros(len(walks), N_STEPS, dtype=th.bool)
        self.rewards, self.values = (th.zeros(len(walks), N_STEPS, dtype=th.float64) for _ in range(2))
        self.scores = th.zeros(len(walks), N_STEPS, N_PLACES, dtype=th.float64)
        for row, moves in enumerate(walks):
            place = START
            for t, move in enumerate(moves):
                self.probability[row] *= right[place] if move > 0 else 1.0 - right[place]
                self.scores[row, t, place] = float(move > 0) - right[place]
                self.values[row, t], self.mask[row, t] = values[t, place], True
                place += move
            self.rewards[row, len(moves) - 1] = float(place == N_PLACES)

    def error(self, advantages: th.Tensor) -> tuple[float, float]:
        """
        :param advantages: (N, 10) advantages
        :return: Length of the gradient's bias, and its noise with one episode, relative to the length of the gradient
        """
        gradients = (self.scores * advantages[..., None]).sum(1)
        mean = self.probability @ gradients
        noise = (self.probability @ (gradients - mean).square().sum(1)).sqrt()
        return ((mean - self.gradient).norm() / self.gradient.norm()).item(), (noise / self.gradient.norm()).item()

    def residuals(self, error: float) -> th.Tensor:
        """
        :param error: Error of the critic. 0: exact; 1: it predicts the value of the start everywhere
        :return: (N, 10) temporal difference residuals
        """
        critic = (1.0 - error) * self.values + error * self.values[0, 0]
        return td_residuals(self.rewards[None], critic[None], self.mask[None], 1.0)[0]

    def gae_error(self, gae_lambda: float, error: float) -> tuple[float, float]:
        """
        :param gae_lambda: Factor of generalised advantage estimation
        :param error: Error of the critic
        :return: Bias, noise
        """
        return self.error(discounted_returns_to_go(self.residuals(error)[None], self.mask[None], gae_lambda)[0])

    def step_error(self, n_steps: int, error: float) -> tuple[float, float]:
        """
        :param n_steps: Number of rewards before the critic's value
        :param error: Error of the critic
        :return: Bias, noise
        """
        return self.error(F.pad(self.residuals(error), (0, n_steps - 1)).unfold(1, n_steps, 1).sum(-1))

    def group_error(self, size: int, leave_one_out: bool) -> tuple[float, float]:
        """
        Given the number of members that are rewarded, the members of a group are independent.

        :param size: Number of members
        :param leave_one_out: Whether the mean that a member is compared with leaves this member out
        :return: Bias, and noise times the root of the number of episodes
        """
        scores, won = self.scores.sum(1), self.rewards.sum(1) > 0.0
        win = self.probability[won].sum()
        outcomes = [(self.probability[each] / self.probability[each].sum(), scores[each]) for each in (won, ~won)]
        means = th.stack([chances @ of for chances, of in outcomes])
        spreads = th.stack([chances @ of.square().sum(1) for chances, of in outcomes]) - means.square().sum(1)
        mean, second = th.zeros(N_PLACES, dtype=th.float64), th.zeros((), dtype=th.float64)
        for n_won in range(size + 1):
            chance = math.comb(size, n_won) * win**n_won * (1.0 - win) ** (size - n_won)
            rewards = (th.arange(size) < n_won).double().reshape(1, size, 1)
            advantages = group_advantages(rewards, rewards >= 0.0, leave_one_out=leave_one_out, scale="none").flatten() / size
            lost = (th.arange(size) >= n_won).long()
            expected = advantages @ means[lost]
            mean += chance * expected
            second += chance * (expected.square().sum() + advantages.square() @ spreads[lost])
        length = self.gradient.norm()
        noise = ((second - mean.square().sum()) * size).sqrt()
        return ((mean - self.gradient).norm() / length).item(), (noise / length).item()


def by_error(estimate: Callable[[float], tuple[float, float]]) -> list[float]:
    """
    :param estimate: Bias and noise as a function of the critic's error
    :return: Bias at an error of 1, to which it is proportional; and the coefficients of the squared noise, a polynomial
    """
    (_, none), (_, half), (bias, whole) = (estimate(error) for error in (0.0, 0.5, 1.0))
    slope = 4 * (half**2 - none**2) - (whole**2 - none**2)
    return [bias, none**2, slope, whole**2 - none**2 - slope]


def results() -> dict[str, Any]:
    """
    :return: What the page shows
    """
    corridor = Corridor()
    return {
        "gae": [by_error(partial(corridor.gae_error, at / 100)) for at in range(101)],
        "steps": {n: by_error(partial(corridor.step_error, n)) for n in (1, 2, 3, 5)},
        "plain": corridor.error(corridor.rewards.sum(1, keepdim=True).expand_as(corridor.rewards)),
        "group": corridor.group_error(4, leave_one_out=False),
        "group_leave_one_out": corridor.group_error(4, leave_one_out=True),
    }


if __name__ == "__main__":
    write("estimators", short(results(), digits=7))
