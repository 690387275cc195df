"""Copies whose episodes end together are taken apart, where an update takes a number of steps of each."""

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from toy_envs import TINY, ToyEnv, step_both

from sb3_grpo import DAPO, GRPO, SeedStart, TrainingCheckpoint, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.envs import ControlVecEnv
from sb3_grpo.groups.samplers import RandomSeeds, StartSampler
from sb3_grpo.starts.start_queue import StartQueue

STEPS: dict[str, Any] = {"n_steps": 8, "n_epochs": 1, "batch_size": 64, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


class Places(BaseCallback):
    """How far each copy is in its episode after each step, and how many pieces of an update go on after it."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[list[int]] = []
        self.going_on: list[int] = []
        self.lengths: list[int] = []

    def _on_step(self) -> bool:
        self.places.append(self.model.collector.time.tolist())  # type: ignore[attr-defined]
        self.lengths += [info["episode"]["l"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        batch = self.model.batch  # type: ignore[attr-defined]
        self.going_on.append(0 if batch is None else len(batch.going_on))


def toy(n_envs: int = 4, vec_env_cls: Any = DummyVecEnv, **kwargs: Any) -> VecEnv:
    kwargs = {"length": 12, "time_limit": True, **kwargs}
    return make_group_env(functools.partial(ToyEnv, **kwargs), n_envs, seed=0, vec_env_cls=vec_env_cls)


def places_of(env: VecEnv, steps: int = 40, algo: Any = GRPO, **kwargs: Any) -> Places:
    seen = Places()
    algo("MlpPolicy", env, **{**STEPS, **kwargs}).learn(steps * env.num_envs, callback=seen)
    env.close()
    return seen


@pytest.mark.parametrize("algo", [GRPO, DAPO])
@pytest.mark.parametrize("kwargs", [{}, {"unrelated_starts": True}], ids=["groups", "unrelated"])
@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_from_the_second_episodes_on_copies_are_at_different_places(vec_env_cls: Any, kwargs: Any, algo: Any) -> None:
    seen = places_of(toy(vec_env_cls=vec_env_cls), algo=algo, **kwargs)
    assert all(len({*places}) == 1 for places in seen.places[:12])
    for places in seen.places[24:]:
        assert {(place - places[0]) % 12 for place in places} == {0, 3, 6, 9}


def test_an_episode_without_a_time_limit_ends_where_it_did() -> None:
    seen = places_of(toy(time_limit=False))
    assert {(place - seen.places[-1][0]) % 12 for place in seen.places[-1]} == {0, 3, 6, 9}


def test_only_whole_episodes_are_reported() -> None:
    assert {*places_of(toy()).lengths} == {12}


def test_what_is_cut_could_have_gone_on() -> None:
    seen = places_of(toy(time_limit=False), steps=24)
    # Those that are under way, and of the second episodes one that is cut in the second update, and two in the third
    assert seen.going_on == [4, 4 + 1, 3 + 2]


@pytest.mark.parametrize(
    ("env_kwargs", "kwargs"),
    [
        ({"length": None}, {}),
        ({}, {"n_steps": None, "n_groups": 2}),
        ({}, {"n_steps": 12}),
    ],
    ids=["different lengths", "whole groups", "episodes that are no longer than an update"],
)
def test_left_alone(env_kwargs: Any, kwargs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: cut.append(n_steps))
    places_of(toy(n_envs=8, **env_kwargs), **kwargs)
    assert cut == []


def test_episodes_of_different_lengths_that_end_together_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: cut.append(n_steps))
    places_of(DummyVecEnv([functools.partial(ToyEnv, length=length) for length in (6, 6, 12, 12)]))
    assert cut == []


class FromStates(RandomSeeds):
    """Says that it draws states as well."""

    captures_states = True


def test_episodes_that_begin_at_visited_states_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: cut.append(n_steps))
    places_of(make_group_env("MountainCar-v0", 4, seed=0), steps=1000, start_sampler=FromStates())
    assert cut == []


def test_environments_that_are_not_to_be_reset_early_are_left_alone() -> None:
    env = make_group_env(functools.partial(ToyEnv, length=12), 4, seed=0, monitor_kwargs={"allow_early_resets": False})
    assert all(len({*places}) == 1 for places in places_of(env).places)


def test_monitors_around_all_copies_see_whole_episodes() -> None:
    assert {*places_of(VecMonitor(DummyVecEnv([functools.partial(ToyEnv, length=12)] * 4))).lengths} == {12}


def test_copies_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    original = StartQueue.cut_after
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: (cut.append(n_steps), original(self, n_steps)))
    places_of(toy(n_envs=3, length=2), steps=60, n_steps=1)
    assert cut == [1, 2]


def test_successes_are_those_of_whole_episodes() -> None:
    class Succeeds(gym.Wrapper):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation, reward, terminated, truncated, {**info, "is_success": terminated}

    env = make_group_env(lambda: Succeeds(ToyEnv(length=12)), 4, seed=0)
    model = GRPO("MlpPolicy", env, **STEPS).learn(4 * 40)
    assert model.ep_success_buffer is not None and model.ep_info_buffer is not None
    assert len(model.ep_success_buffer) == len(model.ep_info_buffer) > 8 and all(model.ep_success_buffer)


def test_samplers_see_whole_episodes() -> None:
    class Sees(StartSampler):
        def __init__(self) -> None:
            self.lengths: list[int] = []

        def __call__(self, rng: np.random.Generator) -> SeedStart:
            return SeedStart(int(rng.integers(100)))

        def after_episode(self, group: Any, episode: Any, info: Any) -> None:
            self.lengths.append(episode.length)

    sampler = Sees()
    places_of(toy(), start_sampler=sampler)
    assert {*sampler.lengths} == {12}


def test_groups_that_are_cut_are_neither_dead_nor_live() -> None:
    class Logged(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            said.append(self.logger.name_to_value.get("group/dead_fraction"))

    said: list[Any] = []
    # Each step costs as much, so all that are whole come to the same
    DAPO("MlpPolicy", toy(reward=-1.0), max_sampling_rounds=1, **STEPS).learn(4 * 80, callback=Logged())
    assert {*said} - {None} == {1.0} and len(said) > 5


def test_environments_of_others_need_no_start_queue() -> None:
    places_of(make_vec_env(functools.partial(ToyEnv, length=12), 4), unrelated_starts=True)


def test_the_same_for_copies_in_one_object() -> None:
    def learned(env: VecEnv) -> th.Tensor:
        model = GRPO("MlpPolicy", env, **STEPS).learn(4 * 450)
        return th.nn.utils.parameters_to_vector(model.policy.parameters())

    assert th.equal(learned(make_group_env("Pendulum-v1", 4, seed=0)), learned(ControlVecEnv("Pendulum-v1", 4, seed=0)))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_cut_is_the_same_for_copies_in_one_object(env_id: str) -> None:
    copies, batch = make_group_env(env_id, 3, seed=0), ControlVecEnv(env_id, 3, seed=0)
    for env in (copies, batch):
        env.reset()
        for copy, n_steps in ((0, 1), (1, 5), (2, 1000)):
            env.env_method("cut_after", n_steps, indices=copy)
    copies.action_space.seed(0)
    n_ended = sum(step_both(copies, batch, np.array([copies.action_space.sample() for _ in range(3)])) for _ in range(230))
    assert n_ended >= 4


def test_a_metric_that_the_info_has_only_at_the_end() -> None:
    class Scored(gym.Wrapper):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation, reward, terminated, truncated, {**info, "score": reward} if terminated else info

    env = make_group_env(lambda: Scored(ToyEnv(length=12)), 4, seed=0)
    assert {(place - 1) % 3 for place in np.ptp(places_of(env, group_metric="score").places[30:], axis=1).tolist()} == {2}


def test_a_training_that_is_resumed_between_two_cuts(tmp_path: Path) -> None:
    def parameters(model: GRPO) -> th.Tensor:
        return th.nn.utils.parameters_to_vector(model.policy.parameters())

    model = GRPO("MlpPolicy", toy(), **STEPS).learn(64 * 6, callback=TrainingCheckpoint(tmp_path, save_freq=1, keep=100))
    resumed = [parameters(GRPO.resume(path, toy(), device="cpu").learn()) for path in checkpoints_in(tmp_path)]
    assert len(resumed) >= 5 and all(th.equal(each, parameters(model)) for each in resumed)
