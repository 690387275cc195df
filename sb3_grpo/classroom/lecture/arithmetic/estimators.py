"""Exact bias and noise of gradient estimates, by enumerating all walks through a short corridor."""

from functools import cache
from typing import Any, NamedTuple

import torch as th

from sb3_grpo.classroom.lecture.golden import Grid, axis
from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.losses import clipped_surrogate

N_STEPS = 10
# Logits of going right at each position. Walks begin in the middle, and leaving at the right end has a reward of 1
LOGITS = (0.3, -0.2, 0.1, 0.0, 0.4)
# Allowed error of an estimate, in lengths of the gradient, when counting the episodes needed for it
TARGET = 0.3


class Walks(NamedTuple):
    """
    All walks.

    :param probability: (N,) probability of each walk
    :param places: (N, T) positions
    :param scores: (N, T, P) gradient of the log probability of each action
    :param rewards: (N, T) rewards
    :param mask: (N, T) True at existing steps
    :param values: (N, T) exact values of the states
    """

    probability: th.Tensor
    places: th.Tensor
    scores: th.Tensor
    rewards: th.Tensor
    mask: th.Tensor
    values: th.Tensor


def _paths(n_steps: int) -> list[tuple[int, ...]]:
    """
    :param n_steps: Maximum number of steps
    :return: Positions of each walk, the last one within or just beyond the corridor
    """
    ended: list[tuple[int, ...]] = []
    alive: list[tuple[int, ...]] = [(len(LOGITS) // 2,)]
    for _ in range(n_steps):
        after = [(*path, path[-1] + move) for path in alive for move in (-1, 1)]
        ended += [path for path in after if not 0 <= path[-1] < len(LOGITS)]
        alive = [path for path in after if 0 <= path[-1] < len(LOGITS)]
    return ended + alive


@cache
def walks(n_steps: int = N_STEPS) -> Walks:
    """
    :param n_steps: Maximum number of steps
    :return: All walks, their rewards and the exact values
    """
    n_places = len(LOGITS)
    right = th.tensor(LOGITS, dtype=th.float64).sigmoid()
    values = th.zeros(n_steps + 1, n_places, dtype=th.float64)
    for step in reversed(range(n_steps)):
        above = th.cat([values[step + 1, 1:], th.ones(1, dtype=th.float64)])
        below = th.cat([th.zeros(1, dtype=th.float64), values[step + 1, :-1]])
        values[step] = right * above + (1 - right) * below
    paths = _paths(n_steps)
    shape = (len(paths), n_steps)
    places, mask = th.zeros(shape, dtype=th.long), th.zeros(shape, dtype=th.bool)
    went_right, rewards = th.zeros(shape, dtype=th.float64), th.zeros(shape, dtype=th.float64)
    for row, path in enumerate(paths):
        length = len(path) - 1
        places[row, :length] = th.tensor(path[:-1])
        mask[row, :length] = True
        went_right[row, :length] = (th.tensor(path).diff() > 0).double()
        rewards[row, length - 1] = float(path[-1] == n_places)
    chosen = th.where(went_right > 0, right[places], 1 - right[places])
    scores = th.nn.functional.one_hot(places, n_places) * ((went_right - right[places]) * mask)[..., None]
    return Walks(th.where(mask, chosen, 1.0).prod(1), places, scores, rewards, mask, values[th.arange(n_steps), places] * mask)


def true_gradient(n_steps: int = N_STEPS) -> th.Tensor:
    """
    :param n_steps: Maximum number of steps
    :return: (P,) gradient of the expected return
    """
    every = walks(n_steps)
    return every.probability @ (every.scores.sum(1) * every.rewards.sum(1, keepdim=True))


def _bias_and_noise(advantages: th.Tensor) -> tuple[float, float]:
    """
    :param advantages: (N, T) advantages
    :return: Length of the bias of the gradient estimate, and root of the trace of its covariance for one episode, both
        relative to the length of the true gradient
    """
    every, exact = walks(), true_gradient()
    gradients = (every.scores * advantages[..., None]).sum(1)
    mean = every.probability @ gradients
    variance = every.probability @ gradients.square().sum(1) - mean.square().sum()
    length = exact.norm()
    return ((mean - exact).norm() / length).item(), (variance.clamp(min=0).sqrt() / length).item()


def _residuals(error: float) -> th.Tensor:
    """
    :param error: Error of the critic. 0: exact; 1: it predicts the value of the start everywhere
    :return: (1, N, T) temporal difference residuals
    """
    every = walks()
    critic = (1 - error) * every.values + error * every.values[0, 0]
    return td_residuals(every.rewards[None], critic[None], every.mask[None], 1.0)


def gae_error(lambda_: float, error: float) -> tuple[float, float]:
    """
    :param lambda_: Lambda of generalised advantage estimation
    :param error: Error of the critic, see :func:`_residuals`
    :return: Bias, noise of one episode
    """
    return _bias_and_noise(discounted_returns_to_go(_residuals(error), walks().mask[None], lambda_)[0])


def k_step_advantages(residuals: th.Tensor, mask: th.Tensor, gamma: float, n_steps: int) -> th.Tensor:
    """
    The discounted rewards of ``n_steps`` steps plus the value of the state after them, minus the value of the first state
    (A3C, arXiv:1602.01783, section 4). This is the sum of as many residuals, as all values in between cancel.

    :param residuals: (B, G, T) see :func:`td_residuals`
    :param mask: (B, G, T) True at existing steps
    :param gamma: Discount factor
    :param n_steps: Number of rewards: 1 is a single residual, and the length of the longest episode is Monte Carlo
    :return: (B, G, T) advantages, 0 where ``mask`` is False
    """
    to_go = discounted_returns_to_go(residuals, mask, gamma)
    advantages = to_go.clone()
    if n_steps < to_go.shape[-1]:
        advantages[..., :-n_steps] -= gamma**n_steps * to_go[..., n_steps:]
    return th.where(mask, advantages, 0.0)


def k_step_error(k: int, error: float) -> tuple[float, float]:
    """
    A3C(k): the rewards of the steps up to k, then the value.

    :param k: Index of the last reward. 0: one reward and the next value
    :param error: Error of the critic, see :func:`_residuals`
    :return: Bias, noise of one episode
    """
    return _bias_and_noise(k_step_advantages(_residuals(error), walks().mask[None], 1.0, k + 1)[0])


def plain_error() -> tuple[float, float]:
    """
    :return: Bias, noise of one episode, when using its whole return without a baseline
    """
    every = walks()
    return _bias_and_noise(every.rewards.sum(1, keepdim=True).expand_as(every.rewards))


@cache
def pair_variances(n_steps: int = N_STEPS) -> tuple[float, float]:
    """
    Variances of the gradient estimate from a single pair of walks, each compared with the other.

    :param n_steps: Maximum number of steps
    :return: Variance of its conditional mean given one of the two walks, and its total variance; both are traces, divided by
        the squared length of the true gradient
    """
    every, exact = walks(n_steps), true_gradient(n_steps)
    scores, outcomes, n = every.scores.sum(1), every.rewards.sum(1), len(every.probability)
    pairs = th.stack([outcomes[:, None].expand(n, n), outcomes[None].expand(n, n)], -1).reshape(n * n, 2, 1)
    exists = th.ones_like(pairs, dtype=th.bool)
    advantages = group_advantages(pairs, exists, leave_one_out=True, scale="none").reshape(n, n, 2)
    of_pair = (advantages[..., :1] * scores[:, None] + advantages[..., 1:] * scores[None]) / 2
    given_one = th.einsum("j,ijp->ip", every.probability, of_pair)
    one = every.probability @ given_one.square().sum(1)
    two = every.probability @ of_pair.square().sum(2) @ every.probability
    squared = exact.square().sum()
    return (one / squared - 1).item(), (two / squared - 1).item()


def group_error(size: int, leave_one_out: int, n_steps: int = N_STEPS) -> tuple[float, float]:
    """
    Advantages are outcomes minus their mean over the group, not divided by their standard deviation. With leave-one-out, the
    estimate is the mean of the estimates from all pairs of members (a U-statistic), so pairs suffice (Hoeffding, 1948).

    :param size: Number of members per group
    :param leave_one_out: Whether the mean is only over the other members
    :param n_steps: Maximum number of steps
    :return: Bias, and noise times the root of the number of episodes
    """
    one, two = pair_variances(n_steps)
    variance = (4 * (size - 2) * one + 2 * two) / (size * (size - 1))
    # As the mean includes the member's own outcome, the whole estimate shrinks
    share = 1.0 if leave_one_out else (size - 1) / size
    return 1 - share, share * (size * variance) ** 0.5


def episodes_needed(bias: float, noise: float, target: float = TARGET) -> float:
    """
    :param bias: Bias of the estimate, relative to the length of the gradient
    :param noise: Noise of one episode, in the same unit
    :param target: Allowed error
    :return: Number of episodes per update, infinite if the bias alone is too large
    """
    return noise**2 / (target**2 - bias**2) if bias < target else float("inf")


def one_action(p: float, reward: float, other: float, baseline: float) -> tuple[float, float, float, float, float]:
    """
    A single choice between two actions; the parameter is the logit of the first.

    :param p: Probability of the first action
    :param reward: Reward of the first action
    :param other: Reward of the second action
    :param baseline: Baseline, subtracted from both rewards
    :return: Contribution of a sample of each action to the gradient, their expectation and standard deviation, and the
        baseline that minimises the latter
    """
    logit = th.tensor([p], dtype=th.float64).logit().expand(2).clone().requires_grad_()
    log_probs = th.nn.functional.logsigmoid(th.stack([logit[0], -logit[1]]))
    advantages = th.tensor([reward, other], dtype=th.float64) - baseline
    # At ratio 1 this is minus the policy gradient
    clipped_surrogate(log_probs - log_probs.detach(), advantages, 0.2, 0.2).sum().backward()
    assert logit.grad is not None
    first, second = (-logit.grad).tolist()
    mean = p * first + (1 - p) * second
    noise = (p * (first - mean) ** 2 + (1 - p) * (second - mean) ** 2) ** 0.5
    weights = p * (1 - p) ** 2, (1 - p) * p**2
    best = (weights[0] * reward + weights[1] * other) / sum(weights)
    return first, second, mean, noise, best


def advantage_of_steps(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> list[float]:
    """
    :param rewards: Rewards of an episode
    :param values: Values of the states of its steps, and of the state after the last step if the episode has not ended
    :param gamma: Discount factor
    :param lambda_: Lambda of generalised advantage estimation
    :return: Advantage of each step
    """
    n, of_steps = len(rewards), th.tensor(values, dtype=th.float64)
    exists = th.ones(1, 1, n, dtype=th.bool)
    last = of_steps[n:].reshape(1, 1) if len(values) > n else None
    residuals = td_residuals(
        th.tensor(rewards, dtype=th.float64).reshape(1, 1, n), of_steps[:n].reshape(1, 1, n), exists, gamma, last
    )
    return discounted_returns_to_go(residuals, exists, gamma * lambda_).flatten().tolist()


_ERRORS = (0.0, 0.2, 0.5, 0.73, 1.0, 1.4)
GRIDS: dict[str, Grid] = {
    "gaeError": (gae_error, (axis(0, 1, 41), _ERRORS)),
    "kStepError": (k_step_error, ([*range(N_STEPS + 1)], _ERRORS)),
    "plainError": (plain_error, ()),
    "groupError": (group_error, ((2, 3, 4, 8, 16), (0, 1))),
    "oneAction": (one_action, (axis(0.05, 0.95, 10), (10.0, -1.0), (2.0, 0.0), axis(0, 12, 7))),
}
EXAMPLES: dict[str, Any] = {
    "gae_error": gae_error,
    "k_step_error": k_step_error,
    "plain_error": plain_error,
    "group_error": group_error,
    "episodes_needed": episodes_needed,
    "one_action": one_action,
    "advantage_of_steps": advantage_of_steps,
}
