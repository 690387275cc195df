"""Moving pictures of agents: what they show, how large they are, and what stands in their place."""

import io
import json
import os
from collections.abc import Callable
from itertools import cycle
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

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.classroom.clips.episodes import Episode, NoClipError, Shot, play_texts
from sb3_grpo.classroom.clips.pictures import one_picture, separate_pictures, timeline
from sb3_grpo.classroom.clips.recording import Exchanges, Pair, leave_clip, record, untrained
from sb3_grpo.classroom.clips.stored import load_played, save_played
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.starts.atari import make_env_of


def maker(env_id: str) -> Callable[[str | None], VecEnv]:
    return lambda render_mode: make_env_of(env_id, 1, None, render_mode)


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def frame(content: bytes, number: int) -> np.ndarray:
    picture = opened(content)
    picture.seek(number)
    return np.asarray(picture.convert("RGB"), int)


def episode(length: int, stride: int, side: int = 60, noise: bool = False, total: float = 1.0) -> Episode:
    """Pictures whose grey is their step, or noise that no file makes smaller."""
    rng = np.random.default_rng(0)
    shots = []
    for step in sorted({*range(min(16, length)), *range(0, length, stride), length}):
        pixels = rng.integers(0, 256, (side, side, 3), np.uint8) if noise else np.full((side, side, 3), step, np.uint8)
        shots.append(Shot(step, total * step, Image.fromarray(pixels)))
    return Episode(shots, stride, True)


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
    assert isinstance(played, Pair)
    before, after = (np.asarray(each.shots[0].picture) for each in played)
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
    assert played.trained.length == length == played.trained.total and played.trained.ended
    # The last picture is of the end of the episode, and not of the next one's beginning
    assert not np.array_equal(np.asarray(played.trained.shots[-1].picture), after)
    assert played.untrained.length != played.trained.length


def test_minatar_is_shown_in_its_colours(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    env_id = "MinAtar/Breakout-v1"
    model = DAPO("MlpPolicy", make_group_env(f"sb3_grpo.envs.minatar:{env_id}", 2), n_steps=32, seed=0).learn(64)
    said = leave_clip(model, maker(f"sb3_grpo.envs.minatar:{env_id}"), 0, tmp_path, "DAPO")
    assert said.startswith(f"{tmp_path / 'clip.webp'}: untrained and trained from the same start, return ")
    colours = {tuple(pixel) for pixel in frame((tmp_path / "clip.webp").read_bytes(), 0)[30:150, 20:140].reshape(-1, 3)}
    assert any(max(colour) - min(colour) > 40 for colour in colours), "not grey"


def test_texts_are_left_as_text(tmp_path: Path) -> None:
    pairs = [("ab", "ba"), ("ca", "ac"), ("bc", "cb")]
    kwargs: dict[str, Any] = {"task": pairs, "max_answer_tokens": 4}
    env = VerifierTextVecEnv(16, **kwargs)
    model = GRPO("TokenPolicy", env, group_size=4, n_groups=4, gamma=1.0, advantage="outcome", seed=0)
    model.policy.pretrain(pairs, n_epochs=150)  # type: ignore[operator]
    model.learn(50)
    played = record(model, lambda mode: make_group_env("sb3_grpo:sb3_grpo/VerifierText-v0", 1, env_kwargs=kwargs), 3)
    assert isinstance(played, Exchanges)
    right = dict(pairs)
    assert [reply.question for reply in played.untrained] == [reply.question for reply in played.trained]
    assert all(reply.answer == right[reply.question] and reply.reward == 1.0 for reply in played.trained)
    assert not all(reply.reward == 1.0 for reply in played.untrained)
    said = leave_clip(
        model, lambda mode: make_group_env("sb3_grpo:sb3_grpo/VerifierText-v0", 1, env_kwargs=kwargs), 3, tmp_path, "GRPO"
    )
    assert "5 questions" in said and not (tmp_path / "clip.webp").exists()
    first = (tmp_path / "clip.txt").read_text().split("\n\n")[0].splitlines()
    question = played.trained[0].question
    assert first[0] == f"question: {question}" and first[1].startswith("untrained: ")
    assert first[2] == f"GRPO: {right[question]}   (reward 1)"


def test_all_turns_of_an_answer_without_an_end_are_shown() -> None:
    env = VerifierTextVecEnv(1, seed=0, task="guess_number", max_answer_tokens=4)
    eos = env.rules.tokenizer.eos_id
    tokens = cycle([*env.rules.tokenizer.encode("?"), eos, *env.rules.tokenizer.encode("44")])

    class Writer:
        def predict(self, observation: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
            return np.array([next(tokens)]), None

    assert {reply.answer for reply in play_texts(Writer(), env, 0)} == {"?\n?\n44"}  # type: ignore[arg-type]


def test_the_camera_follows_who_runs_away() -> None:
    pytest.importorskip("mujoco")

    class Runner(gym.Wrapper):
        """Three steps, each of them a hundred metres."""

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            state = self.env.unwrapped
            state.data.qpos[0] += 100.0  # type: ignore[attr-defined]
            self.n_steps += 1
            observation, reward, _, _, info = self.env.step(action)
            return observation, reward, self.n_steps == 3, False, info

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            self.n_steps = 0
            return self.env.reset(**kwargs)

    def make(render_mode: str | None) -> VecEnv:
        return make_group_env("HalfCheetah-v5", 1, wrapper_class=Runner, env_kwargs={"render_mode": render_mode})

    model = GRPO("MlpPolicy", make(None), n_steps=8, seed=0)
    try:
        played = record(model, make, 0)
    except NoClipError as error:
        pytest.skip(str(error))
    assert isinstance(played, Pair)
    for shot in played.trained.shots:
        # Skin among black, white and greenish tiles
        red, _green, blue = np.asarray(shot.picture, int).transpose(2, 0, 1)
        assert (red - blue > 40).sum() > 200, shot.step


class Film(gym.Env):
    """Pictures that are shown as they are seen."""

    length = 5
    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.render(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.render(), 0.5, self.time == self.length, False, {}

    def render(self) -> np.ndarray:
        return np.full((36, 36, 3), 3 * self.time % 256, np.uint8)


def test_images_and_normalised_observations() -> None:
    def make(render_mode: str | None) -> VecEnv:
        return make_group_env(Film, 1, env_kwargs={"render_mode": render_mode})

    model = GRPO("CnnPolicy", make_group_env(Film, 2), n_steps=8, seed=0)
    played = record(model, make, 0)
    assert isinstance(played, Pair)
    for each in played:
        assert [shot.step for shot in each.shots] == [*range(6)] and each.total == 2.5
        assert [int(np.asarray(shot.picture).mean()) for shot in each.shots] == [0, 3, 6, 9, 12, 15]
    # Of a longer one, not every step, and always the last
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Film, "length", 69)
        long = record(model, make, 0)[1]
    assert isinstance(long, Episode) and long.stride == 2 and long.length == 69
    assert [shot.step for shot in long.shots] == [*range(16), *range(16, 69, 2), 69]
    assert all(int(np.asarray(shot.picture).mean()) == 3 * shot.step for shot in long.shots)

    def normalised(render_mode: str | None) -> VecEnv:
        return VecNormalize(maker("CartPole-v1")(render_mode), training=False, norm_reward=False)

    env = VecNormalize(make_group_env("CartPole-v1", 2, seed=0))
    model = GRPO("MlpPolicy", env, n_steps=16, seed=0).learn(64)
    seen: list[VecEnv] = []

    def make_normalised(render_mode: str | None) -> VecEnv:
        seen.append(normalised(render_mode))
        return seen[-1]

    record(model, make_normalised, 0)
    # The untrained model without statistics, the trained one with its own
    counts = [each.obs_rms.count > 1 for each in seen]  # type: ignore[attr-defined]
    assert counts == [False, False, True, True]


class Lives(gym.Wrapper):
    """Ends an episode where a life ends, as ``EpisodicLifeEnv``, around Monitor: the game goes on."""

    over = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, self.over, truncated, info = self.env.step(action)
        return observation, reward, self.over or self.env.unwrapped.time % 30 == 7, truncated, info  # type: ignore[attr-defined]

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**kwargs) if self.over else (self.env.unwrapped.render(), {})


def test_a_lost_life_is_no_end_and_no_picture_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Film, "length", 384)

    def make(render_mode: str | None) -> VecEnv:
        return make_group_env(Film, 1, wrapper_class=Lives, env_kwargs={"render_mode": render_mode})

    played = record(PPO("CnnPolicy", make(None), n_steps=8, seed=0), make, 0)
    assert isinstance(played, Pair)
    for each in played:
        assert each.length == 384 and each.total == 192 and each.ended
        assert [shot.step for shot in each.shots] == [*range(16), *range(16, 385, 8)]
    # No more pictures than a report reads
    save_played(played, tmp_path)
    again = load_played(tmp_path)
    assert isinstance(again, Pair) and [len(each.shots) for each in again] == [63, 63]


class Heedless(Film):
    """A game of another length each time, whatever its seed is."""

    lengths = iter([8, 20, 400, 30, 2000])

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.length = next(self.lengths)


def test_a_game_that_is_longer_the_second_time_has_no_more_pictures(tmp_path: Path) -> None:
    def make(render_mode: str | None) -> VecEnv:
        return make_group_env(Heedless, 1, env_kwargs={"render_mode": render_mode})

    played = record(PPO("CnnPolicy", make(None), n_steps=8, seed=0), make, 0)
    assert isinstance(played, Pair)
    steps = [[shot.step for shot in each.shots] for each in played]
    assert steps == [[*range(16), *range(16, 401, 16)], [*range(16), *range(32, 1000, 32), 1000]]
    save_played(played, tmp_path)
    assert isinstance(load_played(tmp_path), Pair)


class Blind(gym.Env):
    """Draws nothing."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, True, False, {}

    def render(self) -> str:
        return "a text"


class NoMode(Blind):
    def __init__(self) -> None:
        super().__init__()


class NoRender(Blind):
    render = gym.Env.render


class Grey(Blind):
    def render(self) -> Any:
        return np.zeros((36, 36), np.uint8)


class Fractions(Blind):
    """From 0 to 1, which would be black as whole numbers."""

    def render(self) -> Any:
        return np.full((36, 36, 3), 0.5, np.float32)


class Broken(Blind):
    def render(self) -> Any:
        raise OSError("no GL\nin the driver")


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Blind, r"draws no pictures \(its render modes: ansi\)"),
        (NoMode, "render_mode"),
        (NoRender, "^the environment draws no pictures"),
        (Grey, r"returns uint8 of shape \(36, 36\) with render_mode rgb_array"),
        (Fractions, r"returns float32 of shape \(36, 36, 3\) with"),
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


def test_pictures_keep_the_same_pace() -> None:
    short, long = episode(9, 1), episode(200, 8)
    steps = timeline([short, long])
    # One by one until the first is over, then as the longer one was taken
    assert steps[:10] == [*range(10)] and steps[10:] == [*range(16, 201, 8)]
    # Of two long ones, that of the larger stride
    assert timeline([episode(100, 2), episode(200, 8)]) == [*range(0, 201, 8)]
    moving, still = separate_pictures([short, long], 300_000)
    numbers = [opened(each).n_frames for each in moving]
    durations = []
    for content, n_frames in zip(moving, numbers, strict=True):
        picture, total = opened(content), 0
        for number in range(n_frames):
            picture.seek(number)
            picture.load()
            total += picture.info["duration"]
        durations.append(total)
    assert durations[0] == durations[1] == (len(steps) - 1) * 100 + 1500
    assert [opened(each).n_frames for each in still] == [1, 1]
    # The last picture of the long one has its last grey, dimmed as an episode that is over
    assert abs(frame(still[1], 0)[20, 30].mean() - (0.65 * 200 + 0.35 * 128)) < 8


@pytest.mark.parametrize("limit", [300_000, 60_000, 5_000, 1_000])
def test_no_clip_is_larger_than_its_limit(limit: int) -> None:
    noisy = [episode(500, 16, side=240, noise=True), episode(500, 16, side=240, noise=True)]
    content = one_picture(noisy, ("untrained", "DAPO"), limit)
    assert 0 < len(content) <= limit and opened(content).format == "WEBP"
    moving, still = separate_pictures(noisy, limit)
    assert sum(map(len, [*moving, *still])) <= limit
    # No less than has to be
    assert len(content) > limit / 4


def test_small_clips_lose_nothing() -> None:
    plain = [episode(40, 1), episode(40, 1)]
    picture = opened(one_picture(plain, ("untrained", "DAPO")))
    assert picture.n_frames == 41 and picture.width == 2 * 60 + 6


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    pair = Pair(episode(9, 1), episode(200, 8, total=-0.5))
    save_played(pair, tmp_path)
    again = load_played(tmp_path)
    assert isinstance(again, Pair)
    for before, after in zip(pair, again, strict=True):
        assert (before.stride, before.ended) == (after.stride, after.ended)
        assert [shot[:2] for shot in before.shots] == [shot[:2] for shot in after.shots]
        for ours, theirs in zip(before.shots, after.shots, strict=True):
            assert np.abs(np.asarray(ours.picture, int) - np.asarray(theirs.picture, int)).max() <= 6
    assert load_played(tmp_path / "nothing") is None
    save_played("no renderer", tmp_path)
    assert load_played(tmp_path) == "no renderer"


@pytest.mark.parametrize(
    "change",
    [
        {"size": [240, 240]},
        {"size": [10**6, 1]},
        {"episodes": [{"steps": [*range(100)], "returns": [], "stride": 1, "ended": True}] * 2},
        {"episodes": [{"steps": [0], "returns": [float("nan")], "stride": 1, "ended": True}] * 2},
        {"episodes": "episodes"},
    ],
)
def test_files_of_others_are_only_data(change: dict[str, Any], tmp_path: Path) -> None:
    save_played(Pair(episode(9, 1), episode(9, 1)), tmp_path)
    path = tmp_path / "clip.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"clip\.(json|webp) is damaged, or was not written by compare"):
        load_played(tmp_path)


def test_a_clip_that_is_half_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    replace = os.replace
    for calls in ([killed], [replace, killed]):
        done = iter(calls)
        monkeypatch.setattr(os, "replace", lambda *names, done=done: next(done)(*names))
        with pytest.raises(Killed):
            save_played(Pair(episode(9, 1), episode(9, 1)), tmp_path)
        assert load_played(tmp_path) is None


def test_a_sheet_that_is_no_picture(tmp_path: Path) -> None:
    save_played(Pair(episode(9, 1), episode(9, 1)), tmp_path)
    (tmp_path / "clip.webp").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"clip\.webp is damaged"):
        load_played(tmp_path)
