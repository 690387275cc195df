import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_envs import SpacesEnv

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.normalization import RunningNorm
from sb3_grpo.common.policies import ActorPolicy

SMALL: dict[str, Any] = {"group_size": 2, "n_groups": 2, "n_epochs": 2, "device": "cpu", "seed": 0}
NORMALIZED = {"normalize_observations": True}


def pendulum(**kwargs: Any) -> Any:
    return GRPO("MlpPolicy", make_group_env("Pendulum-v1", 4), **{"policy_kwargs": NORMALIZED, **SMALL, **kwargs})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model with a reference that has seen two rollouts, and where it is saved."""
    path = tmp_path_factory.mktemp("normalized") / "model"
    model = pendulum(kl_coef=0.1).learn(1600)
    model.save(path)
    return model, path


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
    model = pendulum()
    seen = Seen()
    model.learn(2400, callback=seen)
    assert len(seen.rollouts) == 3
    norm = model.policy.observation_norm.norms[0]
    before = np.concatenate([step for rollout in seen.rollouts[:-1] for step in rollout]).astype(np.float64)
    np.testing.assert_allclose(norm.mean, before.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(norm.var, before.var(axis=0), rtol=1e-4)
    assert norm.observed.count == pytest.approx(3 * len(before) / 2), "those of the last rollout wait"


def test_an_entry_that_never_changed_is_zero_and_a_first_change_is_clipped() -> None:
    norm = RunningNorm((2,))
    norm.observe(np.array([[3.0, 1.0], [3.0, 5.0]]))
    norm.sync()
    assert norm(th.tensor([[3.0, 5.0], [3.5, 1.0]])).tolist() == [[0.0, 1.0], [10.0, -1.0]]
    # Divided by sqrt(1e-8), as VecNormalize does
    assert norm(th.tensor([[3.0 + 1e-4, 1.0]]))[0, 0].item() == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("most_bytes", [0, 2**22])
def test_statistics_are_of_dropped_groups_too(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    monkeypatch.setattr("sb3_grpo.common.on_group_algorithm.MAX_DIST_INPUTS_BYTES", most_bytes)
    monkeypatch.setattr("sb3_grpo.common.buffers._ROWS_AT_A_TIME", 100)
    # Nobody gets to the flag: all groups are dead
    model = DAPO("MlpPolicy", make_group_env("MountainCar-v0", 4), policy_kwargs=NORMALIZED, **SMALL)
    seen = Seen()
    with pytest.warns(UserWarning, match="No update"):
        model.learn(4000, callback=seen)
    observed = model.policy.observation_norm.norms[0].observed
    acted_on = np.concatenate([step for rollout in seen.rollouts for step in rollout]).astype(np.float64)
    assert observed.count == pytest.approx(model.num_timesteps)
    np.testing.assert_allclose(observed.mean, acted_on.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(observed.var, acted_on.var(axis=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("env_id", "vec_normalize", "policy_kwargs", "normalized"),
    [
        ("Pendulum-v1", None, {}, True),
        ("Pendulum-v1", None, {"normalize_observations": False}, False),
        ("Pendulum-v1", {"norm_obs": True}, {}, False),
        ("Pendulum-v1", {"norm_obs": True}, {"normalize_observations": True}, True),
        ("Pendulum-v1", {"norm_obs": False}, {}, True),
        ("CartPole-v1", None, {}, False),
    ],
)
def test_observations_are_normalised_once_where_actions_are_continuous(
    env_id: str, vec_normalize: dict[str, bool] | None, policy_kwargs: dict[str, bool], normalized: bool, tmp_path: Path
) -> None:
    bare = make_vec_env(env_id, 2)
    env = bare if vec_normalize is None else VecNormalize(bare, **vec_normalize)  # type: ignore[arg-type]
    given = dict(policy_kwargs)
    model = GRPO("MlpPolicy", env, policy_kwargs=policy_kwargs, **SMALL)
    model.save(tmp_path / "model")
    # Whatever environment it gets then
    loaded = [GRPO.load(tmp_path / "model"), GRPO.load(tmp_path / "model", env=bare, policy_kwargs=given)]
    for each in (model, *loaded):
        assert bool(each.policy.observation_norm.keys) is normalized
    assert policy_kwargs == given, "the user's own"


@pytest.mark.parametrize(("n_envs", "normalized"), [(128, True), (129, False)])
def test_observations_of_many_copies_are_not_normalised(n_envs: int, normalized: bool) -> None:
    env = DummyVecEnv([functools.partial(gym.make, "Pendulum-v1")] * n_envs)
    assert bool(GRPO("MlpPolicy", env).policy.observation_norm.keys) is normalized
    assert GRPO("MlpPolicy", env, policy_kwargs=dict(NORMALIZED)).policy.observation_norm.keys


class OwnPolicy(ActorPolicy):
    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, use_sde: bool = False):
        super().__init__(observation_space, action_space, lr_schedule, net_arch=[8], use_sde=use_sde)


class OwnExtractor(FlattenExtractor):
    """May look at numbers that mean something."""


@pytest.mark.parametrize(
    ("policy", "policy_kwargs"),
    [(OwnPolicy, {}), ("MlpPolicy", {"features_extractor_class": OwnExtractor})],
)
def test_policies_and_extractors_of_ones_own_get_the_observations_as_they_are(policy: Any, policy_kwargs: Any) -> None:
    model = GRPO(policy, make_group_env("Pendulum-v1", 4), policy_kwargs=policy_kwargs, **SMALL)
    assert not model.policy.observation_norm.keys


def test_a_model_without_vec_normalize_says_so_when_it_gets_one(tmp_path: Path) -> None:
    GRPO("MlpPolicy", make_group_env("Pendulum-v1", 2), **SMALL).save(tmp_path / "model")
    twice = GRPO.load(tmp_path / "model", env=VecNormalize(make_vec_env("Pendulum-v1", 2)))
    with pytest.warns(UserWarning, match="normalised twice"):
        twice.learn(1)


def test_the_mean_follows_observations_far_from_zero() -> None:
    norm = RunningNorm((1,))
    rng = np.random.default_rng(0)
    for offset in (1e4, 1e4 + 1.0):
        for _ in range(1000):
            norm.observe(rng.normal(offset, 1.0, size=(100, 1)))
            norm.sync()
    assert norm.mean.item() - 1e4 == pytest.approx(0.5, abs=0.02)
    assert norm.var.item() == pytest.approx(1.25, abs=0.02)


def test_a_rollout_and_its_update_take_the_same_statistics() -> None:
    # With little noise every change of the mean counts
    kwargs = {**NORMALIZED, "log_std_init": -6.0}
    model = GRPO("MlpPolicy", make_group_env("Pendulum-v1", 4), learning_rate=0.0, policy_kwargs=kwargs, **SMALL).learn(800)
    assert model.logger.name_to_value["train/approx_kl"] == pytest.approx(0.0, abs=1e-4)
    assert model.logger.name_to_value["train/ratio_max"] == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("width", [8, 600])  # the small network in NumPy, the other one in PyTorch
def test_sampled_actions_are_those_of_the_normalised_observation(use_sde: bool, width: int) -> None:
    kwargs = {**NORMALIZED, "net_arch": [width]}
    policy = GRPO("MlpPolicy", make_group_env("Pendulum-v1", 5), policy_kwargs=kwargs, use_sde=use_sde, **SMALL).policy
    rng = np.random.default_rng(0)
    policy.observation_norm.observe({"": rng.normal([1.0, -2.0, 30.0], [1.0, 2.0, 10.0], size=(1000, 3))})
    policy.observation_norm.sync()
    observations = rng.normal([1.0, -2.0, 30.0], [1.0, 2.0, 10.0], size=(5, 3)).astype(np.float32)
    observations[0, 0] = 1e6  # clipped
    kept = observations.copy()
    if use_sde:
        policy.reset_noise(5)
    else:
        with th.no_grad():
            policy.log_std.fill_(-20.0)
    with th.inference_mode():
        sampled, _, *_ = policy.action_sampler()(observations)
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
    assert norm.norms[0].observed.count > 20
    entries = {"image": th.rand(1, 3, 36, 36), "vector": th.rand(1, 3), "discrete": th.eye(3)[:1]}
    normalized = norm(entries)
    assert th.equal(normalized["image"], entries["image"])
    assert th.equal(normalized["discrete"], entries["discrete"])
    assert not th.equal(normalized["vector"], entries["vector"])


OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_the_statistics_are_saved_with_the_model_and_with_the_policy(trained: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = trained
    model.policy.save(tmp_path / "policy")
    expected = model.predict(OBSERVATIONS, deterministic=True)[0]
    for loaded in (GRPO.load(path), type(model.policy).load(tmp_path / "policy")):
        assert np.array_equal(loaded.predict(OBSERVATIONS, deterministic=True)[0], expected)
        norm = getattr(loaded, "policy", loaded).observation_norm.norms[0]
        norm.mean.add_(1.0)
        assert not np.array_equal(loaded.predict(OBSERVATIONS, deterministic=True)[0], expected)


def test_training_goes_on_with_the_statistics_of_the_saved_model(trained: tuple[Any, Path]) -> None:
    path = trained[1]
    model, loaded, other = GRPO.load(path), GRPO.load(path), pendulum(kl_coef=0.1).learn(800)
    other.set_parameters(model.get_parameters())
    for resumed in (loaded, other):
        for each in (model, resumed):
            each.policy.observation_norm.sync()
        norm, expected = resumed.policy.observation_norm.norms[0], model.policy.observation_norm.norms[0]
        assert norm.observed.count == expected.observed.count == pytest.approx(1600)
        assert th.equal(norm.mean, expected.mean) and th.equal(norm.var, expected.var)
        assert not th.equal(norm.mean, th.zeros(3))


def test_the_reference_gets_the_observations_of_the_policy(trained: tuple[Any, Path]) -> None:
    model, path = trained
    resumed = GRPO.load(path, env=make_group_env("Pendulum-v1", 4))
    assert th.equal(resumed.ref_policy.action_net.weight, model.ref_policy.action_net.weight)
    resumed.learn(800, reset_num_timesteps=False)
    for each in (model, resumed):
        norm, reference = (policy.observation_norm.norms[0] for policy in (each.policy, each.ref_policy))
        assert th.equal(norm.mean, reference.mean) and not th.equal(norm.mean, th.zeros(3))
        assert not th.equal(each.ref_policy.action_net.weight, each.policy.action_net.weight)


def test_the_policy_sees_normalised_observations_and_the_regression_what_they_are_made_of() -> None:
    """It remembers them, and what they are normalised with is another after each rollout."""
    policy = GRPO("MlpPolicy", make_group_env("Pendulum-v1", 2), policy_kwargs=NORMALIZED, **SMALL).policy
    rng = np.random.default_rng(0)
    policy.observation_norm.observe({"": rng.normal(100.0, 2.0, size=(1000, 3))})
    policy.observation_norm.sync()
    observations = th.as_tensor(rng.normal(100.0, 2.0, size=(5, 3)), dtype=th.float32)
    expected = (observations - 100.0) / 2.0
    assert th.allclose(policy.extract_features(observations), expected, atol=0.2)
    assert th.equal(policy.state_features(observations).numbers, observations)
