"""Learning from a verifier, and what helps it."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.token_policies import TokenActorCriticPolicy
from sb3_grpo.envs import ArithmeticTask, HardPrompts, PairsTask, VerifierTextVecEnv

NETWORK: dict[str, Any] = {"n_layers": 1, "width": 32, "n_heads": 2}
PAIRS = [(f"{digit}=", digit) for digit in "0123456789"]
SETTINGS: dict[str, Any] = {
    "gamma": 1.0,
    "advantage": "outcome",
    "learning_rate": 5e-3,
    "group_size": 8,
    "n_groups": 8,
    "n_epochs": 2,
}


def copying_env(n_envs: int = 64, **kwargs: Any) -> VerifierTextVecEnv:
    return VerifierTextVecEnv(n_envs, seed=0, task=PairsTask(PAIRS), max_answer_tokens=3, **kwargs)


def success_rate(model: Any) -> float:
    prompts, answers = zip(*(PAIRS * 20), strict=True)
    given = model.policy.generate(list(prompts), deterministic=False)
    return float(np.mean([a == b for a, b in zip(given, answers, strict=True)]))


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_learns_to_answer_after_a_warm_start(algo: type[GRPO], tmp_path: Path) -> None:
    model: Any = algo("TokenPolicy", copying_env(), policy_kwargs=NETWORK, device="cpu", seed=0, ent_coef=0.02, **SETTINGS)
    model.policy.pretrain(PAIRS, n_epochs=25)
    assert success_rate(model) < 0.3
    model.learn(20_000)
    assert success_rate(model) > 0.7

    model.save(tmp_path / "model")
    loaded: Any = algo.load(tmp_path / "model", device="cpu")
    prompts = [prompt for prompt, _ in PAIRS]
    assert loaded.policy.generate(prompts) == model.policy.generate(prompts)


def test_ppo_learns_with_the_value_head() -> None:
    settings: Any = {"n_steps": 16, "batch_size": 256, "learning_rate": 2e-3, "gamma": 1.0, "ent_coef": 0.02, "n_epochs": 4}
    env = copying_env(truncate=False)
    model: Any = PPO(TokenActorCriticPolicy, env, policy_kwargs=NETWORK, device="cpu", seed=0, **settings)
    model.policy.pretrain(PAIRS, n_epochs=25)
    assert success_rate(model) < 0.3
    model.learn(16_000)
    assert success_rate(model) > 0.7


def test_hard_prompts_are_drawn_more_often_and_none_is_forgotten() -> None:
    hard = HardPrompts(10, rate=1.0)
    task = ArithmeticTask(digits=1)
    env = VerifierTextVecEnv(16, seed=0, task=task)
    model = GRPO("TokenPolicy", env, policy_kwargs=NETWORK, device="cpu", start_sampler=HardPrompts(100), **SETTINGS)
    model.learn(500, callback=model.start_sampler)
    assert model.start_sampler.success_rates.shape == (100,)
    drawn = {int(env.get_attr("current_ticket", i)[0]) for i in range(16)}
    assert drawn, "episodes begin from the sampler's starts"

    hard.success_rates[:5] = 1.0
    rng = np.random.default_rng(0)
    items = np.array([hard(rng).options["item"] for _ in range(20_000)])  # type: ignore[index]
    counts = np.bincount(items, minlength=10) / len(items)
    np.testing.assert_allclose(counts[:5], 0.05 / 5.5, atol=0.004)
    np.testing.assert_allclose(counts[5:], 1.05 / 5.5, atol=0.015)

    again = pickle.loads(pickle.dumps(hard))
    assert (again.success_rates == hard.success_rates).all()
    assert (again.floor, again.rate) == (hard.floor, hard.rate)


def test_hard_prompts_errors() -> None:
    with pytest.raises(ValueError, match=r"at least one item.*n_items=0"):
        HardPrompts(0)
    model = GRPO("MlpPolicy", "CartPole-v1", n_envs=2, device="cpu")
    with pytest.raises(ValueError, match="no such info"):
        model.learn(100, callback=HardPrompts(3))
