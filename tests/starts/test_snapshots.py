import pickle
import random
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from toy_envs import NoisyEnv, actions_for, roll, same
from whole_envs import BREAKOUT_LIFE, STICKY_PONG, make, newest

from sb3_grpo.starts.snapshots import begin, capture, restore
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, StartMismatchError, StartNotSupportedError, UnequalStartError

pytestmark = pytest.mark.filterwarnings("ignore")


def begin_from(env: StartQueue, start: Any, noise_seed: int | None = None) -> Any:
    env.queue_start(0, start, noise_seed)
    return env.reset()[0]


def walk(env: StartQueue, steps: int, seed: int = 1) -> None:
    """Some random steps; in the end the environment is in the middle of an episode."""
    for action in actions_for(env, steps, seed):
        if any(env.step(action)[2:4]):
            env.reset()


def test_seed_start_begins_a_new_game_after_a_lost_life() -> None:
    env = make(BREAKOUT_LIFE)
    first = begin_from(env, SeedStart(3))
    end = roll(env, [0] * 200)[-1]
    assert end[2] and env.unwrapped.ale.lives() == 4  # type: ignore[attr-defined]
    assert same(begin_from(env, SeedStart(3)), first)
    assert env.unwrapped.ale.lives() == 5  # type: ignore[attr-defined]


class RandomLayers(gym.Wrapper):
    """Adds noise from generators of its own, which reset(seed) does not reach."""

    def __init__(self, env: gym.Env, base: gym.Env | None = None):
        super().__init__(env)
        self.new = np.random.default_rng()
        self.old = np.random.RandomState()
        self.plain = random.Random()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        noise = self.new.normal(), self.old.normal(), self.plain.random(), 0.0
        return np.float32(observation + noise), *rest  # type: ignore[return-value]


def make_noisy(name: str) -> tuple[StartQueue, list[Any]]:
    """An environment and actions after which the noise shows."""
    if name == "RandomLayers":
        return StartQueue(RandomLayers(gym.make("CartPole-v1"))), [0] * 4
    env = make(name)
    actions: dict[str, list[Any]] = {
        "FrozenLake-v1": [1, 2] * 10,
        "LunarLander continuous": [np.array([1.0, 1.0])] * 10,
        STICKY_PONG: [2, 3, 0] * 20,
    }
    return env, actions[name]


@pytest.mark.parametrize("name", ["FrozenLake-v1", "LunarLander continuous", STICKY_PONG, "RandomLayers"])
@pytest.mark.parametrize("kind", ["seed", "snapshot"])
def test_common_and_independent_noise(name: str, kind: str) -> None:
    env, actions = make_noisy(name)
    start: Any = SeedStart(5)
    if kind == "snapshot":
        begin_from(env, start)
        roll(env, actions[:2])
        start = env.capture_start()
    noise_seeds = [None, None, 1, 4, 1]
    firsts, episodes = [], []
    for noise_seed in noise_seeds:
        firsts.append(begin_from(env, start, noise_seed))
        episodes.append(roll(env, actions))
    assert all(same(first, firsts[0]) for first in firsts)
    assert same(episodes[0], episodes[1])
    assert same(episodes[2], episodes[4])
    assert not same(episodes[0], episodes[2]) and not same(episodes[2], episodes[3])
    if name == "RandomLayers":
        # Each of the generators has to differ
        assert np.all((episodes[2][0][0] != episodes[3][0][0])[:3])


class NoisyPath(NoisyEnv):
    """Its reward depends on all that it has shown."""

    def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        self.path: list[float] = []
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        self.path.append(observation[1])
        return observation, sum(self.path), *rest

    def get_state(self) -> Any:
        return self.start, self.end, self.t, self.path  # a live reference

    def set_state(self, state: Any) -> None:
        self.start, self.end, self.t, self.path = state


def test_environment_with_get_state_and_set_state() -> None:
    env, other = NoisyPath(length=30), NoisyPath(length=30)
    observation, _ = env.reset(seed=1)
    observation = roll(env, [1] * 5)[-1][0]
    snapshot = capture(env, observation)
    expected = roll(env, [1, 0] * 5)
    for copy in (env, other, other):
        assert same(restore(copy, snapshot), observation)
        assert same(roll(copy, [1, 0] * 5), expected)
    different = begin(other, snapshot, noise_seed=3)[0]
    assert same(different, observation) and not same(roll(other, [1, 0] * 5), expected)


def test_environment_without_get_state_is_refused() -> None:
    env = NoisyEnv()
    first, _ = env.reset(seed=1)
    with pytest.raises(StartNotSupportedError, match=r"NoisyEnv cannot be captured.*get_state\(self\).*SeedStart"):
        capture(env, first)
    first, _ = begin(env, SeedStart(4, {"x": 3.0}))
    episode = roll(env, [1] * 3)
    assert env.options == {"x": 3.0} and same(begin(env, SeedStart(4, {"x": 3.0}))[0], first)
    assert same(roll(env, [1] * 3), episode)


def test_changed_mujoco_model_is_refused() -> None:
    env, other = make("HalfCheetah-v5"), make("HalfCheetah-v5")
    env.reset(seed=1)
    snapshot = env.capture_start()
    begin_from(other, snapshot)
    other.unwrapped.model.body_mass[1] *= 1.1  # type: ignore[attr-defined]
    with pytest.raises(StartMismatchError, match="model"):
        begin_from(other, snapshot)


class Counter(gym.Wrapper):
    """Holds whatever it is given."""

    def __init__(self, env: gym.Env, held: Any = None):
        super().__init__(env)
        self.held = held


class EzHelper(gym.utils.EzPickle):
    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self.count = start


def captured(held: Any) -> tuple[Counter, SnapshotStart]:
    env = Counter(gym.make("CartPole-v1"), held)
    first, _ = env.reset(seed=1)
    return env, capture(env, first)


def test_what_cannot_be_copied_is_refused_by_name() -> None:
    cyclic = gym.make("CartPole-v1")
    for held in (EzHelper(), [EzHelper()], threading.Lock(), [lambda: 0], {"env": cyclic}):
        with pytest.raises(StartNotSupportedError, match=r"'held' of Counter.*get_state"):
            captured(held)


def test_state_of_wrappers() -> None:
    env, snapshot = captured({"a": [1, np.zeros(2)]})
    env.held["a"][1][0] = 5
    env.held["b"] = 0
    restore(env, snapshot)
    assert same(env.held, {"a": [1, np.zeros(2)]})
    env.held["a"][0] = 7
    restore(env, snapshot)
    assert env.held["a"][0] == 1

    # References to the environment, to functions and the like stay as they are
    for held in (gym.make("CartPole-v1").unwrapped, print, env.step, int):
        env, snapshot = captured(held)
        restore(env, pickle.loads(pickle.dumps(snapshot)))
        assert env.held is held


def test_object_shared_by_two_layers_stays_shared() -> None:
    shared: list[int] = []
    env = Counter(Counter(gym.make("CartPole-v1"), shared), shared)
    first, _ = env.reset(seed=1)
    snapshot = capture(env, first)
    restore(env, snapshot)
    env.held.append(1)
    assert env.env.held == [1]  # type: ignore[attr-defined]


class OwnCounter(Counter):
    def get_state(self) -> Any:
        return {"n": self.n}  # type: ignore[has-type]

    def set_state(self, state: Any) -> None:
        self.n = state["n"]


def test_wrapper_with_get_state_and_set_state() -> None:
    env = Counter(OwnCounter(gym.make("CartPole-v1"), threading.Lock()))
    env.env.n = 5  # type: ignore[attr-defined]
    first, _ = env.reset(seed=1)
    snapshot = capture(env, first)
    env.env.n = 0  # type: ignore[attr-defined]
    restore(env, snapshot)
    assert env.env.n == 5  # type: ignore[attr-defined]
    env.env.n = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(StartNotSupportedError, match=r"OwnCounter.get_state\(\)"):
        capture(env, first)


def test_wrappers_that_learn_from_the_past_have_no_seed_starts() -> None:
    env = gym.wrappers.NormalizeObservation(gym.make("CartPole-v1"))
    with pytest.raises(StartNotSupportedError, match=r"NormalizeObservation.*VecNormalize"):
        begin(env, SeedStart(1))
    first, _ = env.reset(seed=1)
    snapshot = capture(env, first)
    expected = roll(env, [0, 1] * 4)
    restore(env, snapshot)
    assert same(roll(env, [0, 1] * 4), expected)


def test_monitor_keeps_its_history(tmp_path: Any) -> None:
    env = StartQueue(Monitor(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"), stats_key="s"), str(tmp_path)))
    env.reset(seed=1)
    env.step(0)
    snapshot = env.capture_start()
    lengths = []
    for start in (None, snapshot, snapshot):
        if start is not None:
            begin_from(env, start)
        *_, info = next(result for result in (env.step(0) for _ in range(99)) if result[2])
        lengths.append(info["episode"]["l"])
        assert 0 <= info["s"]["t"] < 60
    monitor: Any = env.env
    assert monitor.episode_lengths == lengths and len(set(lengths)) == 1
    assert monitor.total_steps == 1 + 3 * (lengths[0] - 1)
    assert monitor.env.episode_count == 3
    assert len((tmp_path / "monitor.csv").read_text().splitlines()) == 2 + 3


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", newest("Taxi"), newest("CliffWalking"), "Blackjack-v1"])
def test_rendering_is_left_alone(name: str) -> None:
    pytest.importorskip("pygame")
    env, other = (gym.make(name, render_mode="rgb_array") for _ in range(2))
    first, _ = env.reset(seed=1)
    before = capture(env, first)
    picture = env.render()
    after = capture(env, first)
    for snapshot in (before, pickle.loads(pickle.dumps(after))):
        for copy in (env, other):
            restore(copy, snapshot)
            copy.render()
    names = vars(env.unwrapped).keys() & {"screen", "window", "window_surface", "clock"}
    drawn_on = {name: getattr(env.unwrapped, name) for name in names}
    restore(env, before)
    assert len(names) == 2 and all(getattr(env.unwrapped, name) is drawn_on[name] is not None for name in names)
    assert same(env.render(), picture)


def test_wrong_environment_is_refused() -> None:
    env = gym.make("CartPole-v1")
    first, _ = env.reset(seed=1)
    snapshot = capture(env, first)
    for wrong in (
        gym.make("Acrobot-v1"),
        gym.make("CartPole-v1", sutton_barto_reward=True),
        gym.make("CartPole-v1", max_episode_steps=7),
        gym.make("CartPole-v1").unwrapped,
        Monitor(gym.make("CartPole-v1")),
        NoisyPath(),
        NoisyEnv(),
    ):
        with pytest.raises(StartMismatchError, match=r"CartPoleEnv\[CartPole-v1\]"):
            begin(wrong, snapshot)
    begin(gym.make("CartPole-v1", render_mode="rgb_array"), snapshot)
    with pytest.raises(TypeError, match="Expected a SeedStart"):
        begin(env, 3)  # type: ignore[arg-type]


class Tremble(gym.Wrapper):
    """Depends on what nobody can capture."""

    trembles = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        Tremble.trembles += 1
        observation, info = self.env.reset(**kwargs)
        return observation + Tremble.trembles, info


def test_replay_that_leads_elsewhere_is_refused() -> None:
    pytest.importorskip("Box2D")
    env = StartQueue(Tremble(gym.make("LunarLander-v3")))
    env.reset(seed=1)
    snapshot = env.capture_start()
    with pytest.raises(UnequalStartError, match=r"LunarLander-v3: replaying .* did not lead to the captured observation"):
        begin_from(env, snapshot)
    with pytest.raises(StartNotSupportedError, match="StartQueue"):
        capture(env.env, snapshot.observation)
