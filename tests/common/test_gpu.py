"""
Whether everything is on the model's device: a GPU where there is one, and otherwise a pretended one.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from digit_texts import growing_texts, make_policy
from gymnasium import spaces
from language_models import make_grpo, make_language_model
from pretended_device import NAME, pretended_device
from toy_envs import TINY, SpacesEnv, judged

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.text.decoding import CachedReader
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.tree import TokenSteps

pytestmark = pytest.mark.gpu

DEVICE = "cuda" if th.cuda.is_available() else NAME
NETWORK = {"n_layers": 1, "width": 32, "n_heads": 2}
SETTINGS: dict[str, Any] = {"group_size": 4, "n_groups": 4, "n_epochs": 2, "seed": 0}
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)  # a stack of frames
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with nullcontext() if DEVICE == "cuda" else pretended_device():
        yield


def make_model(name: str, algo: type[GRPO] = DAPO, **kwargs: Any) -> Any:
    settings: dict[str, Any] = {"device": DEVICE, **SETTINGS, **kwargs}
    if name == "CausalLMPolicy":
        pytest.importorskip("peft")
        return make_grpo(make_language_model(), device=DEVICE, lora=LORA)
    if name == "TokenPolicy":
        env: Any = VerifierTextVecEnv(8, seed=0, task="arithmetic")
        settings["policy_kwargs"] = {**NETWORK, **kwargs.get("policy_kwargs", {})}
    elif name in ("MlpPolicy", "MlpLstmPolicy"):
        env = "CartPole-v1"
        settings["policy_kwargs"] = TINY
    else:
        space = IMAGE if name == "CnnPolicy" else spaces.Dict({"image": IMAGE, "vector": VECTOR})
        env = make_group_env(lambda **_: SpacesEnv(space, spaces.Discrete(3)), 4)
    return algo(name, env, **settings)


def test_tensors_on_two_devices_are_refused() -> None:
    ours = th.arange(3.0, device=DEVICE)
    assert ours[ours > 0.5].tolist() == [1.0, 2.0]
    for theirs in (th.zeros(3), ours.cpu()):
        with pytest.raises(RuntimeError, match="two devices"):
            ours + theirs
    with pytest.raises((TypeError, RuntimeError)):
        ours.numpy()


@pytest.mark.parametrize(
    ("name", "algo", "kwargs"),
    [
        *[(name, GRPO, {"kl_coef": 0.1}) for name in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "TokenPolicy")],
        ("MlpPolicy", DAPO, {"overlong_range": (10, 20), "overlong_filter": True, "ratio_level": "episode"}),
        ("CausalLMPolicy", GRPO, {}),  # with LoRA and a reference
    ],
)
def test_everything_of_an_update_is_on_the_device(name: str, algo: type[GRPO], kwargs: Any, tmp_path: Path) -> None:
    model = make_model(name, algo, **kwargs).learn(200)
    assert model._n_updates > 0
    batch = model.batch
    tensors = [batch.actions, batch.old_log_prob, batch.rows, batch.rewards, batch.mask, judged(model).advantages]
    assert {tensor.device.type for tensor in [*tensors, *model.policy.parameters()]} == {DEVICE}
    model.save(tmp_path / "model")
    on_cpu = GRPO.load(tmp_path / "model", device="cpu")
    for ours, theirs in zip(model.policy.parameters(), on_cpu.policy.parameters(), strict=True):
        th.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("name", ["MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy"])
def test_values_of_updates_in_steps_are_on_the_device(name: str) -> None:
    """From the second update on those of the update before, and those of where episodes go on."""
    model = make_model(name, GRPO, n_groups=None, n_steps=33).learn(900)
    batch = model.batch
    assert len(batch.unfinished) > 0
    states = model.policy.state_features(batch.next_observations)
    tensors = [batch.unfinished, *states, model.value_regression.predict(states), judged(model).advantages]
    assert {tensor.device.type for tensor in tensors} == {DEVICE}
    assert all(tensor.isfinite().all() for tensor in tensors)


@pytest.mark.parametrize("use_sde", [False, True])
def test_observations_are_normalised_on_the_device(use_sde: bool, tmp_path: Path) -> None:
    kwargs = {**TINY, "normalize_observations": True}
    model = GRPO(
        "MlpPolicy",
        make_group_env("Pendulum-v1", 4),
        device=DEVICE,
        use_sde=use_sde,
        policy_kwargs=kwargs,
        **{**SETTINGS, "n_groups": 1},
    )
    model.learn(1600).save(tmp_path / "model")
    on_cpu = GRPO.load(tmp_path / "model", device="cpu")
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(
        model.predict(observations, deterministic=True)[0], on_cpu.predict(observations, deterministic=True)[0], atol=1e-4
    )
    assert model.policy.observation_norm.norms[0].mean.device.type == DEVICE
    assert model.policy.observation_norm.norms[0].mean.abs().sum() > 0.0


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("kwargs", [{}, {"kl_coef": 0.1, "overlong_filter": True, "gradient_accumulation_steps": 2}])
@pytest.mark.parametrize("name", ["MlpPolicy", "TokenPolicy"])
def test_loss_and_gradient_do_not_wait_for_the_device(name: str, kwargs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for once in each step of the optimizer, when its gradient is known, to see whether it is finite."""
    clip_grad_norm, n_watched = th.nn.utils.clip_grad_norm_, 0

    class Watched(GRPO):
        def _loss(self, *args: Any) -> Any:
            th.cuda.set_sync_debug_mode("error")
            return super()._loss(*args)

    def watched(*args: Any) -> th.Tensor:
        nonlocal n_watched
        norm = clip_grad_norm(*args)
        th.cuda.set_sync_debug_mode("default")
        n_watched += 1
        return norm

    monkeypatch.setattr(th.nn.utils, "clip_grad_norm_", watched)
    try:
        make_model(name, Watched, batch_size=16, **kwargs).learn(200)
    finally:
        th.cuda.set_sync_debug_mode("default")
    assert n_watched > 4


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
def test_autocast() -> None:
    """It changes how fast the probabilities are computed, and by no more than its precision which these are."""
    tolerance = 0.1
    model = make_model("TokenPolicy", policy_kwargs={"autocast": True}).learn(100)
    policy = model.policy
    assert all(parameter.isfinite().all() for parameter in policy.parameters())
    assert len(policy.generate(["3+4=", "8+5="])) == 2
    policy, plain = make_policy(autocast=True).to(DEVICE), make_policy().to(DEVICE)
    reader = CachedReader(policy.read, policy.device, 16)
    with th.no_grad():
        for each in (policy, plain):
            each.action_net.weight.div_(100.0)  # moderate logits, which bfloat16 rounds to about 0.01
        for observations in growing_texts(7, 12):
            obs = th.as_tensor(observations, device=DEVICE)
            steps = TokenSteps(obs.cpu().numpy(), th.arange(7, device=DEVICE), (obs != PAD).sum(1) - 1)
            expected = plain.get_distribution(obs).distribution.logits
            cached = policy.action_net(reader(observations)).float().log_softmax(-1)
            trained = policy.get_distribution(steps).distribution.logits.float()
            th.testing.assert_close(cached, expected, rtol=0, atol=tolerance)
            th.testing.assert_close(trained, expected, rtol=0, atol=tolerance)
