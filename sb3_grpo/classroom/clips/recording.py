"""Shows the trained agent next to the untrained one, both playing from the same start."""

import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from sb3_grpo.classroom.clips.episodes import Episode, NoClipError, Reply, play_episode, play_texts
from sb3_grpo.classroom.clips.pictures import format_return, one_picture
from sb3_grpo.text.tokens import TokenSpace
from sb3_grpo.utils.files import replace_file

# Creates a single copy of the environment with this render_mode
MakeEnv = Callable[[str | None], VecEnv]


class Pair(NamedTuple):
    """
    Episodes of the untrained and the trained model.

    :param untrained: an episode of the model before training
    :param trained: an episode of the same model after training, from the same start
    """

    untrained: Episode
    trained: Episode


class Exchanges(NamedTuple):
    """
    Answers of the untrained and the trained model.

    :param untrained: answers of the model before training
    :param trained: answers of the same model after training, to the same questions
    """

    untrained: list[Reply]
    trained: list[Reply]


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


def record(model: BaseAlgorithm, make_env: MakeEnv, seed: int) -> Pair | Exchanges:
    """
    :param model: a trained model
    :param make_env: creates a single copy of its environment, without its statistics
    :param seed: seed of the episodes
    :return: episodes in images; for text environments, questions and answers
    :raises NoClipError: if they cannot be shown
    """
    try:
        with _headless(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = untrained(model)
            if isinstance(model.observation_space, TokenSpace):
                return Exchanges(*(play_texts(each, make_env(None), seed) for each in (fresh, model)))
            before = play_episode(fresh, lambda: make_env("rgb_array"), seed)
            return Pair(before, play_episode(model, lambda: _with_statistics(model, make_env("rgb_array")), seed))
    except NoClipError:
        raise
    except Exception as error:
        # Renderers and their dependencies raise all kinds of errors. None of them should cost a training
        raise NoClipError(reason(error)) from error


def _with_statistics(model: BaseAlgorithm, env: VecEnv) -> VecEnv:
    training_env = model.get_env()
    # Only with statistics, as the wrappers may differ otherwise: a model transposes images of its own environment
    if training_env is not None and model.get_vec_normalize_env() is not None:
        sync_envs_normalization(training_env, env)
    return env


def reason(error: Exception) -> str:
    """
    :param error: the error that was raised
    :return: the reason why there is no clip, in one line
    """
    said = " ".join(str(error).split())[:300]
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        return said
    return f"{type(error).__name__}: {said}"


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


def exchanges_text(exchanges: Exchanges, names: Sequence[str]) -> str:
    """
    :param exchanges: questions and answers
    :param names: names of the agents that answered
    :return: the questions and answers as text
    """
    blocks = []
    for before, after in zip(*exchanges, strict=False):
        lines = [f"question: {before.question}"]
        lines += [
            f"{name}: {each.answer}   (reward {each.reward:g})" for name, each in zip(names, (before, after), strict=True)
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def leave_clip(model: BaseAlgorithm, make_env: MakeEnv, seed: int, folder: Path, name: str) -> str:
    """
    Write ``clip.webp``, or ``clip.txt`` for a text environment.

    :param model: a trained model
    :param make_env: creates a single copy of its environment, without its statistics
    :param seed: seed of the episodes
    :param folder: folder of the model
    :param name: name of the trained model
    :return: where the clip is and what it shows, or why there is none
    """
    names = ("untrained", name)
    try:
        played = record(model, make_env, seed)
    except NoClipError as error:
        return f"none, {error}"
    path = folder / ("clip.txt" if isinstance(played, Exchanges) else "clip.webp")
    if isinstance(played, Exchanges):
        content = exchanges_text(played, names).encode()
        got = [sum(reply.reward for reply in replies) / len(replies) for replies in played if replies]
        said = " and ".join(f"{each:.2f}" for each in got)
        said = f"{len(played.trained)} questions, mean reward {said}"
    else:
        content = one_picture(played, names)
        said = f"from the same start, return {format_return(played[0].total)} and {format_return(played[1].total)}"
    try:
        with replace_file(path) as file:
            file.write(content)
    except OSError as error:
        return f"none, {error}"
    return f"{path}: untrained and trained {said}"
