"""Common mistakes, by what to say about them: functions that make them, to be compared with a student's."""

from collections.abc import Callable

import torch as th

from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate
from sb3_grpo.common.rewards import soft_overlong_penalty

Function = Callable[..., th.Tensor]


def overlong(rewards: th.Tensor, mask: th.Tensor, low: int, high: int, sign: float = 1.0) -> th.Tensor:
    """
    :param rewards: (B, G, T)
    :param mask: (B, G, T), True for existing steps
    :param low: see :func:`soft_overlong_penalty`
    :param high: see there
    :param sign: -1.0 for a mistake
    :return: (B, G, T) rewards with the penalty on the last step of each episode
    """
    penalty = sign * _penalty(mask, low, high).to(rewards.dtype)
    return rewards.scatter_add(-1, mask.sum(-1, keepdim=True) - 1, penalty)


def _penalty(mask: th.Tensor, low: int, high: int) -> th.Tensor:
    return soft_overlong_penalty(mask.sum(-1, keepdim=True), low, high)


def _normalised(rewards: th.Tensor, mask: th.Tensor, power: float = 1.0, mean: bool = False, correction: int = 1) -> th.Tensor:
    outcomes = rewards.sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) if mean else 1)
    deviation = outcomes.std(1, keepdim=True, correction=correction) ** power
    return th.where(mask, (outcomes - outcomes.mean(1, keepdim=True)) / (deviation + 1e-8), 0.0)


GROUP_ADVANTAGE: dict[str, Function] = {
    "you divided by the variance: the deviation is its square root": lambda r, m: _normalised(r, m, power=2.0),
    "you divided by G: the sample deviation divides by G - 1": lambda r, m: _normalised(r, m, correction=0),
    "you did not divide by the standard deviation": lambda r, m: _normalised(r, m, power=0.0),
    "you averaged the rewards of an episode: its outcome is their sum": lambda r, m: _normalised(r, m, mean=True),
    "padded steps have an advantage: it is 0 where the mask is False": lambda r, m: _normalised(r, th.ones_like(m)),
}


def _clip(ratio: th.Tensor, low: float, high: float) -> th.Tensor:
    return ratio.clamp(1 - low, 1 + high)


_PPO: list[tuple[str, Function]] = [
    (
        "you took the maximum: it is the minimum of the two terms, the pessimistic one",
        lambda x, a, low, high: -th.max(x.exp() * a, _clip(x.exp(), low, high) * a),
    ),
    (
        "the bounds are swapped: with clamp(1 + high, 1 - low), every ratio becomes 1 - low",
        lambda x, a, low, high: -th.min(x.exp() * a, (1 - low) * a),
    ),
    (
        "this is the objective: a loss is minimised, so it needs a minus sign",
        lambda x, a, low, high: -clipped_surrogate(x, a, low, high),
    ),
    (
        "you took the minimum before multiplying by the advantage, which is wrong where it is negative",
        lambda x, a, low, high: -th.min(x.exp(), _clip(x.exp(), low, high)) * a,
    ),
    (
        "you only clipped: the minimum with the unclipped term is missing",
        lambda x, a, low, high: -_clip(x.exp(), low, high) * a,
    ),
    (
        "the first argument is the logarithm of the ratio: take exp() of it",
        lambda x, a, low, high: -th.min(x * a, _clip(x, low, high) * a),
    ),
]
PPO_LOSS: dict[str, Function] = {idea: (lambda x, a, c, wrong=wrong: wrong(x, a, c, c)) for idea, wrong in _PPO}
DAPO_LOSS: dict[str, Function] = dict(_PPO) | {
    "the upper bound is 1 + clip_high: this is what clip-higher means": lambda x, a, low, _: clipped_surrogate(x, a, low, low)
}
GRADIENT: dict[str, Function] = {
    "there is no gradient, so nothing is learned: no detach(), no item(), no NumPy, no no_grad()": lambda *a: a[0].detach()
}
K3: dict[str, Function] = {
    "the sign of the log ratio is the wrong one: log r = log ref - log pi": lambda p, q: kl_estimate(q, p, "k3"),
    "the estimate has the wrong sign: k3 is never negative": lambda p, q: -kl_estimate(p, q, "k3"),
    "this is k1, -log r: k3 adds r - 1, whose mean is 0 and which takes most of the noise away": lambda p, q: p - q,
    "this is k2, half of the squared log ratio": lambda p, q: (p - q).square() / 2,
}


def _lengths(episode: th.Tensor) -> th.Tensor:
    return episode.bincount()[episode].float()


TOKEN_AVERAGE: dict[str, Function] = {
    "this is GRPO's average: you kept 1/|o|, so a step of a long episode counts less": lambda e, n: 1 / (n * _lengths(e)),
    "you took the mean over padded steps: divide by the number of steps that exist": lambda e, n: (
        th.ones(len(e)) / (n * _lengths(e).max())
    ),
    "you kept 1/|o|, and did not divide by the number of episodes either": lambda e, n: 1 / _lengths(e),
    "all weights are 0: episode holds whole numbers, and a tensor like it, too": lambda e, n: th.zeros(len(e)),
    "you divided by the number of episodes: divide by the number of steps": lambda e, n: th.ones(len(e)) / n,
}
LIVE: dict[str, Function] = {
    "dead groups are kept: from equal outcomes, nothing is learned": lambda o: th.ones(len(o), dtype=th.bool),
    "it is the wrong way round: True where there is something to learn": lambda o: (o == o[:, :1]).all(1),
    "only failures are dropped: a group that is right everywhere is as dead": lambda o: (o != 0).any(1),
    "std > 0 depends on rounding: eight times 0.1 may deviate from its mean. Compare outcomes": lambda o: o.std(1) > 0,
}
OVERLONG: dict[str, Function] = {
    "the penalty is on all steps: add it to the last one, so that an episode pays it once": lambda r, m, low, high: (
        r + m * _penalty(m, low, high)
    ),
    "the penalty is where the padding ends: the last step of an episode has the index length - 1": lambda r, m, low, high: (
        th.cat([r[..., :-1], r[..., -1:] + _penalty(m, low, high)], -1)
    ),
    "the penalty has the wrong sign: it lowers the reward": lambda r, m, low, high: overlong(r, m, low, high, sign=-1.0),
}
