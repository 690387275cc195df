"""Parameters that are numbers: what they may be is known before a rollout, and an error names them."""

import inspect
import json
import math
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch as th
from toy_envs import TINY, ToyEnv

from sb3_grpo.dapo import DAPO
from sb3_grpo.grpo import GRPO

SIGNATURE = inspect.signature(GRPO).parameters
KINDS = {name: get_args(each.annotation) or (each.annotation,) for name, each in SIGNATURE.items()}
WHOLE = [name for name, kinds in KINDS.items() if int in kinds and name != "verbose"]
REAL = [name for name, kinds in KINDS.items() if float in kinds and str not in kinds]
# So that each is possible, and does something
RICH: dict[str, Any] = {
    "n_envs": 1,
    "group_size": 2,
    "n_groups": 2,
    "n_epochs": 1,
    "batch_size": 64,
    "kl_coef": 0.1,
    "ref_update_interval": 1,
    "overlong_range": (2, 4),
    "loss_average": 4.0,
    "target_kl": 0.5,
    "clip_range_high": 0.3,
    "seed": 0,
    "policy_kwargs": TINY,
    "device": "cpu",
}
# All others have bounds of their own
UNLIMITED = ("max_grad_norm", "clip_range", "clip_range_high", "target_kl")


def make(algo: type[GRPO] = GRPO, **changes: Any) -> GRPO:
    rich = RICH
    if "n_steps" in changes:
        each_step = ("n_groups", "loss_average", "overlong_range")
        rich = {name: value for name, value in RICH.items() if name not in each_step}
    return algo("MlpPolicy", ToyEnv(), **{**rich, **changes})


def value_of(name: str) -> Any:
    default = SIGNATURE[name].default
    return RICH.get(name, 3 if default is None else default)


def test_the_signature_is_understood() -> None:
    assert len(WHOLE) >= 11 and len(REAL) >= 9
    numbers = {name for name, each in SIGNATURE.items() if type(each.default) in (int, float)} - {"verbose"}
    assert numbers <= {*WHOLE, *REAL}


@pytest.mark.parametrize("algo", [GRPO, DAPO])
@pytest.mark.parametrize("wrong", [512.0, "512", True, np.True_, math.nan, math.inf, 2.5, [1]], ids=repr)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str, wrong: Any, algo: type[GRPO]) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number( or None)?, got ") as error:
        make(algo, **{name: wrong})
    if wrong in (512.0, "512") and not isinstance(wrong, bool):
        assert str(error.value).endswith(f": write {name}=512.")


@pytest.mark.parametrize("wrong", [math.nan, np.float32("nan"), -math.inf, "0.5", True, [1.0], th.tensor(0.5)], ids=repr)
@pytest.mark.parametrize("name", REAL)
def test_real_numbers(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a (finite )?number( or a function)?( or None)?, got ") as error:
        make(**{name: wrong})
    if wrong == "0.5":
        assert str(error.value).endswith(f": write {name}=0.5.")


@pytest.mark.parametrize("numpy_type", [np.int64, np.uint8])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_numpy_are_whole_numbers(name: str, numpy_type: type, tmp_path: Path) -> None:
    value = abs(value_of(name))
    model = make(**{name: numpy_type(value)})
    model.learn(20)
    model.save(tmp_path / "model")
    stored = "_stats_window_size" if name == "stats_window_size" else name
    assert getattr(model, stored) == value and type(getattr(model, stored)) is int
    assert json.loads(zipfile.ZipFile(tmp_path / "model.zip").read("data"))[stored] == value
    GRPO.load(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("name", sorted({*WHOLE, *REAL} - {"stats_window_size"}))
def test_parameters_that_are_set_later(name: str) -> None:
    model = make()
    setattr(model, name, math.nan)
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        model.learn(20)


@pytest.mark.parametrize("changes", [{"batch_size": np.int64(16)}, {"max_grad_norm": math.inf, "gamma": 1}])
def test_models_are_loaded_with_numbers_of_their_own(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make()
    for name, value in changes.items():
        setattr(model, name, value)  # as an earlier version kept them
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=ToyEnv(), device="cpu")
    for name, value in changes.items():
        assert getattr(loaded, name) == value
    loaded.learn(20)
    with pytest.raises(ValueError, match=r"^n_epochs must be a whole number, got 2\.0"):
        GRPO.load(tmp_path / "model", n_epochs=2.0)


def test_a_parameter_of_a_subclass_is_its_own_business() -> None:
    class Own(GRPO):
        def __init__(self, *args: Any, extra: int = 0, **kwargs: Any):
            self.extra = extra
            super().__init__(*args, **kwargs)

    assert Own("MlpPolicy", ToyEnv(), extra=1.5, **RICH).extra == 1.5  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^gamma must be a finite number"):
        Own("MlpPolicy", ToyEnv(), gamma=math.nan)
