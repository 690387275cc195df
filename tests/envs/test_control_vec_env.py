from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize
from toy_envs import TINY, step_both

from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import ControlVecEnv
from sb3_grpo.envs.control.dynamics import DYNAMICS
from sb3_grpo.starts.start_queue import StartQueue, capture_starts, make_group_env
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, Start, StartMismatchError

N = 6
TASKS = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"]
SHORT: dict[str, Any] = {"max_episode_steps": 40}


def pair_of_envs(env_id: str, **env_kwargs: Any) -> tuple[Any, ControlVecEnv]:
    """The same copies twice: one by one, and all in one object."""
    return make_group_env(env_id, n_envs=N, seed=3, env_kwargs=env_kwargs), ControlVecEnv(env_id, N, seed=3, **env_kwargs)


def random_actions(space: gym.Space, rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        # Rather to one side, which is how a cart gets out of its valley and how a pole falls
        return np.where(rng.random(N) < 0.3, 0, space.n - 1)
    return rng.uniform(-3.0, 3.0, (N, 1)).astype(np.float32)


def play_both(copies: Any, batch: Any, n_steps: int, rng: np.random.Generator) -> int:
    """
    :return: How many episodes have ended
    """
    return sum(step_both(copies, batch, random_actions(batch.action_space, rng)) for _ in range(n_steps))


@pytest.mark.parametrize("env_id", TASKS)
def test_the_same_as_single_copies(env_id: str) -> None:
    copies, batch = pair_of_envs(env_id)
    assert batch.observation_space == copies.observation_space and batch.action_space == copies.action_space
    rng = np.random.default_rng(0)
    for _ in range(2):
        assert np.array_equal(copies.reset(), batch.reset())
        assert play_both(copies, batch, 600, rng) >= N
    options = {"Pendulum-v1": {"x_init": 0.1, "y_init": 0.2}}
    for env in (copies, batch):
        env.seed(11)
        env.set_options(options.get(env_id, {"low": -0.02, "high": 0.03}))
    assert np.array_equal(copies.reset(), batch.reset())
    if env_id == "MountainCar-v0":
        # To the wall on the left
        for env in copies.envs:
            env.unwrapped.state = (-1.19, -0.05)
        batch._states[:] = [[-1.19], [-0.05]]
    play_both(copies, batch, 20, rng)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("CartPole-v1", {"max_episode_steps": 9}),  # at which some poles fall, too
        ("Pendulum-v1", {"g": 3.0, **SHORT}),
    ],
)
def test_arguments_of_the_task(env_id: str, env_kwargs: dict[str, Any]) -> None:
    copies, batch = pair_of_envs(env_id, **env_kwargs)
    assert np.array_equal(copies.reset(), batch.reset())
    assert play_both(copies, batch, 200, np.random.default_rng(0)) > N


# Half of the range of each quantity: beyond all limits
RANGES = {
    "CartPole-v1": [3, 3, 0.3, 3],
    "Acrobot-v1": [3.5, 3.5, 15, 30],
    "MountainCar-v0": [0.9, 0.08],
    "Pendulum-v1": [20, 9],
}


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"), [*((task, {}) for task in TASKS), ("MountainCar-v0", {"goal_velocity": 0.03})]
)
def test_single_steps_from_anywhere(env_id: str, env_kwargs: dict[str, Any]) -> None:
    n, rng = 3000, np.random.default_rng(0)
    env: Any = gym.make(env_id, **env_kwargs).unwrapped
    env.reset(seed=0)
    states = rng.uniform(-1.0, 1.0, (len(RANGES[env_id]), n)) * np.array(RANGES[env_id])[:, None]
    if env_id == "MountainCar-v0":
        states[0] = (states[0] - 0.3).clip(env.min_position, env.max_position)
    discrete = isinstance(env.action_space, gym.spaces.Discrete)
    actions = rng.integers(env.action_space.n, size=n) if discrete else rng.uniform(-3, 3, (n, 1)).astype(np.float32)
    dynamics = DYNAMICS[type(env)]
    steps = dynamics.step(env, states, actions)
    observed = dynamics.observe(steps.states)
    for i in range(n):
        env.state, env.steps_beyond_terminated = states[:, i].copy(), None
        observation, reward, terminated, _, _ = env.step(actions[i])
        assert np.array_equal(observation, observed[i]) and np.array_equal(np.array(env.state), steps.states[:, i])
        assert (reward, terminated) == (steps.rewards[i], steps.terminated[i])


@pytest.mark.parametrize("env_id", TASKS)
def test_the_same_from_queued_starts(env_id: str) -> None:
    copies, batch = pair_of_envs(env_id, **SHORT)
    queue = copies.get_attr("queue")[0]
    for env in copies.envs:
        env.queue = queue
    rng = np.random.default_rng(1)
    copies.reset(), batch.reset()
    play_both(copies, batch, 5, rng)
    # Each from the other
    starts: list[Start] = [SeedStart(5), *capture_starts(batch)[:2], *capture_starts(copies)[2:4], SeedStart(5)]
    for ticket in range(40):
        for env in (copies, batch):
            env.env_method("queue_start", ticket, starts[ticket // 3 % 6], 7 * ticket if ticket % 2 else None, indices=0)
    assert np.array_equal(copies.reset(), batch.reset())
    assert [info["group_start"] for info in batch.reset_infos] == list(range(N))
    # In the end no starts are left, and the copies go on with the generators of theirs
    while len(batch.queue) > 0:
        play_both(copies, batch, 10, rng)
        for name in ("current_ticket", "first_observation"):
            assert data_equivalence(copies.get_attr(name), batch.get_attr(name), exact=True)
        assert len(queue) == len(batch.queue)
    assert play_both(copies, batch, 100, rng) >= N
    assert batch.get_attr("current_ticket") == [None] * N


def test_a_start_changes_no_other_copy() -> None:
    """Not even the random numbers with which it goes on."""
    alone, batch = ControlVecEnv("CartPole-v1", 2, seed=0), ControlVecEnv("CartPole-v1", 2, seed=0)
    alone.reset(), batch.reset()
    snapshot = batch.capture_start(0)
    assert isinstance(snapshot, SnapshotStart)
    first = alone.reset()
    batch.queue_start(1, snapshot, noise_seed=4)
    assert np.array_equal(batch.reset()[1], first[1])
    assert np.array_equal(batch.reset()[1], alone.reset()[1])


def test_wrong_actions_are_named() -> None:
    batch = ControlVecEnv("CartPole-v1", 3)
    with pytest.raises(gym.error.ResetNeeded):
        batch.step(np.zeros(3, np.int64))
    batch.reset()
    for actions, message in (
        ([0, 1], r"shape \(3,\), one for each copy, got \(2,\)"),
        ([0, 1, 2], "whole numbers from 0 to 1"),
        ([0, 0.5, 1], "whole numbers from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.step(np.array(actions))


def test_wrong_tasks_are_named() -> None:
    with pytest.raises(ValueError, match=r"no batched form of .*Continuous.* Use make_group_env\('MountainCarContinuous-v0'"):
        ControlVecEnv("MountainCarContinuous-v0", 2)
    gym.register("Flat-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9, additional_wrappers=(FLAT,))
    try:
        with pytest.raises(ValueError, match=r"no batched form of .*FlattenObservation"):
            ControlVecEnv("Flat-v0", 2)
    finally:
        gym.registry.pop("Flat-v0")
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        ControlVecEnv("CartPole-v1", 0)


def test_number_of_copies_may_be_of_numpy() -> None:
    assert len(ControlVecEnv("CartPole-v1", np.int64(3), seed=0).reset()) == 3


def test_time_limit_of_the_rl_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patched(TimeLimit):
        """What gym.make takes when the RL Zoo was imported."""

    monkeypatch.setattr(gym.wrappers, "TimeLimit", Patched)
    copies, batch = pair_of_envs("CartPole-v1", max_episode_steps=9)
    assert isinstance(copies.envs[0].env.env, Patched)
    assert np.array_equal(copies.reset(), batch.reset())
    assert play_both(copies, batch, 30, np.random.default_rng(0)) > N
    batch.step(np.zeros(N, np.int64))
    assert batch.capture_start(0).elapsed == int(batch._lengths[0])


FLAT = gym.envs.registration.WrapperSpec("flat", "gymnasium.wrappers:FlattenObservation", kwargs={})


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])
def test_pictures(env_id: str) -> None:
    pytest.importorskip("pygame")
    batch = ControlVecEnv(env_id, 2, seed=0, render_mode="rgb_array")
    copies = make_vec_env(env_id, 2, seed=0, env_kwargs={"render_mode": "rgb_array"})
    batch.reset(), copies.reset()
    for _ in range(3):
        batch.step(np.array([1, 0])), copies.step(np.array([1, 0]))
    for one, other in zip(batch.get_images(), copies.get_images(), strict=True):
        assert np.array_equal(one, other)  # type: ignore[arg-type]
    assert np.array_equal(batch.env_method("render", indices=1)[0], copies.get_images()[1])
    assert batch.render() is not None and batch.metadata == copies.metadata
    batch.close()
    with pytest.raises(ValueError, match="render_mode='human' has to be 'rgb_array'"):
        ControlVecEnv(env_id, 2, render_mode="human")


def test_errors_half_way_through() -> None:
    batch = ControlVecEnv("CartPole-v1", 3, seed=0, max_episode_steps=1)
    for too_early in (batch.capture_start, lambda: batch.step(np.zeros(3, np.int64))):
        with pytest.raises(gym.error.ResetNeeded, match=r"Call reset\(\) first"):
            too_early()
    batch.reset()
    other = ControlVecEnv("Acrobot-v1", 1, seed=0)
    other.reset()
    batch.queue_start(0, SeedStart(0))
    batch.queue_start(1, other.capture_start())
    with pytest.raises(StartMismatchError):
        batch.step(np.zeros(3, np.int64))
    for _ in range(2):
        with pytest.raises(gym.error.ResetNeeded, match="ended by an error"):
            batch.step(np.zeros(3, np.int64))
    assert batch.get_attr("current_ticket")[1:] == [None, None]
    batch.reset()
    batch.step(np.zeros(3, np.int64))


def test_returned_arrays_belong_to_the_caller() -> None:
    batch = ControlVecEnv("CartPole-v1", 2, seed=0)
    first = batch.reset()
    kept = first.copy()
    second = batch.step(np.array([0, 1]))[0]
    assert np.array_equal(first, kept) and not np.array_equal(first, second)
    kept, first[:], second[:] = batch.step(np.array([0, 1]))[0], 9.0, 9.0
    assert batch.step(np.array([1, 0]))[0].max() < 9.0
    batch.queue_start(0, SeedStart(0))
    batch.reset()
    with pytest.raises(ValueError, match="read-only"):
        batch.get_attr("first_observation")[0][:] = 0.0


def test_what_wrappers_ask_for() -> None:
    batch = ControlVecEnv("CartPole-v1", 2, seed=0)
    assert batch.get_attr("gravity") == [9.8, 9.8] and batch.get_attr("spec", 0)[0].id == "CartPole-v1"
    assert not batch.has_attr("nothing")
    for wrapper in (gym.wrappers.TimeLimit, Monitor, StartQueue):
        assert batch.env_is_wrapped(wrapper) == [True, True]
    assert batch.env_is_wrapped(gym.wrappers.FlattenObservation) == [False, False]


def test_training_is_the_same_as_on_single_copies() -> None:
    settings: dict[str, Any] = {
        "policy_kwargs": TINY,
        "device": "cpu",
        "seed": 0,
        "group_size": 4,
        "n_groups": 4,
    }
    copies, batch = pair_of_envs("CartPole-v1")
    models = [DAPO("MlpPolicy", VecNormalize(env), **settings).learn(3000) for env in (copies, batch)]
    for one, other in zip(*(model.policy.parameters() for model in models), strict=True):
        assert one.equal(other)
    assert models[0].num_timesteps == models[1].num_timesteps
    assert evaluate_policy(models[0], copies, 8) == evaluate_policy(models[1], batch, 8)


def test_ppo() -> None:
    env = ControlVecEnv("Pendulum-v1", 4, seed=0)
    model = PPO("MlpPolicy", env, n_steps=256, device="cpu", seed=0).learn(1024)
    assert len(model.ep_info_buffer or ()) == 4
