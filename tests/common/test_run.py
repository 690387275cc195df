import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from toy_envs import TINY, NoisyEnv, ToyEnv, UnseededEnv, parameters_of

from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.starts import UnequalStartError

SMALL = {"n_groups": 2, "group_size": 2, "n_epochs": 2, "policy_kwargs": TINY, "device": "cpu"}


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_learn_without_arguments(algo: type[GRPO]) -> None:
    model = algo("MlpPolicy", "CartPole-v1", policy_kwargs=TINY, device="cpu")
    assert isinstance(model, OnPolicyAlgorithm)
    assert model.n_envs == model.get_env().num_envs == 16
    assert model.learn(callback=lambda local_vars, _: local_vars["self"].num_timesteps < 160) is model
    assert model.num_timesteps == 160
    assert model._total_timesteps == 100_000


def test_one_copy_of_an_environment_object() -> None:
    env = ToyEnv()
    model = GRPO("MlpPolicy", env, **SMALL).learn(1)
    assert model.get_env().num_envs == 1
    # Exactly the episodes that were wanted
    assert model.num_timesteps == 4 * 4
    assert model.get_env().envs[0].unwrapped is env


@pytest.mark.parametrize(
    ("algo", "settings", "n_steps"),
    [
        (DAPO, {}, 8000),
        (GRPO, {"n_groups": 4}, 1500),
        (GRPO, {"advantage": "outcome", "advantage_scale": "group", "gamma": 1.0}, 1500),
    ],
)
def test_learns_the_right_action(algo: type[GRPO], settings: dict[str, Any], n_steps: int) -> None:
    model = algo("MlpPolicy", make_group_env(ToyEnv, 4, seed=0), learning_rate=0.02, seed=0, n_epochs=4, **settings)
    assert evaluate_policy(model, ToyEnv(), 5, deterministic=False, warn=False)[0] < 3.5
    model.learn(n_steps)
    assert evaluate_policy(model, ToyEnv(), 20, deterministic=False, warn=False)[0] > 3.8


@pytest.mark.parametrize("kind", ["dummy", "subproc", "text"])
def test_copies_do_not_stay_alike_when_they_have_learned(kind: str) -> None:
    """All members of a group leave their copies with the same random generator."""

    def observed(seed: int) -> list[list[bytes]]:
        if kind in ("dummy", "subproc"):
            cls: Any = DummyVecEnv if kind == "dummy" else SubprocVecEnv
            env: VecEnv = make_group_env("Pendulum-v1", 8, vec_env_cls=cls, env_kwargs={"max_episode_steps": 5})
        else:
            env = VerifierTextVecEnv(8, seed=0, task="arithmetic", task_kwargs={"digits": 3})
        policy = "TokenPolicy" if kind == "text" else "MlpPolicy"
        settings = SMALL | {"group_size": 4, "policy_kwargs": {"width": 16} if kind == "text" else TINY}
        GRPO(policy, env, seed=seed, **settings).learn(100)
        # The first reset of all at the same time, and those of each copy by itself
        begun = [env.reset()]
        for _ in range(3):
            done = np.zeros(8, dtype=bool)
            while not done.any():
                observations, _, done, _ = env.step(np.array([env.action_space.sample() * 0] * 8))
            begun.append(observations)
        env.close()
        return [[each.tobytes() for each in observations] for observations in begun]

    first = observed(1)
    assert all(len({*observations}) == 8 for observations in first)
    assert first == observed(1) != observed(2)


def test_set_random_seed() -> None:
    def run(seed: int) -> th.Tensor:
        model = GRPO("MlpPolicy", make_group_env(functools.partial(NoisyEnv, length=None), 3), seed=0, **SMALL).learn(20)
        model.set_random_seed(seed)
        return parameters_of(model.learn(100))

    # The starts belong to what is seeded
    assert th.equal(run(7), run(7))
    assert not th.equal(run(7), run(8))


@pytest.mark.parametrize("time_limit", [False, True])
@pytest.mark.parametrize("is_dict", [False, True])
def test_a_last_observation_whose_value_follows_is_finite(is_dict: bool, time_limit: bool) -> None:
    class Broken(ToyEnv):
        if is_dict:
            observation_space = gym.spaces.Dict({"bad": ToyEnv.observation_space})

        def observe(self) -> Any:
            observation = super().observe() * (np.nan if self.t == 4 else 1.0)
            return {"bad": observation} if is_dict else observation

    env = make_group_env(functools.partial(Broken, time_limit=time_limit), 2)
    settings: dict[str, Any] = {**SMALL, "n_groups": None, "n_steps": 16}
    model = GRPO("MultiInputPolicy" if is_dict else "MlpPolicy", env, **settings)
    if not time_limit:
        model.learn(64)  # nothing follows
        return
    name = r"observation\['bad'\]" if is_dict else "the observation"
    with pytest.raises(ValueError, match=rf"copy 0 .*step 4 of its episode: {name} is not finite: \[nan"):
        model.learn(64)


@pytest.mark.parametrize("action_space", [ToyEnv.action_space, gym.spaces.Box(-1.0, 1.0, (1,))])
def test_spoiled_policy_is_noticed_before_the_update(action_space: gym.Space) -> None:
    class Env(ToyEnv):
        pass

    Env.action_space = action_space
    model = GRPO("MlpPolicy", DummyVecEnv([Env]), **SMALL).learn(1)
    with th.no_grad():
        model.policy.action_net.bias[0] = th.nan
    before, n_updates = parameters_of(model), model._n_updates
    with pytest.raises(ValueError, match=r"in environment copy 0 no finite log probability.*learning_rate"):
        model.learn(100)
    th.testing.assert_close(parameters_of(model), before, rtol=0, atol=0, equal_nan=True)
    assert model._n_updates == n_updates


@pytest.mark.filterwarnings("error")
def test_equal_outcomes_are_skipped_and_said_once() -> None:
    env = make_group_env(functools.partial(ToyEnv, reward=1.0), 2)
    model = DAPO("MlpPolicy", env, max_sampling_rounds=3, **SMALL)
    before = parameters_of(model)
    with pytest.warns(UserWarning, match="all members had the same outcome") as record:
        model.learn(200)
    assert len(record) == 1
    assert 200 <= model.num_timesteps < 300
    assert th.equal(parameters_of(model), before)
    assert model._n_updates == 0
    # Each of the 3 rounds draws 2 groups of 2 episodes of 4 steps
    assert model._sampling_rounds == 3
    model.learn(200)


def test_unequal_starts() -> None:
    with pytest.raises(UnequalStartError, match="unrelated_starts=True"):
        GRPO("MlpPolicy", UnseededEnv(), **SMALL).learn(10)
    model = GRPO("MlpPolicy", UnseededEnv(), unrelated_starts=True, **SMALL)
    before = parameters_of(model)
    model.learn(100)
    assert not th.equal(parameters_of(model), before)
