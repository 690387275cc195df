"""Values by regression, and the advantages that are estimated with them."""

import functools
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from toy_envs import SpacesEnv, ToyEnv, judged, parameters_of

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common import values as values_module
from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.losses import clipped_surrogate
from sb3_grpo.common.values import (
    Continuation,
    RunningRegression,
    StateFeatures,
    UpdateRegression,
    image_features,
    r_squared,
)
from sb3_grpo.envs import VerifierTextVecEnv

IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)


def unexplained(truth: th.Tensor, values: th.Tensor) -> float:
    return ((truth - values).var() / truth.var()).item()


def fitted_values(x: th.Tensor, time: th.Tensor, returns: th.Tensor, pictures: th.Tensor | None = None) -> th.Tensor:
    """The values of an update of whole groups."""
    states = StateFeatures(x, x[:, :0] if pictures is None else pictures)
    regression = UpdateRegression()
    regression.fit(states, returns, time=time)
    return regression.predict(states, time)


def states(n_steps: int, n_columns: int = 3, seed: int = 0) -> tuple[th.Tensor, th.Tensor]:
    generator = th.Generator().manual_seed(seed)
    return th.randn(n_steps, n_columns, generator=generator), th.arange(n_steps) % 100


def test_values_follow_the_state_and_not_the_noise() -> None:
    x, time = states(4000)
    # An angle given by its sine and cosine, and a speed: what a linear baseline cannot represent
    truth = -(x[:, 0].atan2(x[:, 1]) ** 2) - 0.5 * x[:, 2] ** 2
    noise = truth.std() * th.randn(len(x), generator=th.Generator().manual_seed(1))
    assert unexplained(truth, fitted_values(x, time, truth)) < 0.1
    assert unexplained(truth, fitted_values(x, time, truth + noise)) < 0.2


@pytest.mark.parametrize(("variance", "tolerance"), [(0.0, 1e-3), (2.0, 0.03)])
def test_values_are_those_of_the_gaussian_process_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, variance: float, tolerance: float
) -> None:
    """With many random features they are the kernel: variance 2, squared bandwidth a sixth of the mean squared distance."""
    assert values_module._KERNEL_VARIANCE == 2.0
    monkeypatch.setattr(values_module, "_KERNEL_VARIANCE", variance)
    monkeypatch.setattr(values_module, "N_RANDOM_FEATURES", 3000)
    rng = np.random.default_rng(0)
    x, time, returns = rng.normal(3.0, [1.0, 20.0, 0.1, 5.0], (40, 4)), rng.integers(50, size=40), rng.gumbel(size=40)
    z, u, y = (x - x.mean(0)) / x.std(0), time / time.max(), (returns - returns.mean()) / returns.std()
    distances = ((z[:, None] - z[None]) ** 2).sum(-1)
    assert distances.mean() == pytest.approx(2 * 4)
    kernel = 1e6 + sum(np.outer(u**power, u**power) for power in (1, 2, 3))  # the constant is free
    kernel += (z @ z.T + z**2 @ (z**2).T) / 4
    kernel += variance * np.exp(-distances / (2 * 8 / 6))
    expected = kernel @ np.linalg.solve(kernel + np.eye(40), y)
    values = fitted_values(th.as_tensor(x).float(), th.as_tensor(time), th.as_tensor(returns)).numpy()
    error = (values - returns.mean()) / returns.std() - expected
    assert np.sqrt((error**2).mean()) < tolerance < 0.2 < np.sqrt((expected**2).mean())


def test_units_do_not_matter() -> None:
    x, time = states(500)
    returns = x[:, 0] * x[:, 1] + x[:, 2]
    values = fitted_values(x, time, returns)
    units, offset = th.tensor([1e3, 1e-3, 7.0]), th.tensor([5.0, -2.0, 100.0])
    th.testing.assert_close(fitted_values(units * x + offset, time, returns), values, atol=2e-3, rtol=0)
    th.testing.assert_close(fitted_values(x, time, 50.0 * returns - 1e4), 50.0 * values - 1e4, atol=1e-2, rtol=0)


def test_values_without_information_are_the_mean() -> None:
    returns = th.tensor([1.0, 2.0, 6.0], dtype=th.float64)
    values = fitted_values(th.full((3, 4), 7.0), th.zeros(3, dtype=th.long), returns)
    th.testing.assert_close(values, th.full((3,), 3.0, dtype=th.float64), atol=1e-4, rtol=0)
    same = th.full((3,), 5.0, dtype=th.float64)
    x, time = states(3)
    th.testing.assert_close(fitted_values(x, time, same), same)


def test_few_steps_do_not_explain_themselves_away() -> None:
    """With more weights than steps the residuals could be zero, and there would be nothing to learn from."""
    x, time = states(100, n_columns=17)
    returns = th.randn(100, generator=th.Generator().manual_seed(2)).double()
    assert unexplained(returns, fitted_values(x, time, returns)) > 0.05


def test_outliers_and_constant_columns() -> None:
    x, time = states(1000)
    returns = x[:, 0].clone()
    x[3] = 1e6
    x = th.cat([x, th.ones(1000, 2)], dim=1)
    moments = RunningMeanStd(0.0, (5,))
    moments.update(x.double().numpy())
    columns, _, n_varying = values_module._standardised(x, moments, th.Generator())
    assert columns(slice(0, 1000)).abs().max() <= 5.0 and n_varying == 3
    assert fitted_values(x, time, returns).isfinite().all()


def test_large_states() -> None:
    """More entries than there are weights for: what they say is still found."""
    x, time = states(3000, n_columns=5)
    large = x @ th.randn(5, 3000, generator=th.Generator().manual_seed(3))
    returns = x[:, 0] - x[:, 1]
    assert unexplained(returns, fitted_values(large, time, returns)) < 0.1


def test_boards_as_numbers() -> None:
    """Hundreds of entries that are one or zero, and most of them zero: each has its own share of the value."""
    generator = th.Generator().manual_seed(0)
    boards = (th.rand(8000, 700, generator=generator) < 0.05).float()
    shares = th.randn(700, dtype=th.float64, generator=generator)
    truth = boards.double() @ shares
    regression = RunningRegression()
    seen, unseen = (StateFeatures(part, part[:, :0]) for part in boards.split(6000))
    regression.fit(seen, truth[:6000])
    assert unexplained(truth[6000:], regression.predict(unseen)) < 0.2


def test_values_are_linear_in_pictures_only() -> None:
    x, time = states(2000)
    nothing, squares = x[:, :0], x.square().sum(1)
    assert unexplained(x[:, 0] - x[:, 1], fitted_values(nothing, time, x[:, 0] - x[:, 1], x)) < 0.02
    assert unexplained(squares, fitted_values(nothing, time, squares, x)) > 0.9
    # Numbers beside a picture keep their squares, and are not one entry among hundreds
    pictures = th.randn(2000, 600, generator=th.Generator().manual_seed(4))
    noisy = squares + squares.std() * th.randn(2000, generator=th.Generator().manual_seed(5))
    assert unexplained(squares, fitted_values(x, time, noisy, pictures)) < 0.3


def test_image_features_by_hand() -> None:
    images = th.zeros(2, 4, 84, 84, dtype=th.uint8)
    images[1, 3, 4:8, 80:84] = 200  # one of the 21 x 21 areas, in one of four channels
    features = image_features(images)
    area = 1 * 21 + 20
    assert features.shape == (2, 2 * 441) and not features[0].any()
    assert features[1].nonzero().tolist() == [[area], [441 + area]]
    assert features[1, [area, 441 + area]].tolist() == [50.0, 200.0], "the average, and the last less the first"
    images[1, 0, 4:8, 80:84] = 200
    assert not image_features(images)[1, 441:].any(), "what stays where it is does not move"
    assert th.equal(image_features(images.float()), image_features(images))
    planes = th.arange(600, dtype=th.uint8).view(1, 6, 10, 10)
    assert th.equal(image_features(planes), planes.flatten(1).float())
    assert image_features(th.zeros(2, 3, 300, 10)).shape == (2, 2 * 21 * 10)
    board = th.eye(64).view(64, 1, 8, 8).repeat(1, 20, 1, 1)  # 20 planes, too many to be colours
    assert image_features(board).shape == (64, 20 * 7 * 7)
    assert image_features(planes, max_pixels=30).shape == (1, 6 * 2 * 2)


def test_values_do_not_depend_on_the_parts_nor_on_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x, time = states(100)
    returns = x.square().sum(1)
    before = th.get_rng_state()
    values = fitted_values(x, time, returns)
    assert th.equal(th.get_rng_state(), before)
    parts = [slice(begin, begin + 7) for begin in range(0, 100, 7)]
    monkeypatch.setattr(UpdateRegression, "_parts", lambda self, n_rows: parts)
    th.testing.assert_close(fitted_values(x, time, returns), values, rtol=1e-4, atol=1e-4)


def test_td_residual_of_sydney() -> None:
    """The capital of Australia: reward 2, V = 5 before the answer "Sydney" and 1 after it. A = 2 + 0.9 * 1 - 5 = -2.1."""
    rewards, values, mask = th.tensor([[[2.0]]]), th.tensor([[[5.0]]]), th.tensor([[[True]]])
    advantage = td_residuals(rewards, values, mask, gamma=0.9, last_values=th.tensor([[1.0]]))
    assert advantage.item() == pytest.approx(-2.1)
    # And what becomes of it where the ratio is 0.7: min(0.7 A, 0.8 A)
    assert clipped_surrogate(th.tensor([0.7]).log(), advantage.flatten(), 0.2, 0.2).item() == pytest.approx(1.68)


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
    residuals = td_residuals(th.tensor(rewards)[None], th.tensor(values)[None], mask, 0.9)
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
    padded = batch.pad(judged(model).advantages)
    th.testing.assert_close(padded.sum((1, 2)), th.zeros(3), atol=1e-4, rtol=0)
    assert padded.abs().sum() > 0
    assert model.logger.name_to_value["train/regression_r2"] <= 1.0
    # The same from its parts, with the defaults of the class
    values = UpdateRegression().update(model.policy.state_features, batch, 0.99)
    assert values is not None
    assert r_squared(values.of_steps, values.targets) == model.logger.name_to_value["train/regression_r2"]
    expected = group_advantages(values.residuals(batch, 0.99), batch.mask, kind="gae", gamma=0.99 * 0.95, scale="batch")
    th.testing.assert_close(padded, expected.float())


@pytest.mark.parametrize("advantage", ["gae", "return_to_go", "outcome"])
def test_nothing_is_learned_where_nothing_can_be(advantage: str) -> None:
    """Of equal members not even the error of the regression is left, however much it would be scaled up."""
    env = make_group_env(functools.partial(ToyEnv, length=20, reward=1.0, time_limit=True), 3)
    model = GRPO("MlpPolicy", env, advantage=advantage, n_groups=2, n_epochs=1, seed=0, device="cpu")
    before = parameters_of(model)
    model.learn(1)
    assert model._n_updates == 1
    assert th.equal(parameters_of(model), before)


@pytest.mark.parametrize(
    ("policy", "space", "n_numbers", "n_pixels"),
    [
        ("MlpPolicy", spaces.Discrete(5), 5, 0),
        ("MlpPolicy", spaces.MultiDiscrete([2, 3]), 5, 0),
        ("MlpPolicy", spaces.Box(-1, 1, (2, 3)), 6, 0),
        ("MlpPolicy", spaces.Box(-1, 1, (2, 3, 4)), 24, 0),
        ("MultiInputPolicy", spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (3,))}), 5, 0),
        ("CnnPolicy", spaces.Box(0, 255, (36, 36, 1), np.uint8), 0, 21 * 21),
        ("MlpPolicy", spaces.Box(0, 255, (4, 5, 3), np.uint8), 0, 60),
        ("MultiInputPolicy", spaces.Dict({"a": spaces.Discrete(2), "b": IMAGE, "c": IMAGE}), 2, 2 * 2 * 16 * 16),
    ],
)
def test_all_observations_are_states(
    policy: str, space: spaces.Space, n_numbers: int, n_pixels: int, monkeypatch: Any
) -> None:
    fitted: list[tuple[int, ...]] = []
    original = UpdateRegression.fit

    def fit(self: UpdateRegression, states: StateFeatures, returns: th.Tensor, *args: Any) -> None:
        fitted.append((states.numbers.shape[1], states.pictures.shape[1]))
        assert len(states.numbers) == len(states.pictures) == len(returns)
        original(self, states, returns, *args)

    monkeypatch.setattr(UpdateRegression, "fit", fit)
    env = make_group_env(functools.partial(SpacesEnv, space, spaces.Discrete(2)), 2)
    model = GRPO(policy, env, n_groups=2, n_epochs=1, device="cpu").learn(1)
    assert fitted == [(n_numbers, n_pixels)]
    assert np.isfinite(model.logger.name_to_value["train/loss"])


def test_texts_have_no_regression() -> None:
    env = VerifierTextVecEnv(4, task="arithmetic", seed=0)
    settings = {"policy_kwargs": {"n_layers": 1, "width": 16, "n_heads": 2}, "device": "cpu"}
    assert GRPO("TokenPolicy", env, **settings).advantage == "return_to_go"
    with pytest.raises(ValueError, match='advantage="outcome"'):
        GRPO("TokenPolicy", env, advantage="gae", **settings)


def fit_by_hand(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Coefficients of ridge regression on a constant and one column, the constant free, with weights of the rows."""
    phi = np.column_stack([np.ones(len(x)), x])
    return np.linalg.solve(phi.T @ (weights[:, None] * phi) + np.diag([1e-6, 1.0]), phi.T @ (weights * y))


def test_a_regression_with_memory_is_one_of_all_steps_with_falling_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=50), rng.normal(size=50)) for _ in range(3)]
    regression = RunningRegression(memory=0.5)

    def features(states: StateFeatures, *args: Any) -> Any:
        """One linear feature: the state as it is."""
        return th.cat([th.ones(len(states.numbers), 1), states.numbers], dim=1).double().__getitem__

    monkeypatch.setattr(values_module, "_features", features)
    for x, y in batches:
        states = StateFeatures(th.as_tensor(x)[:, None], th.empty(50, 0))
        targets = regression.fit(states, th.as_tensor(y))
        assert targets.tolist() == y.tolist()
    weights = np.repeat([0.25, 0.5, 1.0], 50)
    expected = fit_by_hand(*(np.concatenate(each) for each in zip(*batches, strict=True)), weights)
    values = regression.predict(StateFeatures(th.tensor([[0.0], [1.0]]), th.empty(2, 0)))
    np.testing.assert_allclose(values, [expected[0], expected.sum()], rtol=1e-6)


def test_returns_that_break_off_go_on_with_the_values_before() -> None:
    """A state that pays 1 and goes on for ever: each fit adds as many steps as an update sees."""
    regression = RunningRegression()
    here = StateFeatures(th.zeros(100, 1), th.empty(100, 0))
    returns, discounts = th.full((100,), 1.0).double(), th.full((100,), 0.5).double()
    goes_on = Continuation(StateFeatures(th.zeros(1, 1), th.empty(1, 0)), th.zeros(100, dtype=th.long), discounts)
    values = []
    for _ in range(4):
        regression.fit(here, returns, goes_on)
        values.append(regression.predict(here)[0].item())
    # The first fit makes up for two more: 1, 1.5, 1.75. Later ones are means of all targets, half of the weight on older ones
    assert values == pytest.approx([1.75, 1.8333, 1.8810, 1.9127], abs=1e-3)
    # Returns that are complete are what they are
    for complete in (goes_on._replace(of_step=th.full((100,), -1)), None):
        assert regression.fit(here, returns, complete).tolist() == returns.tolist()


def test_values_are_of_the_same_features_in_every_fit() -> None:
    """States far from those of the first fit: the sums of both are of one standardisation for each, and values stay right."""
    regression, generator = RunningRegression(), th.Generator().manual_seed(0)
    for n_fit in range(12):
        x = th.randn(1000, 3, generator=generator) * 5 + min(n_fit, 3)
        truth = x[:, 0].double() + 0.2 * x[:, 1].double() ** 2
        regression.fit(StateFeatures(x, x[:, :0]), truth)
    assert unexplained(truth, regression.predict(StateFeatures(x, x[:, :0]))) < 0.05


def test_values_of_pictures_and_of_numbers_beside_them() -> None:
    regression, generator = RunningRegression(), th.Generator().manual_seed(0)
    numbers, pictures = th.randn(1000, 2, generator=generator), th.randn(1000, 50, generator=generator)
    truth = (numbers[:, 0] ** 2 + pictures[:, 7]).double()
    states = StateFeatures(numbers, pictures)
    regression.fit(states, truth)
    assert unexplained(truth, regression.predict(states)) < 0.1


def test_many_steps_in_alike_states() -> None:
    """Rounding errors of sums in single precision would be larger than what keeps them positive definite."""
    n_steps = 2**17
    here, regression = StateFeatures(th.zeros(n_steps, 1), th.empty(n_steps, 0)), RunningRegression()
    regression.fit(here, th.arange(n_steps).double())
    values = regression.predict(here)
    assert len(values) == n_steps and values.unique().tolist() == pytest.approx([(n_steps - 1) / 2], rel=1e-9)


def test_there_are_no_values_before_the_first_fit() -> None:
    regression = RunningRegression()
    assert not regression.is_fitted
    with pytest.raises(ValueError, match="no values before the first fit"):
        regression.predict(StateFeatures(th.zeros(2, 1), th.empty(2, 0)))


def test_residuals_of_episodes_that_go_on() -> None:
    rewards = th.tensor([[[1.0, 2.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    values = th.tensor([[[10.0, 20.0, 0.0], [30.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    mask = th.tensor([[[True, True, False], [True, False, False], [False, False, False]]])
    residuals = td_residuals(rewards, values, mask, 0.5, last_values=th.tensor([[100.0, 0.0, 7.0]]))
    # 1 + 20 / 2 - 10; 2 + 100 / 2 - 20; 4 + 0 - 30; nothing of a member without steps
    assert residuals.tolist() == [[[1.0, 32.0, 0.0], [-26.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]


def test_members_without_steps_are_not_compared() -> None:
    rewards = th.tensor([[[1.0, 3.0], [5.0, 0.0], [0.0, 0.0]]])
    mask = th.tensor([[[True, True], [True, False], [False, False]]])
    for leave_one_out in (False, True):
        settings: dict[str, Any] = dict(kind="gae", gamma=0.0, scale="none", leave_one_out=leave_one_out)
        with_empty = group_advantages(rewards, mask, **settings)
        without = group_advantages(rewards[:, :2], mask[:, :2], **settings)
        assert th.equal(with_empty[:, :2], without) and not with_empty[:, 2].any()
    with pytest.raises(ValueError, match="which has at least one step"):
        group_advantages(rewards, mask, kind="outcome")
    with pytest.raises(ValueError, match="which has at least one step"):
        group_advantages(rewards, mask & False, kind="gae")
