from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize
from toy_envs import TINY

from sb3_grpo.common.start_queue import capture_starts, make_group_env
from sb3_grpo.common.starts import SeedStart, SnapshotStart, Start
from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import ControlVecEnv

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


def without_time(info: dict[str, Any]) -> dict[str, Any]:
    info = dict(info)
    if "episode" in info:
        info["episode"] = {key: info["episode"][key] for key in ("r", "l")}
    return info


def play_both(copies: Any, batch: Any, n_steps: int, rng: np.random.Generator) -> int:
    """
    :return: How many episodes have ended
    """
    n_ended = 0
    for _ in range(n_steps):
        actions = random_actions(batch.action_space, rng)
        expected, got = copies.step(actions), batch.step(actions)
        # To the last bit
        for one, other in zip(expected[:3], got[:3], strict=True):
            assert np.array_equal(one, other) and one.dtype == other.dtype
        for idx in np.flatnonzero(got[2]):
            assert data_equivalence(without_time(expected[3][idx]), without_time(got[3][idx]), exact=True)
        assert copies.reset_infos == batch.reset_infos
        n_ended += int(got[2].sum())
    return n_ended


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
    starts: list[Start] = [SeedStart(5), SeedStart(5), *capture_starts(batch)[:2], *capture_starts(copies)[2:4]]
    for ticket in range(40):
        for env in (copies, batch):
            env.env_method("queue_start", ticket, starts[ticket % 6], 7 * ticket if ticket % 2 else None, indices=0)
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
    with pytest.raises(ValueError, match="num_envs=0"):
        ControlVecEnv("CartPole-v1", 0)


FLAT = gym.envs.registration.WrapperSpec("flat", "gymnasium.wrappers:FlattenObservation", kwargs={})


def test_pictures() -> None:
    pytest.importorskip("pygame")
    batch = ControlVecEnv("CartPole-v1", 2, seed=0, render_mode="rgb_array")
    batch.reset()
    first, second = batch.get_images()
    assert first is not None and second is not None and first.shape == second.shape and not np.array_equal(first, second)
    assert batch.render() is not None
    batch.close()


def test_training_is_the_same_as_on_single_copies() -> None:
    settings: dict[str, Any] = {"policy_kwargs": TINY, "device": "cpu", "seed": 0, "group_size": 4, "n_groups": 4}
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
