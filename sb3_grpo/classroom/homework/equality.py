"""A short training of DAPO with a student's functions, which ends with the same parameters as with the package's."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import gymnasium as gym
import torch as th

from sb3_grpo import DAPO, make_group_env
from sb3_grpo.classroom.homework import exercises
from sb3_grpo.classroom.homework.mistakes import Function
from sb3_grpo.classroom.homework.student import Student, StudentError
from sb3_grpo.common.losses import LossInputs

# Points of each function
POINTS = {"group_advantage": 4, "dapo_loss": 4, "token_average": 4, "k3": 3, "live": 3, "overlong": 2}
_TOLERANCE = 1e-6
# CartPole is over after so many steps: many groups are dead, and many episodes long
_TIME_LIMIT, _OVERLONG, _N_STEPS = 14, (12, 16), 1_500
_RIGHT: dict[str, Function] = {
    exercise.function: exercise.right for exercise in exercises.EXERCISES if exercise.gradient_of is None
}
# Calls a function by its name: its values, and their gradient by an argument
Call = Callable[..., tuple[th.Tensor, th.Tensor | None]]


class _WithGradient(th.autograd.Function):
    """Values from another process, with the gradient that they have there."""

    @staticmethod
    def forward(ctx: Any, argument: th.Tensor, values: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        ctx.save_for_backward(gradient)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *outer: th.Tensor) -> Any:
        return outer[0] * ctx.saved_tensors[0], None, None


def call_here(function: Function, *arguments: Any, gradient_of: int | None) -> tuple[th.Tensor, th.Tensor | None]:
    """
    :param function: a function of this process
    :param arguments: its arguments
    :param gradient_of: see :meth:`Student.call`
    :return: the same as :meth:`Student.call`
    """
    return function(*arguments), None if gradient_of is None else exercises.gradient_of(function, gradient_of)(*arguments)


def _differentiable(call: Call, function: str, argument: th.Tensor, *others: Any) -> th.Tensor:
    inner = argument.detach().clone()
    values, gradient = call(function, inner, *others, gradient_of=0)
    if gradient is None:
        raise StudentError("it has no gradient")
    return _WithGradient.apply(argument, values.detach(), gradient)


def _train(call: Call) -> th.Tensor:
    """
    :param call: calls a function
    :return: the parameters of the policy after training
    """

    def advantage(rewards: th.Tensor, mask: th.Tensor, **settings: Any) -> th.Tensor:
        return call("group_advantage", call("overlong", rewards, mask, *_OVERLONG)[0], mask)[0]

    def policy_loss(steps: LossInputs) -> th.Tensor:
        return _differentiable(call, "dapo_loss", steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)

    def loss_average(episode: th.Tensor, n_episodes: int, **settings: Any) -> th.Tensor:
        return call("token_average", episode, n_episodes)[0]

    def kl_estimator(log_prob: th.Tensor, ref_log_prob: th.Tensor) -> th.Tensor:
        return _differentiable(call, "k3", log_prob, ref_log_prob)

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
        loss_average=loss_average,
        kl_coef=0.1,
        kl_estimator=kl_estimator,
        dynamic_sampling=lambda outcomes: call("live", outcomes)[0],
        seed=0,
        device="cpu",
    )
    model.learn(_N_STEPS)
    env.close()
    return th.cat([each.detach().flatten() for each in model.policy.parameters()])


def _caller(student: Student | None, functions: Collection[str]) -> Call:
    """Calls the student's functions of these names, and otherwise the right ones."""

    def call(function: str, *arguments: Any, gradient_of: int | None = None) -> tuple[th.Tensor, th.Tensor | None]:
        if student is not None and function in functions:
            return student.call(function, *arguments, gradient_of=gradient_of)
        return call_here(_RIGHT[function], *arguments, gradient_of=gradient_of)

    return call


@functools.cache
def _expected() -> th.Tensor:
    return _train(_caller(None, ()))


def differences(student: Student, functions: Collection[str]) -> dict[str, str]:
    """
    :param student: the student's functions
    :param functions: the names of those to train with: first with all together and, if this is another training, with each
    :return: what is wrong with each of them, empty if it trains the same policy
    """
    if not functions or not _difference(student, functions):
        return dict.fromkeys(functions, "")
    return {function: _difference(student, [function]) for function in functions}


def _difference(student: Student, functions: Collection[str]) -> str:
    expected = _expected()
    try:
        largest = float((_train(_caller(student, functions)) - expected).abs().max())
    # A wrong shape, a NaN
    except (StudentError, NotImplementedError, ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"the training stopped: {error}"
    return "" if largest <= _TOLERANCE else f"it trains another policy: a parameter differs by {largest:.2g}"
