"""KL divergence: estimates, gradients against an exact enumeration, closed forms against the definition."""

import math
from pathlib import Path

import pytest
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)

from sb3_grpo.common.kl import KL_ESTIMATORS, exact_kl, has_exact_kl, kl_estimate, kl_loss
from sb3_grpo.grpo import GRPO

LOGITS = th.tensor([0.3, -1.2, 0.8, 0.1], dtype=th.float64)
OLD = th.tensor([0.9, -0.2, 0.1, -0.5], dtype=th.float64).log_softmax(0)
REF = th.tensor([-0.7, 0.4, 0.2, 1.1], dtype=th.float64).log_softmax(0)


def exact_categorical(logits):
    log_prob = logits.log_softmax(0)
    return (log_prob.exp() * (log_prob - REF)).sum()


def gradient_of(function):
    logits = LOGITS.clone().requires_grad_()
    function(logits).backward()
    return logits.grad


# --- Estimates and loss -------------------------------------------------------------------------------------------------


def test_estimates_by_hand():
    # pi = 1/2, ref = 1/4: log r = -log 2, r = 1/2
    log_prob, ref = th.tensor([0.5]).log(), th.tensor([0.25]).log()
    assert kl_estimate(log_prob, ref, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(log_prob, ref, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(log_prob, ref, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_estimate(log_prob, ref, "k4")
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_loss(log_prob, log_prob, ref, "low_var_kl")


def test_k3_keeps_its_digits_where_the_policies_agree():
    # log r = -1e-4: k3 = 5e-9, while exp(-1e-4) - 1 in float32 is off by up to 6e-8
    estimate = kl_estimate(th.zeros(1), th.tensor([-1e-4]), "k3")
    assert estimate.item() == pytest.approx(5e-9, abs=2e-11)


@pytest.mark.parametrize("old", [OLD, LOGITS.log_softmax(0), REF], ids=["off-policy", "on-policy", "reference"])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_expected_gradient_of_the_loss_is_that_of_the_kl(estimator, old):
    def expected_loss(logits):
        return (old.exp() * kl_loss(logits.log_softmax(0), old, REF, estimator)).sum()

    th.testing.assert_close(gradient_of(expected_loss), gradient_of(exact_categorical))


def test_estimates_are_not_losses():
    behaviour = LOGITS.log_softmax(0).exp()

    def naive(estimator):
        return gradient_of(lambda logits: (behaviour * kl_estimate(logits.log_softmax(0), REF, estimator)).sum())

    def forward_kl(logits):
        return (REF.exp() * (REF - logits.log_softmax(0))).sum()

    exact = gradient_of(exact_categorical)
    th.testing.assert_close(naive("k1"), th.zeros(4, dtype=th.float64))
    th.testing.assert_close(naive("k2"), exact)
    # k3 without the ratio is minimised in the other direction, KL(ref || pi)
    th.testing.assert_close(naive("k3"), gradient_of(forward_kl))
    assert (naive("k3") - exact).abs().max() > 0.01


# --- Exact KL -----------------------------------------------------------------------------------------------------------


def gaussian(mean, log_std, cls=DiagGaussianDistribution):
    return cls(mean.shape[1]).proba_distribution(mean, log_std)


def gsde(mean, log_std, latent, **kwargs):
    dist = StateDependentNoiseDistribution(mean.shape[1], **kwargs)
    dist.proba_distribution_net(latent.shape[1], latent_sde_dim=latent.shape[1])
    return dist.proba_distribution(mean, log_std, latent)


def test_exact_kl_of_gaussians_sums_over_dimensions():
    mean, log_std = th.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), th.zeros(2)
    ref_mean, ref_log_std = th.zeros(3, 2), th.tensor([0.0, math.log(2)])
    # Per dimension: log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, which is 1/2 and log 2 + 1/8 - 1/2
    second = math.log(2) + 1 / 8 - 1 / 2
    expected = [0.5 + second, second, second]
    for cls in (DiagGaussianDistribution, SquashedDiagGaussianDistribution):
        kl = exact_kl(gaussian(mean, log_std, cls), gaussian(ref_mean, ref_log_std, cls))
        assert kl.tolist() == pytest.approx(expected)
    # Not symmetric: the policy comes first
    reverse = exact_kl(gaussian(ref_mean, ref_log_std), gaussian(mean, log_std))
    assert reverse[1].item() == pytest.approx(-math.log(2) + 2 - 0.5)


def test_exact_kl_of_categoricals():
    dist = CategoricalDistribution(4).proba_distribution(LOGITS.unsqueeze(0))
    ref = CategoricalDistribution(4).proba_distribution(REF.unsqueeze(0))
    th.testing.assert_close(exact_kl(dist, ref), exact_categorical(LOGITS).unsqueeze(0))
    # Two independent copies
    twice = MultiCategoricalDistribution([4, 4]).proba_distribution(LOGITS.repeat(3, 2))
    ref_twice = MultiCategoricalDistribution([4, 4]).proba_distribution(REF.repeat(3, 2))
    th.testing.assert_close(exact_kl(twice, ref_twice), 2 * exact_categorical(LOGITS).repeat(3))


def test_exact_kl_of_bernoullis_sums_over_dimensions():
    dist = BernoulliDistribution(2).proba_distribution(th.tensor([[0.0, math.log(3)]]))  # 1/2, 3/4
    ref = BernoulliDistribution(2).proba_distribution(th.tensor([[math.log(3), 0.0]]))  # 3/4, 1/2
    first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    second = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert exact_kl(dist, ref).tolist() == pytest.approx([first + second])


@pytest.mark.parametrize("squash", [False, True])
def test_exact_kl_of_state_dependent_noise(squash):
    latent = th.tensor([[1.0, 2.0]])
    # Variances: 1^2 + 2^2 = 5 for both actions, and 4 times that for the reference
    dist = gsde(th.tensor([[1.0, 0.0]]), th.zeros(2, 2), latent, squash_output=squash)
    ref = gsde(th.zeros(1, 2), th.full((2, 2), math.log(2)), latent, squash_output=squash)
    per_dimension = math.log(2) + 1 / 8 - 1 / 2
    assert exact_kl(dist, ref).tolist() == pytest.approx([2 * per_dimension + 1 / 40], abs=1e-5)


def test_unknown_distributions_are_refused():
    class Heavy(DiagGaussianDistribution):
        pass

    plain, heavy = gaussian(th.zeros(1, 2), th.zeros(2)), gaussian(th.zeros(1, 2), th.zeros(2), Heavy)
    squashed = gaussian(th.zeros(1, 2), th.zeros(2), SquashedDiagGaussianDistribution)
    assert has_exact_kl(plain) and has_exact_kl(squashed) and not has_exact_kl(heavy)
    for pair in ((heavy, heavy), (plain, heavy), (plain, squashed), (squashed, plain)):
        with pytest.raises(ValueError, match="No exact KL"):
            exact_kl(*pair)
    latent = th.ones(1, 2)
    with pytest.raises(ValueError, match="unsquashed"):
        exact_kl(
            gsde(th.zeros(1, 2), th.zeros(2, 2), latent, squash_output=True),
            gsde(th.zeros(1, 2), th.zeros(2, 2), latent),
        )


def test_nothing_waits_for_the_device():
    # Tensors of the meta device have no values: reading one on the host would raise
    values = th.zeros(7, device="meta")
    for estimator in KL_ESTIMATORS:
        assert kl_loss(values, values, values, estimator).device.type == "meta"


@pytest.mark.parametrize("saved_with", [None, 0.0, 0.1])
def test_the_reference_is_the_policy_at_the_first_learn_and_stays_in_the_next(
    saved_with: float | None, tmp_path: Path
) -> None:
    kl_coef = 0.1 if saved_with is None else saved_with
    model = GRPO("MlpPolicy", "CartPole-v1", kl_coef=kl_coef, group_size=2, n_groups=2, n_epochs=1, seed=0, device="cpu")
    if saved_with is not None:
        model.save(tmp_path / "untrained")
        model = GRPO.load(tmp_path / "untrained", env=model.get_env(), device="cpu", kl_coef=0.1)
    weights = model.policy.action_net.weight
    with th.no_grad():
        weights.add_(1.0)  # a warm start
    warm = weights.clone()
    for _ in range(2):
        model.learn(1, reset_num_timesteps=False)
        assert th.equal(model.ref_policy.action_net.weight, warm) and not th.equal(weights, warm)
