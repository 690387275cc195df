"""Start samplers of one's own: they draw starts, and look at steps and outcomes."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from toy_envs import TINY

from sb3_grpo import GRPO, SeedStart
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.groups.samplers import StartSampler

SETTINGS: dict[str, Any] = {"group_size": 4, "n_groups": 4, "policy_kwargs": TINY, "device": "cpu", "seed": 0, "n_epochs": 1}


class HardSeeds(StartSampler):
    """Ten seeds, those with the shortest episodes more often."""

    def __init__(self) -> None:
        self.lengths = np.full(10, 1.0)
        self.n_steps = 0

    def __call__(self, rng: np.random.Generator) -> SeedStart:
        return SeedStart(int(rng.choice(10, p=(1 / self.lengths) / (1 / self.lengths).sum())))

    def after_step(self, env: VecEnv, observations: Any, dones: np.ndarray, rng: np.random.Generator) -> None:
        self.n_steps += env.num_envs

    def after_episode(self, group: Group, episode: Episode, info: dict[str, Any]) -> None:
        assert isinstance(group.start, SeedStart) and episode in group.episodes
        assert episode.outcome == episode.length > 0 and "terminal_observation" in info
        self.lengths[group.start.seed] = episode.length


def test_a_sampler_sees_steps_and_outcomes(tmp_path: Any) -> None:
    sampler = HardSeeds()
    model = GRPO("MlpPolicy", "CartPole-v1", start_sampler=sampler, **SETTINGS).learn(2000)
    assert sampler.n_steps == model.num_timesteps
    assert (sampler.lengths > 1).sum() > 5
    # It is saved with the model, and goes on with what it has seen
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=model.get_env())
    assert loaded.start_sampler.lengths.tolist() == sampler.lengths.tolist()
    loaded.learn(200, reset_num_timesteps=False)
    assert loaded.start_sampler.n_steps > sampler.n_steps


@pytest.mark.parametrize("start", [7, None, {"seed": 7}])
def test_error_of_a_sampler_that_returns_no_start(start: Any) -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", start_sampler=lambda rng: start, **SETTINGS)
    with pytest.raises(TypeError, match=r"must return a SeedStart or a SnapshotStart, got"):
        model.learn(100)


class StaleFractions(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.logged: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.logged.append(self.logger.name_to_value["group/stale_fraction"])


@pytest.mark.parametrize(("env_id", "expected"), [("CartPole-v1", (0.2, 0.9)), ("Pendulum-v1", (0.0, 0.0))])
def test_steps_of_an_earlier_policy_are_logged(env_id: str, expected: tuple[float, float]) -> None:
    seen = StaleFractions()
    GRPO("MlpPolicy", env_id, **SETTINGS).learn(12_000, callback=seen)
    assert seen.logged[0] == 0, "the first update has a policy that nobody has changed"
    lowest, highest = expected
    # Episodes of CartPole end at different times, and free copies run ahead; those of Pendulum all have the same length
    assert lowest <= np.mean(seen.logged[1:]) <= highest
