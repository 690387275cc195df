"""A short training of DAPO with a student's functions, which ends with the same parameters as with the package's."""

import functools
from collections.abc import Collection
from typing import Any

import gymnasium as gym
import torch as th

from sb3_grpo import DAPO, make_group_env
from sb3_grpo.classroom.homework.exercises import EXERCISES
from sb3_grpo.classroom.homework.sandbox import evaluate
from sb3_grpo.classroom.homework.student import Student, StudentError
from sb3_grpo.common.losses import LossInputs

# Points of each function
POINTS = {"group_advantage": 4, "dapo_loss": 4, "token_average": 4, "k3": 3, "live": 3, "overlong": 2}
_TOLERANCE = 1e-6
# CartPole is over after so many steps: many groups are dead, and many episodes long
_TIME_LIMIT, _OVERLONG, _N_STEPS = 14, (12, 16), 1_500
_RIGHT = {exercise.function: exercise.right for exercise in EXERCISES}


def _train(student: Student | None, functions: Collection[str]) -> th.Tensor:
    """
    :param student: the student's functions
    :param functions: names of those to train with, in place of the right ones
    :return: the parameters of the policy after training
    """

    def call(function: str, *arguments: Any, gradient_of: int | None = None) -> dict[str, th.Tensor]:
        if student is not None and function in functions:
            return student.call(function, *arguments, gradient_of=gradient_of)
        return evaluate(_RIGHT[function], arguments, gradient_of)

    def values(function: str, *arguments: Any) -> th.Tensor:
        return call(function, *arguments)["values"]

    def differentiable(function: str, argument: th.Tensor, *others: Any) -> th.Tensor:
        there = call(function, argument.detach().clone(), *others, gradient_of=0)
        # The values as they are, with the gradient that they have in the other process
        return there["values"].detach() + there["gradient"] * (argument - argument.detach())

    def advantage(rewards: th.Tensor, mask: th.Tensor, **settings: Any) -> th.Tensor:
        return values("group_advantage", values("overlong", rewards, mask, *_OVERLONG), mask)

    def policy_loss(steps: LossInputs) -> th.Tensor:
        return differentiable("dapo_loss", steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)

    env = make_group_env(functools.partial(gym.make, "CartPole-v1", max_episode_steps=_TIME_LIMIT), n_envs=8)
    model = DAPO(
        "MlpPolicy",
        env,
        learning_rate=3e-3,
        n_groups=6,
        n_epochs=4,
        batch_size=128,
        gamma=1.0,
        advantage=advantage,
        policy_loss=policy_loss,
        loss_average=lambda episode, n_episodes, **settings: values("token_average", episode, n_episodes),
        kl_coef=0.1,
        kl_estimator=lambda log_prob, ref_log_prob: differentiable("k3", log_prob, ref_log_prob),
        dynamic_sampling=lambda outcomes: values("live", outcomes),
        seed=0,
        device="cpu",
    )
    model.learn(_N_STEPS)
    env.close()
    return th.cat([each.detach().flatten() for each in model.policy.parameters()])


@functools.cache
def _expected() -> th.Tensor:
    return _train(None, ())


def differences(student: Student, functions: Collection[str]) -> dict[str, str]:
    """
    :param student: the student's functions
    :param functions: the names of those to train with: first with all together and, if this is another training, with each
    :return: what is wrong with each of them, empty if it trains the same policy
    """
    together = _difference(student, functions) if functions else ""
    return {function: together and _difference(student, [function]) for function in functions}


def _difference(student: Student, functions: Collection[str]) -> str:
    try:
        largest = float((_train(student, functions) - _expected()).abs().max())
    # A wrong shape, a NaN
    except (StudentError, NotImplementedError, ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"the training stopped: {error}"
    return "" if largest <= _TOLERANCE else f"it trains another policy: a parameter differs by {largest:.2g}"
