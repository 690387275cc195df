"""The baseline by regression, and the advantages that are estimated with it."""

import functools

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from toy_envs import ToyEnv

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common import baselines
from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages
from sb3_grpo.common.baselines import regression_values, td_residuals
from sb3_grpo.envs import VerifierTextVecEnv


def unexplained(truth: th.Tensor, values: th.Tensor) -> float:
    return ((truth - values).var() / truth.var()).item()


def states(n_steps: int, n_columns: int = 3, seed: int = 0) -> tuple[th.Tensor, th.Tensor]:
    generator = th.Generator().manual_seed(seed)
    return th.randn(n_steps, n_columns, generator=generator), th.arange(n_steps) % 100


def test_values_follow_the_state_and_not_the_noise() -> None:
    x, time = states(4000)
    # An angle given by its sine and cosine, and a speed: what a linear baseline cannot represent
    truth = -(x[:, 0].atan2(x[:, 1]) ** 2) - 0.5 * x[:, 2] ** 2
    noise = truth.std() * th.randn(len(x), generator=th.Generator().manual_seed(1))
    assert unexplained(truth, regression_values(x, time, truth)) < 0.1
    assert unexplained(truth, regression_values(x, time, truth + noise)) < 0.2


def test_values_follow_the_time() -> None:
    x, time = states(2000)
    truth = 1.0 - 0.99 ** (100 - time.double())
    assert unexplained(truth, regression_values(x, time, truth)) < 0.02


def test_units_do_not_matter() -> None:
    x, time = states(500)
    returns = x[:, 0] * x[:, 1] + x[:, 2]
    values = regression_values(x, time, returns)
    units, offset = th.tensor([1e3, 1e-3, 7.0]), th.tensor([5.0, -2.0, 100.0])
    th.testing.assert_close(regression_values(units * x + offset, time, returns), values, atol=2e-3, rtol=0)
    th.testing.assert_close(regression_values(x, time, 50.0 * returns - 1e4), 50.0 * values - 1e4, atol=1e-2, rtol=0)


def test_values_without_information_are_the_mean() -> None:
    returns = th.tensor([1.0, 2.0, 6.0], dtype=th.float64)
    values = regression_values(th.full((3, 4), 7.0), th.zeros(3, dtype=th.long), returns)
    th.testing.assert_close(values, th.full((3,), 3.0, dtype=th.float64), atol=1e-4, rtol=0)
    same = th.full((3,), 5.0, dtype=th.float64)
    x, time = states(3)
    th.testing.assert_close(regression_values(x, time, same), same)


def test_few_steps_do_not_explain_themselves_away() -> None:
    """With more weights than steps the residuals could be zero, and there would be nothing to learn from."""
    x, time = states(100, n_columns=17)
    returns = th.randn(100, generator=th.Generator().manual_seed(2)).double()
    assert unexplained(returns, regression_values(x, time, returns)) > 0.05


def test_outliers_and_constant_columns() -> None:
    x, time = states(1000)
    returns = x[:, 0].clone()
    x[3] = 1e6
    x = th.cat([x, th.ones(1000, 2)], dim=1)
    assert baselines._standardised(x)[0].abs().max() <= 5.0
    values = regression_values(x, time, returns)
    assert values.isfinite().all()
    assert values.abs().max() < 10 * returns.abs().max()


def test_values_do_not_depend_on_the_chunks_nor_on_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x, time = states(100)
    returns = x.square().sum(1)
    before = th.get_rng_state()
    values = regression_values(x, time, returns)
    assert th.equal(th.get_rng_state(), before)
    monkeypatch.setattr(baselines, "_CHUNK", 7)
    th.testing.assert_close(regression_values(x, time, returns), values)


def test_td_residuals_by_hand() -> None:
    rewards = th.tensor([[[1.0, 2.0, 4.0], [8.0, 16.0, 99.0]]], dtype=th.float64)
    values = th.tensor([[[10.0, 20.0, 30.0], [40.0, 50.0, 99.0]]], dtype=th.float64)
    mask = th.tensor([[[True, True, True], [True, True, False]]])
    truncated = th.tensor([[False, True]])
    residuals = td_residuals(rewards, values, mask, truncated, gamma=0.5)
    # The first ends in a terminal state, whose value is 0; the second is cut off where the last known value is 50
    assert residuals.tolist() == [[[1 + 10 - 10, 2 + 15 - 20, 4 - 30], [8 + 25 - 40, 16 + 25 - 50, 0]]]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_same_estimates_as_sb3(gae_lambda: float) -> None:
    """Two copies that play one episode each, in SB3's buffer and as a group of two."""
    rng = np.random.default_rng(0)
    n_steps = 6
    box = spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(n_steps, box, box, gae_lambda=gae_lambda, gamma=0.9, n_envs=2)
    rewards, values = rng.normal(size=(2, n_steps)), rng.normal(size=(2, n_steps))
    for step in range(n_steps):
        zeros = np.zeros((2, 1))
        value = th.tensor(values[:, step])
        buffer.add(zeros, zeros, rewards[:, step], np.full(2, step == 0), value, th.zeros(2))
    buffer.compute_returns_and_advantage(th.zeros(2), np.ones(2))
    mask = th.ones(1, 2, n_steps, dtype=th.bool)
    residuals = td_residuals(th.tensor(rewards)[None], th.tensor(values)[None], mask, th.zeros(1, 2, dtype=th.bool), 0.9)
    ours = discounted_returns_to_go(residuals, mask, 0.9 * gae_lambda)[0]
    np.testing.assert_allclose(ours.numpy(), buffer.advantages.T, atol=1e-5)


@pytest.mark.parametrize("algo", [GRPO, DAPO])
def test_advantages_are_relative_to_the_group(algo: type[GRPO]) -> None:
    env = make_group_env(functools.partial(ToyEnv, length=None), 3)
    model = algo("MlpPolicy", env, n_groups=3, group_size=4, n_epochs=1, seed=0, device="cpu")
    assert model.advantage == "gae"
    model.learn(1)
    batch = model.batch
    assert batch is not None
    padded = batch.pad(model._advantages(batch))
    th.testing.assert_close(padded.sum((1, 2)), th.zeros(3), atol=1e-4, rtol=0)
    assert padded.abs().sum() > 0
    assert model.logger.name_to_value["train/explained_variance"] <= 1.0
    # The same from its parts, with the defaults of the class
    values = model._values(batch, discounted_returns_to_go(batch.rewards, batch.mask, 0.99))
    residuals = td_residuals(batch.rewards, values, batch.mask, batch.truncated, 0.99)
    expected = group_advantages(residuals, batch.mask, kind="gae", gamma=0.99 * 0.95, scale="batch")
    th.testing.assert_close(padded, expected.float())


def test_texts_have_no_regression() -> None:
    env = VerifierTextVecEnv(4, task="arithmetic", seed=0)
    settings = {"policy_kwargs": {"n_layers": 1, "width": 16, "n_heads": 2}, "device": "cpu"}
    assert GRPO("TokenPolicy", env, **settings).advantage == "return_to_go"
    with pytest.raises(ValueError, match='advantage="outcome"'):
        GRPO("TokenPolicy", env, advantage="gae", **settings)
