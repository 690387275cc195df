"""Copies whose episodes end together are taken apart, where an update takes a number of steps of each."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from toy_envs import TINY, ToyEnv, parameters_of

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, VisitedStates, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
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
        self.going_on.append(0 if batch is None else len(batch.unfinished))


def toy(n_envs: int = 4, vec_env_cls: Any = DummyVecEnv, **kwargs: Any) -> VecEnv:
    kwargs = {"length": 12, "time_limit": True, **kwargs}
    return make_group_env(functools.partial(ToyEnv, **kwargs), n_envs, seed=0, vec_env_cls=vec_env_cls)


def places_of(env: VecEnv, steps: int = 40, algo: Any = GRPO, **kwargs: Any) -> Places:
    seen = Places()
    algo("MlpPolicy", env, **{**STEPS, **kwargs}).learn(steps * env.num_envs, callback=seen)
    env.close()
    return seen


@pytest.mark.parametrize(
    ("vec_env_cls", "kwargs", "algo"),
    [(DummyVecEnv, {}, GRPO), (DummyVecEnv, {"unrelated_starts": True}, DAPO), (SubprocVecEnv, {}, DAPO)],
)
def test_from_the_second_episodes_on_copies_are_at_different_places(vec_env_cls: Any, kwargs: Any, algo: Any) -> None:
    seen = places_of(toy(vec_env_cls=vec_env_cls), algo=algo, **kwargs)
    assert all(len({*places}) == 1 for places in seen.places[:12])
    for places in seen.places[24:]:
        assert {(place - places[0]) % 12 for place in places} == {0, 3, 6, 9}


def test_only_whole_episodes_are_reported() -> None:
    assert {*places_of(toy()).lengths} == {12}


def test_what_is_cut_could_have_gone_on() -> None:
    seen = places_of(toy(time_limit=False), steps=24)
    # Those that are under way, and of the second episodes one that is cut in the second update, and two in the third
    assert seen.going_on == [4, 4 + 1, 3 + 2]


@pytest.mark.parametrize(
    ("make_env", "kwargs"),
    [
        (lambda: toy(n_envs=8, length=None), {}),
        (lambda: toy(n_envs=8), {"n_steps": None, "n_groups": 2}),
        (lambda: toy(n_envs=8), {"n_steps": 12}),
        (lambda: DummyVecEnv([functools.partial(ToyEnv, length=length) for length in (6, 6, 12, 12)]), {}),
        (lambda: make_group_env("MountainCar-v0", 4, seed=0), {"steps": 1000, "start_sampler": VisitedStates(0.5)}),
    ],
    ids=["different lengths", "whole groups", "no longer than an update", "different lengths, one end", "visited states"],
)
def test_left_alone(make_env: Any, kwargs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: cut.append(n_steps))
    places_of(make_env(), **kwargs)
    assert cut == []


def test_environments_that_are_not_to_be_reset_early_are_left_alone() -> None:
    env = make_group_env(functools.partial(ToyEnv, length=12), 4, seed=0, monitor_kwargs={"allow_early_resets": False})
    assert all(len({*places}) == 1 for places in places_of(env).places)


def late_toy() -> Any:
    make = functools.partial(ToyEnv, length=20)
    return make_group_env(make, 4, seed=0, monitor_kwargs={"allow_early_resets": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make_env", "n_steps", "reason"),
    [
        (lambda: DummyVecEnv([functools.partial(ToyEnv, length=20)] * 4), 8, "use make_group_env"),
        (lambda: VecMonitor(toy(length=20)), 8, "VecMonitor would report the pieces"),
        (late_toy, 8, "allow_early_resets=False forbids it"),
        (lambda: DummyVecEnv([functools.partial(ToyEnv, length=20)] * 4), 16, None),
        (lambda: toy(length=20), 8, None),
    ],
    ids=["a moment", "VecMonitor", "no early resets", "enough steps", "staggered"],
)
def test_short_updates_of_copies_in_lockstep_are_said(
    make_env: Any, n_steps: int, reason: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    places_of(make_env(), unrelated_starts=True, n_steps=n_steps)
    said = [str(each.message) for each in recwarn if "together, after 20 steps" in str(each.message)]
    assert len(said) == (reason is not None)
    assert all(str(reason) in each for each in said)


def test_copies_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    original = StartQueue.cut_after
    monkeypatch.setattr(StartQueue, "cut_after", lambda self, n_steps: (cut.append(n_steps), original(self, n_steps)))
    places_of(toy(n_envs=3, length=2), steps=60, n_steps=1)
    assert cut == [1, 2]


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


def test_a_training_that_is_resumed_between_two_cuts(tmp_path: Path) -> None:
    model = GRPO("MlpPolicy", toy(), **STEPS).learn(64 * 6, callback=TrainingCheckpoint(tmp_path, save_freq=1, keep=100))
    resumed = [parameters_of(GRPO.resume(path, toy(), device="cpu").learn()) for path in checkpoints_in(tmp_path)]
    assert len(resumed) >= 5 and all(th.equal(each, parameters_of(model)) for each in resumed)
