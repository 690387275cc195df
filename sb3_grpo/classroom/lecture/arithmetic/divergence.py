"""The KL penalty: exact and estimated, as a value and as a gradient; and the effect of resetting the reference."""

from itertools import count
from math import log
from typing import Any

import torch as th
from stable_baselines3.common.distributions import CategoricalDistribution

from sb3_grpo.classroom.lecture.golden import Grid
from sb3_grpo.common.kl import KL_ESTIMATORS, exact_kl, kl_estimate, kl_loss


def _distribution(logits: th.Tensor) -> CategoricalDistribution:
    """
    :param logits: (n,) logits of the actions
    :return: A single distribution
    """
    return CategoricalDistribution(len(logits)).proba_distribution(logits[None])


def _logits(*weights: float) -> th.Tensor:
    """
    :param weights: Positive weights of the actions, proportional to their probabilities
    :return: Their logits, which require gradients
    """
    return th.tensor(weights, dtype=th.float64).log().requires_grad_()


def _exact(logits: th.Tensor, ref_logits: th.Tensor) -> th.Tensor:
    return exact_kl(_distribution(logits), _distribution(ref_logits)).sum()


def kl_values(a: float, b: float, c: float, ref_a: float, ref_b: float, ref_c: float) -> list[float]:
    """
    :param a: Weight of the first of three actions under the policy
    :param b: Weight of the second action
    :param c: Weight of the third action
    :param ref_a: Weight of the first action under the reference
    :param ref_b: Weight of the second action
    :param ref_c: Weight of the third action
    :return: The exact divergence; then for k1, k2 and k3 each, its values for the three actions, mean and standard deviation
    """
    logits, ref_logits = _logits(a, b, c), _logits(ref_a, ref_b, ref_c)
    log_prob, ref_log_prob = logits.log_softmax(0), ref_logits.log_softmax(0)
    probability = log_prob.exp()
    values = [_exact(logits, ref_logits).item()]
    for estimator in KL_ESTIMATORS:
        estimates = kl_estimate(log_prob, ref_log_prob, estimator)
        mean = (probability * estimates).sum()
        spread = (probability * (estimates - mean).square()).sum().sqrt()
        values += [*estimates.tolist(), mean.item(), spread.item()]
    return values


def kl_gradients(stale: float, a: float, b: float, c: float, ref_a: float, ref_b: float, ref_c: float) -> list[float]:
    """
    :param stale: Policy that sampled the actions: 0 is the policy itself, 1 the reference; in between, logits are interpolated
    :param a: Weight of the first of three actions under the policy
    :param b: Weight of the second action
    :param c: Weight of the third action
    :param ref_a: Weight of the first action under the reference
    :param ref_b: Weight of the second action
    :param ref_c: Weight of the third action
    :return: Gradients with respect to the policy's logits, three numbers each: of KL(policy || reference), of
        KL(reference || policy), of k1, k2 and k3 as used in the package's loss, and of the plain k1, k2 and k3
    """
    logits, ref_logits = _logits(a, b, c), _logits(ref_a, ref_b, ref_c)
    log_prob, ref_log_prob = logits.log_softmax(0), ref_logits.detach().log_softmax(0)
    old_log_prob = ((1.0 - stale) * logits + stale * ref_logits).detach().log_softmax(0)
    # Expectations over the actions of the policy that sampled them
    chances = old_log_prob.exp()
    losses = [_exact(logits, ref_logits), _exact(ref_logits, logits)]
    losses += [(chances * kl_loss(log_prob, old_log_prob, ref_log_prob, each)).sum() for each in KL_ESTIMATORS]
    losses += [(chances * kl_estimate(log_prob, ref_log_prob, each)).sum() for each in KL_ESTIMATORS]
    # One backward pass each through the shared graph
    gradients = [th.autograd.grad(loss, logits, retain_graph=True)[0] for loss in losses]
    return th.cat(gradients).tolist()


def _of_two(logit: th.Tensor) -> th.Tensor:
    """
    :param logit: Logit of a right answer, relative to a wrong one
    :return: Logits of both
    """
    return th.stack([logit, th.zeros_like(logit)])


def _best(reference: th.Tensor, coefficient: float) -> th.Tensor:
    """
    :param reference: Logit of a right answer under the reference
    :param coefficient: Coefficient of the KL penalty
    :return: The logit that maximises reward minus penalty, by bisection of the gradient
    """
    low, high = reference, reference + 2.0 / coefficient
    for _ in range(30):
        middle = ((low + high) / 2.0).requires_grad_()
        objective = middle.sigmoid() - coefficient * _exact(_of_two(middle), _of_two(reference))
        (slope,) = th.autograd.grad(objective, middle)
        low, high = (middle.detach(), high) if slope > 0.0 else (low, middle.detach())
    return (low + high) / 2.0


def reset(success: float, coefficient: float, resets: int) -> list[float]:
    """
    Maximise reward minus penalty for an answer that is right (reward 1) or wrong (0): with the first reference, and again
    after each reset.

    :param success: Probability of a right answer under the first reference
    :param coefficient: Coefficient of the KL penalty
    :param resets: Number of times the policy becomes the reference
    :return: Final probability of a right answer, and the divergence from the last reference
    """
    reference = best = th.tensor(log(success / (1.0 - success)), dtype=th.float64)
    for _ in range(int(resets) + 1):
        reference, best = best, _best(best, coefficient)
    return [best.sigmoid().item(), _exact(_of_two(best), _of_two(reference)).item()]


def references_until(success: float, coefficient: float, wanted: float) -> int:
    """
    :param success: Probability of a right answer under the first reference
    :param coefficient: Coefficient of the KL penalty
    :param wanted: Probability of a right answer to be exceeded
    :return: Number of references needed
    """
    return next(resets + 1 for resets in count() if reset(success, coefficient, resets)[0] > wanted)


def k(estimator: str, probability: float, ref_probability: float) -> float:
    """
    :param estimator: One of ``KL_ESTIMATORS``
    :param probability: Probability of an action under the policy
    :param ref_probability: Probability of the action under the reference
    :return: The estimate from this action
    """
    log_prob, ref_log_prob = (th.tensor([log(p)], dtype=th.float64) for p in (probability, ref_probability))
    return kl_estimate(log_prob, ref_log_prob, estimator).item()


VALUE_WEIGHTS = ((1, 30, 70), (5, 20), (1, 10, 40), (30,), (5, 40), (1, 30))
WEIGHTS = ((1, 70), (20,), (1, 10, 40), (30,), (5, 40), (1, 30))
GRIDS: dict[str, Grid] = {
    "klValues": (kl_values, VALUE_WEIGHTS),
    "klGradients": (kl_gradients, ((0.0, 0.4, 1.0), *WEIGHTS)),
    "reset": (reset, ((0.02, 0.1, 0.5), (0.2, 0.5, 1.0), (0, 1, 3))),
}
EXAMPLES: dict[str, Any] = {"k": k, "reset": reset, "references_until": references_until}
