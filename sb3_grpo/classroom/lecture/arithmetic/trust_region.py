"""
Steps of the vanilla, the natural and the clipped gradient on two states (after Kakade, A natural policy gradient, 2001).

"stay" has a reward of 1 in the first state and 2 in the second; "go" switches the state and has no reward. The parameters are
the logits of "stay" in each state, and episodes begin in the first.
"""

from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.distributions import CategoricalDistribution

from sb3_grpo.classroom.lecture.golden import Grid, axis
from sb3_grpo.common.advantages import td_residuals
from sb3_grpo.common.kl import exact_kl
from sb3_grpo.common.losses import clipped_surrogate

GAMMA = 0.9
PAYS = (1.0, 2.0)
# Limit of the logits: beyond it, a probability cannot be told from 0 or 1 in a picture
REACH = 6.0
N_EPOCHS = 10
Point = tuple[float, float]


class Facts(NamedTuple):
    """
    Exact properties of a policy.

    :param stay: (2,) probability of staying in each state
    :param values: (2,) value of each state
    :param visits: (2,) discounted number of visits, which sum to 1 / (1 - gamma)
    :param advantages: (2, 2) advantages of staying and of going
    """

    stay: np.ndarray
    values: np.ndarray
    visits: np.ndarray
    advantages: np.ndarray


def facts(theta: Point) -> Facts:
    """
    :param theta: Logits
    :return: Exact properties of the policy
    """
    stay = 1 / (1 + np.exp(-np.asarray(theta)))
    moves = np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])
    system = np.eye(2) - GAMMA * moves
    values = np.linalg.solve(system, stay * PAYS)
    visits = np.linalg.solve(system.T, np.array([1.0, 0.0]))
    # One step from each state with each action, then the value of the next state
    rewards = th.tensor([[[PAYS[0]], [0.0]], [[PAYS[1]], [0.0]]], dtype=th.float64)
    here = th.tensor(values)[:, None, None].expand(2, 2, 1)
    after = th.tensor(np.array([values, values[::-1]]).T.copy())
    advantages = td_residuals(rewards, here, th.ones(2, 2, 1, dtype=th.bool), GAMMA, after)[..., 0]
    return Facts(stay, values, visits, advantages.numpy())


def _distribution(theta: th.Tensor) -> CategoricalDistribution:
    """
    :param theta: (2,) logits
    :return: Distribution of staying and going in both states
    """
    return CategoricalDistribution(2).proba_distribution(th.stack([theta, th.zeros_like(theta)], 1))


def _kls(theta: th.Tensor, new: th.Tensor) -> th.Tensor:
    """
    :param theta: (2,) logits of the old policy
    :param new: (2,) logits of the new policy
    :return: (2,) KL(old || new) in each state
    """
    return exact_kl(_distribution(theta), _distribution(new))


def _surrogate(theta: th.Tensor, new: th.Tensor, epsilon: float) -> th.Tensor:
    """
    :param theta: (2,) logits of the old policy
    :param new: (2,) logits of the new policy
    :param epsilon: Clip range
    :return: PPO's objective, to be maximised, as an expectation over the visits and actions of the old policy
    """
    of = facts((theta[0].item(), theta[1].item()))
    old, now = (th.stack([each.sigmoid(), (-each).sigmoid()], 1) for each in (theta, new))
    weights = th.tensor(of.visits)[:, None] * old
    losses = clipped_surrogate((now.log() - old.log()).flatten(), th.tensor(of.advantages).flatten(), epsilon, epsilon)
    return -(weights.flatten() * losses).sum()


def gradient(theta: Point) -> np.ndarray:
    """
    :param theta: Logits
    :return: (2,) gradient of the expected return, as that of the clipped surrogate at ratio 1
    """
    old = th.tensor(theta, dtype=th.float64)
    new = old.clone().requires_grad_()
    _surrogate(old, new, 0.2).backward()
    assert new.grad is not None
    return new.grad.numpy()


def fisher(theta: Point) -> np.ndarray:
    """
    :param theta: Logits
    :return: (2, 2) Hessian, at the policy itself, of the KL averaged over normalised visits
    """
    old, weights = th.tensor(theta, dtype=th.float64), th.tensor((1 - GAMMA) * facts(theta).visits)
    hessian: Any = th.autograd.functional.hessian(lambda new: (weights * _kls(old, new)).sum(), old)
    return hessian.numpy()


def natural_direction(gradient: np.ndarray, fisher: np.ndarray, delta: float) -> np.ndarray:
    """
    Largest linear gain within a quadratic KL: ``alpha F^-1 g`` with ``alpha = sqrt(2 delta / g' F^-1 g)``.

    :param gradient: (d,) gradient
    :param fisher: (d, d) Fisher matrix
    :param delta: Quadratic KL of the step, in nats
    :return: (d,) the step
    """
    direction = np.linalg.solve(fisher, gradient)
    return np.sqrt(2 * delta / (gradient @ direction)) * direction


def _within(theta: np.ndarray) -> Point:
    """
    :param theta: Logits
    :return: The logits, clipped to the range of the picture
    """
    first, second = np.clip(theta, -REACH, REACH).tolist()
    return first, second


def natural_step(first: float, second: float, delta: float) -> Point:
    """
    :param first: Logit in the first state
    :param second: Logit in the second state
    :param delta: KL of the step, to second order
    :return: Logits after the step
    """
    theta = first, second
    return _within(theta + natural_direction(gradient(theta), fisher(theta), delta))


def vanilla_step(first: float, second: float, rate: float) -> Point:
    """
    :param first: Logit in the first state
    :param second: Logit in the second state
    :param rate: Learning rate
    :return: Logits after a step along the gradient
    """
    return _within((first, second) + rate * gradient((first, second)))


def clipped_step(first: float, second: float, rate: float, epsilon: float) -> Point:
    """
    :param first: Logit in the first state
    :param second: Logit in the second state
    :param rate: Total learning rate of all epochs
    :param epsilon: Clip range
    :return: Logits after ten epochs on the clipped surrogate, each with a tenth of the learning rate
    """
    old = th.tensor([first, second], dtype=th.float64)
    new = old.clone()
    for _ in range(N_EPOCHS):
        new = new.detach().requires_grad_()
        _surrogate(old, new, epsilon).backward()
        assert new.grad is not None
        new = new + rate / N_EPOCHS * new.grad
    return _within(new.detach().numpy())


def two_states(first: float, second: float) -> list[float]:
    """
    :param first: Logit in the first state
    :param second: Logit in the second state
    :return: Return, visits of both states, advantages (stay and go in the first state, then in the second), gradient, and
        diagonal of the Fisher matrix
    """
    of = facts((first, second))
    diagonal = np.diag(fisher((first, second)))
    return [of.values[0].item(), *of.visits, *of.advantages.flatten(), *gradient((first, second)), *diagonal]


def step_facts(first: float, second: float, new_first: float, new_second: float) -> list[float]:
    """
    :param first: Logit in the first state
    :param second: Logit in the second state
    :param new_first: Logit in the first state after the step
    :param new_second: Logit in the second state after the step
    :return: Mean KL, largest KL, return predicted by the surrogate, its lower bound by theory, and the actual return
    """
    old, new = th.tensor([first, second], dtype=th.float64), th.tensor([new_first, new_second], dtype=th.float64)
    of, kls = facts((first, second)), _kls(old, new)
    # With a clip range that is never reached
    expected = of.values[0] + _surrogate(old, new, 1e9).item()
    worst = 4 * np.abs(of.advantages).max() * GAMMA / (1 - GAMMA) ** 2 * kls.max().item()
    mean = ((1 - GAMMA) * of.visits) @ kls.numpy()
    return [mean, kls.max().item(), expected, expected - worst, facts((new_first, new_second)).values[0]]


def gained(old: Point, new: Point) -> float:
    """
    :param old: Logits of the old policy
    :param new: Logits of the new policy
    :return: Expected advantages, under the old policy, of the new policy's actions in the states that the new policy visits:
        the performance difference lemma
    """
    of, after = facts(old), facts(new)
    actions = np.stack([after.stay, 1 - after.stay], 1)
    return float(after.visits @ (actions * of.advantages).sum(1))


def mixture(theta: Point, share: float) -> tuple[float, float, float]:
    """
    :param theta: Logits of a policy
    :param share: Share of the greedy policy in the mixture
    :return: Return of the mixture, its prediction by the surrogate, and Kakade and Langford's lower bound
    """
    of = facts(theta)
    greedy = of.advantages.argmax(1) == 0
    stay = (1 - share) * of.stay + share * greedy
    new = float(np.log(stay[0] / (1 - stay[0]))), float(np.log(stay[1] / (1 - stay[1])))
    best = of.advantages.max(1)
    expected = of.values[0] + share * of.visits @ best
    promised = expected - 2 * np.abs(best).max() * GAMMA / (1 - GAMMA) ** 2 * share**2
    return facts(new).values[0].item(), expected.item(), promised.item()


def promised_delta(theta: Point) -> float:
    """
    :param theta: Logits
    :return: Largest KL of a natural step for which theory guarantees that the return does not decrease
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        step = theta + natural_direction(gradient(theta), fisher(theta), middle)
        _, _, _, promised, _ = step_facts(*theta, *_within(step))
        low, high = (middle, high) if promised >= facts(theta).values[0] else (low, middle)
    return low


def updates(theta: Point, step: Any, n: int) -> Point:
    """
    :param theta: Logits
    :param step: Function from logits to logits
    :param n: Number of steps
    :return: Logits after the steps
    """
    for _ in range(n):
        theta = step(*theta)
    return theta


def adapted(kl: float, kl_target: float = 0.01, kl_coef: float = 0.04) -> float:
    """
    Adaptive coefficient of the KL penalty (arXiv:1707.06347, sec. 4): doubled where the KL is too large, halved where it is
    too small.

    :param kl: KL measured after an update
    :param kl_target: Target KL
    :param kl_coef: Coefficient of the penalty before
    :return: Coefficient of the penalty afterwards
    """
    if kl > 1.5 * kl_target:
        return 2.0 * kl_coef
    return 0.5 * kl_coef if kl < kl_target / 1.5 else kl_coef


_AT = (-5.0, -2.5, -1.5, -0.4, 0.5, 1.0, 2.5, 5.0)
_SHORT = (-4.0, -1.5, 0.5, 3.0)
GRIDS: dict[str, Grid] = {
    "twoStates": (two_states, (axis(-6, 6, 12), axis(-6, 6, 12))),
    "naturalStep": (natural_step, (_AT, _AT, (0.001, 0.02, 0.2))),
    "vanillaStep": (vanilla_step, (_AT, _AT, (0.1, 1.0, 5.0))),
    "clippedStep": (clipped_step, (_SHORT, _AT, (0.1, 1.0, 5.0), (0.1, 0.2, 0.3))),
    "stepFacts": (step_facts, (_SHORT, _SHORT, _SHORT, (-5.0, -1.5, 0.4, 3.0))),
}
EXAMPLES: dict[str, Any] = {
    "facts": facts,
    "gained": gained,
    "mixture": mixture,
    "step_facts": step_facts,
    "natural_step": natural_step,
    "natural_direction": natural_direction,
    "vanilla_step": vanilla_step,
    "clipped_step": clipped_step,
    "promised_delta": promised_delta,
    "updates": updates,
    "adapted": adapted,
    "array": np.array,
}
