"""An update that is recorded: the training goes on as if it were not, and the record says what it did."""

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from record_checks import check_record
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from toy_envs import TINY, TINY_TEXT

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.classroom.lecture.recording import RecordUpdate
from sb3_grpo.common.losses import LossInputs, clipped_surrogate
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.text.policies import TokenActorCriticPolicy

PAPER: dict[str, Any] = {"advantage": "outcome", "advantage_scale": "group", "loss_average": "episode", "gamma": 1.0}
SMALL: dict[str, Any] = {"group_size": 3, "batch_size": 20, "n_epochs": 2, "policy_kwargs": TINY}


class Dropout(nn.Tanh):
    """An activation that draws random numbers in training mode."""

    def forward(self, values: th.Tensor) -> th.Tensor:
        return nn.functional.dropout(super().forward(values), 0.1, self.training)


def ppo(env: Any = "CartPole-v1", policy: Any = "MlpPolicy", **kwargs: Any) -> PPO:
    env = DummyVecEnv([lambda: gym.make(env)] * 2) if isinstance(env, str) else env
    settings: dict[str, Any] = {"n_steps": 20, "batch_size": 20, "n_epochs": 2, "policy_kwargs": TINY, **kwargs}
    return PPO(policy, env, seed=0, device="cpu", **settings)


def grpo(env: Any = "CartPole-v1", policy: str = "MlpPolicy", algo: type[GRPO] = GRPO, **kwargs: Any) -> GRPO:
    env = make_group_env(env, 2) if isinstance(env, str) else env
    return algo(policy, env, seed=0, device="cpu", **{**SMALL, **kwargs})


def text_env() -> VerifierTextVecEnv:
    return VerifierTextVecEnv(4, seed=0, task="arithmetic", task_kwargs={"digits": 1})


MODELS: dict[str, Any] = {
    "ppo": lambda: ppo(learning_rate=0.01),
    "ppo with all terms": lambda: ppo(ent_coef=0.01, clip_range_vf=0.1, normalize_advantage=False),
    "ppo, continuous, gSDE": lambda: ppo("Pendulum-v1", use_sde=True),
    "ppo with dropout": lambda: ppo(policy_kwargs={"activation_fn": Dropout}),
    "ppo of texts": lambda: ppo(text_env(), TokenActorCriticPolicy, policy_kwargs=TINY_TEXT),
    "grpo": lambda: grpo(n_steps=20),
    "grpo of the paper": lambda: grpo(n_groups=2, kl_coef=0.04, kl_estimator="k3_plain", learning_rate=0.01, **PAPER),
    "grpo, several minibatches a step": lambda: grpo(n_groups=2, gradient_accumulation_steps=2, **PAPER),
    "grpo with ratios of episodes": lambda: grpo(n_groups=2, ratio_level="episode", ent_coef=0.01, **PAPER),
    "grpo, continuous": lambda: grpo("Pendulum-v1", n_steps=20),
    "grpo with dropout": lambda: grpo(n_groups=2, policy_kwargs={"activation_fn": Dropout}),
    "grpo of texts": lambda: grpo(text_env(), "TokenPolicy", n_groups=2, policy_kwargs=TINY_TEXT),
    "grpo in one minibatch": lambda: grpo(n_groups=2, **{**PAPER, "batch_size": None}),
    "dapo": lambda: grpo(algo=DAPO, n_groups=2, **PAPER),
}
# Several updates of each
TIMESTEPS = 200


def trained(name: str, callback: RecordUpdate | None, timesteps: int = TIMESTEPS) -> tuple[BaseAlgorithm, list[Any]]:
    """
    :param name: Of a model
    :param callback: For its training
    :param timesteps: Of the training
    :return: The model after it, and the state of the generators of random numbers
    """
    model = MODELS[name]().learn(timesteps, callback=callback)
    return model, [th.get_rng_state().tolist(), *map(str, np.random.get_state())]


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_to_the_last_bit(name: str) -> None:
    expected, drawn = trained(name, None)
    callback = RecordUpdate(update=2)
    got, drawn_beside_it = trained(name, callback)
    assert callback.record is not None and callback.record["update"] >= 2
    assert drawn_beside_it == drawn
    for key, value in expected.policy.state_dict().items():
        assert th.equal(got.policy.state_dict()[key], value), key
    assert got.policy.training == expected.policy.training
    # And no hook is left
    assert not got.policy.optimizer._optimizer_step_post_hooks and not got.policy.optimizer._optimizer_step_pre_hooks
    assert "_train_epoch" not in vars(got) and "_get_samples" not in vars(got.rollout_buffer)


def last_update(name: str) -> tuple[BaseAlgorithm, dict[str, Any]]:
    """
    :param name: Of a model
    :return: The model after its first update, and the record of that
    """
    callback = RecordUpdate()
    model, _ = trained(name, callback, timesteps=1)
    assert callback.record is not None
    return model, callback.record


def mean(steps: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([each[key] for each in steps]))


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name and "several" not in name])
def test_record_agrees_with_what_the_algorithm_logs(name: str) -> None:
    model, record = last_update(name)
    logged, steps = model.logger.name_to_value, record["optimizer_steps"]
    of_last_epoch = [each for each in steps if each["epoch"] == steps[-1]["epoch"]]
    # PPO logs the last loss, and the KL of the last epoch
    loss, kl = (steps[-1:], of_last_epoch) if isinstance(model, PPO) else (steps, steps)
    assert mean(loss, "loss") == pytest.approx(logged["train/loss"], rel=1e-4, abs=1e-6)
    assert mean(kl, "approx_kl") == pytest.approx(logged["train/approx_kl"], rel=1e-3, abs=1e-7)
    assert mean(steps, "policy_loss") == pytest.approx(logged["train/policy_gradient_loss"], rel=1e-4, abs=1e-6)
    if isinstance(model, PPO):
        assert mean(steps, "value_loss") == pytest.approx(logged["train/value_loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["ppo", "ppo of texts", "grpo of the paper"])
def test_numbers_follow_from_what_was_played(name: str) -> None:
    _, record = last_update(name)
    check_record(record, 1e-4)


def test_log_probabilities_are_those_of_the_policy() -> None:
    model, record = last_update("ppo")
    steps = record["steps"]
    _, log_prob, _ = model.policy.evaluate_actions(th.tensor(steps["observation"]), th.tensor(steps["action"]))
    assert record["optimizer_steps"][-1]["log_prob"] == pytest.approx(log_prob.tolist(), abs=1e-6)
    assert steps["log_prob"] != pytest.approx(log_prob.tolist(), abs=1e-3)


def test_episodes_of_ppo_are_those_of_the_copies() -> None:
    _, record = last_update("ppo")
    episodes = record["episodes"]
    assert [each["first"] for each in episodes] == np.cumsum([0, *(each["n_steps"] for each in episodes[:-1])]).tolist()
    assert {each["env"] for each in episodes} == {0, 1}
    assert all(each["reward"] == each["n_steps"] for each in episodes)
    assert all(each["ended"] == ("next_value" not in each) for each in episodes)
    assert any(each["ended"] for each in episodes)


def test_texts_are_written_out() -> None:
    for name in ("grpo of texts", "ppo of texts"):
        _, record = last_update(name)
        assert {each["prompt"][-1] for each in record["episodes"] if each["n_steps"] > 1} <= set("0123456789+=")
        assert any("+" in each["prompt"] and each["prompt"].endswith("=") for each in record["episodes"])
        assert set(record["steps"]["token"]) <= {*"0123456789+=", ""}
        assert record["steps"]["observation"][0] is None


def test_file_is_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "update.json"
    callback = RecordUpdate(path, update=3)
    trained("ppo", callback)
    record = json.loads(path.read_text("utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert record == callback.record
    assert record["update"] == 3 and record["num_timesteps"] == 120 and not record["stopped_early"]


@pytest.mark.parametrize("make", [ppo, functools.partial(grpo, n_groups=2)])
def test_limit_of_the_kl_is_noted(make: Any) -> None:
    callback = RecordUpdate()
    make(learning_rate=0.1, target_kl=1e-5, n_epochs=5).learn(1, callback=callback)
    assert callback.record is not None and callback.record["stopped_early"]


class Broken(Exception):
    """What goes wrong in the middle of an update."""


def test_nobody_listens_after_an_error() -> None:
    calls = []

    def loss(steps: LossInputs) -> th.Tensor:
        calls.append(None)
        if len(calls) == 5:
            raise Broken
        return clipped_surrogate(steps.log_ratio, steps.advantages, steps.clip_low, steps.clip_high)

    model = grpo(n_groups=2, policy_loss=loss)
    callback = RecordUpdate()
    with pytest.raises(Broken):
        model.learn(1, callback=callback)
    assert "_train_epoch" not in vars(model) and not model.policy.optimizer._optimizer_step_post_hooks
    assert callback.record is None


def test_nobody_listens_after_an_error_in_ppo(monkeypatch: pytest.MonkeyPatch) -> None:
    model, callback = ppo(), RecordUpdate()
    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(nn.utils, "clip_grad_norm_", lambda *_: (_ for _ in ()).throw(Broken()))
        model.learn(1, callback=callback)
    model.learn(1, reset_num_timesteps=False)
    assert "_get_samples" not in vars(model.rollout_buffer) and not model.policy.optimizer._optimizer_step_post_hooks


def test_limits_that_are_infinite_are_json(tmp_path: Path) -> None:
    grpo(n_groups=2, clip_range=float("inf"), **PAPER).learn(1, callback=RecordUpdate(tmp_path / "update.json"))
    record = json.loads((tmp_path / "update.json").read_text("utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert record["settings"]["clip_low"] is None


def test_an_update_that_was_interrupted_is_not_taken_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, callback, calls = ppo(n_steps=40), RecordUpdate(), []

    def clip(*_: Any) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise Broken

    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(nn.utils, "clip_grad_norm_", clip)
        model.learn(1, callback=callback)
    model.learn(1, callback=callback)
    assert callback.record is not None and callback.record["update"] == 1
    assert len(callback.record["optimizer_steps"]) == 8


def test_update_without_anything_to_learn_is_passed_over() -> None:
    # All rewards are 0: every group is dead
    env = VerifierTextVecEnv(4, seed=0, task="arithmetic", reward_correct=1.0, verifier=lambda answer, reference: 0.0)
    model = grpo(env, "TokenPolicy", DAPO, n_groups=2, policy_kwargs=TINY_TEXT, max_sampling_rounds=1)
    callback = RecordUpdate()
    with pytest.warns(UserWarning, match="was not recorded"):
        model.learn(50, callback=callback)
    assert callback.record is None


def test_what_cannot_be_recorded_is_said() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RecordUpdate(update=0)
    with pytest.raises(ValueError, match="not of A2C"):
        A2C("MlpPolicy", "CartPole-v1", device="cpu").learn(1, callback=RecordUpdate())


def test_a_refused_step_of_the_optimizer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, callback = MODELS["grpo"](), RecordUpdate()
    losses: list[th.Tensor] = []

    def first_is_nan(*args: Any, **kwargs: Any) -> tuple[th.Tensor, Any]:
        loss, stats = type(model)._loss(model, *args, **kwargs)
        if th.is_grad_enabled():
            losses.append(loss)
        return (loss * np.nan if len(losses) == 1 else loss), stats

    monkeypatch.setattr(model, "_loss", first_is_nan)
    with pytest.warns(UserWarning, match="was refused"):
        model.learn(40, callback=callback)
    record = callback.record
    assert record is not None and not record["stopped_early"]
    assert [(each["epoch"], each["minibatch"]) for each in record["optimizer_steps"]] == [(1, 2), (2, 1), (2, 2)]
    assert "_refuse_step" not in vars(model)
