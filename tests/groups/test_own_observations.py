"""Observations as the environments returned them, whatever wraps their vectorized environment."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecExtractDictObs, VecNormalize, VecTransposeImage
from toy_envs import ToyEnv

from sb3_grpo import make_group_env
from sb3_grpo.utils.vec_envs import own_observations


class WithImage(ToyEnv):
    """Counts its steps, in an image and in numbers."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(0, 255, (5, 7, 3), np.uint8), "b": gym.spaces.Box(0, 35, (2, 3), np.int64)}
    )

    def observe(self) -> Any:
        image = np.zeros((5, 7, 3), dtype=np.uint8)
        image[self.t // 7, self.t % 7, 1] = 1
        return {"a": image, "b": self.t + np.arange(6).reshape(2, 3)}


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        (VecTransposeImage, None),
        (lambda env: VecNormalize(VecTransposeImage(env), norm_obs=False), None),
        (lambda env: VecExtractDictObs(VecTransposeImage(env), "a"), "a"),
        (lambda env: VecExtractDictObs(VecTransposeImage(env), "b"), "b"),
    ],
)
def test_observations_are_those_of_the_environment(wrap: Any, key: str | None) -> None:
    inner: Any = make_group_env(WithImage, 2, seed=0)
    env = wrap(inner)
    env.reset()
    seen, expected = own_observations(env, env.step(np.ones(2, dtype=int))[0]), inner._obs_from_buf()
    for name in [key] if key else expected:
        assert np.array_equal(seen if key else seen[name], expected[name])
