"""Nothing that stands in the file of a comparison is evaluated."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from sb3_grpo.console import UsageError
from sb3_grpo.utils.entries import parse_value, read_entry

pytest.importorskip("rl_zoo3")

import rl_zoo3

from sb3_grpo.classroom.compare.build import build
from sb3_grpo.classroom.compare.definition import make_experiment

FILES = [
    *sorted((Path(__file__).resolve().parents[2] / "zoo_configs").glob("*.yml")),
    *sorted((Path(rl_zoo3.__file__).parent / "hyperparams").glob("*.yml")),
]
EVALUATED = ("policy_kwargs", "normalize", "replay_buffer_class", "replay_buffer_kwargs", "monitor_kwargs")
NAMES = {"nn": nn, "th": th, "HerReplayBuffer": HerReplayBuffer, "RMSpropTFLike": RMSpropTFLike}
# Each of them makes the file "executed" where it is evaluated or called
TOUCH = "__import__('pathlib').Path('executed').touch()"


def definition(**hyperparams: Any) -> dict[str, Any]:
    variant = {"name": "mine", "algo": "ppo", "hyperparams": hyperparams}
    return {"name": "tiny", "envs": ["CartPole-v1"], "variants": [variant], "timesteps": 100, "seeds": 1}


class Bystander(gym.Wrapper):
    """A wrapper of a user."""

    def __init__(self, env: gym.Env, note: str = ""):
        super().__init__(env)
        self.note = note


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_strings_of_all_entries_mean_what_they_mean_in_the_rl_zoo(path: Path) -> None:
    for name, entry in yaml.safe_load(path.read_text()).items():
        for key in EVALUATED:
            if isinstance(entry.get(key), str):
                assert read_entry({key: entry[key]})[key] == eval(entry[key], dict(NAMES)), (name, key)


def test_what_can_be_written() -> None:
    text = "dict(a=[1, -2.5, +1e-3], b=('x', None, True), c={'d': {1: nn.ReLU}}, e=torch.nn.Tanh, f=th.optim.SGD, g=())"
    expected = {
        "a": [1, -2.5, 1e-3],
        "b": ("x", None, True),
        "c": {"d": {1: nn.ReLU}},
        "e": nn.Tanh,
        "f": th.optim.SGD,
        "g": (),
    }
    assert parse_value(f" {text}\n") == expected


@pytest.mark.parametrize(
    "expression",
    [
        TOUCH,
        "open('executed', 'w')",
        f"(lambda: {TOUCH})()",
        "().__class__.__bases__[0].__subclasses__()",
        f"f'{{{TOUCH}}}'",
        f"dict(**{TOUCH})",
        f"(x := {TOUCH})",
        "nn.Module.__init__.__globals__",
        "th.load('executed')",
        "nn.Linear(1, 1)",
        "dict(",
        "[" * 1000,
        "-" * 100_000 + "1",
        "",
    ],
)
@pytest.mark.parametrize("key", EVALUATED)
def test_expressions_are_refused(key: str, expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = expression if key != "policy_kwargs" or expression == "" else f"dict(net_arch=[{expression}])"
    if key in ("replay_buffer_class", "replay_buffer_kwargs"):
        with pytest.raises(ValueError, match=rf"^{key}: "):
            read_entry({key: written})
    else:
        with pytest.raises(UsageError, match=rf"^my.yml: variant 'mine': {key}: (?s:.*)only numbers, strings"):
            make_experiment(definition(**{key: written}), "my.yml")
    assert not list(tmp_path.iterdir())


def test_ordinary_strings_build_what_they_say() -> None:
    hyperparams = {
        "policy_kwargs": "dict(net_arch=[8], activation_fn=nn.ReLU)",
        "normalize": "dict(norm_obs=True, norm_reward=False)",
        "monitor_kwargs": "dict(info_keywords=())",
        "env_wrapper": [{f"{__name__}.Bystander": {"note": "dict(a=1)"}}, f"{__name__}.Bystander"],
        "callback": {"stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes": {"max_episodes": 3}},
        "learning_rate": "lin_0.001",
    }
    experiment = make_experiment(definition(**hyperparams), "my.yml")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        assert built.model.policy_kwargs == {"net_arch": [8], "activation_fn": nn.ReLU}
        normalizer = built.model.get_vec_normalize_env()
        assert normalizer is not None and (normalizer.norm_obs, normalizer.norm_reward) == (True, False)
        assert set(built.model.get_env().get_attr("note")) == {""}
        assert built.manager.callbacks[0].max_episodes == 3
        assert np.isclose(built.model.lr_schedule(0.5), 0.0005)
        assert built.hyperparams()["policy_kwargs"] == hyperparams["policy_kwargs"], "as it is written"
