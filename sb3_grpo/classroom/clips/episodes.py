"""Plays episodes to show them: as a few small images, or as questions and answers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from PIL import Image
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.common.sampling import renew_noise

# Number of images of consecutive steps at the beginning, and maximum number of evenly spaced ones from the whole episode
HEAD, BODY = 16, 48
# Maximum number of steps to play
MAX_STEPS = 1000
# Pixels of the longer side
SIZE = 240
# Number of questions to show, and maximum number of characters of a text
N_EXCHANGES, MAX_TEXT = 5, 500


class NoClipError(Exception):
    """The reason why there is nothing to show."""


class Shot(NamedTuple):
    """
    An image of an episode.

    :param step: number of steps so far
    :param total: return so far
    :param picture: the image
    """

    step: int
    total: float
    picture: Image.Image


@dataclass
class Episode:
    """
    An episode in images.

    :param shots: the images in order: the first steps, then evenly spaced ones, then the last
    :param stride: number of steps between evenly spaced images, a power of two
    :param ended: whether the episode ended within ``MAX_STEPS``
    """

    shots: list[Shot]
    stride: int
    ended: bool

    @property
    def length(self) -> int:
        """Number of steps played."""
        return self.shots[-1].step

    @property
    def total(self) -> float:
        """The return of these steps."""
        return self.shots[-1].total

    def at(self, step: int) -> Shot:
        """
        :param step: any step
        :return: the latest image at this step
        """
        return next(shot for shot in reversed(self.shots) if shot.step <= step)


class Reply(NamedTuple):
    """
    An agent's answer to a question.

    :param question: the question
    :param answer: the agent's answer
    :param reward: reward of the answer
    """

    question: str
    answer: str
    reward: float


class _Camera(gym.Wrapper):
    """
    Takes images before a ``DummyVecEnv`` resets the environment at the end of an episode.

    :param env: an environment
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.is_on = self.is_over = False
        self.picture: Image.Image | None = None
        self.monitor = next((each for each in _layers(env) if isinstance(each, Monitor)), None)
        self._total = 0.0
        # Gymnasium's MuJoCo environments have a camera that follows the agent, but by default use one that it runs away from
        with suppress(AttributeError, KeyError):
            env.unwrapped.mujoco_renderer.camera_id = env.unwrapped.model.camera("track").id  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play a step, and take an image if it is wanted or the last of the episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total = self._sum(self._total + float(reward))
        info["clip_total"] = self._total
        # With Atari's EpisodicLifeEnv, an episode can end for the agent but go on for Monitor
        self.is_over = (terminated or truncated) and (self.monitor is None or "episode" in info)
        self.picture = self.take() if self.is_on or self.is_over else None
        return observation, reward, terminated, truncated, info

    def _sum(self, otherwise: float) -> float:
        # The environment's own rewards: wrappers outside of Monitor may clip rewards, or end an episode when a life is lost
        return otherwise if self.monitor is None else float(sum(self.monitor.rewards))

    def take(self) -> Image.Image:
        """
        :return: a small image of the current state
        """
        frame: Any = None
        with suppress(NotImplementedError):
            frame = self.env.render()
        if isinstance(frame, np.ndarray) and (frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype.kind not in "iu"):
            raise NoClipError(
                f"render() returns {frame.dtype} of shape {frame.shape} with render_mode rgb_array, which is uint8 of shape "
                "(height, width, 3)"
            )
        if not isinstance(frame, np.ndarray):
            modes = ", ".join(self.env.metadata.get("render_modes") or ["none"])
            raise NoClipError(f"the environment draws no pictures (its render modes: {modes})")
        picture = Image.fromarray(np.ascontiguousarray(frame, np.uint8))
        scale = SIZE / max(picture.size)
        if scale < 1.0:
            size = (max(1, round(scale * picture.width)), max(1, round(scale * picture.height)))
            picture = picture.resize(size, Image.Resampling.BOX)
        return picture


def _layers(env: gym.Env) -> list[gym.Env]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _single(env: VecEnv) -> DummyVecEnv:
    inner = env.unwrapped
    if not isinstance(inner, DummyVecEnv):
        raise NoClipError(f"pictures are taken in this process, and not in that of a {type(inner).__name__}")
    return inner


def play_episode(model: BaseAlgorithm, make_env: Callable[[], VecEnv], seed: int) -> Episode:
    """
    Play an episode with sampled actions, as in training: once to find its length, and once to take images, which is the slow
    part. (With the most likely actions, even an untrained agent may balance CartPole's pole.)

    :param model: the agent
    :param make_env: creates an environment that can be rendered. It is called twice, as a used one may continue its game
    :param seed: seed of the episode
    :return: the episode
    """
    stride = _stride(_play(model, make_env(), seed, lambda step: False))
    episode = _play(model, make_env(), seed, lambda step: _is_shown(step, stride))
    # An environment that ignores the seed may play a longer one the second time
    stride = max(stride, _stride(episode))
    shots = [shot for shot in episode.shots if _is_shown(shot.step, stride) or shot.step == episode.length]
    return Episode(shots, stride, episode.ended)


def _stride(episode: Episode) -> int:
    stride = 1
    while episode.length > BODY * stride:
        stride *= 2
    return stride


def _is_shown(step: int, stride: int) -> bool:
    return step < HEAD or step % stride == 0


def _play(model: BaseAlgorithm, env: VecEnv, seed: int, is_shown: Callable[[int], bool]) -> Episode:
    """
    :param model: the agent
    :param env: its environment (a single copy), which is closed
    :param seed: seed of the episode
    :param is_shown: whether to take an image after this number of steps, besides the first and the last
    :return: the episode
    """
    try:
        inner = _single(env)
        camera = inner.envs[0] = _Camera(inner.envs[0])
        env.seed(seed)
        set_random_seed(seed)
        observation = env.reset()
        state, begins = None, np.ones(1, bool)
        shots = [Shot(0, 0.0, camera.take())]
        for step in range(1, MAX_STEPS + 1):
            renew_noise(model, step - 1, 1)
            action, state = model.predict(observation, state, begins)  # type: ignore[arg-type]
            camera.is_on = step == MAX_STEPS or is_shown(step)
            observation, _, begins, infos = env.step(action)
            if camera.picture is not None:
                shots.append(Shot(step, infos[0]["clip_total"], camera.picture))
            if camera.is_over:
                break
        return Episode(shots, 1, camera.is_over)
    finally:
        env.close()


def play_texts(model: BaseAlgorithm, env: VecEnv, seed: int) -> list[Reply]:
    """
    Answer questions with the most likely tokens.

    :param model: the agent
    :param env: its text environment (a single copy), which is closed
    :param seed: seed of the questions
    :return: the questions and answers
    """
    replies: list[Reply] = []
    try:
        env.seed(seed)
        observation = env.reset()
        for _ in range(N_EXCHANGES * MAX_STEPS):
            action, _ = model.predict(observation, deterministic=True)  # type: ignore[arg-type]
            observation, rewards, dones, infos = env.step(action)
            if dones[0]:
                said = infos[0].get("messages", [])
                if len(said) % 2 == 0:
                    # Only complete answers, and the replies to them, are messages
                    said = [*said, infos[0]["answer"]]
                replies.append(Reply(infos[0]["prompt"][:MAX_TEXT], "\n".join(said)[:MAX_TEXT], round(float(rewards[0]), 4)))
                if len(replies) == N_EXCHANGES:
                    break
    finally:
        env.close()
    return replies
