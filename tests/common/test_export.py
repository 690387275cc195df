"""Policies for other programs: traced, and as ONNX files that act like ``predict``."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from toy_envs import SpacesEnv

from sb3_grpo import GRPO
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.envs import VerifierTextVecEnv

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
FAR = spaces.Box(500.0, 900.0, (3,), np.float32)
DICT = spaces.Dict({"vector": FAR, "kind": spaces.Discrete(3)})
SMALL: dict[str, Any] = {"n_steps": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


def make_model(observation: spaces.Space, action: spaces.Space, normalized: bool = False, **kwargs: Any) -> GRPO:
    env: Any = DummyVecEnv([lambda: SpacesEnv(observation, action, length=5)] * 2)
    if normalized:
        env = VecNormalize(env, norm_obs_keys=["vector"] if isinstance(observation, spaces.Dict) else None)
    policy = "CnnPolicy" if observation is IMAGE else "MultiInputPolicy" if observation is DICT else "MlpPolicy"
    kwargs = {**SMALL, "policy_kwargs": {"net_arch": [8]}, **kwargs}
    return GRPO(policy, env, learning_rate=0.05, **kwargs).learn(64)


def sampled(space: spaces.Space, n: int) -> Any:
    space.seed(1)
    if isinstance(space, spaces.Dict):
        return {key: sampled(part, n) for key, part in space.items()}
    return np.stack([np.asarray(space.sample()) for _ in range(n)])


@pytest.mark.parametrize(
    ("observation", "action", "settings"),
    [
        (VECTOR, spaces.Box(-1, 2, (2,)), {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
        (FAR, spaces.Box(-0.1, 0.2, (2, 2)), {}),  # clipped; normalised by the policy
        (IMAGE, spaces.Box(-3, 3, (2,), np.int64), {}),
        (DICT, spaces.MultiDiscrete([2, 3], dtype=np.int32), {"normalized": True}),  # by VecNormalize
    ],
    ids=["squashed", "clipped", "integers", "dict"],
)
def test_a_file_acts_like_predict(observation: spaces.Space, action: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = make_model(observation, action, **settings)
    model.export_onnx(tmp_path / "policy")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    normalizer = model.get_vec_normalize_env()
    for n in (1, 7):
        observations = sampled(observation, n)
        (got,) = session.run(["action"], observations if isinstance(observations, dict) else {"observation": observations})
        seen = observations if normalizer is None else normalizer.normalize_obs(observations)
        expected, _ = model.predict(seen, deterministic=True)
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert got.dtype == expected.dtype


@pytest.mark.filterwarnings("error:Output nr")  # the trace and the policy differ
@pytest.mark.parametrize(("observation", "action"), [(VECTOR, spaces.Box(-1, 2, (2,))), (IMAGE, spaces.Discrete(3))])
def test_policies_are_traced(observation: spaces.Space, action: Any) -> None:
    policy = make_model(observation, action).policy.eval()
    one, others = (th.as_tensor(sampled(observation, n)) for n in (1, 9))
    traced = th.jit.trace(Deterministic(policy), (one,))
    assert th.equal(traced(others), policy._predict(others, deterministic=True))


class Deterministic(th.nn.Module):
    """What is deployed of a policy."""

    def __init__(self, policy: Any):
        super().__init__()
        self.policy = policy

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.policy._predict(observations, deterministic=True)


def test_what_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.onnx"
    text = GRPO("TokenPolicy", VerifierTextVecEnv(2, seed=0), group_size=2, n_groups=1, device="cpu")
    with pytest.raises(ValueError, match="TokenPolicy writes an answer token by token"):
        text.export_onnx(path)
    stacked = VecFrameStack(VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")])), 2)
    with pytest.raises(ValueError, match="make it the last wrapper"):
        GRPO("MlpPolicy", stacked, **SMALL).export_onnx(path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'onnxruntime: pip install "sb3-grpo\[onnx\]"'):
        make_model(VECTOR, spaces.Discrete(2)).export_onnx(path)
    assert not path.exists()


class Moody(ActorPolicy):
    """Its actions depend on when it is asked."""

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        actions = super()._predict(observation, deterministic)
        return actions if th.compiler.is_compiling() else 1 - actions


def test_a_part_of_the_observation_with_the_name_of_the_output(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    named = SpacesEnv(spaces.Dict({"action": VECTOR}), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"refuses the exported file.*Rename a part of the observation"):
        GRPO("MultiInputPolicy", named, **SMALL).export_onnx(tmp_path / "policy.onnx")


def test_a_file_that_acts_differently_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = GRPO(Moody, SpacesEnv(VECTOR, spaces.Discrete(2)), **SMALL)
    with pytest.raises(ValueError, match="are those of predict in only 0% of 64 observations: does Moody"):
        model.export_onnx(tmp_path / "policy.onnx")
    assert not [*tmp_path.iterdir()]
