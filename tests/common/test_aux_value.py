"""An auxiliary value head trains the features extractor, and is used for nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from toy_envs import TINY_TEXT, SpacesEnv, observations_of

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.common.advantages import discounted_returns_to_go
from sb3_grpo.common.losses import LossInputs, clipped_surrogate
from sb3_grpo.common.policies import ActorCnnPolicy, ActorPolicy
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.presets import GRPO_PAPER
from stress.resume import digest

IMAGE = spaces.Box(0, 255, (1, 36, 36), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,))
SPACES = {"Mlp": VECTOR, "Cnn": IMAGE, "MultiInput": spaces.Dict({"image": IMAGE, "vector": VECTOR})}
AUX = {"vf_coef": 0.5}
SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": None, "n_epochs": 1, "seed": 0, "device": "cpu"}


class Scaled(SpacesEnv):
    """Rewards in another unit."""

    scale = 1.0

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, self.scale * reward, *rest


def copies(kind: str = "Cnn", scale: float = 1.0, actions: spaces.Space | None = None) -> Any:
    def make() -> Scaled:
        env = Scaled(SPACES[kind], actions or spaces.Discrete(2), length=None)
        env.scale = scale
        return env

    return make_group_env(make, 4, seed=0)


def gradients(policy: str, **kwargs: Any) -> tuple[dict[str, th.Tensor], th.Tensor]:
    """
    :return: The gradient of each parameter in the first update, and the advantages
    """
    seen: list[th.Tensor] = []

    def note(steps: LossInputs) -> th.Tensor:
        seen.append(steps.advantages)
        return clipped_surrogate(steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)

    model = GRPO(
        f"{policy}Policy", copies(policy.removesuffix("Lstm")), policy_loss=note, max_grad_norm=1e9, **SMALL, **kwargs
    )
    model.learn(64)
    return {name: each.grad for name, each in model.policy.named_parameters() if each.grad is not None}, seen[0]


@pytest.mark.parametrize(
    ("policy", "layers"),
    [
        ("Cnn", "features_extractor"),
        ("MultiInput", "features_extractor"),
        ("MlpLstm", "memory"),
        ("CnnLstm", "memory"),
    ],
)
def test_it_trains_the_layers_before_the_policy_network_and_nothing_else(policy: str, layers: str) -> None:
    without, advantages = gradients(policy, vf_coef=0)
    with_head, same_advantages = gradients(policy, **AUX)
    assert th.equal(advantages, same_advantages)
    assert with_head.keys() - without.keys() == {"aux_vf_head.weight", "aux_vf_head.bias"}
    for name, gradient in without.items():
        if "features_extractor" in name or "memory" in name:
            assert layers not in name or not th.allclose(gradient, with_head[name]), name
        else:
            assert th.equal(gradient, with_head[name]), name


class Kept(GRPO):
    """Keeps the judged batch of the last update."""

    def _judge(self, *args: Any) -> Any:
        self.judged = super()._judge(*args)
        return self.judged


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize(
    "kwargs",
    [{"n_steps": None, "n_groups": 2, "advantage": "outcome"}, {"overlong_filter": True, "n_steps": None, "n_groups": 2}, {}],
)
def test_the_loss_is_that_of_standardised_returns(scale: float, kwargs: dict[str, Any]) -> None:
    settings = {**SMALL, "gamma": 0.9, "learning_rate": 0.0, "loss_average": "step", **kwargs}
    model = Kept("CnnPolicy", copies(scale=scale), **AUX, **settings).learn(1)
    logged, batch, value_targets = model.logger.name_to_value, model.judged.batch, model.judged.value_targets
    assert value_targets is not None
    returns = batch.flatten(discounted_returns_to_go(batch.rewards, batch.mask, 0.9))
    if model.n_steps is None:
        targets = (returns - returns.mean()) / returns.std(correction=0)
        th.testing.assert_close(value_targets, targets.float())
    assert value_targets.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert value_targets.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    _, values = model.policy.distribution_and_values(observations_of(batch))
    value_loss = (values - value_targets).square().mean().item()
    assert logged["train/value_loss"] == pytest.approx(value_loss, rel=1e-4)
    assert logged["train/loss"] == pytest.approx(logged["train/policy_gradient_loss"] + 0.5 * value_loss, rel=1e-4)


def test_masks_and_state_dependent_noise_are_those_of_the_policy() -> None:
    env = copies(actions=spaces.Box(-1.0, 1.0, (2,)))
    model = GRPO("CnnPolicy", env, **AUX, use_sde=True, **SMALL).learn(128)
    assert model.logger.name_to_value["train/value_loss"] > 0.0
    policy: Any = GRPO(
        "MultiInputPolicy",
        make_group_env(lambda: SpacesEnv(spaces.Dict({"image": IMAGE}), spaces.Discrete(2)), 2, seed=0),
        **AUX,
        **SMALL,
    ).policy
    obs = {"image": th.zeros(1, *IMAGE.shape)}
    distribution, values = policy.distribution_and_values(obs, th.tensor([[False, True]]))
    assert distribution.distribution.probs.tolist() == [[0.0, 1.0]] and values.shape == (1,)


@pytest.mark.parametrize("policy", ["Cnn", "MultiInput", "MlpLstm"])
def test_saved_and_resumed_to_the_last_bit(policy: str, tmp_path: Path) -> None:
    def env() -> Any:
        return copies(policy.removesuffix("Lstm"))

    settings = {**SMALL, "batch_size": 32, "n_epochs": 2, **AUX}
    model = DAPO(f"{policy}Policy", env(), **settings).learn(400, callback=TrainingCheckpoint(tmp_path, save_freq=1, keep=100))
    assert digest(DAPO.resume(checkpoints_in(tmp_path)[2], env()).learn()) == digest(model)
    model.save(tmp_path / "model")
    loaded = DAPO.load(tmp_path / "model", device="cpu")
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name


def test_the_head_stays_with_the_model(tmp_path: Path) -> None:
    model = GRPO("CnnPolicy", copies(), **SMALL).learn(64)
    model.vf_coef = 0.0
    model.learn(64).save(tmp_path / "model")
    for kwargs in ({}, {"vf_coef": 0.3}):
        loaded = GRPO.load(tmp_path / "model", copies(), device="cpu", **kwargs).learn(64)
        assert loaded.policy.aux_value_head and loaded.vf_coef == kwargs.get("vf_coef", 0.0)
    without = GRPO("CnnPolicy", copies(), vf_coef=0.0, **SMALL)
    without.vf_coef = 0.5
    with pytest.raises(ValueError, match=r"vf_coef=0\.5 needs a value head"):
        without.learn(64)
    with pytest.raises(ValueError, match=r"aux_value_head=.* is set by vf_coef"):
        GRPO("CnnPolicy", copies(), policy_kwargs={"aux_value_head": True}, **SMALL)


class OwnDistribution(ActorPolicy):
    def get_distribution(self, obs: Any, action_masks: Any = None) -> Any:
        return super().get_distribution(obs, action_masks)


@pytest.mark.parametrize(
    ("policy", "coefficient", "message"),
    [
        ("MlpPolicy", 0.5, r'vf_coef is for the layers .*FlattenExtractor of this policy has none.*"CnnPolicy"'),
        (OwnDistribution, 0.5, "OwnDistribution has a get_distribution of its own.*vf_coef=0"),
        ("CnnPolicy", -1.0, "vf_coef must not be negative"),
        ("TokenPolicy", 0.5, "TokenPolicy has a get_distribution of its own.*vf_coef=0"),
    ],
)
def test_where_it_is_refused(policy: Any, coefficient: float, message: str) -> None:
    is_text = policy == "TokenPolicy"
    env = VerifierTextVecEnv(2, task="arithmetic", seed=0) if is_text else copies("Cnn" if policy == "CnnPolicy" else "Mlp")
    with pytest.raises(ValueError, match=message):
        GRPO(policy, env, vf_coef=coefficient, policy_kwargs=TINY_TEXT if is_text else None, device="cpu")


def test_it_is_the_default_for_pictures_that_are_judged_step_by_step() -> None:
    def coefficient(policy: Any = "CnnPolicy", kind: str = "Cnn", **kwargs: Any) -> float:
        return GRPO(policy, copies(kind), device="cpu", **kwargs).vf_coef

    assert coefficient() == 0.5
    assert coefficient(vf_coef=0.1) == 0.1
    assert coefficient("MultiInputPolicy", "MultiInput") == 0.0
    assert coefficient(**GRPO_PAPER) == 0.0, "the paper's algorithm has no values at all"
    assert coefficient(type("Own", (ActorCnnPolicy,), {})) == 0.0
    assert coefficient(policy_kwargs={"features_extractor_class": FlattenExtractor}) == 0.0, "it has no layers to train"
    model = GRPO("CnnPolicy", copies(), device="cpu")
    assert (model.lr_schedule(1.0), model.n_epochs, model.value_regression.memory) == (5e-4, 4, 0.95)
