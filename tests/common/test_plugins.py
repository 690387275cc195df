"""Functions of one's own in the place of a name: advantages, losses, weights, KL estimators."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from toy_envs import TINY, ToyEnv

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.advantages import outcome_advantages
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import LossInputs, clipped_surrogate, step_weights

SMALL: dict[str, Any] = {"group_size": 4, "n_groups": 3, "n_epochs": 2, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


def make_model(algo: type[GRPO] = GRPO, **kwargs: Any) -> GRPO:
    return algo("MlpPolicy", make_group_env(ToyEnv, 4), **{**SMALL, **kwargs})


def parameters_after(**kwargs: Any) -> th.Tensor:
    model = make_model(**kwargs).learn(300)
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def own_weights(episode: th.Tensor, n_episodes: int, **settings: Any) -> th.Tensor:
    return step_weights(episode, n_episodes, "episode")


def own_clip(steps: LossInputs) -> th.Tensor:
    return clipped_surrogate(steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)


def plain_k3(log_prob: th.Tensor, ref_log_prob: th.Tensor) -> th.Tensor:
    return kl_estimate(log_prob, ref_log_prob, "k3")


@pytest.mark.parametrize(
    ("parameter", "own", "name", "others"),
    [
        ("advantage", lambda rewards, mask, **kw: outcome_advantages(rewards, mask, **kw), "outcome", {}),
        ("policy_loss", own_clip, "clip", {}),
        ("loss_average", own_weights, "episode", {}),
        ("kl_estimator", plain_k3, "k3_plain", {"kl_coef": 1.0}),
    ],
)
def test_a_function_that_does_the_same_gives_the_same(parameter: str, own: Any, name: str, others: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"advantage": "outcome", **others}
    assert th.equal(parameters_after(**{**settings, parameter: own}), parameters_after(**{**settings, parameter: name}))


def test_a_function_that_does_something_else_gives_something_else() -> None:
    settings: dict[str, Any] = {"advantage": "outcome", "kl_coef": 1.0}
    others: list[dict[str, Any]] = [
        {"policy_loss": lambda steps: -steps.log_ratio.exp() * steps.advantages - steps.log_ratio.square()},
        {"loss_average": lambda episode, n_episodes, **kw: 2 * step_weights(episode, n_episodes, "episode")},
        {"kl_estimator": lambda log_prob, ref_log_prob: log_prob - ref_log_prob},
    ]
    plain = parameters_after(**settings)
    for other in others:
        assert not th.equal(parameters_after(**{**settings, **other}), plain)


def outcome_per_episode(rewards: th.Tensor, mask: th.Tensor, **settings: Any) -> th.Tensor:
    return rewards.sum(-1)


def nan_advantages(rewards: th.Tensor, mask: th.Tensor, **settings: Any) -> th.Tensor:
    return rewards / 0.0 - rewards / 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"advantage": outcome_per_episode},
            r"outcome_per_episode, given as advantage, must return a tensor of shape \(3, 4, \d+\): \(B, G, T\).*Got \(3, 4\)",
        ),
        ({"advantage": nan_advantages}, r"nan_advantages, given as advantage, returned \d+ values of \d+ that are not finite"),
        ({"advantage": lambda rewards, mask, **kw: 1.0}, r"<lambda>, given as advantage, .* floating point tensor, got float"),
        ({"advantage": lambda rewards, mask, **kw: mask}, r"floating point tensor, got torch.bool"),
        ({"policy_loss": lambda steps: own_clip(steps).mean()}, r"given as policy_loss, .*\(M,\).* Got \(\)\."),
        ({"policy_loss": lambda steps: th.nan * own_clip(steps)}, r"given as policy_loss, .*not finite"),
        (
            {"policy_loss": lambda steps: own_clip(steps).detach()},
            r"given as policy_loss, .*without a gradient.*steps.log_ratio",
        ),
        ({"loss_average": lambda *args, **kw: th.ones(1)}, r"given as loss_average, .*weight of each step.*Got \(1,\)"),
        ({"kl_coef": 1.0, "kl_estimator": lambda new, ref: (new - ref).sum()}, r"given as kl_estimator, .*Got \(\)"),
    ],
)
def test_what_a_function_returns_is_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(**settings).learn(100)


MODULE = """
from sb3_grpo import SeedStart

def halves(rewards, mask, **settings):
    return rewards / 2

class Seven:
    def __call__(self, rng):
        return SeedStart(7)
"""


def test_a_model_predicts_without_the_functions(tmp_path: Path) -> None:
    (tmp_path / "my_functions.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        import my_functions  # type: ignore[import-not-found]

        # By its name, as in a configuration file, too
        assert make_model(advantage="my_functions.halves").advantage is my_functions.halves
        model = make_model(advantage=my_functions.halves, start_sampler=my_functions.Seven()).learn(100)
        model.save(tmp_path / "model")
        assert GRPO.load(tmp_path / "model").advantage is my_functions.halves

    # As on another machine
    del sys.modules["my_functions"]
    env, observation = make_group_env(ToyEnv, 4), np.zeros(2)
    loaded = GRPO.load(tmp_path / "model", env=env)
    assert loaded.predict(observation, deterministic=True)[0] == model.predict(observation, deterministic=True)[0]
    with pytest.raises(ValueError, match=r"cannot be imported here \(No module named 'my_functions'\).*custom_objects=dict\("):
        loaded.learn(50)
    own = {"advantage": lambda rewards, mask, **settings: rewards, "start_sampler": None}
    assert GRPO.load(tmp_path / "model", env=env, custom_objects=own).learn(50).num_timesteps > 0
    # Saved again, the model does not learn something else either
    loaded.save(tmp_path / "again")
    with pytest.raises(ValueError, match="of this model is a function that was left out when it was saved, or cannot"):
        GRPO.load(tmp_path / "again", env=env).learn(50)


def test_a_number_for_a_schedule_of_a_model() -> None:
    model = make_model(DAPO)
    model.clip_range = 0.3
    model.learn(300)
    assert model.logger.name_to_value["train/clip_range"] == 0.3


def test_names_of_functions_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_such.function", "sb3_grpo.no_such.function", "sb3_grpo.no_such", ".5", "a..b"):
        with pytest.raises(
            ValueError,
            match=f"Unknown policy_loss='{name}', must be one of clip, cispo, dppo, .*, or a function",
        ):
            make_model(policy_loss=name)
    # An error in the module is another matter
    monkeypatch.syspath_prepend(tmp_path)
    for place, line in enumerate(["import no_such_package", "from math import no_such", "import math; math.no_such"]):
        (tmp_path / f"wrong_{place}.py").write_text(line)
        with pytest.raises((ImportError, AttributeError), match="no_such"):
            make_model(policy_loss=f"wrong_{place}.own_loss")
