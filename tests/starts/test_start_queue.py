import pickle
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor, VecNormalize
from toy_envs import actions_for, roll, same

from sb3_grpo.starts.group_env import capture_starts, ensure_start_queues, make_group_env
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, StartMismatchError

pytestmark = pytest.mark.filterwarnings("ignore")


def first_of(seed: int, env_id: str = "CartPole-v1") -> np.ndarray:
    return gym.make(env_id).reset(seed=seed)[0]


def tickets_of(vec: VecEnv) -> list[Any]:
    return [info.get("group_start") for info in vec.unwrapped.reset_infos]


class SameInfo(gym.Wrapper):
    """Returns the same info object at every reset."""

    info = {"key": 1}  # noqa: RUF012

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**kwargs)[0], self.info


def test_ordinary_resets_are_unchanged() -> None:
    env, bare = StartQueue(SameInfo(gym.make("CartPole-v1"))), gym.make("CartPole-v1")
    for seed, options in ((3, None), (None, None), (4, {"low": 0.01, "high": 0.02})):
        observation, info = env.reset(seed=seed, options=options)
        assert same(observation, bare.reset(seed=seed, options=options)[0])
        assert info is SameInfo.info and info == {"key": 1}
        assert same(roll(env, [0, 1]), roll(bare, [0, 1]))


def test_queued_starts_come_in_order() -> None:
    env = StartQueue(SameInfo(gym.make("CartPole-v1")))
    env.reset(seed=0)
    for ticket, seed in ((7, 1), (8, 2), (8, 2)):
        env.queue_start(ticket, SeedStart(seed))
    for ticket, seed in ((7, 1), (8, 2)):
        observation, info = env.reset(seed=99)
        assert same(observation, first_of(seed))
        assert info.keys() == {"key", "group_start"}
        assert info["group_start"] == ticket
        assert same(env.first_observation, observation)
        assert env.first_observation is not observation
    env.clear_starts()
    observation, info = env.reset(seed=5)
    assert same(observation, first_of(5)) and info is SameInfo.info


def test_shared_queue() -> None:
    vec = make_group_env("CartPole-v1", n_envs=3)
    shared: deque[Any] = deque()
    vec.set_attr("queue", shared)
    for ticket in range(4):
        vec.env_method("queue_start", ticket, SeedStart(ticket), indices=0)
    assert same(vec.reset(), np.stack([first_of(seed) for seed in range(3)]))
    assert tickets_of(vec) == [0, 1, 2] and len(shared) == 1
    vec.env_method("clear_starts", indices=2)
    assert not shared


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_starts_land_through_auto_reset(vec_env_cls: Any) -> None:
    vec = VecMonitor(make_group_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=vec_env_cls))
    ensure_start_queues(vec)
    vec.reset()
    for _ in range(5):
        vec.step(np.array([0, 1]))
    middle = capture_starts(vec)[1]
    assert isinstance(middle, SnapshotStart)
    for index in range(2):
        vec.env_method("queue_start", 10 + index, middle, indices=index)
        vec.env_method("queue_start", 20 + index, SeedStart(6), indices=index)
    episodes: dict[int, list[Any]] = {}
    ended = set()
    for _ in range(60):
        # The same actions after the start in both copies, although they begin at different times
        before = tickets_of(vec)
        actions = np.array([len(episodes.get(ticket or 0, ())) % 4 == 3 for ticket in before], dtype=int)
        observations: Any
        observations, rewards, dones, infos = vec.step(actions)
        after = tickets_of(vec)
        for i in range(2):
            last = infos[i]["terminal_observation"] if dones[i] else observations[i]
            if before[i] is not None:
                episodes[before[i]].append((last, rewards[i], dones[i], dones[i] and infos[i]["episode"]["l"]))
            if dones[i]:
                ended.add(before[i])
                if after[i] is not None:
                    episodes[after[i]] = []
                    assert same(vec.get_attr("first_observation", indices=i)[0], observations[i])
                    expected = middle.observation if after[i] < 20 else first_of(6)
                    assert same(observations[i], expected)
    assert {10, 11, 20, 21} <= ended
    assert same(episodes[10], episodes[11]) and same(episodes[20], episodes[21])
    vec.close()


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3"])
def test_replayed_snapshots_of_any_origin(env_id: str) -> None:
    pytest.importorskip("Box2D")
    env, other = StartQueue(Monitor(gym.make(env_id))), StartQueue(Monitor(gym.make(env_id)))
    for origin in ("first reset", "later reset", "seeded reset", "seed start", "snapshot with noise"):
        if origin == "seed start":
            env.queue_start(0, SeedStart(3))
        elif origin == "snapshot with noise":
            env.queue_start(0, env.capture_start(), noise_seed=5)
        env.reset(seed=2 if origin == "seeded reset" else None)
        roll(env, actions_for(env, 15, 1))
        snapshot = env.capture_start()
        actions = actions_for(env, 25, 2)
        expected = roll(env, actions)
        for copy in (other, env):
            copy.queue_start(0, snapshot)
            assert same(copy.reset()[0], snapshot.observation), origin
            assert same(roll(copy, actions), expected), origin
        if origin == "seed start":
            env.queue_start(0, snapshot)
            env.reset()


@pytest.mark.parametrize("origin", ["ordinary reset", "seed"])
def test_episode_in_many_pieces_is_replayed(origin: str) -> None:
    """Each piece begins in a snapshot of the one before, with noise of its own or without: no deeper than one piece."""
    pytest.importorskip("Box2D")
    env, other = (StartQueue(Monitor(gym.make("LunarLander-v3", enable_wind=True))) for _ in range(2))
    if origin == "seed":
        env.queue_start(0, SeedStart(3), noise_seed=4)
    env.reset(seed=1)
    snapshot = env.capture_start()
    played: list[tuple[int | None, int]] = [(4 if origin == "seed" else None, 0)]
    for piece in range(60):
        noise_seed = None if piece % 3 == 0 else piece
        env.queue_start(piece, snapshot, noise_seed=noise_seed)
        env.reset()
        n_steps = 1 if piece % 5 == 0 else 0
        if n_steps:
            # The main engine, whose thrust is noisy
            assert not env.step(2)[2]
        played.append((noise_seed, n_steps))
        snapshot = env.capture_start()
    assert [(piece.noise_seed, len(piece.actions)) for piece in snapshot.replay.pieces] == played
    actions = actions_for(env, 25, 2)
    expected = roll(env, actions)
    other.queue_start(0, pickle.loads(pickle.dumps(snapshot)))
    assert same(other.reset()[0], snapshot.observation)
    assert same(roll(other, actions), expected)


def test_nothing_to_capture() -> None:
    env = StartQueue(gym.make("CartPole-v1"))
    with pytest.raises(gym.error.ResetNeeded):
        env.capture_start()
    env.reset(seed=1)
    env.capture_start()
    assert roll(env, [0] * 100)[-1][2]
    with pytest.raises(ValueError, match="the episode has ended"):
        env.capture_start()
    env.reset()
    env.capture_start()


def test_capture_does_not_follow_the_episode() -> None:
    env = StartQueue(gym.make("CartPole-v1"))
    first, _ = env.reset(seed=1)
    snapshot = env.capture_start()
    first[:] = 0
    for _ in range(2):
        env.queue_start(0, snapshot)
        observation, _ = env.reset()
        assert same(observation, first_of(1))
        observation[:] = 0


def test_failed_start_leaves_nothing_to_capture() -> None:
    env, other = StartQueue(gym.make("CartPole-v1")), StartQueue(gym.make("Acrobot-v1"))
    other.reset()
    env.queue_start(1, SeedStart(0))
    env.queue_start(2, other.capture_start())
    env.reset()
    with pytest.raises(StartMismatchError):
        env.reset()
    with pytest.raises(gym.error.ResetNeeded):
        env.capture_start()


def dummy(*wrappers: Any, n_envs: int = 2) -> DummyVecEnv:
    def build() -> gym.Env:
        env = gym.make("CartPole-v1")
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return DummyVecEnv([build] * n_envs)


def test_dummy_vec_env_is_wrapped_in_place() -> None:
    inner = dummy(Monitor)
    vec: VecEnv = VecNormalize(inner)
    ensure_start_queues(vec)
    ensure_start_queues(vec)
    assert [str(env).count("StartQueue") for env in inner.envs] == [1, 1]
    vec.env_method("queue_start", 1, SeedStart(4), indices=1)
    vec.reset()
    assert same(inner.buf_obs[None][1], first_of(4))  # type: ignore[index]
    ensure_start_queues(dummy(Monitor, StartQueue))


@pytest.mark.parametrize(("wrapper", "message"), [(None, "have no StartQueue.*make_group_env"), (StartQueue, "outermost")])
def test_start_queues_in_other_processes(wrapper: Any, message: str) -> None:
    def build() -> gym.Env:
        env = gym.make("CartPole-v1")
        return env if wrapper is None else Monitor(wrapper(env))

    vec = SubprocVecEnv([build])
    with pytest.raises(ValueError, match=message):
        ensure_start_queues(vec)
    vec.close()


def test_capture_starts() -> None:
    vec = VecNormalize(make_group_env("CartPole-v1", n_envs=3))
    vec.env_method("queue_start", 0, SeedStart(4), indices=2)
    vec.reset()
    assert [same(start.observation, first_of(4)) for start in capture_starts(vec, [2, 0])] == [True, False]
    assert len(capture_starts(vec)) == 3
    with pytest.raises(ValueError, match="have no StartQueue"):
        capture_starts(dummy(Monitor))
