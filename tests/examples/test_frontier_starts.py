"""Starts in an archive of what was reached."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from toy_envs import TINY

from examples.frontier_starts import FrontierStarts
from sb3_grpo import DAPO, SeedStart, SnapshotStart, make_group_env
from sb3_grpo.groups.group import Episode, Group

SETTINGS: dict[str, Any] = {"group_size": 4, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


def ended_group(start: Any, outcomes: Any) -> Group:
    group = Group(0, start, n_ended=len(outcomes))
    group.episodes = [Episode(n, group, n, length=10, outcome=outcome) for n, outcome in enumerate(outcomes)]
    return group


class Corridor(gym.Env[Any, Any]):
    """A reward at the end, which random steps hardly ever reach."""

    observation_space = gym.spaces.Discrete(31)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = max(self.place + (1 if action else -1), 0)
        return self.place, float(self.place == 30), self.place == 30, False, {}

    def get_state(self) -> int:
        return self.place

    def set_state(self, state: int) -> None:
        self.place = state


def corridor(**kwargs: Any) -> gym.Env:
    return gym.wrappers.TimeLimit(Corridor(), 60)


def n_right(model: DAPO) -> int:
    return int(sum(model.predict(np.array(place), deterministic=True)[0] == 1 for place in range(30)))


@pytest.mark.slow
def test_a_distant_reward_is_found_and_learned() -> None:
    learned = {}
    for sampler in (None, FrontierStarts(corridor)):
        model = DAPO("MlpPolicy", make_group_env(corridor, 8, seed=0), seed=0, device="cpu", start_sampler=sampler)
        learned[sampler is not None] = n_right(model.learn(30_000))
    assert learned[True] >= 28 > learned[False]


def test_groups_begin_where_scouts_have_been() -> None:
    env_id = "MountainCar-v0"
    sampler = FrontierStarts(env_id)
    DAPO("MlpPolicy", make_group_env(env_id, 4, seed=0), start_sampler=sampler, **SETTINGS).learn(4000)
    places = [np.asarray(cell.state.observation)[0] for cell in sampler.archive.cells.values()]
    # Actions that are drawn in each step stay within 0.1 of the bottom
    assert max(places) - min(places) > 0.6
    assert any(isinstance(sampler(np.random.default_rng(seed)), SnapshotStart) for seed in range(10))
    for cell in sampler.archive.cells.values():
        assert cell.n_visits > 0
        assert cell.parent is None or cell.parent.n_steps < cell.n_steps


def test_it_fades_out_where_ordinary_starts_succeed() -> None:
    sampler, rng = FrontierStarts(corridor), np.random.default_rng(0)
    env = make_group_env(corridor, 2, seed=0)
    sampler.after_step(env, env.reset(), np.zeros(2, dtype=bool), rng)

    def share() -> float:
        return float(np.mean([isinstance(sampler(rng), SnapshotStart) for _ in range(200)]))

    def play(*results: float) -> None:
        group = ended_group(SeedStart(0), results)
        sampler.after_episode(group, group.episodes[-1], {})

    for _ in range(100):
        play(0, 0, 0, 0)
    assert 0.35 < share() < 0.65
    for _ in range(100):
        play(1, 1, 1, 1)
    assert share() < 0.05
