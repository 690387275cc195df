"""Numbers in the chapters, computed by the functions that train."""

import inspect
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import torch as th

from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate, step_weights
from sb3_grpo.common.rewards import soft_overlong_penalty

# Number of steps of a run in the page
BUDGET = 60_000


def clipped(ratio: float, advantage: float, clip_low: float = 0.2, clip_high: float = 0.2) -> tuple[float, float]:
    """
    :param ratio: Current probability of the action divided by its probability when it was sampled
    :param advantage: Advantage of the action
    :param clip_low: How far the ratio may fall below 1
    :param clip_high: How far the ratio may rise above 1
    :return: Objective, to be maximised, and its derivative with respect to the ratio
    """
    at = th.tensor([ratio], dtype=th.float64, requires_grad=True)
    value = -clipped_surrogate(at.log(), th.tensor([advantage], dtype=th.float64), clip_low, clip_high).sum()
    (slope,) = th.autograd.grad(value, at)
    return value.item(), slope.item()


def advantages(rewards: Sequence[float], ddof: int = 1) -> list[float]:
    """
    :param rewards: Rewards of one group
    :param ddof: 1 for the sample standard deviation, which the package uses, 0 for the population's
    :return: Advantages
    """
    table = th.tensor(rewards, dtype=th.float64).reshape(1, -1, 1)
    by_sample = group_advantages(table, th.ones_like(table, dtype=th.bool), kind="outcome", scale="group").flatten()
    return (by_sample * (1.0 if ddof else (len(rewards) / (len(rewards) - 1)) ** 0.5)).tolist()


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, gae_lambda: float) -> list[float]:
    """
    :param rewards: Rewards of an episode
    :param values: Values of the states of its steps
    :param gamma: Discount factor
    :param gae_lambda: Factor of generalised advantage estimation
    :return: Advantage of each step
    """
    mask = th.ones(1, 1, len(rewards), dtype=th.bool)
    rewards_of_steps, values_of_steps = (th.tensor([[of_steps]], dtype=th.float64) for of_steps in (rewards, values))
    residuals = td_residuals(rewards_of_steps, values_of_steps, mask, gamma)
    return discounted_returns_to_go(residuals, mask, gamma * gae_lambda).flatten().tolist()


def step_weight(mode: str, lengths: Sequence[int], which: int) -> float:
    """
    :param mode: "episode" or "step", as in ``loss_average``
    :param lengths: Lengths of the episodes, in steps
    :param which: Index of an episode
    :return: Weight of each of its steps
    """
    episode = th.repeat_interleave(th.arange(len(lengths)), th.tensor(lengths))
    return step_weights(episode, len(lengths), mode)[episode == which][0].item()


def penalty(length: int) -> float:
    """
    :param length: Length of an answer
    :return: DAPO's soft overlong punishment, with the limits of the paper
    """
    return soft_overlong_penalty(th.tensor([length], dtype=th.float64), 16_384, 20_480).item()


def k(estimator: str, probability: float, ref_probability: float) -> float:
    """
    :param estimator: "k1", "k2" or "k3"
    :param probability: Probability of an action under the policy
    :param ref_probability: Probability of the action under the reference
    :return: The estimate of the KL divergence from this action
    """
    log_prob, ref_log_prob = (th.tensor([p], dtype=th.float64).log() for p in (probability, ref_probability))
    return kl_estimate(log_prob, ref_log_prob, estimator).item()


def changed_defaults() -> dict[str, tuple[Any, Any]]:
    """
    :return: Parameters with different defaults in GRPO and DAPO, and both defaults
    """
    grpo, dapo = (inspect.signature(cls.__init__).parameters for cls in (GRPO, DAPO))
    named = (name for name in dapo if name in grpo and name != "kwargs")
    return {name: (grpo[name].default, dapo[name].default) for name in named if grpo[name].default != dapo[name].default}


def recorded(learning_rate: str, clip: int, algorithm: str) -> str:
    """
    :param learning_rate: Learning rate of a recorded example
    :param clip: Whether this example clips the ratio
    :param algorithm: PPO, GRPO or DAPO
    :return: The last returns of the three seeds, as text
    """
    examples = _data("live")
    settings = learning_rate, clip
    runs = next(each["runs"] for each in examples if (each["state"]["lr"], each["state"]["clip"]) == settings)
    within = ([point for point in run["points"] if point[0] <= BUDGET] for run in runs if run["algorithm"] == algorithm)
    first, second, third = (f"{points[-1][1]:.0f}" for points in within)
    return f"{first}, {second} and {third}"


def _data(name: str) -> Any:
    return json.loads((files("sb3_grpo.classroom.lecture") / "data" / f"{name}.json").read_text("utf-8"))


# By name in chapters and slides
FUNCTIONS: tuple[Callable[..., Any], ...] = (clipped, advantages, gae, step_weight, penalty, k, changed_defaults, recorded)
EXAMPLES: dict[str, Any] = {"switches": _data("switches"), **{function.__name__: function for function in FUNCTIONS}}
