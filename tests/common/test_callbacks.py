import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import TINY, ToyEnv, parameters_of

from sb3_grpo.dapo import DAPO
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env


def make_model(n_envs: int = 2, algo: type[GRPO] = GRPO, env: Any = None, **kwargs: Any) -> GRPO:
    env = env or make_group_env(functools.partial(ToyEnv, length=None), n_envs)
    small = {"group_size": 2, "n_groups": 2, "n_epochs": 1, "policy_kwargs": TINY, "device": "cpu", "seed": 0}
    return algo("MlpPolicy", env, **{**small, **kwargs})


class Record(BaseCallback):
    """Notes what it is told, and what it sees then."""

    def __init__(self, stop_at: int | None = None):
        super().__init__()
        self.stop_at = stop_at
        self.events: list[str] = []
        self.steps: list[int] = []

    def _init_callback(self) -> None:
        self.events.append("init")

    def _on_training_start(self) -> None:
        self.events.append("training_start")

    def _on_rollout_start(self) -> None:
        self.events.append("rollout_start")

    def _on_step(self) -> bool:
        self.events.append("step")
        self.steps.append(self.num_timesteps)
        n_envs = self.training_env.num_envs
        assert len(self.locals["infos"]) == len(self.locals["dones"]) == len(self.locals["rewards"]) == n_envs
        assert self.locals["new_obs"].shape == (n_envs, 2)
        assert self.locals["self"] is self.model
        return self.stop_at is None or self.n_calls < self.stop_at

    def _on_rollout_end(self) -> None:
        self.events.append("rollout_end")
        assert self.model.batch is not None  # type: ignore[attr-defined]

    def _on_training_end(self) -> None:
        self.events.append("training_end")


@pytest.mark.parametrize(("n_envs", "progress_bar"), [(1, False), (3, False), (3, True)])
def test_every_step_calls_the_callback(n_envs: int, progress_bar: bool) -> None:
    record = Record()
    model = make_model(n_envs).learn(100, callback=record, progress_bar=progress_bar)
    assert record.steps == list(range(n_envs, model.num_timesteps + 1, n_envs))
    assert record.num_timesteps == model.num_timesteps >= 100
    assert record.events[:3] == ["init", "training_start", "rollout_start"]
    assert record.events[-2:] == ["rollout_end", "training_end"]
    assert record.events.count("init") == 1
    assert record.events.count("rollout_start") == record.events.count("rollout_end") >= 2


@pytest.mark.parametrize("n_steps", [1, 13])
@pytest.mark.parametrize("progress_bar", [False, True])
@pytest.mark.parametrize("wrap", [lambda callback: callback, lambda callback: [callback, Record()]])
def test_false_stops_at_once(n_steps: int, progress_bar: bool, wrap: Any) -> None:
    record = Record(stop_at=n_steps)
    model = make_model(3)
    before = parameters_of(model)
    model.learn(10_000, callback=wrap(record), progress_bar=progress_bar)
    assert model.num_timesteps == 3 * n_steps
    assert n_steps > 1 or th.equal(parameters_of(model), before), "nothing is learned from a part of a rollout"
    assert record.n_calls == n_steps
    assert record.events[-1] == "training_end"


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The progress bars of all trainings, as they were at the end: their steps, their total and what stands before them."""
    shown: list[Any] = []

    def look(self: Any) -> None:
        shown.append((self.pbar.n, self.pbar.total, self.pbar.desc))
        self.pbar.close()

    monkeypatch.setattr(ProgressBarCallback, "_on_training_end", look)
    return shown


@pytest.mark.parametrize("total", [1, 30])
def test_progress_bar_ends_at_its_total_and_shows_the_mean_return(total: int, bars: list[Any]) -> None:
    seen = Logged()
    model = make_model(4).learn(total, callback=seen, progress_bar=True)
    assert model.num_timesteps > total
    assert bars == [(total, total, f"mean return {seen.logged[-1]['group/return_mean']:.3g}: ")]


class Logged(BaseCallback):
    """Notes what is logged, and how each episode of an update ended."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []
        self.ended: dict[int, list[tuple[float, Any]]] = {}

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "group" in info:
                self.ended.setdefault(info["group"], []).append((info["episode"]["r"], info.get("is_success")))
        return True

    def _on_rollout_end(self) -> None:
        complete = np.array([each for each in self.ended.values() if len(each) == self.model.group_size])  # type: ignore[attr-defined]
        self.logged.append({**self.logger.name_to_value, "complete": complete})


class Succeeds(ToyEnv):
    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        self.n_right = result[1] + (self.n_right if self.t > 1 else 0.0)
        return (*result, {"is_success": self.n_right >= 3})


@pytest.mark.parametrize("env_class", [ToyEnv, Succeeds])
@pytest.mark.parametrize("sizes", [{"n_groups": 3}, {"n_groups": None, "n_steps": 30}])
def test_returns_and_successes_of_an_update(env_class: Any, sizes: dict[str, Any]) -> None:
    seen = Logged()
    make_model(4, env=make_group_env(env_class, 4), group_size=4, **sizes).learn(300, callback=seen)
    first = seen.logged[0]
    complete = first["complete"]  # (groups, members, return and success)
    assert len(complete) >= 1
    assert first["group/return_mean"] == pytest.approx(complete[..., 0].astype(float).mean())
    assert ("group/success_rate" in first) == ("group/pass_at_group_size" in first) == (env_class is Succeeds)
    if env_class is Succeeds:
        successes = complete[..., 1].astype(bool)
        assert first["group/success_rate"] == pytest.approx(successes.mean())
        assert first["group/pass_at_group_size"] == pytest.approx(successes.any(axis=1).mean())
        assert 0.0 < successes.mean() < 1.0


def test_usable_after_an_interrupt_in_the_middle_of_a_step() -> None:
    class Interrupted(ToyEnv):
        armed = True

        def step(self, action: Any) -> Any:
            if self.armed and self.t == 2:
                type(self).armed = False
                raise KeyboardInterrupt
            return super().step(action)

    model = make_model(env=DummyVecEnv([ToyEnv, Interrupted, ToyEnv]))
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    model.learn(1, reset_num_timesteps=False)
    # The first copy's last step before the interrupt is lost, and so is its episode
    assert model.batch.lengths.tolist() == [[4, 4], [4, 4]]


def test_schedules_see_the_progress() -> None:
    seen: list[float] = []

    def schedule(progress: float) -> float:
        seen.append(progress)
        return 0.001 + 0.1 * progress

    model = make_model(5, learning_rate=schedule, clip_range=schedule, clip_range_high=schedule)
    seen.clear()  # the optimizer asks for the initial learning rate
    for total, reset in ((33, True), (1, True), (50, False), (7, False), (120, True)):
        model.learn(total, reset_num_timesteps=reset)
        assert model._current_progress_remaining == 0.0
        assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert min(seen) == 0.0
    assert max(seen) <= 1.0
    # In a run of many updates it falls from 1 to 0
    seen.clear()
    make_model(1, learning_rate=schedule).learn(1000)
    progress = [each for each in seen if 0.0 < each < 1.0]  # both ends are tried out before
    assert progress == sorted(progress, reverse=True)
    assert len(set(progress)) > 10
    assert progress[0] > 0.9


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = make_model(2, DAPO, tensorboard_log=str(tmp_path), kl_coef=0.1).learn(200)
    model.learn(10, reset_num_timesteps=False)
    model.learn(10, tb_log_name="other")
    assert sorted(os.listdir(tmp_path)) == ["DAPO_1", "other_1"]
    events = accumulator.EventAccumulator(str(tmp_path / "DAPO_1"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    # Those of PPO, and some more
    train = "approx_kl clip_fraction clip_range entropy_loss learning_rate loss policy_gradient_loss kl_ref".split()
    others = ("rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "group/dead_fraction", "group/return_std")
    assert tags >= {*(f"train/{name}" for name in train), *others}
    assert not any("value" in tag for tag in tags)
    # Files of the same second are read in the order of their names, in which 10 comes before 9
    logged = sorted(events.Scalars("rollout/ep_rew_mean"), key=lambda event: event.wall_time)
    steps = [event.step for event in logged]
    assert steps == sorted(steps)
