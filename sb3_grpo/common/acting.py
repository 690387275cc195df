"""A model that acts outside of training as it does there."""

import inspect
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.sampling import renew_noise
from sb3_grpo.utils.action_masks import ask_for_masks, offers_masks


class Actor:
    """
    Takes the place of the model in ``evaluate_policy``: it renews the noise of gSDE as in training, and only does what the
    environment allows. Otherwise it is the model.

    :param model: The model; also one of SB3 or SB3-Contrib
    :param env: The environment in which it acts
    """

    def __init__(self, model: BaseAlgorithm, env: VecEnv):
        self._model = model
        self._env = env
        self._n_steps = 0
        # MaskablePPO has no attribute
        takes_masks = "action_masks" in inspect.signature(model.predict).parameters
        self._has_masks = getattr(model, "use_masking", takes_masks) and offers_masks(env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(
        self, observation: Any, state: Any = None, episode_start: np.ndarray | None = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """See :meth:`BaseAlgorithm.predict`."""
        if not deterministic:
            renew_noise(self._model, self._n_steps, self._env.num_envs)
            self._n_steps += 1
        masks: Any = {"action_masks": ask_for_masks(self._env)} if self._has_masks else {}
        return self._model.predict(observation, state, episode_start, deterministic, **masks)
