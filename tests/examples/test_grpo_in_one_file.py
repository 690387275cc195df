"""GRPO in one file: from the same episodes, it takes the same steps as the package."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from examples.grpo_in_one_file import VOCABULARY, Settings, Step, Sums, make_batch, mlp, play, train, update
from sb3_grpo import GRPO, make_group_env, presets

N_GROUPS, GROUP_SIZE, LEARNING_RATE = 3, 4, 0.01
SIZES: dict[str, Any] = {"n_groups": N_GROUPS, "group_size": GROUP_SIZE, "learning_rate": LEARNING_RATE}


class Recorder(gym.Wrapper):
    """
    Write down what an environment shows and what is done in it. The policy's log probabilities are not known here.

    :param env: The environment
    :param by_start: The episodes of all copies, by the seed of their start
    """

    def __init__(self, env: gym.Env, by_start: dict[int | None, list[list[Step]]]):
        super().__init__(env)
        self.by_start = by_start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode: list[Step] = []
        self.by_start.setdefault(seed, []).append(self.episode)
        self.observation, info = super().reset(seed=seed, options=options)
        return self.observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.episode.append(Step(self.observation, int(action), np.nan, float(reward)))
        self.observation = observation
        return observation, reward, terminated, truncated, info


def package_update(**settings: Any) -> tuple[list[th.Tensor], list[th.Tensor], dict[int | None, list[list[Step]]]]:
    """
    :param settings: Arguments of GRPO
    :return: The parameters of the package's policy before and after its first update, and the groups of that update
    """
    by_start: dict[int | None, list[list[Step]]] = {}
    env = make_group_env("CartPole-v1", 5, seed=0, wrapper_class=Recorder, wrapper_kwargs={"by_start": by_start})
    arguments = {**presets.GRPO_PAPER, "kl_coef": 0.0, **SIZES, **settings}
    model = GRPO("MlpPolicy", env, seed=0, device="cpu", **arguments)
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(1)
    assert model._n_updates == arguments["n_epochs"]
    # Copies with nothing left to play have begun the groups of the next update
    groups = dict([*by_start.items()][:N_GROUPS])
    assert [len(group) for group in groups.values()] == [GROUP_SIZE] * N_GROUPS
    return before, [*model.policy.parameters()], groups


def with_log_probs(policy: th.nn.Module, episode: list[Step]) -> list[Step]:
    """
    :param policy: The policy that has played an episode
    :param episode: The episode
    :return: The same with the log probabilities of its actions
    """
    log_probs = policy(th.as_tensor(np.array([step.observation for step in episode]))).log_softmax(1)
    return [step._replace(log_prob=log_probs[idx, step.action].item()) for idx, step in enumerate(episode)]


# In this order: the paper's single step; a gradient so short that Adam's steps are not all as long as the learning rate;
# ratios far from 1, many of which are clipped
@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 1e-3}, {"n_epochs": 8, "clip_range": 0.05}])
def test_same_parameters_as_with_the_package(settings: dict[str, Any]) -> None:
    before, expected, groups = package_update(**settings)

    policy = mlp(gym.make("CartPole-v1"))
    with th.no_grad():
        for parameter, value in zip(policy.parameters(), before, strict=True):
            parameter.copy_(value)
    batch = make_batch([with_log_probs(policy, episode) for group in groups.values() for episode in group], GROUP_SIZE)
    optimizer = th.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5)
    update(policy, optimizer, batch, Settings(1, n_minibatches=1, **{"n_epochs": 1, **SIZES, **settings}))

    for parameter, value, first in zip(policy.parameters(), expected, before, strict=True):
        assert (value - first).abs().max() > 1e-4  # 100 times as far as the two may be apart
        th.testing.assert_close(parameter, value, atol=1e-6, rtol=0.0)


def test_episodes_of_a_group_begin_like_those_of_the_package() -> None:
    _, _, groups = package_update()
    starts = np.repeat([*groups], GROUP_SIZE)
    policy = mlp(gym.make("CartPole-v1"))
    episodes = play(policy, [gym.make("CartPole-v1") for _ in starts], starts)
    for start, episode in zip(starts, episodes, strict=True):
        assert all((recorded[0].observation == episode[0].observation).all() for recorded in groups[start])
        expected = [step.log_prob for step in with_log_probs(policy, episode)]
        assert [step.log_prob for step in episode] == pytest.approx(expected)


def test_sums() -> None:
    env = Sums()
    env.reset(seed=0)
    env.prompt, env.right_answer = "3+4=", "7."
    for answer, reward in {"7.": 1.0, "8.": 0.0, "07.": 0.0, "777": 0.0}.items():
        env.answer = ""
        *begun, last = [env.step(VOCABULARY.index(character)) for character in answer]
        assert all(step[1:3] == (0.0, False) for step in begun)
        assert last[1:3] == (reward, True)


def test_learns_cartpole() -> None:
    mean_returns = train("CartPole-v1", Settings(n_updates=8, n_groups=8, group_size=8), seed=0)
    assert mean_returns[0] < 30 < 40 < mean_returns[-1]


def test_begins_with_random_numbers_as_answers() -> None:
    (mean_return,) = train("text", Settings(n_updates=1, n_groups=64, group_size=8), seed=0)
    assert mean_return == pytest.approx(1 / 19, abs=0.03)
