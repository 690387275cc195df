"""Groups at the edge of what a group is: what becomes of them (docs/algorithms/grpo.md)."""

from typing import Any

import numpy as np
import pytest
import torch as th
from toy_envs import ToyEnv

from sb3_grpo import DAPO, GRPO, make_group_env

OUTCOME: dict[str, Any] = {"advantage": "outcome", "advantage_scale": "group", "n_groups": 2, "group_size": 4, "n_epochs": 1}


class Bandit(ToyEnv):
    """
    Episodes of one step, whose reward is that of the action.

    :param rewards: Of the two actions
    """

    def __init__(self, rewards: list[Any]):
        super().__init__(length=1)
        self.rewards = rewards

    def observe(self) -> Any:
        return np.zeros(2)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, self.rewards[int(action)], *rest


def learn(rewards: list[Any], algo: type[GRPO] = GRPO, timesteps: int = 600, **kwargs: Any) -> GRPO:
    env = make_group_env(lambda: Bandit(rewards), n_envs=4)
    return algo("MlpPolicy", env, seed=0, device="cpu", learning_rate=1e-2, **kwargs).learn(timesteps)


def share_of_the_last_action(model: GRPO) -> float:
    distribution = model.policy.get_distribution(th.zeros(1, 2)).distribution
    return distribution.probs[0, -1].item()


@pytest.mark.parametrize("rewards", [[0.0, 1e-5], [False, True], [-1e30, 1e30], [np.int8(0), np.int8(1)]], ids=str)
@pytest.mark.parametrize("kwargs", [{}, OUTCOME], ids=["default", "outcome"])
def test_rewards_of_any_size_and_type_are_learned_from(rewards: list[Any], kwargs: dict[str, Any]) -> None:
    if kwargs == {}:
        kwargs = {"n_steps": 16}
    assert share_of_the_last_action(learn(rewards, **kwargs)) > 0.8


def test_rewards_far_below_what_is_added_to_the_deviation_teach_nothing() -> None:
    assert share_of_the_last_action(learn([0.0, 1e-30], **OUTCOME)) == pytest.approx(0.5, abs=0.01)


def test_sums_of_the_same_parts_are_the_same() -> None:
    # Rewards are stored in single precision, as in every VecEnv of SB3: the last digit of a float is not a difference
    model = learn([0.1 + 0.2, 0.3], DAPO, **OUTCOME)
    assert model.logger.name_to_value["group/dead_fraction"] in (0, 1.0)
    assert share_of_the_last_action(model) == pytest.approx(0.5, abs=0.01)
