import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from toy_envs import TINY, ToyEnv

from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.start_queue import StartQueue, capture_starts, ensure_start_queues, make_group_env
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, StartMismatchError, StartNotSupportedError

pytestmark = pytest.mark.filterwarnings("ignore")

FORK = {"start_method": "fork"}  # no second import of torch in every worker


def first_of(seed: int, env_id: str = "CartPole-v1") -> np.ndarray:
    return gym.make(env_id).reset(seed=seed)[0]


def same(a: Any, b: Any) -> bool:
    return data_equivalence(a, b, exact=True)


def roll(env: gym.Env, actions: list[Any]) -> list[Any]:
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, float(reward), terminated, truncated))
        if terminated or truncated:
            break
    return seen


def actions_for(env: gym.Env, n: int, seed: int = 0) -> list[Any]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(n)]


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


def test_ordinary_resets_with_replay_are_unchanged() -> None:
    pytest.importorskip("Box2D")
    env, bare = StartQueue(gym.make("LunarLander-v3")), gym.make("LunarLander-v3")
    for seed in (3, None, None, 4):
        assert same(env.reset(seed=seed)[0], bare.reset(seed=seed)[0])
        actions = actions_for(env, 30, seed or 0)
        assert same(roll(env, actions), roll(bare, actions))


class OldReset(gym.Env):
    """Its reset takes no options."""

    observation_space = gym.spaces.Discrete(1)
    action_space = gym.spaces.Discrete(1)

    def reset(self, *, seed: int | None = None) -> tuple[int, dict]:  # type: ignore[override]
        return 0, {}


def test_reset_without_options() -> None:
    env = StartQueue(Monitor(OldReset()))
    env.queue_start(1, SeedStart(0))
    assert env.reset()[1]["group_start"] == 1
    assert env.reset()[1] == {}


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
    kwargs = FORK if vec_env_cls is SubprocVecEnv else {}
    vec = VecMonitor(make_group_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=vec_env_cls, vec_env_kwargs=kwargs))
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
    for piece in range(200):
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


class HalvedInPlace(gym.Wrapper):
    """Changes the actions that it is given."""

    def step(self, action: Any) -> Any:
        action *= 0.5
        return self.env.step(action)


def test_recorded_actions_are_copies() -> None:
    pytest.importorskip("Box2D")
    env = StartQueue(HalvedInPlace(gym.make("LunarLander-v3", continuous=True)))
    env.reset(seed=1)
    action = np.zeros(2, np.float32)
    for value in (1.0, -1.0, 0.5):
        action[:] = value
        env.step(action)
    snapshot = env.capture_start()
    for _ in range(2):
        env.queue_start(0, snapshot)
        assert same(env.reset()[0], snapshot.observation)
    assert [each.tolist() for each in snapshot.replay.pieces[0].actions] == [[1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]]


class InfoOfNone(OldReset):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return 0, None


def test_reset_without_info() -> None:
    env = StartQueue(InfoOfNone())
    env.queue_start(1, SeedStart(0))
    assert env.reset()[1] == {"group_start": 1}
    assert env.reset()[1] == {}


def test_reset_works_where_replay_cannot_be_captured() -> None:
    pytest.importorskip("Box2D")
    wrapped = SameInfo(gym.make("LunarLander-v3"))
    wrapped.held = [lambda: 0]  # type: ignore[attr-defined]
    env = StartQueue(wrapped)
    assert same(env.reset(seed=1)[0], first_of(1, "LunarLander-v3"))
    with pytest.raises(StartNotSupportedError, match="'held' of SameInfo"):
        env.capture_start()


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


def test_spec_recreates_the_wrapper() -> None:
    env = StartQueue(gym.make("CartPole-v1"))
    assert env.spec is not None and env.spec.additional_wrappers[-1].name == "StartQueue"
    assert isinstance(gym.make(env.spec), StartQueue)


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


def test_start_queue_inside_is_refused() -> None:
    inner = dummy(StartQueue, Monitor)
    with pytest.raises(ValueError, match=r"outermost.*make_group_env"):
        ensure_start_queues(inner)


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


@pytest.fixture
def toy_id() -> Iterator[str]:
    """The id of an environment whose constructor has no ``render_mode``."""
    gym.register("Toy-v0", ToyEnv)
    yield "Toy-v0"
    del gym.registry["Toy-v0"]


def test_environment_without_render_mode(toy_id: str) -> None:
    vec = make_group_env(toy_id, n_envs=2, seed=0, env_kwargs={"length": 3})
    assert isinstance(vec, DummyVecEnv)
    vec.env_method("queue_start", 0, SeedStart(4), indices=1)
    assert same(vec.reset()[1], first_of(4, toy_id))
    assert vec.get_attr("length") == [3, 3]
    model = GRPO("MlpPolicy", toy_id, n_groups=2, n_epochs=1, policy_kwargs=TINY, device="cpu").learn(1)
    assert model.n_envs == 16 and model.num_timesteps >= 2 * 4 * 4


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3"])
def test_nothing_is_rendered_unless_asked_for(env_id: str) -> None:
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    assert make_group_env(env_id, n_envs=2).get_attr("render_mode") == [None, None]
    vec = make_group_env(env_id, n_envs=2, env_kwargs={"render_mode": "rgb_array"})
    assert vec.get_attr("render_mode") == ["rgb_array", "rgb_array"]


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_without_importing_ale_py(env_id: str) -> None:
    pytest.importorskip("ale_py")
    code = f"""
from sb3_grpo.starts.start_queue import make_group_env
print(make_group_env({env_id!r}, n_envs=1).get_attr("spec")[0].id)
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == [env_id]


def test_frames_stacked_outside_are_refused() -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("ale_py")
    vec = make_group_env("PongNoFrameskip-v4", n_envs=1, wrapper_class=AtariWrapper, wrapper_kwargs={"noop_max": 2})
    names = str(vec.unwrapped.envs[0])  # type: ignore[attr-defined]
    assert names.startswith("<StartQueue<AtariWrapper<") and "<Monitor<" in names
    stacked = VecTransposeImage(VecFrameStack(vec, 4))
    stacked.reset()
    with pytest.raises(StartNotSupportedError, match="FrameStackObservation"):
        capture_starts(stacked)
    assert capture_starts(vec)[0].observation.shape == (84, 84, 1)


def test_environments_of_sb3_sample_from_their_spaces() -> None:
    from stable_baselines3.common.envs import IdentityEnv

    env = StartQueue(IdentityEnv(dim=50))
    first = []
    for _ in range(2):
        env.queue_start(1, SeedStart(3))
        env.reset()
        first.append([env.step(0)[0] for _ in range(10)])
    assert first[0] == first[1]
