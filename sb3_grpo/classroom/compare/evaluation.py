"""Evaluations that do not affect the training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from sb3_grpo.classroom.compare.build import preserve_generators
from sb3_grpo.classroom.compare.runs import MODES
from sb3_grpo.common.acting import Actor
from sb3_grpo.common.sampling import unchecked_distributions

# Seed of the first environment of an evaluation. Training seeds are smaller, see MAX_SEED. Final evaluations begin in states
# that no other evaluation has seen; they are the same for all runs, otherwise scores would differ because of their starts
EVALUATION_SEED = 2**31
FINAL_EVALUATION_SEED = 2**31 + 2**30
# What gSDE draws anew
_NOISE = ("exploration_mat", "exploration_matrices", "weights_dist")


class Evaluator:
    """
    Evaluates a model on separate environments without changing anything that its training depends on. Each episode gets a
    new environment: in a used one, ``reset`` may continue a game in progress (``EpisodicLifeEnv``).

    :param model: the model
    :param make_envs: function that creates a given number of new environments
    """

    def __init__(self, model: BaseAlgorithm, make_envs: Callable[[int], VecEnv]):
        self.model = model
        self.make_envs = make_envs

    def evaluate(self, n_episodes: int, final: bool) -> list[dict[str, Any]]:
        """
        :param n_episodes: number of episodes
        :param final: whether this is the final evaluation
        :return: columns of ``evaluations.csv`` for each mode of choosing actions
        """
        policy = self.model.policy
        noise = getattr(getattr(policy, "actor", policy), "action_dist", None)
        before = {name: getattr(noise, name) for name in _NOISE if hasattr(noise, name)}
        training = policy.training
        try:
            with preserve_generators(), unchecked_distributions():
                return [self._evaluate(mode, n_episodes, final) for mode in MODES]
        finally:
            policy.set_training_mode(training)
            for name, value in before.items():
                setattr(noise, name, value)

    def _evaluate(self, mode: str, n_episodes: int, final: bool) -> dict[str, Any]:
        successes: list[bool] = []

        def note_success(local_variables: dict[str, Any], _: dict[str, Any]) -> None:
            info = local_variables["info"]
            # Only at the end of an episode; for Monitor, losing a life does not end it
            if "episode" in info and "is_success" in info:
                successes.append(bool(info["is_success"]))

        training_env = self.model.get_env()
        assert training_env is not None
        seed = FINAL_EVALUATION_SEED if final else EVALUATION_SEED
        env = self.make_envs(n_episodes)
        try:
            sync_envs_normalization(training_env, env)
            th.manual_seed(seed)
            env.seed(seed)
            returns, lengths = evaluate_policy(
                Actor(self.model, env),
                env,
                n_episodes,
                deterministic=mode == "deterministic",
                return_episode_rewards=True,
                callback=note_success,
            )
        finally:
            env.close()
        if not np.isfinite(returns).all():
            raise ValueError(f"The returns of an evaluation are {returns}: rewards must be finite. Correct the environment.")
        return {
            "mode": mode,
            "return_mean": float(np.mean(returns)),
            "return_std": float(np.std(returns)),
            "length_mean": float(np.mean(lengths)),
            "success_rate": float(np.mean(successes)) if successes else None,
            "n_episodes": n_episodes,
            "final": int(final),
        }
