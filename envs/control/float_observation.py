"""Observations as floats, for ``VecNormalize``."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class FloatObservation(gym.ObservationWrapper):
    """
    Makes floats of whole numbers. Under ``VecNormalize`` SB3's PPO and A2C need it (2.9.2): the observation space stays as it
    is, and so they keep the normalised numbers of a rollout as whole ones, without fractions and signs.

    :param env: An environment whose observations are arrays
    :raises ValueError: if they are not
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"FloatObservation needs observations in a Box, and {env} has {space}: flatten them first.")
        self.observation_space = spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """
        :param observation: As the environment has it
        :return: the same in single precision
        """
        return observation.astype(np.float32)
