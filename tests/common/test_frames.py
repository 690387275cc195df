"""Rollouts of stacked frames, which are stored once, and the precision that images are computed in."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from toy_envs import ToyEnv, observations_of

from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.frames import FrameStore

SIDE = 36


class Flicker(ToyEnv):
    """Images that are never the same. The reward is for the action that the newest of them shows in its corner."""

    def __init__(self, channels: int = 1):
        super().__init__(length=None)
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, channels), np.uint8)

    def observe(self) -> np.ndarray:
        image = self.np_random.integers(0, 255, self.observation_space.shape, dtype=np.uint8)  # type: ignore[arg-type]
        self.wanted = int(image[0, 0, 0] > 127)
        return image

    def step(self, action: Any) -> Any:
        return super().step(int(action == self.wanted))


class InDict(gym.ObservationWrapper):
    """The image next to numbers."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"image": env.observation_space, "n": spaces.Box(-1, 1, (2,), np.float32)})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"image": observation, "n": np.full(2, 0.5, np.float32)}


def train(policy: str = "CnnPolicy", channels: int = 1, in_dict: bool = False, n_stack: int = 4, **kwargs: Any) -> GRPO:
    def make() -> gym.Env:
        return InDict(Flicker(channels)) if in_dict else Flicker(channels)

    env = VecFrameStack(DummyVecEnv([make] * 3), n_stack)
    return DAPO(policy, env, n_epochs=2, batch_size=16, seed=0, device="cpu", **kwargs).learn(150)


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        ({"n_steps": 20}, {}),
        ({"n_groups": 2}, {"channels": 3}),
        ({"n_groups": 1, "advantage": "outcome"}, {"in_dict": True, "policy": "MultiInputPolicy"}),
    ],
)
def test_learns_the_same_as_from_whole_observations(size: dict[str, Any], kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_once = train(**kind, **size)
    assert stored_once.batch is not None
    images = stored_once.batch.observations
    images = images["image"] if isinstance(images, dict) else images
    planes, rows = len(images.planes), len(images.index)  # type: ignore[union-attr]
    channels = kind.get("channels", 1)
    lengths = stored_once.batch.lengths.flatten()
    # The others are under way; with whole groups, those of later ones, which may be short
    n_episodes = len(lengths) + max(rows - int(lengths.sum()), 6)
    assert channels * rows <= planes <= channels * (rows + 3 * n_episodes), "frames are not stored once"

    monkeypatch.setattr(FrameStore, "is_for", staticmethod(lambda space: False))
    whole = train(**kind, **size)
    assert isinstance(whole.batch.observations, th.Tensor) or "in_dict" in kind  # type: ignore[union-attr]
    ours, theirs = (observations_of(model.batch) for model in (stored_once, whole))
    ours, theirs = (each["image"] if isinstance(each, dict) else each for each in (ours, theirs))
    assert th.equal(ours, theirs)
    for mine, other in zip(stored_once.policy.parameters(), whole.policy.parameters(), strict=True):
        assert th.equal(mine, other)


def test_rows_of_any_kind_are_what_was_stored() -> None:
    generator = np.random.default_rng(0)
    store = FrameStore(spaces.Box(0, 255, (4, SIDE, SIDE), np.uint8), n_envs=3)
    store.grow(1000)
    frames = [[*generator.integers(0, 255, (4, SIDE, SIDE), dtype=np.uint8)] for _ in range(3)]
    rows: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    for step in range(60):
        # Episodes jump, stand still, and one copy has no work now and then
        for each in frames:
            new = generator.integers(0, 255, (int(generator.integers(0, 6)), SIDE, SIDE), dtype=np.uint8)
            each += [*new] if step % 7 == 0 else [*new[:1]]
        images = np.stack([np.stack(each[-4:]) for each in frames])
        # As VecTransposeImage hands them on: not contiguous
        batch = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        wanted.append(generator.random(3) < 0.8)
        store.add(len(rows), batch, wanted[-1])
        rows.append(images)
        if step in (25, 45):
            store.keep(13, len(rows))
            rows, wanted = rows[13:], wanted[13:]
    stored = np.flatnonzero(np.stack(wanted))
    expected = np.stack(rows).reshape(-1, 4, SIDE, SIDE)
    assert len(stored) > 50
    stacked = store.images(len(rows), th.device("cpu"))
    assert (stacked.index_select(0, th.as_tensor(stored)).numpy() == expected[stored]).all()
