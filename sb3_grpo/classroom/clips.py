"""Animations of an agent before and after training, side by side: Gymnasium renders, and Pillow writes WebP."""

import copy
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, sync_envs_normalization

from sb3_grpo.common.acting import Actor
from sb3_grpo.utils.files import replace_file

# Maximum size of a file in bytes
MAX_BYTES = 300_000
# Maximum number of steps to play
MAX_STEPS = 1000
# Number of steps shown one by one, and maximum number of evenly spaced ones after them
_HEAD, _BODY = 16, 64
# Pixels of the longer side of an agent's image; the duration of an image and of the last one in milliseconds
_SIZE, _DURATION, _HOLD = 240, 100, 1500
_GAP, _LINE, _MARGIN, _FONT_SIZE = 6, 19, 4, 13
_WHITE, _BACKGROUND, _OVER = (255, 255, 255), (38, 41, 46), (128, 128, 128)

# Creates a single copy of the environment with this render_mode
MakeEnv = Callable[[str | None], VecEnv]


class NoClipError(Exception):
    """The reason why there is nothing to show."""


class Frame(NamedTuple):
    """
    An image of an episode.

    :param step: number of steps so far
    :param total: return so far
    :param picture: the image
    :param is_over: whether the episode has ended
    """

    step: int
    total: float
    picture: Image.Image
    is_over: bool


class _Camera(gym.Wrapper):
    """
    Takes images before a ``DummyVecEnv`` resets the environment at the end of an episode. Rewards and the end are those of
    ``Monitor``: other wrappers may clip rewards, or end an episode when a life is lost.

    :param env: an environment inside a ``DummyVecEnv``
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.frames: list[Frame] = []
        self._n_steps, self._stride = 0, 1
        # Gymnasium's MuJoCo environments have a camera that follows the agent, but by default use one that it runs away from
        with suppress(AttributeError, KeyError):
            env.unwrapped.mujoco_renderer.camera_id = env.unwrapped.model.camera("track").id  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play a step, and take an image if it is to be shown."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._n_steps += 1
        is_over = "episode" in info
        if is_over or self._n_steps == MAX_STEPS or self._is_shown(self._n_steps):
            self.take(is_over)
        return observation, reward, terminated, truncated, info

    def _is_shown(self, step: int) -> bool:
        return step < _HEAD or step % self._stride == 0

    def take(self, is_over: bool) -> None:
        """
        :param is_over: whether the episode has ended
        """
        frame: Any = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            modes = ", ".join(self.env.metadata.get("render_modes") or ["none"])
            raise NoClipError(f"render() returns no image of uint8, (height, width, 3) (its render modes: {modes})")
        picture = Image.fromarray(frame)
        picture.thumbnail((_SIZE, _SIZE), Image.Resampling.BOX)
        self.frames.append(Frame(self._n_steps, float(sum(self.get_wrapper_attr("rewards"))), picture, is_over))
        if len(self.frames) > _HEAD + _BODY and not is_over:
            self._stride *= 2
            self.frames = [each for each in self.frames if self._is_shown(each.step)]


def play(model: BaseAlgorithm, env: VecEnv, seed: int) -> list[Frame]:
    """
    Play an episode with sampled actions, as in training. (With the most likely actions, even an untrained agent may balance
    CartPole's pole.)

    :param model: the agent
    :param env: its environment (a single copy), which is closed
    :param seed: seed of the episode
    :return: images of it, the last one at its end or after ``MAX_STEPS``
    """
    try:
        inner = env.unwrapped
        if not isinstance(inner, DummyVecEnv):
            raise NoClipError(f"images are taken in this process, and not in that of a {type(inner).__name__}")
        camera = inner.envs[0] = _Camera(inner.envs[0])
        env.seed(seed)
        set_random_seed(seed)
        observation = env.reset()
        camera.take(is_over=False)
        actor, state, begins = Actor(model, env), None, np.ones(1, bool)
        for _ in range(MAX_STEPS):
            action, state = actor.predict(observation, state, begins)
            observation, _, begins, _ = env.step(action)
            if camera.frames[-1].is_over:
                break
        return camera.frames
    finally:
        env.close()


def untrained(model: BaseAlgorithm) -> BaseAlgorithm:
    """
    Recreate the untrained model. This seeds the global random generators.

    :param model: a trained model
    :return: the model before training, with the parameters that its seed gives
    """
    fresh = copy.copy(model)
    # It needs no environments, and with num_timesteps > 0 it would be seeded differently
    fresh.env, fresh.num_timesteps = None, 0
    fresh._setup_model()
    return fresh


def record(model: BaseAlgorithm, make_env: MakeEnv, seed: int) -> tuple[list[Frame], list[Frame]]:
    """
    :param model: a trained model
    :param make_env: creates a single copy of its environment, without its statistics
    :param seed: seed of the episodes
    :return: an episode before training, and one after it from the same start
    :raises NoClipError: if they cannot be shown
    """

    def trained_env() -> VecEnv:
        env, training_env = make_env("rgb_array"), model.get_env()
        # Only with statistics, as the wrappers may differ otherwise: a model transposes images of its own environment
        if training_env is not None and model.get_vec_normalize_env() is not None:
            sync_envs_normalization(training_env, env)
        return env

    try:
        with _headless(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return play(untrained(model), make_env("rgb_array"), seed), play(model, trained_env(), seed)
    except NoClipError:
        raise
    except Exception as error:
        # Renderers and their dependencies raise all kinds of errors. None of them should cost a training
        raise NoClipError(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


@contextmanager
def _headless() -> Iterator[None]:
    """Let renderers work without a display inside the ``with`` block, if there is none."""
    wanted = {"PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        wanted |= {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MUJOCO_GL": "egl"}
    # Keep variables that the user has set
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def format_return(total: float) -> str:
    """
    :param total: a return
    :return: the return with a readable number of digits
    """
    return f"{total:.0f}" if abs(total) >= 100 or total == int(total) else f"{total:.1f}"


def _lines(name: str, frame: Frame) -> tuple[str, str, str]:
    """
    :param name: name of the agent
    :param frame: an image of its episode
    :return: the line above the image, and the two below it
    """
    said = f"over after {frame.step}" if frame.is_over else f"step {frame.step}"
    return name, said, f"return {format_return(frame.total)}"


def _panel(name: str, frame: Frame, scale: float, width: int) -> Image.Image:
    """
    :param name: name of the agent
    :param frame: an image of its episode
    :param scale: scale of the image
    :param width: minimum width, for the text
    :return: the image with the name above, and step and return below it
    """
    picture = frame.picture.resize([max(8, round(scale * side)) for side in frame.picture.size])
    if frame.is_over:
        picture = Image.blend(picture, Image.new("RGB", picture.size, _OVER), 0.35)
    panel = Image.new("RGB", (max(picture.width, width), picture.height + 3 * _LINE), _BACKGROUND)
    panel.paste(picture, (0, _LINE))
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(_FONT_SIZE)
    for line, top in zip(_lines(name, frame), (0, picture.height + _LINE, panel.height - _LINE), strict=True):
        draw.text((_MARGIN, top + 2), line, _WHITE, font)
    return panel


def _encode(episodes: Sequence[list[Frame]], names: Sequence[str], steps: Sequence[int], scale: float) -> bytes:
    pictures = []
    font = ImageFont.load_default(_FONT_SIZE)
    # All images of an animation have the same size
    widths = [
        ceil(max(font.getlength(line) for frame in episode for line in _lines(name, frame))) + 2 * _MARGIN
        for name, episode in zip(names, episodes, strict=True)
    ]
    for step in steps:
        frames = [
            max((frame for frame in episode if frame.step <= step), key=lambda frame: frame.step) for episode in episodes
        ]
        panels = [_panel(name, frame, scale, width) for name, frame, width in zip(names, frames, widths, strict=True)]
        width = sum(panel.width + _GAP for panel in panels) - _GAP
        pictures.append(Image.new("RGB", (width, panels[0].height), _BACKGROUND))
        for index, panel in enumerate(panels):
            pictures[-1].paste(panel, (index * (panel.width + _GAP), 0))
    file = io.BytesIO()
    durations = [_DURATION] * (len(pictures) - 1) + [_HOLD]
    # WebP: a third of the bytes of a GIF with the same dimensions, and all colours
    options: dict[str, Any] = {"quality": 75, "method": 2, "allow_mixed": True, "duration": durations, "loop": 0}
    pictures[0].save(file, "WEBP", save_all=True, append_images=pictures[1:], **options)
    return file.getvalue()


def side_by_side(episodes: Sequence[list[Frame]], names: Sequence[str], limit: int = MAX_BYTES) -> bytes:
    """
    :param episodes: episodes from the same start
    :param names: names of the agents that play them
    :param limit: maximum size in bytes
    :return: a WebP file that shows them at the same pace, with fewer or smaller images if it would be too large
    """
    steps, scale = sorted({frame.step for episode in episodes for frame in episode}), 1.0
    while len(content := _encode(episodes, names, steps, scale)) > limit:
        if len(steps) > 2 * _HEAD:
            steps = sorted({*steps[::2], steps[-1]})
        elif scale > 0.1:
            scale *= 0.75
        else:
            raise NoClipError(f"it would have more than {limit:,} bytes")
    return content


def leave_clip(model: BaseAlgorithm, make_env: MakeEnv, seed: int, folder: Path, name: str, limit: int = MAX_BYTES) -> str:
    """
    Write ``clip.webp``.

    :param model: a trained model
    :param make_env: creates a single copy of its environment, without its statistics
    :param seed: seed of the episodes
    :param folder: folder of the model
    :param name: name of the trained model
    :param limit: maximum size in bytes
    :return: where the clip is and what it shows, or why there is none
    """
    path = folder / "clip.webp"
    try:
        episodes = record(model, make_env, seed)
        content = side_by_side(episodes, ("untrained", name), limit)
        with replace_file(path) as file:
            file.write(content)
    except (NoClipError, OSError) as error:
        return f"none, {error}"
    returns = " and ".join(format_return(episode[-1].total) for episode in episodes)
    return f"{path}: untrained and trained from the same start, return {returns}"
