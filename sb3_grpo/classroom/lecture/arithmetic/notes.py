"""Numbers for the tables that compare the algorithms, and for common mistakes in lecture notes."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import PPO

from sb3_grpo import DAPO, GRPO
from sb3_grpo.classroom.lecture.arithmetic.groups import advantages
from sb3_grpo.classroom.lecture.golden import Grid
from sb3_grpo.common.losses import step_weights
from sb3_grpo.groups.group import live_groups

CAPITALS = {"Sydney": 2.0, "Canberra": 10.0, "Melbourne": 3.0}


def relative(outcomes: Sequence[float], ddof: int = 1) -> list[float]:
    """
    :param outcomes: Rewards of a group's members
    :param ddof: 1 for the sample and 0 for the population standard deviation
    :return: (R - mean) / std of each member
    """
    return advantages(outcomes, ddof)


def is_live(outcomes: Sequence[float]) -> bool:
    """
    :param outcomes: Rewards of a group's members
    :return: Whether there is something to learn
    """
    return bool(live_groups(th.tensor(outcomes, dtype=th.float64)[None])[0])


def share_of_step(lengths: Sequence[int], which: int, mode: str) -> float:
    """
    :param lengths: Lengths of the episodes of a group, in steps
    :param which: Index of an episode
    :param mode: "episode" or "step", as in ``loss_average``
    :return: Weight of each of its steps, where the weights of all steps sum to 1
    """
    episode = th.repeat_interleave(th.arange(len(lengths)), th.tensor(lengths))
    return step_weights(episode, len(lengths), mode)[episode == which][0].item()


def changed_defaults() -> dict[str, tuple[Any, Any]]:
    """
    :return: Parameters with different defaults in GRPO and DAPO, and both defaults
    """
    grpo, dapo = (inspect.signature(cls.__init__).parameters for cls in (GRPO, DAPO))
    named = (name for name in dapo if name in grpo and name != "kwargs")
    return {name: (grpo[name].default, dapo[name].default) for name in named if grpo[name].default != dapo[name].default}


def n_parameters(algo: str, width: int = 64) -> int:
    """
    :param algo: "ppo" or "grpo"
    :param width: Number of units in each of the two hidden layers
    :return: Number of parameters of the networks for CartPole
    """
    settings: dict[str, Any] = dict(policy_kwargs={"net_arch": [width, width]}, device="cpu")
    model: Any = PPO("MlpPolicy", "CartPole-v1", **settings) if algo == "ppo" else GRPO("MlpPolicy", "CartPole-v1", **settings)
    return sum(parameter.numel() for parameter in model.policy.parameters() if parameter.requires_grad)


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    """
    :param p: Probabilities
    :param q: Probabilities of the same outcomes
    :return: KL(p || q), in nats
    """
    return sum(each * math.log(each / other) for each, other in zip(p, q, strict=True))


def kl_of_natural_step(delta: float, inverse: bool) -> float:
    """
    A natural gradient step on two parameters with Fisher matrix diag(4, 1) and gradient (1, 1).

    :param delta: Allowed KL
    :param inverse: Whether the step size uses the inverse of the Fisher matrix, as it must
    :return: KL of the step, to second order
    """
    fisher, gradient = np.diag([4.0, 1.0]), np.ones(2)
    matrix = np.linalg.inv(fisher) if inverse else fisher
    step = math.sqrt(2 * delta / (gradient @ matrix @ gradient)) * np.linalg.inv(fisher) @ gradient
    return float(0.5 * step @ fisher @ step)


GRIDS: dict[str, Grid] = {}
EXAMPLES: dict[str, Any] = {
    "CAPITALS": CAPITALS,
    "changed_defaults": changed_defaults,
    "is_live": is_live,
    "kl_of": kl,
    "kl_of_natural_step": kl_of_natural_step,
    "n_parameters": n_parameters,
    "population_std": lambda values: float(np.std(values)),
    "relative": relative,
    "sample_std": lambda values: float(np.std(values, ddof=1)),
    "share_of_step": share_of_step,
}
