"""Atari games given by their ids, and what is said of those that cannot be learned as they are."""

import functools
import threading
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper, EpisodicLifeEnv, MaxAndSkipEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from sb3_grpo import DAPO, GRPO, SeedStart, make_atari_group_env, make_group_env

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

SMALL: dict[str, Any] = {"device": "cpu", "seed": 0}


def pong(**env_kwargs: Any) -> VecEnv:
    return make_group_env("ALE/Pong-v5", n_envs=1, env_kwargs=env_kwargs)


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "ale_py:ALE/Pong-v5"])
def test_a_game_given_by_its_id_is_preprocessed(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = DAPO("CnnPolicy", env_id, **SMALL).get_env()
    assert env is not None and env.num_envs == 16
    assert env.observation_space.shape == (4, 84, 84)
    assert env.env_is_wrapped(MaxAndSkipEnv) == [True] * 16
    assert env.get_attr("_frameskip") == [1] * 16, "frames are skipped once"
    assert env.env_is_wrapped(EpisodicLifeEnv) == [True] * 16, "a member of a group is a life"


def test_an_action_lasts_four_frames() -> None:
    env = make_atari_group_env("ALE/Pong-v5", n_envs=1, seed=0, wrapper_kwargs={"noop_max": 0})
    env.reset()
    before = env.step(np.array([0]))[3][0]["episode_frame_number"]
    assert env.step(np.array([0]))[3][0]["episode_frame_number"] == before + 4


def test_games_given_by_their_ids_start_exactly_alike() -> None:
    env = make_atari_group_env("ALE/Breakout-v5", n_envs=2, vec_env_cls=SubprocVecEnv)
    for copy in range(2):
        env.env_method("queue_start", 7, SeedStart(5), noise_seed=3, indices=copy)
    assert (env.reset() > 0).any()
    for action in [1, 2, 2, 0, 3, 3, 3, 1] * 3:
        observations, rewards, _, _ = env.step(np.array([action, action]))
        assert (observations[0] == observations[1]).all() and rewards[0] == rewards[1]
    env.close()


@pytest.mark.filterwarnings("ignore:No update at")
@pytest.mark.parametrize(
    ("start_sampler", "vec_env_cls"), [(None, SubprocVecEnv), (lambda rng: SeedStart(int(rng.integers(100))), DummyVecEnv)]
)
def test_members_of_a_group_play_the_same_life_and_groups_reach_all_lives(start_sampler: Any, vec_env_cls: Any) -> None:
    lives: dict[int, list[int]] = {}
    games: list[float] = []

    def note(local_variables: dict[str, Any], _: dict[str, Any]) -> bool:
        for idx in local_variables["dones"].nonzero()[0]:
            info = local_variables["infos"][idx]
            if "group" in info:
                lives.setdefault(info["group"], []).append(info["lives"])
                games.extend([info["episode"]["r"]] if "episode" in info else [])
                assert "next_life" not in info, "it is large, and has been used"
        return True

    # Scores are those of the game. That the first observations of all members are equal is checked by GRPO itself
    env = make_atari_group_env(
        "BreakoutNoFrameskip-v4", 2, seed=0, wrapper_kwargs={"clip_reward": False}, vec_env_cls=vec_env_cls
    )
    model = GRPO("CnnPolicy", env, start_sampler=start_sampler, group_size=2, n_steps=128, n_epochs=1, **SMALL)
    model.learn(1536, callback=note)
    env.close()
    whole = [left for left in lives.values() if len(left) == 2]
    assert all(first == second for first, second in whole)
    assert {left for left, _ in whole} == {0, 1, 2, 3, 4}
    n_over = sum(left == [0, 0] for left in whole)
    assert 1 <= len(games) <= n_over + 2, "a game is reported once, by its first members"
    assert [info["r"] for info in model.ep_info_buffer or ()] == games


class OneArray(gym.ObservationWrapper):
    """All observations are the same array."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._array = np.zeros(env.observation_space.shape or (), np.uint8)

    def observation(self, observation: Any) -> Any:
        self._array[:] = observation
        return self._array


def breakout_lives(n_envs: int, *more: Any) -> list[Any]:
    def wrapped(env: gym.Env) -> gym.Env:
        return functools.reduce(lambda inner, wrapper: wrapper(inner), more, AtariWrapper(env, clip_reward=False))

    return make_group_env("BreakoutNoFrameskip-v4", n_envs, seed=0, wrapper_class=wrapped).unwrapped.envs  # type: ignore[attr-defined]


def play_a_life(queue: Any) -> tuple[float, Any, dict[str, Any]]:
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, is_over, _, info = queue.step(queue.action_space.sample())
        total += reward
    return total, observation, info


def test_a_life_that_others_play_begins_as_if_the_game_went_on() -> None:
    queue, other = breakout_lives(2, OneArray)
    queue.queue_start(0, SeedStart(3), group=0, member=0)
    queue.reset()
    _, last, info = play_a_life(queue)
    before = last.copy()
    first = queue.reset()[0].copy()
    assert (last == before).all() and not (last == first).all(), "the last observation is not that of the next episode"
    other.queue_start(1, info["next_life"], group=1, member=0)
    assert (other.reset()[0] == first).all()
    assert queue.unwrapped.ale.lives() == other.unwrapped.ale.lives() == 4
    for action in [2, 2, 0, 3, 3, 3, 1] * 3:
        for expected, found in zip(queue.step(action)[:4], other.step(action)[:4], strict=True):
            assert np.array_equal(expected, found)
    # Only the lives of first members have next ones
    queue.queue_start(2, SeedStart(3), group=2, member=1)
    queue.reset()
    assert "next_life" not in play_a_life(queue)[2]


def test_what_monitor_reports_is_the_score_of_the_game_whoever_has_played_its_lives() -> None:
    copies = breakout_lives(2)
    start: Any = SeedStart(3)
    total, n_lives = 0.0, 0
    while start is not None:
        playing = copies[n_lives % 2]
        playing.queue_start(n_lives, start, group=n_lives, member=0)
        playing.reset()
        score, _, info = play_a_life(playing)
        total, n_lives, start = total + score, n_lives + 1, info.get("next_life")
    assert n_lives == 5 and info["episode"]["r"] == total > 0


class Locked(gym.Wrapper):
    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.lock = threading.Lock()


def test_that_groups_see_only_first_lives_is_said() -> None:
    (queue,) = breakout_lives(1, Locked)
    queue.queue_start(0, SeedStart(3), group=0, member=0)
    queue.reset()
    with pytest.warns(UserWarning, match="only the first life of each game.*lock.*unrelated_starts=True"):
        assert "next_life" not in play_a_life(queue)[2]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: pong(), r"the frames are \(3, 210, 160\)"),
        (lambda: pong(obs_type="grayscale"), "too large"),
        (lambda: make_group_env("PongNoFrameskip-v4", 1, wrapper_class=AtariWrapper), "one frame does not show"),
        (lambda: VecFrameStack(make_group_env("ALE/Pong-v5", 1, wrapper_class=AtariWrapper), 4), r"twice.*frameskip=4"),
    ],
)
def test_what_cannot_be_learned_is_said_with_what_to_write(env: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=rf"(?s){message}.*sb3_grpo\.make_atari_group_env\('\S*Pong"):
        GRPO("MlpPolicy" if "large" in message else "CnnPolicy", env(), device="cpu")


def test_pixels_are_not_for_an_mlp_policy() -> None:
    with pytest.warns(UserWarning, match=r'28,224 entries of an image.*Write "CnnPolicy"'):
        GRPO("MlpPolicy", "ALE/Pong-v5", **SMALL)


def test_other_observations_of_a_game_stay_as_they_are() -> None:
    ram = make_group_env("ALE/Pong-v5", n_envs=1, env_kwargs={"obs_type": "ram"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GRPO("MlpPolicy", ram, device="cpu").observation_space.shape == (128,)
        model = GRPO("CnnPolicy", make_atari_group_env("PongNoFrameskip-v4", 1), device="cpu")
        GRPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu")
    with pytest.raises(ValueError, match=r"write env=make_atari_group_env\('PongNoFrameskip-v4', n_envs=...\)"):
        model.set_env("PongNoFrameskip-v4")  # type: ignore[arg-type]
