"""Wrapper that converts observations to floats, for ``VecNormalize``."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class FloatObservation(gym.ObservationWrapper):
    """
    Converts integer observations to floats. SB3's PPO and A2C need it with ``VecNormalize`` (2.9.2): the observation space
    stays unchanged, so they store the normalized observations of a rollout as integers, without fractions and signs.

    :param env: An environment with a ``Box`` observation space
    :raises ValueError: if the observation space is not a ``Box``
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"FloatObservation needs observations in a Box, and {env} has {space}: flatten them first.")
        self.observation_space = spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """
        :param observation: Observation of the environment
        :return: The observation in single precision
        """
        return observation.astype(np.float32)
