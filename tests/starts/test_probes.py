import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from broken_envs import (
    BROKEN,
    DeepGenerator,
    ForgottenField,
    ForgottenGoal,
    NestedGenerator,
    OwnStrength,
    PassedOver,
    RandomPosition,
    SuspendedGenerator,
    Ticking,
    WindyWalk,
)
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from toy_envs import TINY, parameters_of

from sb3_grpo.groups import queue as group_queue
from sb3_grpo.groups.queue import GroupSettings, WholeGroupQueue
from sb3_grpo.groups.samplers import FunctionStarts, VisitedStates
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.check_starts import check_starts
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.snapshots import capture
from sb3_grpo.starts.starts import UnequalStartError
from sb3_grpo.utils.random_states import process_state

SETTINGS: dict[str, Any] = {"group_size": 3, "n_groups": 2, "n_epochs": 1, "policy_kwargs": TINY, "device": "cpu", "seed": 0}
SETTINGS |= {"start_sampler": VisitedStates(0.8)}


@pytest.mark.parametrize("env", BROKEN)
@pytest.mark.parametrize(("n_envs", "vec_env_cls"), [(1, DummyVecEnv), (3, SubprocVecEnv)])
def test_training_refuses_broken_environments(env: type[gym.Env], n_envs: int, vec_env_cls: Any) -> None:
    vec_env = make_group_env(env, n_envs, seed=0, vec_env_cls=vec_env_cls)
    says = {
        ForgottenField: r"\.get_state\(\)\['wind'\] is -?\d when it was captured and -?\d once it is restored \(by",
        RandomPosition: r"\.get_state\(\)\['x'\] is .* once it is restored",
        PassedOver: r"\.get_state\(\)\['x'\] is .* once it is restored",
        ForgottenGoal: r"after \d equal actions?, reward is .* \(by .*get_state\(\) leaves out",
    }
    with pytest.raises(UnequalStartError, match=f"^{env.__name__}: .*{says[env]}.*check_starts"):
        GRPO("MlpPolicy", vec_env, **SETTINGS).learn(2000)
    vec_env.close()


@pytest.mark.parametrize("env", [DeepGenerator, SuspendedGenerator])
def test_generators_that_are_not_restored_are_noticed(env: type[gym.Env]) -> None:
    with pytest.raises(UnequalStartError, match=rf"^{env.__name__}: .* went on differently: .* Draw random numbers from self"):
        GRPO("MlpPolicy", make_group_env(env, 3, seed=0), **SETTINGS).learn(2000)


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("period", [2, 3, 5])
def test_counters_that_are_not_restored_are_noticed_whatever_their_period(period: int, is_reset: bool) -> None:
    env = type("Ticking", (Ticking,), {"period": period, "is_reset": is_reset})
    for n_envs in (1, 3):
        with pytest.raises(UnequalStartError, match=r"went on differently: after \d equal actions?, reward is .* \(by 1\)"):
            GRPO("MlpPolicy", make_group_env(env, n_envs, seed=0), **SETTINGS).learn(2000)
    assert not check_starts(env, 2, 30, verbose=0).is_exact("snapshots")


def test_right_environments_are_trained_in() -> None:
    for env in (WindyWalk, NestedGenerator):
        GRPO("MlpPolicy", make_group_env(env, 3, seed=0), **SETTINGS).learn(1000)


def test_copies_that_are_not_alike() -> None:
    expected = r"^OwnStrength: two copies were restored to the same state, and .* after 1 equal action, observation\[0\] is "
    with pytest.raises(UnequalStartError, match=expected):
        GRPO("MlpPolicy", make_group_env(OwnStrength, 3, seed=0), **SETTINGS).learn(2000)


class Recorder(BaseCallback):
    """What a training has seen, and what its copies are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.n_probes = 0

    def _on_step(self) -> bool:
        self.seen.append((self.locals["new_obs"].copy(), self.locals["rewards"].copy()))
        return True

    def _on_rollout_end(self) -> None:
        self.n_probes = self.model.collector.queue._n_probed  # type: ignore[attr-defined]


class Drawing(WindyWalk):
    """Draws from the global generators."""

    def step(self, action: Any) -> Any:
        th.rand(1), np.random.random(), random.random()
        return super().step(action)


def trained(make_env: Any) -> tuple[Any, ...]:
    env = make_env()
    seen = Recorder()
    model = GRPO("MlpPolicy", env, **SETTINGS).learn(1500, callback=seen)
    statistics = [copy.env.get_episode_rewards() for copy in env.envs] if isinstance(env, DummyVecEnv) else []
    reported = [each["r"] for each in model.ep_info_buffer or []]
    return seen.n_probes, (parameters_of(model).tolist(), seen.seen, statistics, process_state(), reported)


@pytest.mark.parametrize("name", ["Drawing", "NestedGenerator", "FrozenLake-v1", "LunarLander-v3", "subproc"])
def test_nobody_notices_probes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "LunarLander-v3":
        pytest.importorskip("Box2D")
    makers = {
        "Drawing": lambda: make_group_env(Drawing, 3, seed=0),
        "NestedGenerator": lambda: make_group_env(NestedGenerator, 3, seed=0),
        "subproc": lambda: make_group_env(WindyWalk, 2, seed=0, vec_env_cls=SubprocVecEnv),
    }
    make_env = makers.get(name, lambda: make_group_env(name, 3, seed=0))
    n_probes, expected = trained(make_env)
    monkeypatch.setattr(group_queue, "N_PROBED_FIRST", 0)
    monkeypatch.setattr(group_queue, "PROBED_SHARE", 0.0)
    none, observed = trained(make_env)
    assert n_probes >= 2 and none == 0
    assert repr(expected) == repr(observed)


def test_probes_become_rare() -> None:
    env = WindyWalk()
    start = capture(env, env.reset(seed=0)[0])
    groups = WholeGroupQueue(GroupSettings(4, 2, 1, FunctionStarts(lambda rng: start)), 4, np.random.default_rng(0))
    probed = []
    for _ in range(3000):
        episodes: list[Any] = [groups.next_episode() for _ in range(4)]
        probed.append(episodes[0].group.probe is not None)
        for episode in episodes:
            episode.length, episode.outcome = 100, float(episode.id)
            groups.end_episode(episode, {})
        if len(probed) % 2 == 0:
            groups.take()
    # The first two, then one for every 300 groups or so
    assert probed[:3] == [True, True, False]
    assert 5 < sum(probed[3:]) < 20


def test_weather_of_groups_from_one_snapshot() -> None:
    env = make_group_env(NestedGenerator, 4, seed=0)
    env.reset()
    (start,) = env.env_method("capture_start", indices=0)
    by_group: dict[int, list[Any]] = {}
    playing: dict[int, int | None] = {}

    def look(local_vars: dict[str, Any], _: Any) -> bool:
        for idx, info in enumerate(env.reset_infos):
            if playing.get(idx) is not None:
                by_group.setdefault(playing[idx] or 0, []).append(tuple(local_vars["new_obs"][idx].tolist()))
            # An episode begins: what comes next is its first noise
            playing[idx] = info.get("group") if local_vars["dones"][idx] else None
        return True

    GRPO("MlpPolicy", env, **{**SETTINGS, "start_sampler": lambda rng: start}).learn(1500, callback=look)
    groups = [weathers for weathers in by_group.values() if len(weathers) == 3]
    assert len(groups) > 10
    assert all(len({*weathers}) == 1 for weathers in groups)
    assert len({weathers[0] for weathers in groups}) == len(groups)
