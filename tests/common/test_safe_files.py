"""Models of strangers: a format without pickles, and files with pickles that are not loaded."""

import base64
import contextlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn
from toy_envs import TINY, ToyEnv

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.policies import ActorPolicy

SMALL: dict[str, Any] = {"n_groups": 2, "group_size": 2, "n_epochs": 1, "device": "cpu"}


def same(one: GRPO, other: GRPO) -> bool:
    ours, theirs = one.policy.state_dict(), other.policy.state_dict()
    return ours.keys() == theirs.keys() and all(th.equal(value, theirs[name]) for name, value in ours.items())


def saved(path: Path, seed: int = 0, **settings: Any) -> DAPO:
    model = DAPO("MlpPolicy", make_group_env(ToyEnv, 2), seed=seed, **{**SMALL, "policy_kwargs": TINY, **settings}).learn(40)
    model.save(path, format="safe")
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kl_coef": 0.1, "target_kl": float("inf")},
        {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0), "clip_range": LinearSchedule(0.2, 0.1, 0.5)},
        {"policy_kwargs": {"net_arch": {"pi": [4, 4]}, "activation_fn": nn.ReLU, "optimizer_class": th.optim.AdamW}},
        {"n_groups": None, "n_steps": 8, "max_sampling_rounds": None},
    ],
)
def test_a_safe_model_is_what_it_was(settings: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path / "model", **settings)
    loaded = DAPO.load(tmp_path / "model", env=make_group_env(ToyEnv, 2), device="cpu", trusted=False)
    assert same(model, loaded) and loaded._start_rng.bit_generator.state == model._start_rng.bit_generator.state
    own = {name: value for name, value in vars(model).items() if isinstance(value, bool | int | float | str | None)}
    # As SB3 loads a model
    assert own.items() - {("_total_timesteps", model._total_timesteps)} <= vars(loaded).items()
    # Both formats go on alike
    model.save(tmp_path / "sb3")
    after = loaded.learn(40, reset_num_timesteps=False)
    other = DAPO.load(tmp_path / "sb3", env=make_group_env(ToyEnv, 2), device="cpu").learn(40, reset_num_timesteps=False)
    assert same(after, other) and not same(after, model)


class Own(ActorPolicy):
    """A policy of the user."""


class OwnExtractor(FlattenExtractor):
    """A features extractor of the user."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learning_rate": lambda progress: 1e-3 * progress},
            r"learning_rate is <function.*LinearSchedule in place of a function",
        ),
        ({"advantage": lambda rewards, mask, **others: rewards}, r"advantage is <function.*exclude=\[\"advantage\"\]"),
        (
            {"policy_kwargs": {**TINY, "features_extractor_class": OwnExtractor}},
            r"policy_kwargs\['features_extractor_class'\] is .*exclude=\[\"policy_kwargs\"\].*dict\(policy_kwargs=",
        ),
        ({"policy": Own}, r"policy_class is <class .*Own'>, which is no data and can only be pickled.*format=\"sb3\""),
    ],
)
def test_what_is_no_data_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    policy = settings.pop("policy", "MlpPolicy")
    model = GRPO(policy, ToyEnv(), **{**SMALL, "policy_kwargs": TINY, **settings})
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model", format="safe")
    assert (tmp_path / "model.zip").read_bytes() == before and len([*tmp_path.iterdir()]) == 1


def own_advantage(rewards: th.Tensor, mask: th.Tensor, **others: Any) -> th.Tensor:
    return rewards.sum(-1, keepdim=True).expand_as(rewards)


def test_what_was_left_out_is_given_anew(tmp_path: Path) -> None:
    policy_kwargs = {**TINY, "features_extractor_class": OwnExtractor}
    settings = {**SMALL, "policy_kwargs": policy_kwargs, "advantage": own_advantage, "seed": 0}
    model = GRPO("MlpPolicy", make_group_env(ToyEnv, 2), **settings)
    model.save(tmp_path / "model", format="safe", exclude=["advantage", "policy_kwargs"])
    given = {"advantage": own_advantage, "policy_kwargs": policy_kwargs}
    loaded = GRPO.load(tmp_path / "model", make_group_env(ToyEnv, 2), "cpu", custom_objects=given, trusted=False)
    assert isinstance(loaded.policy.features_extractor, OwnExtractor)
    assert same(model, loaded) and loaded.learn(40).advantage is own_advantage


@pytest.mark.parametrize("format", ["safe", "sb3"])
def test_what_load_does_not_know_is_refused(format: str, tmp_path: Path) -> None:
    """``load(path, trust=False)`` must not load pickles."""
    DAPO("MlpPolicy", make_group_env(ToyEnv, 2), **SMALL).save(tmp_path / "model", format=format)
    with pytest.raises(TypeError, match=r"DAPO.load has no argument trust, .* no such attribute"):
        DAPO.load(tmp_path / "model", trust=False)
    with pytest.raises(TypeError, match=r"no argument group_sise, .* did you mean 'group_size'"):
        DAPO.load(tmp_path / "model", group_sise=4)
    with pytest.raises(TypeError, match="no argument weather"):
        DAPO.load(tmp_path / "model", weather="fine")
    # Of SB3's load, of the constructor, attributes that there are from the beginning, and later
    known: dict[str, Any] = {"print_system_info": False, "stats_window_size": 10, "group_size": 4, "num_timesteps": 7}
    loaded = DAPO.load(tmp_path / "model", **known, action_space=spaces.Discrete(2))
    assert loaded.group_size == 4 and loaded.num_timesteps == 7


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_pickles_of_strangers_are_not_loaded(tmp_path: Path) -> None:
    model = GRPO("MlpPolicy", ToyEnv(), **SMALL)
    executed = tmp_path / "executed"
    model.harmless = Touch(str(executed))  # type: ignore[attr-defined]
    model.save(tmp_path / "stranger")
    with pytest.raises(ValueError, match=r"stranger may run any program .* and has pickles\. Ask for a safe file"):
        GRPO.load(tmp_path / "stranger", trusted=False)
    assert not executed.exists()
    assert GRPO.load(tmp_path / "stranger").group_size == 2
    assert executed.exists()


def rewrite(path: Path, change: Callable[[dict[str, bytes]], Any], compression: int = zipfile.ZIP_STORED) -> None:
    """
    :param path: A saved model
    :param change: Changes the members of the archive
    :param compression: Of the new archive
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def change_attributes(path: Path, **changes: Any) -> None:
    def change(members: dict[str, bytes]) -> None:
        content = json.loads(members["data.json"])
        content["attributes"] |= changes
        members["data.json"] = json.dumps(content).encode()

    rewrite(path, change)


@pytest.fixture(scope="module")
def safe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safe") / "model.zip"
    saved(path)
    return path


@pytest.fixture
def stranger(safe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A safe file that may be changed, beside a module that makes a folder when it is imported."""
    (tmp_path / "strangers.py").write_text(f"import os; os.mkdir({str(tmp_path / 'executed')!r})")
    monkeypatch.syspath_prepend(tmp_path)
    return Path(shutil.copy(safe_file, tmp_path / "model.zip"))


@pytest.mark.parametrize(
    "value",
    [
        {"$object": "os.system", "with": {}},
        {"$object": "gymnasium.spaces.box.Box", "with": {}},
        {"$object": "stable_baselines3.common.utils.FloatSchedule", "with": {"value_schedule": "x"}},
        {"$class": "torch.nn.functional.relu"},
        {"$class": "torch.hub.load"},
        {"$class": "NoSuchPolicy"},
        {"$array": "no_such"},
        {"$dtype": "O"},
        {"$generator": {"bit_generator": "MT19937"}},
        {"$float": "1e999"},
        {"$eval": "1"},
        {"$": 1},
    ],
)
def test_nothing_is_called_that_no_model_has(value: Any, stranger: Path) -> None:
    change_attributes(stranger, tensorboard_log=value)
    with pytest.raises(ValueError, match=r"is not what save has written, or damaged: "):
        DAPO.load(stranger)


# Methods, parameters, properties, what is made anew, what all models have; and names of what would be imported
FORBIDDEN = "learn save _setup_learn policy ref_policy collector _logger resumption plugin_parameters __deepcopy__".split()
IMPORTED = {"advantage": "strangers.function", "start_sampler": "strangers.function", "env": "strangers:Name-v0"}


@pytest.mark.parametrize(
    ("name", "value"),
    [*((name, {"$class": "torch.nn.modules.linear.Identity"}) for name in FORBIDDEN), *IMPORTED.items()],
)
def test_nothing_is_set_that_save_does_not_write(name: str, value: Any, stranger: Path) -> None:
    change_attributes(stranger, **{name: value})
    with pytest.raises(ValueError, match=f"{name}=.* is in no safe file"):
        DAPO.load(stranger, trusted=False)
    assert not (stranger.parent / "executed").exists()


def test_what_sb3_takes_for_a_pickle_is_data(stranger: Path) -> None:
    executed = stranger.parent / "executed"
    pickled = base64.b64encode(pickle.dumps(Touch(str(executed)))).decode()
    for name in ("notes", "_last_obs", "learning_rate"):
        change_attributes(stranger, **{name: {":type:": "x", ":serialized:": pickled}})
        with contextlib.suppress(ValueError):
            DAPO.load(stranger, trusted=False)
        DAPO.load(stranger, trusted=False, custom_objects={"learning_rate": 1e-3})
        assert not executed.exists()


@pytest.mark.parametrize("name", ["pytorch_variables", "tensors"])
def test_only_parameters_of_the_model_are_set(name: str, stranger: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        content = json.loads(members["data.json"])
        content["parameters"][name] = {"policy.action_net.bias": {"$tensor": "x"}}
        members["data.json"] = json.dumps(content).encode()
        tensors = safetensors.torch.load(members["tensors.safetensors"]) | {"x": th.zeros(2)}
        members["tensors.safetensors"] = safetensors.torch.save(tensors)

    rewrite(stranger, change)
    with pytest.raises(ValueError, match=f"there are no parameters by the name of {{'{name}'}}"):
        DAPO.load(stranger, trusted=False)
