"""Vector environments of Gymnasium in training, and the check of terminal observations."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv, WarpFrame
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from toy_envs import TINY, parameters_of

from sb3_grpo import DAPO, GRPO, SeedStart, VisitedStates, capture_starts, make_group_env
from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.starts.starts import StartNotSupportedError

ON_CPU: dict[str, Any] = {"device": "cpu", "seed": 0, "policy_kwargs": TINY}


class Counter(gym.Env):
    """Counts its steps, from a start that the seed chooses; ends after a number of steps, or runs into a time limit."""

    action_space = spaces.Discrete(2)

    def __init__(self, kind: str = "vector", limit: int = 7):
        shape = {"image": (2, 12, 12), "vector": (2,)}.get(kind, (2,))
        self.numbers = spaces.Box(0, 255, shape, np.uint8 if kind == "image" else np.float32)
        self.observation_space = spaces.Dict(a=self.numbers, b=spaces.Discrete(300)) if kind == "dict" else self.numbers
        self.kind, self.limit = kind, limit

    def observe(self) -> Any:
        numbers = np.full(self.numbers.shape, self.start + self.time, self.numbers.dtype)
        return {"a": numbers, "b": np.int64(self.time)} if self.kind == "dict" else numbers

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start, self.time = int((options or {}).get("start", self.np_random.integers(100))), 0
        return self.observe(), {"began_at": self.start}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        is_success = bool(action)
        return self.observe(), float(action), self.time >= 12, self.time >= self.limit, {"is_success": is_success}


class Masked(Counter):
    """Forbids one of its actions in each other step."""

    def action_masks(self) -> np.ndarray:
        return np.array([self.time % 2 == 0, True])


def vector(
    cls: type[VectorEnv] = SyncVectorEnv, mode: AutoresetMode = AutoresetMode.NEXT_STEP, n: int = 4, **kwargs: Any
) -> Any:
    return cls([functools.partial(Counter, **kwargs)] * n, autoreset_mode=mode)  # type: ignore[call-arg]


MODES = [*AutoresetMode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["vector", "dict", "image"])
@pytest.mark.parametrize("limit", [7, 100])
def test_episodes_end_as_in_a_dummy_vec_env(mode: AutoresetMode, kind: str, limit: int) -> None:
    env = GymnasiumVecEnv(vector(mode=mode, kind=kind, limit=limit))
    peer = DummyVecEnv([functools.partial(Counter, kind, limit)] * 4)
    for each in (env, peer):
        each.seed(5)
    ours, theirs = env.reset(), peer.reset()
    for number in range(30):
        np.testing.assert_equal(ours, theirs)
        actions = np.arange(4) % 2
        ours, rewards, dones, infos = env.step(actions)
        theirs, their_rewards, their_dones, their_infos = peer.step(actions)
        np.testing.assert_equal(rewards, their_rewards)
        np.testing.assert_equal(dones, their_dones)
        for idx in dones.nonzero()[0]:
            reported, wanted = infos[idx], their_infos[idx]
            np.testing.assert_equal(reported["terminal_observation"], wanted["terminal_observation"])
            assert reported["TimeLimit.truncated"] == wanted["TimeLimit.truncated"] == (limit == 7)
            assert reported["is_success"] == wanted["is_success"]
            assert reported["episode"]["l"] == min(limit, 12)
            assert reported["episode"]["r"] == (idx % 2) * min(limit, 12)
            assert set(env.reset_infos[idx]) == {"began_at"}
        assert dones.any() == ((number + 1) % min(limit, 12) == 0)
    env.close()


class CartPoles(gym.Wrapper):
    pass


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_parameters_as_with_make_group_env(cls: Any, mode: AutoresetMode, env_id: str) -> None:
    how = "sync" if cls is SyncVectorEnv else "async"
    given = gym.make_vec(env_id, 3, vectorization_mode=how, vector_kwargs={"autoreset_mode": mode})
    model = GRPO("MlpPolicy", given, n_steps=64, **ON_CPU).learn(900)
    peer = GRPO("MlpPolicy", make_group_env(env_id, 3, seed=0), n_steps=64, **ON_CPU).learn(900)
    assert model.num_timesteps == peer.num_timesteps
    assert th.equal(parameters_of(model), parameters_of(peer))
    assert [each["r"] for each in model.ep_info_buffer] == [each["r"] for each in peer.ep_info_buffer]
    given.close()


def test_the_reset_of_the_next_step_is_not_learned_from() -> None:
    """Gymnasium's CartPoleVectorEnv knows no reset_mask."""
    given = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    with pytest.raises(ValueError, match="copies of CartPole-v1 cannot be reset one by one: make them with"):
        GRPO("MlpPolicy", given, n_steps=64, **ON_CPU).learn(10)
    batches = []

    class Keeps(GRPO):
        def train(self) -> None:
            batches.append(self.batch)
            super().train()

    model = Keeps("MlpPolicy", given, n_steps=64, unrelated_starts=True, **ON_CPU).learn(2048)
    n_ended = sum(int((batch.lengths > 0).sum()) - len(batch.unfinished) for batch in batches)
    assert n_ended > 20
    n_learned = sum(len(batch.rows) for batch in batches)
    # The step in which a copy is reset counts, as the simulator takes it
    assert model.num_timesteps - n_ended - 4 <= n_learned <= model.num_timesteps - n_ended
    assert all((batch.rewards[batch.mask] == 1.0).all() for batch in batches)
    firsts = [batch.observations[batch.rows[(batch.time == 0)]] for batch in batches[:1]]
    assert firsts[0].abs().max() < 0.05  # where episodes of CartPole begin


def test_groups_share_their_start_with_options() -> None:
    env = vector(mode=AutoresetMode.DISABLED)
    starts = [SeedStart(1, {"start": 40}), SeedStart(2, {"start": 50}), SeedStart(3)]
    seen: list[Any] = []

    class Keeps(DAPO):
        def train(self) -> None:
            seen.extend(self.batch.observations[self.batch.rows[self.batch.time == 0]][:, 0].tolist())

    choose = lambda rng: starts[rng.integers(3)]  # noqa: E731
    Keeps("MlpPolicy", env, n_groups=6, group_size=4, dynamic_sampling=False, start_sampler=choose, **ON_CPU).learn(100)
    third = Counter()
    third.reset(seed=3)
    assert {40.0, 50.0} < {*seen} <= {40.0, 50.0, float(third.start)}
    assert all(len({*seen[begin : begin + 4]}) == 1 for begin in range(0, len(seen), 4))


def test_masks_of_the_copies() -> None:
    model: Any = GRPO("MlpPolicy", SyncVectorEnv([Masked] * 4), n_steps=32, **ON_CPU).learn(64)
    assert model.has_masks
    batch = model.batch
    forbidden = batch.action_masks[:, 0] == 0
    assert forbidden.any() and (batch.actions[forbidden] == 1).all()


@pytest.mark.parametrize("kind", ["dict", "image"])
def test_dictionaries_and_images(kind: str) -> None:
    policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
    model = DAPO(policy, vector(kind=kind, mode=AutoresetMode.SAME_STEP), n_steps=32, unrelated_starts=True, **ON_CPU)
    assert model.learn(64).num_timesteps == 128


def test_snapshots_need_other_copies() -> None:
    one = make_group_env("CartPole-v1", 1)
    one.reset()
    snapshot = capture_starts(one)[0]
    with pytest.raises(StartNotSupportedError, match="begins from seeds, not from snapshots"):
        env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
        GRPO("MlpPolicy", env, n_steps=32, start_sampler=lambda rng: snapshot, **ON_CPU).learn(32)


def test_states_of_copies_are_not_captured() -> None:
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    with pytest.raises(StartNotSupportedError, match="are not captured: use make_group_env"):
        GRPO("MlpPolicy", env, n_steps=32, start_sampler=VisitedStates(0.5), **ON_CPU).learn(32)


@pytest.mark.parametrize("wrap", [NormalizeObservation, DictInfoToList])
def test_wrappers_of_vector_environments(wrap: Any) -> None:
    """They need not take partial resets."""
    env = wrap(gym.make_vec("CartPole-v1", 4, vectorization_mode="sync"))
    with pytest.raises(ValueError, match="CartPole-v1 cannot be reset one by one"):
        GRPO("MlpPolicy", env, n_steps=32, **ON_CPU).learn(32)
    model = GRPO("MlpPolicy", env, n_steps=128, unrelated_starts=True, **ON_CPU).learn(1024)
    assert all(8 <= each["l"] <= 500 for each in model.ep_info_buffer) and len(model.ep_info_buffer) > 5


def test_processes_without_shared_memory_do_not_share_starts() -> None:
    """They reset again in the step after a partial reset."""
    env = AsyncVectorEnv([functools.partial(Counter, "vector")] * 2, shared_memory=False)
    assert not GymnasiumVecEnv(env).resets_copies
    env.close()


def test_methods_and_pictures_of_the_copies() -> None:
    env = GymnasiumVecEnv(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", render_mode="rgb_array"))
    env.reset()
    assert [image.shape for image in env.get_images()] == [(400, 600, 3)] * 2
    assert len(env.env_method("render")) == 2
    with pytest.raises(ValueError, match=r"render\(\) can only be called for all copies"):
        env.env_method("render", indices=[0])
    many = GymnasiumVecEnv(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))
    assert not many.has_attr("queue_start") and many.get_attr("length", [1]) == [0.5]


def test_ppo_and_evaluation_with_it() -> None:
    env = GymnasiumVecEnv(gym.make_vec("CartPole-v1", 4, vectorization_mode="sync"))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=128, **ON_CPU).learn(256)
    returns, _ = evaluate_policy(model, env, 8)
    assert 8 < returns <= 500
    own = GRPO("MlpPolicy", env, n_steps=32, **ON_CPU)
    assert own.env is env
    with pytest.raises(ValueError, match="n_envs=3 only applies when env is an id, and this environment has n_envs=4"):
        GRPO("MlpPolicy", env.env, n_envs=3)


@pytest.mark.parametrize(("game", "tolerance"), [("Breakout", 0), ("Qbert", 0), ("Pong", 16)])
def test_pictures_of_the_atari_vector_environment_are_ours(game: str, tolerance: int) -> None:
    """Up to the first life that is lost: then the two draw other random numbers. Pong flickers between two grays."""
    one = WarpFrame(MaxAndSkipEnv(gym.make(f"ale_py:ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)))  # type: ignore[arg-type]
    many = AtariVectorEnv(game.lower(), 2, noop_max=0, use_fire_reset=False, reward_clipping=False)
    picture, info = one.reset(seed=0)
    pictures, _ = many.reset(seed=0)
    lives = info["lives"]
    for number, action in enumerate(np.random.default_rng(1).integers(4, size=100)):
        assert np.abs(picture[..., 0].astype(int) - pictures[1, -1]).max() <= tolerance, number
        picture, reward, *_, info = one.step(action)
        pictures, rewards, *_ = many.step(np.array([0, action]))
        if info["lives"] < lives:
            break
        assert rewards[1] == reward
    assert number > 15


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_lives_of_the_atari_vector_environment_are_episodes(mode: AutoresetMode) -> None:
    env = AtariVectorEnv("breakout", 4, episodic_life=True, repeat_action_probability=0.25, autoreset_mode=mode)
    settings: dict[str, Any] = {**ON_CPU, "policy_kwargs": {"features_extractor_class": FlattenExtractor}, "n_epochs": 1}
    model = GRPO("CnnPolicy", env, n_steps=64, unrelated_starts=True, **settings)
    model.learn(512)
    assert model.observation_space.shape == (4, 84, 84)  # as VecTransposeImage gives them
    n_ended = int((model.batch.lengths > 0).sum()) - len(model.batch.unfinished)
    assert n_ended >= 4
    assert all(5 < each["l"] < 200 for each in model.ep_info_buffer)


class Simulator(VecEnv):
    """Stands for an adapter of a simulator: all copies in arrays, which it writes again and again."""

    def __init__(self, last: Callable[[np.ndarray, np.ndarray, int], np.ndarray]):
        super().__init__(4, spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2))
        self.last, self.rng = last, np.random.default_rng(0)
        self.states = np.zeros((4, 2), np.float32)
        self.times = np.zeros(4, int)

    def reset(self) -> np.ndarray:
        self.states[:] = self.rng.normal(size=(4, 2))
        return self.states

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        self.states += 0.1
        self.times += 1
        dones = self.times >= 5 + np.arange(4)
        infos: list[dict[str, Any]] = [{} for _ in range(4)]
        before = self.states.copy()
        given = {idx: self.last(self.states, before, idx) for idx in dones.nonzero()[0].tolist()}
        for idx, last in given.items():
            infos[idx] = {"terminal_observation": last, "TimeLimit.truncated": True}
            self.states[idx], self.times[idx] = self.rng.normal(size=2), 0
            if last is None:  # after the reset
                infos[idx]["terminal_observation"] = self.states[idx].copy()
        return self.states, self.actions.astype(np.float32), dones, infos

    def close(self) -> None: ...

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * 4


# EnvPool's and ManiSkill's adapters keep a view, Isaac Lab's has the observation after the reset
WRONG = {"a view": lambda states, before, idx: states[idx], "after the reset": lambda states, before, idx: None}


@pytest.mark.parametrize("name", WRONG)
def test_a_terminal_observation_after_the_reset_is_named(name: str) -> None:
    with pytest.warns(
        UserWarning, match=r"Simulator: infos\[\d\]\['terminal_observation'\] is the observation after the reset"
    ):
        GRPO("MlpPolicy", Simulator(WRONG[name]), n_steps=32, unrelated_starts=True, **ON_CPU).learn(128)


@pytest.mark.filterwarnings("error:.*terminal_observation")
def test_a_right_terminal_observation_is_not() -> None:
    env = Simulator(lambda states, before, idx: before[idx])
    GRPO("MlpPolicy", env, n_steps=32, unrelated_starts=True, **ON_CPU).learn(128)


class Constant(gym.Env):
    """All observations are alike."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(action), False, False, {}


@pytest.mark.filterwarnings("error:.*terminal_observation")
def test_constant_observations_are_not_named() -> None:
    env = make_group_env(lambda: TimeLimit(Constant(), 3), 4)
    GRPO("MlpPolicy", env, n_steps=32, **ON_CPU).learn(128)
