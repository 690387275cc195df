from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import SpacesEnv

from sb3_grpo import DAPO, GRPO

SMALL: dict[str, Any] = {"group_size": 2, "n_groups": 2, "n_epochs": 2, "device": "cpu", "seed": 0}
NORMALIZED = {"normalize_observations": True}


class Seen(BaseCallback):
    """The observations that the policy acted on, rollout by rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[list[Any]] = []

    def _on_rollout_start(self) -> None:
        self.rollouts.append([])

    def _on_step(self) -> bool:
        self.rollouts[-1].append(self.locals["obs"])
        return True


def test_statistics_are_those_of_all_rollouts_before_the_present_one() -> None:
    model = GRPO("MlpPolicy", "Pendulum-v1", n_envs=4, policy_kwargs=NORMALIZED, **SMALL)
    seen = Seen()
    model.learn(2400, callback=seen)
    assert len(seen.rollouts) == 3
    norm = model.policy.observation_norm.norms[0]
    before = np.concatenate([step for rollout in seen.rollouts[:-1] for step in rollout]).astype(np.float64)
    np.testing.assert_allclose(norm.mean, before.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(norm.var, before.var(axis=0), rtol=1e-4)
    assert norm.count == pytest.approx(len(before))


def test_a_rollout_and_its_update_take_the_same_statistics() -> None:
    # With little noise every change of the mean counts
    kwargs = {**NORMALIZED, "log_std_init": -6.0}
    model = GRPO("MlpPolicy", "Pendulum-v1", n_envs=4, learning_rate=0.0, policy_kwargs=kwargs, **SMALL).learn(800)
    assert model.logger.name_to_value["train/approx_kl"] == pytest.approx(0.0, abs=1e-4)
    assert model.logger.name_to_value["train/ratio_max"] == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("width", [8, 600])  # the small network in NumPy, the other one in PyTorch
def test_sampled_actions_are_those_of_the_normalised_observation(use_sde: bool, width: int) -> None:
    kwargs = {**NORMALIZED, "net_arch": [width]}
    policy = GRPO("MlpPolicy", "Pendulum-v1", n_envs=5, policy_kwargs=kwargs, use_sde=use_sde, **SMALL).policy
    rng = np.random.default_rng(0)
    policy.observation_norm.observe({"": rng.normal([1.0, -2.0, 30.0], [1.0, 2.0, 10.0], size=(1000, 3))})
    policy.observation_norm.renew()
    observations = rng.normal([1.0, -2.0, 30.0], [1.0, 2.0, 10.0], size=(5, 3)).astype(np.float32)
    observations[0, 0] = 1e6  # clipped
    kept = observations.copy()
    if use_sde:
        policy.reset_noise(5)
    else:
        with th.no_grad():
            policy.log_std.fill_(-20.0)
    with th.inference_mode():
        sampled, _ = policy.action_sampler()(observations)
        distribution = policy.get_distribution(th.as_tensor(kept))
        expected = distribution.sample() if use_sde else distribution.mode()
        normalized = policy.observation_norm(th.as_tensor(kept))
    np.testing.assert_allclose(sampled, expected.numpy(), atol=1e-5)
    assert np.array_equal(observations, kept), "the environment's own array"
    assert normalized[0, 0] == 10.0
    np.testing.assert_allclose(normalized[1:], (kept[1:] - [1.0, -2.0, 30.0]) / [1.0, 2.0, 10.0], atol=0.2)


def test_only_the_numbers_of_a_dict_are_normalised() -> None:
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "discrete": spaces.Discrete(3),
        }
    )
    env = DummyVecEnv([lambda: SpacesEnv(space, spaces.Discrete(2), length=5)] * 2)
    model = GRPO("MultiInputPolicy", env, policy_kwargs=NORMALIZED, **SMALL).learn(60)
    norm = model.policy.observation_norm
    assert norm.keys == ["vector"]
    assert norm.norms[0].count > 20
    entries = {"image": th.rand(1, 3, 36, 36), "vector": th.rand(1, 3), "discrete": th.eye(3)[:1]}
    normalized = norm(entries)
    assert th.equal(normalized["image"], entries["image"])
    assert th.equal(normalized["discrete"], entries["discrete"])
    assert not th.equal(normalized["vector"], entries["vector"])


def test_the_statistics_are_saved_with_the_model_and_with_the_policy(tmp_path: Path) -> None:
    model = GRPO("MlpPolicy", "Pendulum-v1", n_envs=4, policy_kwargs=NORMALIZED, **SMALL).learn(1600)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = model.predict(observations, deterministic=True)[0]
    for loaded in (GRPO.load(tmp_path / "model"), type(model.policy).load(tmp_path / "policy")):
        assert np.array_equal(loaded.predict(observations, deterministic=True)[0], expected)
    model.policy.observation_norm.norms[0].mean.add_(1.0)
    assert not np.array_equal(model.predict(observations, deterministic=True)[0], expected)


def test_the_reference_keeps_its_own_statistics() -> None:
    model = GRPO("MlpPolicy", "Pendulum-v1", n_envs=4, kl_coef=0.1, policy_kwargs=NORMALIZED, **SMALL).learn(1600)
    assert model.ref_policy is not None
    assert th.equal(model.ref_policy.observation_norm.norms[0].mean, th.zeros(3))


def test_cart_pole_in_odd_units_is_learned() -> None:
    class OddUnits(gym.ObservationWrapper):
        def observation(self, observation: np.ndarray) -> np.ndarray:
            return (1000.0 * observation + 1e6).astype(np.float32)

    def trained(**policy_kwargs: bool) -> float:
        env = make_vec_env("CartPole-v1", 8, seed=0, wrapper_class=OddUnits)
        model = DAPO("MlpPolicy", env, policy_kwargs=policy_kwargs, seed=0, device="cpu").learn(30_000)
        return evaluate_policy(model, make_vec_env("CartPole-v1", 1, seed=1, wrapper_class=OddUnits), 5)[0]  # type: ignore[return-value]

    assert trained(normalize_observations=True) > 150.0
    assert trained() < 50.0
