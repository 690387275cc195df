"""Animations of agents: what they show, how large they are, and what is said if there is none."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from PIL import Image
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from toy_envs import ToyEnv

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.classroom.clips import Frame, NoClipError, leave_clip, record, side_by_side, untrained
from sb3_grpo.starts.atari import make_env_of


def maker(env_id: str) -> Callable[[str | None], VecEnv]:
    return lambda render_mode: make_env_of(env_id, 1, None, render_mode)


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def episode(steps: list[int], side: int = 60, noise: bool = False) -> list[Frame]:
    """Images whose grey is their step, or noise that no file makes smaller."""
    rng = np.random.default_rng(0)
    frames = []
    for step in steps:
        pixels = rng.integers(0, 256, (side, side, 3), np.uint8) if noise else np.full((side, side, 3), step, np.uint8)
        frames.append(Frame(step, float(step), Image.fromarray(pixels), step == steps[-1]))
    return frames


@pytest.fixture(scope="module")
def cartpole() -> DAPO:
    return DAPO("MlpPolicy", "CartPole-v1", seed=1).learn(4096)


@pytest.mark.parametrize("algorithm", [GRPO, DAPO, PPO, DQN])
def test_untrained_is_the_model_as_it_was_made(algorithm: type[BaseAlgorithm]) -> None:
    options: dict[str, Any] = {"learning_starts": 10} if algorithm is DQN else {"n_steps": 64}
    model = algorithm("MlpPolicy", "CartPole-v1", seed=5, **options)
    made = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(200)
    learned = {name: value.clone() for name, value in model.policy.state_dict().items()}
    fresh = untrained(model).policy.state_dict()
    assert all(th.equal(fresh[name], value) for name, value in made.items())
    # And the trained one is left alone
    assert all(th.equal(model.policy.state_dict()[name], value) for name, value in learned.items())
    assert any(not th.equal(fresh[name], value) for name, value in learned.items())


def test_both_play_from_the_same_start(cartpole: DAPO) -> None:
    played = record(cartpole, maker("CartPole-v1"), 7)
    before, after = (np.asarray(each[0].picture) for each in played)
    assert np.array_equal(before, after) and before.shape == (160, 240, 3) and before.min() < 100 < before.max()
    # What is shown is what happens from this seed: CartPole pays 1 for each step
    env = maker("CartPole-v1")("rgb_array")
    env.seed(7)
    set_random_seed(7)
    observation = env.reset()
    length, done = 0, False
    while not done:
        action, _ = cartpole.predict(observation)
        observation, _, dones, _ = env.step(action)
        length, done = length + 1, bool(dones[0])
    last = played[1][-1]
    assert last.step == length == last.total and last.is_over
    # The last picture is of the end of the episode, and not of the next one's beginning
    assert not np.array_equal(np.asarray(last.picture), after)
    assert played[0][-1].step != last.step


class Film(ToyEnv):
    """Its pictures show the time."""

    n_steps = 5
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(length=self.n_steps, reward=0.5)
        self.render_mode = render_mode

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((36, 36, 3), 3 * self.t % 256, np.uint8)


def test_images_and_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(render_mode: str | None) -> VecEnv:
        return make_group_env(Film, 1, env_kwargs={"render_mode": render_mode})

    model = GRPO("MlpPolicy", make_group_env(Film, 2), n_steps=8, seed=0)
    for frames in record(model, make, 0):
        assert [frame.step for frame in frames] == [*range(6)] and frames[-1].total == 2.5
        assert [int(np.asarray(frame.picture).mean()) for frame in frames] == [0, 3, 6, 9, 12, 15]
    # Of a longer one, not every step, and always the last
    monkeypatch.setattr(Film, "n_steps", 201)
    frames = record(model, make, 0)[1]
    assert [frame.step for frame in frames] == [*range(16), *range(16, 201, 4), 201]
    assert all(int(np.asarray(frame.picture).mean()) == 3 * frame.step % 256 for frame in frames)
    monkeypatch.setattr(Film, "n_steps", 2000)
    frames = record(model, make, 0)[1]
    assert frames[-1].step == 1000 and not frames[-1].is_over


def test_normalised_observations() -> None:
    model = GRPO("MlpPolicy", VecNormalize(make_group_env("CartPole-v1", 2, seed=0)), n_steps=16, seed=0).learn(64)
    seen: list[Any] = []

    def make(render_mode: str | None) -> VecEnv:
        seen.append(VecNormalize(maker("CartPole-v1")(render_mode), training=False, norm_reward=False))
        return seen[-1]

    record(model, make, 0)
    # The untrained model without statistics, the trained one with its own
    assert [each.obs_rms.count > 1 for each in seen] == [False, True]


class Blind(ToyEnv):
    """Draws nothing."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def render(self) -> str:
        return "a text"


class Broken(Blind):
    def render(self) -> Any:
        raise OSError("no GL\nin the driver")


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Blind, r"render\(\) returns no image of uint8, \(height, width, 3\) \(its render modes: ansi\)"),
        (Broken, "OSError: no GL in the driver$"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(cls: type[gym.Env], reason: str, tmp_path: Path) -> None:
    def make(render_mode: str | None) -> VecEnv:
        return make_group_env(cls, 1, env_kwargs=None if render_mode is None else {"render_mode": render_mode})

    model = GRPO("MlpPolicy", make_group_env(cls, 2), n_steps=8, seed=0)
    with pytest.raises(NoClipError, match=reason) as caught:
        record(model, make, 0)
    assert "\n" not in str(caught.value)
    assert leave_clip(model, make, 0, tmp_path, "GRPO") == f"none, {caught.value}"
    assert not [*tmp_path.iterdir()]


def test_text_wider_than_the_image_is_not_cut() -> None:
    ends = []
    for side in (20, 200):
        picture = opened(side_by_side([episode([0, 250], side)], ["dapo, group_size=16"]))
        assert picture.n_frames == 2
        picture.seek(1)
        pixels = np.asarray(picture.convert("L"), int)
        # The name, and the lines below the image
        ends.append([int(np.flatnonzero((rows > 150).any(0)).max()) for rows in (pixels[:19], pixels[19 + side :])])
    assert ends[0] == ends[1]


def test_both_are_shown_at_the_same_pace() -> None:
    short, long = (episode(steps, side=120) for steps in ([*range(10)], [*range(16), *range(16, 201, 8)]))
    picture = opened(side_by_side([short, long], ("untrained", "DAPO")))
    assert picture.width == 2 * 120 + 6 and picture.n_frames == len(long)
    picture.seek(picture.n_frames - 1)
    pixels = np.asarray(picture.convert("RGB"), int)
    # Each ends with its last grey, dimmed as an episode that is over
    for left, grey in ((60, 9), (186, 200)):
        assert abs(pixels[50, left].mean() - (0.65 * grey + 0.35 * 128)) < 8


@pytest.mark.parametrize("limit", [60_000, 40_000])
def test_no_clip_is_larger_than_its_limit(limit: int) -> None:
    noisy = episode([*range(16), *range(16, 200, 8)], noise=True)
    content = side_by_side([noisy, noisy], ("untrained", "DAPO"), limit)
    # No less than has to be
    assert limit / 4 < len(content) <= limit
    with pytest.raises(NoClipError, match="more than 100 bytes"):
        side_by_side([noisy, noisy], ("untrained", "DAPO"), 100)
