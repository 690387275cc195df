"""The RL Zoo's evaluations, with the action masks of the environment."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import rl_zoo3.enjoy
import rl_zoo3.utils
from rl_zoo3.callbacks import TrialEvalCallback
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.acting import Actor


class MaskedEvalCallback(EvalCallback):
    """SB3's ``EvalCallback``, in which the model only does what the environment allows."""

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq != 0:
            return True
        model, actor = self.model, Actor(self.model, self.eval_env)
        self.model = actor  # type: ignore[assignment]
        try:
            return super()._on_step()
        finally:
            self.model = model


class MaskedTrialEvalCallback(MaskedEvalCallback, TrialEvalCallback):
    """The same for the trials of a search."""


def acting(command: Callable[[], Any]) -> Callable[[], None]:
    """
    :param command: a command of the RL Zoo that creates an environment and loads a model to act there
    :return: the same command, in which the model only does what the environment allows
    """

    def run() -> None:
        def create(*args: Any, **kwargs: Any) -> VecEnv:
            # record_video does not look there
            of_entry = kwargs["hyperparams"].pop("env_kwargs", {})
            envs.append(create_test_env(*args, **{**kwargs, "env_kwargs": of_entry | kwargs["env_kwargs"]}))
            return envs[-1]

        def loading(algorithm: Any) -> Any:
            return SimpleNamespace(load=lambda *args, **kwargs: Actor(algorithm.load(*args, **kwargs), envs[-1]))

        envs: list[VecEnv] = []
        algorithms = {**rl_zoo3.ALGOS}
        rl_zoo3.ALGOS.update({name: loading(algorithm) for name, algorithm in algorithms.items()})
        # record_video imports it when it runs
        rl_zoo3.enjoy.create_test_env = rl_zoo3.utils.create_test_env = create
        try:
            command()
        finally:
            rl_zoo3.enjoy.create_test_env = rl_zoo3.utils.create_test_env = create_test_env
            rl_zoo3.ALGOS.update(algorithms)

    create_test_env = rl_zoo3.utils.create_test_env
    return run
