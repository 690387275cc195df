import functools
import io
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_envs import TINY, SpacesEnv, ToyEnv

import sb3_grpo
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.dapo import DAPO
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.starts import SeedStart

OBSERVATIONS = np.random.default_rng(0).random((20, 2))
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)


def make_env(n_envs: int = 2) -> Any:
    return make_group_env(functools.partial(ToyEnv, length=None), n_envs)


def make_model(algo: type[GRPO] = GRPO, **kwargs: Any) -> GRPO:
    small = {"group_size": 2, "n_groups": 2, "n_epochs": 2, "policy_kwargs": TINY, "device": "cpu", "seed": 0}
    return algo("MlpPolicy", make_env(), **{**small, "learning_rate": 0.02, **kwargs})


def probabilities(policy: ActorPolicy) -> th.Tensor:
    return policy.get_distribution(th.as_tensor(OBSERVATIONS)).distribution.probs.detach()  # type: ignore[union-attr]


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert th.equal(value, second[name]), name


@pytest.mark.parametrize(
    ["policy", "observation_space"],
    [("MlpPolicy", spaces.Box(-1, 1, (2,))), ("CnnPolicy", IMAGE), ("MultiInputPolicy", spaces.Dict({"image": IMAGE}))],
)
def test_no_critic(policy: str, observation_space: spaces.Space) -> None:
    env = SpacesEnv(observation_space, spaces.Discrete(2))
    net_arch = {"pi": [16], "vf": [32, 32]}
    kwargs = {"policy_kwargs": {"net_arch": net_arch}, "device": "cpu"}
    # The head of the auxiliary loss, which no advantage uses, is the default for CnnPolicy
    ours = GRPO(policy, env, vf_coef=0.0, **kwargs)
    with_critic = PPO(policy, env, **kwargs)
    assert not [name for name, _ in ours.policy.named_parameters() if "value" in name or "vf" in name]
    in_optimizer = {id(parameter) for group in ours.policy.optimizer.param_groups for parameter in group["params"]}
    assert in_optimizer == {id(parameter) for parameter in ours.policy.parameters()}
    # Exactly the actor of PPO
    actor = sum(
        value.numel() for name, value in with_critic.policy.named_parameters() if "vf" not in name and "value" not in name
    )
    assert sum(value.numel() for value in ours.policy.parameters()) == actor
    assert ours.policy.state_dict().keys() >= {"action_net.weight", "action_net.bias"}
    with pytest.raises(AttributeError, match="has no critic"):
        ours.policy.predict_values(ours.policy.obs_to_tensor(env.reset()[0])[0])


@pytest.mark.parametrize(("algo", "to"), [(GRPO, "path"), (DAPO, "file")])
def test_save_load_predict_without_an_environment(algo: type[GRPO], to: str, tmp_path: Path) -> None:
    model = make_model(algo, gamma=0.9, clip_range=lambda progress: 0.3 * progress, max_sampling_rounds=3).learn(40)
    target: Any = tmp_path / "model" if to == "path" else io.BytesIO()
    model.save(target)
    if to == "file":
        target.seek(0)
    with pytest.raises(ValueError, match='device must be "auto", "cpu", "cuda" or another device of PyTorch, got \'gpu\''):
        algo.load(target, device="gpu")
    loaded = algo.load(target, device="cpu")
    assert loaded.get_env() is None
    assert_same(loaded.policy.state_dict(), model.policy.state_dict())
    for name in ("num_timesteps", "gamma", "group_size", "n_groups", "max_sampling_rounds", "_n_updates", "batch_size"):
        assert getattr(loaded, name) == getattr(model, name), name
    assert loaded.clip_range(0.5) == pytest.approx(0.15)
    for deterministic in (True, False):
        th.manual_seed(1)
        expected = model.predict(OBSERVATIONS, deterministic=deterministic)[0]
        th.manual_seed(1)
        assert np.array_equal(loaded.predict(OBSERVATIONS, deterministic=deterministic)[0], expected)
    loaded.set_env(make_env())
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps >= model.num_timesteps + 60
    assert not th.equal(probabilities(loaded.policy), probabilities(model.policy))


def test_optimizer_and_starts_go_on(tmp_path: Path) -> None:
    drawn: list[int] = []

    def sampler(rng: np.random.Generator) -> SeedStart:
        drawn.append(int(rng.integers(2**31)))
        return SeedStart(drawn[-1])

    model = make_model(start_sampler=sampler).learn(40)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=make_env(), custom_objects={"start_sampler": sampler})
    saved, again = model.policy.optimizer.state_dict()["state"], loaded.policy.optimizer.state_dict()["state"]
    assert saved[0]["step"] == again[0]["step"] > 0
    assert th.equal(saved[0]["exp_avg"], again[0]["exp_avg"])
    loaded.learn(40)
    assert len(set(drawn)) == len(drawn), "the loaded model does not draw the old starts again"


def test_a_loaded_model_draws_new_numbers(tmp_path: Path) -> None:
    def actions(model: GRPO) -> list[Any]:
        drawn: list[Any] = []
        model.learn(60, callback=lambda names, _: drawn.append(names["actions"].tolist()) or True)  # type: ignore[func-returns-value]
        return drawn

    # Without updates, and always from the same start: what differs is what was drawn
    same_start = {"start_sampler": lambda rng: SeedStart(0)}
    model = make_model(learning_rate=0.0, **same_start)
    first = actions(model)
    model.save(tmp_path / "model")
    again = [actions(GRPO.load(tmp_path / "model", env=make_env(), custom_objects=same_start)) for _ in range(2)]
    assert first != again[0] == again[1], "one file and one seed: one training"


def test_custom_objects_and_keyword_arguments(tmp_path: Path) -> None:
    make_model(learning_rate=lambda _: 0.5).save(tmp_path / "model")
    loaded = GRPO.load(
        tmp_path / "model",
        env=make_env(),
        custom_objects={"learning_rate": 0.25, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.125},
        group_size=3,
        n_epochs=1,
    )
    assert loaded.lr_schedule(1.0) == 0.25
    assert loaded.clip_range(1.0) == 0.125
    loaded.learn(1)
    assert loaded.batch.lengths.shape == (2, 3)
    with pytest.raises(ValueError, match="group of one"):
        GRPO.load(tmp_path / "model", group_size=1)


def test_learning_without_an_environment_says_how_to_give_one(tmp_path: Path) -> None:
    DAPO("MlpPolicy", make_env(), policy_kwargs=TINY, device="cpu").save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"no environment to learn from. Give one: DAPO.load\(path, env=...\)"):
        DAPO.load(tmp_path / "model").learn(100)


def test_set_env() -> None:
    model = make_model().learn(20)
    old, new = model.get_env(), make_env()
    model.set_env(new)
    assert model.get_env() is new
    model.learn(20, reset_num_timesteps=False)
    assert any("group_start" in info for info in new.unwrapped.reset_infos), "the new environment has played"
    # No start of a group was left behind in either
    for env in (old, new):
        assert all(not queue for queue in env.get_attr("queue"))
    model.set_env(old, force_reset=False)
    model.learn(20, reset_num_timesteps=False)
    with pytest.raises(AssertionError):
        model.set_env(make_env(3))
    with pytest.raises(ValueError, match="spaces"):
        model.set_env(DummyVecEnv([lambda: SpacesEnv(IMAGE, spaces.Discrete(2))] * 2))


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_get_and_set_parameters(kl_coef: float) -> None:
    model, other = make_model(kl_coef=kl_coef).learn(40), make_model(kl_coef=kl_coef, seed=1)
    parameters = model.get_parameters()
    assert set(parameters) == {"policy", "policy.optimizer"} | ({"ref_policy"} if kl_coef else set())
    assert not th.equal(probabilities(other.policy), probabilities(model.policy))
    other.set_parameters(parameters)
    assert th.equal(probabilities(other.policy), probabilities(model.policy))
    if kl_coef:
        assert_same(other.ref_policy.state_dict(), model.ref_policy.state_dict())
    with pytest.raises(ValueError):
        other.set_parameters({"policy.optimizer": parameters["policy.optimizer"]})
    # A single one will do if it is said
    make_model(kl_coef=kl_coef).set_parameters({"policy": parameters["policy"]}, exact_match=False)


def test_reference_policy_is_saved(tmp_path: Path) -> None:
    model = make_model(kl_coef=0.1, learning_rate=0.1)
    initial = probabilities(model.policy)
    model.learn(60)
    assert th.equal(probabilities(model.ref_policy), initial)
    assert not th.equal(probabilities(model.policy), initial)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=make_env())
    assert th.equal(probabilities(loaded.ref_policy), initial)
    assert th.equal(probabilities(loaded.policy), probabilities(model.policy))
    loaded.learn(40)
    assert th.equal(probabilities(loaded.ref_policy), initial)


@pytest.mark.parametrize(("other", "env_id"), [(PPO, "CartPole-v1"), (PPO, "Pendulum-v1"), (A2C, "CartPole-v1")])
def test_files_of_other_algorithms(other: Any, env_id: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    model = other("MlpPolicy", env_id, seed=1, device="cpu")
    model.save(path)
    name = other.__name__
    advice = r'model = (GRPO\("MlpPolicy".*\)\)), with .* and then (model\.policy\.load_state_dict\(.*, strict=False\))\.$'
    with pytest.raises(ValueError, match=f"was saved by {name}, .*{advice}") as error:
        GRPO.load(path)
    with pytest.raises(ValueError, match=f"was saved by {name}, not by GRPO or DAPO"):
        make_model().set_parameters(path)
    known = {"GRPO": GRPO, name: other, "path": path, "env": make_group_env(env_id, 2)}
    make, load = re.search(advice, str(error.value)).groups()  # type: ignore[union-attr]
    known["model"] = eval(make, known)
    eval(load, known)
    observations = np.random.default_rng(0).normal(size=(50, *model.observation_space.shape)).astype(np.float32)
    actions, expected = (each.predict(observations, deterministic=True)[0] for each in (known["model"], model))
    np.testing.assert_array_equal(actions, expected)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10).save(tmp_path / "dqn")
    th.save({"a": th.zeros(1)}, tmp_path / "tensor.pth")
    VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")])).save(str(tmp_path / "normalize.pkl"))
    (tmp_path / "empty.zip").touch()
    (tmp_path / "folder").mkdir()
    messages = {
        "dqn": "was saved by an algorithm with the policy DQNPolicy",
        **dict.fromkeys(("tensor.pth", "normalize.pkl", "empty.zip"), "is not what save has written"),
        "folder": r"is a folder: .* resume\(folder\)",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=f"{name} {message}"):
            GRPO.load(tmp_path / name)


@pytest.mark.parametrize("name", ["pickled_0.2.0.dev0.zip", "safe_0.2.0.dev0.zip"])
def test_files_of_earlier_versions(name: str, tmp_path: Path) -> None:
    """Never written anew: what was saved once has to be read later. These do not yet say which version has written them."""
    env = make_group_env("Pendulum-v1", n_envs=2, seed=0)
    model = DAPO.load(Path(__file__).parent / "models" / name, env, device="cpu", trusted=name.startswith("pickled"))
    assert model.saved_by_version is None
    observations = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -2.0]], np.float32)
    actions, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(actions, [[0.003593], [-0.0045788]], rtol=1e-3)
    assert model.learn(100, reset_num_timesteps=False).num_timesteps > 256
    for format in ("sb3", "safe"):
        model.save(tmp_path / "model", format=format)
        assert DAPO.load(tmp_path / "model").saved_by_version == sb3_grpo.__version__
