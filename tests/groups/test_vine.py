from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize
from toy_envs import TINY, ToyEnv

from sb3_grpo.common.values import UpdateRegression
from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import HardPrompts
from sb3_grpo.groups import samplers
from sb3_grpo.groups.samplers import FunctionStarts, VisitedStates
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, StartNotSupportedError

SETTINGS: dict[str, Any] = {"group_size": 4, "n_groups": 4, "policy_kwargs": TINY, "device": "cpu", "seed": 0, "n_epochs": 1}


class Groups(BaseCallback):
    """Keeps the groups of all updates, and what was observed in each rollout before it and since."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Any] = []
        self.observed: set[bytes] = set()
        self.fractions: list[float] = []

    def _on_step(self) -> bool:
        self.observed.update(each.tobytes() for each in self.locals["new_obs"])
        assert isinstance(self.model, GRPO)
        self._wanted = self.model.collector.queue.wanted_groups()
        return True

    def _on_rollout_end(self) -> None:
        self.groups += self._wanted
        self.fractions.append(self.logger.name_to_value["group/vine_fraction"])


def learn(env: VecEnv, steps: int = 3000, cls: type[GRPO] = GRPO, **changes: Any) -> tuple[GRPO, Groups]:
    callback = Groups()
    model = cls("MlpPolicy", env, **{"start_sampler": VisitedStates(0.5), **SETTINGS, **changes})
    return model.learn(steps, callback=callback), callback


@pytest.mark.parametrize(("kind", "cls"), [("dummy", DAPO), ("subproc", GRPO)])
def test_groups_begin_where_the_policy_has_been(kind: str, cls: type[GRPO]) -> None:
    if kind == "subproc":
        env = make_group_env("CartPole-v1", 3, seed=0, vec_env_cls=SubprocVecEnv)
    else:
        env = make_group_env("CartPole-v1", 8, seed=0)
    _, seen = learn(env, cls=cls)
    begun = [group.start for group in seen.groups]
    visited = [start for start in begun if isinstance(start, SnapshotStart)]
    # A few groups are drawn before there are states
    assert 0.25 * len(begun) < len(visited) < 0.75 * len(begun) and len(begun) > 20
    assert {start.observation.tobytes() for start in visited} <= seen.observed
    for group in seen.groups:
        if isinstance(group.start, SnapshotStart):
            assert group.is_dead or np.array_equal(group.first_observation, group.start.observation)
    assert 0.25 < np.mean(seen.fractions) < 0.75
    env.close()


def test_outcomes_are_those_of_the_branches() -> None:
    """And not of what led to them, which is the same for all."""
    _, seen = learn(make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 20}), advantage="outcome")
    visited = [group.start for group in seen.groups if isinstance(group.start, SnapshotStart)]
    lengths = {group.episodes[0].length for group in seen.groups if group.start in visited}
    assert len(lengths) > 5 and max(lengths) < 20
    assert all(len({episode.length for episode in group.episodes}) == 1 for group in seen.groups)
    # The regression has to know when the time is up
    assert all(group.start.elapsed + group.episodes[0].length == 20 for group in seen.groups if group.start in visited)
    assert all(-17.0 * length < group.episodes[0].outcome for group in seen.groups for length in [group.episodes[0].length])


def test_branches_are_not_reported() -> None:
    """The longer an episode is the more branches it has, and what led to them has been reported already."""
    env = make_group_env("CartPole-v1", 8, seed=0)
    model, _ = learn(env, 20_000, start_sampler=VisitedStates(0.8), learning_rate=0.0, stats_window_size=10_000)
    assert model.ep_info_buffer is not None
    lengths = [info["l"] for info in model.ep_info_buffer]
    assert abs(np.mean(lengths) - 21.7) < 2.5 and len(lengths) > 100


def test_the_regression_knows_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[int] = []

    original = UpdateRegression.fit

    def fit(self: UpdateRegression, states: Any, returns: th.Tensor, time: th.Tensor) -> None:
        last.append(int(time.max()))
        original(self, states, returns, time)

    monkeypatch.setattr(UpdateRegression, "fit", fit)
    env = make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 20})
    learn(env, 2000, n_groups=1, start_sampler=VisitedStates(1.0))
    assert set(last) == {19} and len(last) > 10


def test_states_are_new_and_alike_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "CAPTURE_RATE", 0.3)
    states, rng = VisitedStates(1.0, FunctionStarts(lambda rng: SeedStart(1))), np.random.default_rng(0)
    assert states(rng) == SeedStart(1)
    env = make_group_env("CartPole-v1", 4, seed=0)
    env.reset()
    captured: Counter[int] = Counter()
    for _ in range(300):
        observations, *_ = env.step(rng.integers(2, size=4))
        before = len(states.states)
        states.after_step(env, observations, np.array([False, False, False, True]), rng)
        latest = [observations[idx].tobytes() for idx in range(3)]
        assert all(state.observation.tobytes() in latest for state in [*states.states][before:])
        captured.update(latest.index(state.observation.tobytes()) for state in [*states.states][before:])
    assert len(states.states) == samplers.N_STATES
    assert all(captured[idx] > 0.2 * captured.total() for idx in range(3))
    drawn = [id(states(rng)) for _ in range(1000)]
    assert {id(state) for state in states.states} == {*drawn}


def test_the_sampler_of_the_other_starts_is_saved_as_well() -> None:
    def made() -> VisitedStates:
        return VisitedStates(0.5, HardPrompts(3))

    states: Any = made()
    states.other.success_rates[:] = [0.1, 0.2, 0.3]
    loaded: Any = made()
    loaded.load_state_dict(states.state_dict())
    assert loaded.other.success_rates.tolist() == [0.1, 0.2, 0.3]


def test_a_step_captures_each_copy_once_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "CAPTURE_RATE", 1.0)
    states, env = VisitedStates(1.0, FunctionStarts(lambda rng: SeedStart(1))), make_group_env("CartPole-v1", 8, seed=0)
    observations = env.reset()
    states.after_step(env, observations, np.zeros(8, dtype=bool), np.random.default_rng(0))
    assert {state.observation.tobytes() for state in states.states} == {each.tobytes() for each in observations}


def test_another_environment_share_or_sampler() -> None:
    env = VecNormalize(make_group_env("CartPole-v1", 4, seed=0), norm_reward=False)
    model, _ = learn(env)
    model.set_env(VecNormalize(make_group_env("CartPole-v1", 4, seed=0, env_kwargs={"sutton_barto_reward": True})))
    # Whose states are none of the environment's before
    model.learn(500)
    model.start_sampler = VisitedStates(1.0)
    seen = Groups()
    model.learn(2000, callback=seen, reset_num_timesteps=False)
    assert sum(isinstance(group.start, SnapshotStart) for group in seen.groups) > 0.8 * len(seen.groups)
    model.start_sampler = lambda rng: SeedStart(7)
    seen = Groups()
    model.learn(500, callback=seen, reset_num_timesteps=False)
    assert {group.start for group in seen.groups} == {SeedStart(7)}


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"share must be between 0 and 1, got 1\.5"):
        VisitedStates(1.5)
    with pytest.raises(ValueError, match="leave unrelated_starts=False"):
        GRPO("MlpPolicy", "CartPole-v1", start_sampler=VisitedStates(0.5), unrelated_starts=True)
    with pytest.raises(StartNotSupportedError, match=r"get_state\(self\)"):
        learn(make_group_env(ToyEnv, 4, seed=0))
    with pytest.raises(StartNotSupportedError, match="VecFrameStack keeps the past frames outside"):
        learn(VecFrameStack(make_group_env(ToyEnv, 4, seed=0), 2))
