import importlib
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("minatar")

from gymnasium.utils.env_checker import check_env

from sb3_grpo.console import UsageError, find_env

GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
BREAKOUT = "MinAtar/Breakout-v1"


def make(env_id: str, **kwargs: Any) -> gym.Env:
    return gym.make(find_env(env_id).id, **kwargs)


@pytest.mark.filterwarnings("ignore:.*not within the expected range")
@pytest.mark.parametrize("game", GAMES)
def test_games_are_environments_with_pictures(game: str) -> None:
    env = make(f"MinAtar/{game}-v1", render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=0)
    for _ in range(10):
        env.step(env.action_space.sample())
    picture = env.render()
    assert isinstance(picture, np.ndarray) and picture.shape == (160, 160, 3) and picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 2
    # All six actions have a number there, as in the package
    assert make(f"MinAtar/{game}-v0").action_space == gym.spaces.Discrete(6)


def test_seed_determines_what_sticky_actions_do() -> None:
    """The package remembers the last action of the episode before."""
    always = {"sticky_action_prob": 1.0}
    rewards = []
    for action in (1, 2):
        env = make(BREAKOUT, **always)
        env.reset(seed=0)
        env.unwrapped.game.last_action = action  # type: ignore[attr-defined]
        observation, _ = env.reset(seed=0)
        rewards.append(env.step(0)[0])
    assert np.array_equal(*rewards) and observation.any()


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    monkeypatch.delitem(sys.modules, "sb3_grpo.envs.minatar", raising=False)
    with pytest.raises(UsageError, match=r'MinAtar/Breakout-v1 needs packages.*pip install "sb3-grpo\[minatar\]"'):
        find_env(BREAKOUT)
    with pytest.raises(ImportError, match=r"sb3-grpo\[minatar\]"):
        importlib.import_module("sb3_grpo.envs.minatar")
