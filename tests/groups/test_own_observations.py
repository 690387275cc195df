"""Observations as the environments returned them, whatever wraps their vectorized environment."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecExtractDictObs, VecNormalize, VecTransposeImage

from sb3_grpo import make_group_env
from sb3_grpo.utils.vec_envs import own_observations


class WithImage(gym.Env[Any, Any]):
    """Counts its steps, in an image and in numbers."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(0, 255, (5, 7, 3), np.uint8), "b": gym.spaces.Box(0, 35, (2, 3), np.int64)}
    )
    action_space = gym.spaces.Discrete(2)

    def observation(self) -> Any:
        image = np.zeros((5, 7, 3), dtype=np.uint8)
        image[self.place // 7, self.place % 7, 1] = 1
        return {"a": image, "b": self.place + np.arange(6).reshape(2, 3)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1
        return self.observation(), 0.0, False, False, {}


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
