"""
KL divergence of the policy from a reference: estimates from samples, a loss with the correct gradient, and the exact value.

References: J. Schulman, "Approximating KL divergence" (2020, http://joschu.net/blog/kl-approx.html), [PPO] arXiv:1707.06347,
[DeepSeekMath] arXiv:2402.03300.
"""

import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
    kl_divergence,
)

KL_ESTIMATORS = ("k1", "k2", "k3")

# Exactly these types: a subclass may compute its probabilities in another way
_EXACT_KL_TYPES = (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)


def kl_estimate(log_prob: th.Tensor, ref_log_prob: th.Tensor, estimator: str) -> th.Tensor:
    """
    Estimate KL(pi || ref) from actions sampled from pi (Schulman 2020), in nats. With ``r = ref / pi``:

    - k1 = -log r: unbiased, high variance, sometimes negative.
    - k2 = (log r)^2 / 2: biased, low variance, never negative.
    - k3 = r - 1 - log r: unbiased, low variance unless r is large, never negative ([DeepSeekMath] eq. 4).

    These values are for monitoring. As a loss, without the weights of :func:`kl_loss`, only k2 has the gradient of the KL,
    and only while the actions come from the current policy.

    :param log_prob: (N,) log probabilities of the actions under pi
    :param ref_log_prob: (N,) log probabilities of the same actions under the reference
    :param estimator: "k1", "k2" or "k3"
    :return: (N,) estimates
    :raises ValueError: if ``estimator`` is unknown
    """
    if estimator not in KL_ESTIMATORS:
        raise ValueError(f"Unknown KL estimator {estimator!r}, must be one of {', '.join(KL_ESTIMATORS)}")
    log_r = ref_log_prob - log_prob
    if estimator == "k1":
        return -log_r
    if estimator == "k2":
        return 0.5 * log_r.square()
    # expm1: r - 1 would lose most digits where the policies agree
    return log_r.expm1() - log_r


def kl_loss(log_prob: th.Tensor, old_log_prob: th.Tensor, ref_log_prob: th.Tensor, estimator: str) -> th.Tensor:
    """
    Loss of each step whose expected gradient, over actions of the behaviour policy, is that of KL(pi || ref).

    Let ``w = pi / old`` and ``log r = log ref - log pi``. Because E_pi[grad log pi] = 0, the desired gradient is

        grad KL = grad sum_a pi (-log r) = E_pi[(1 - log r) grad log pi] = E_pi[-log r grad log pi].

    For k1 and k3, the loss is ``w k``, differentiated through w as well: E_old[w k] = E_pi[k] = KL for any pi, so the
    gradients agree. For k2, it is ``w k2`` with w held constant: grad k2 = -log r grad log pi, hence
    E_old[w grad k2] = E_pi[-log r grad log pi]. If w were differentiated, it would be the gradient of E_pi[k2], a different
    quantity. Without w, on-policy, the expected gradient of k1 is 0, and that of k3 is the gradient of KL(ref || pi),
    E_pi[(1 - r) grad log pi].

    :param log_prob: (N,) log probabilities of the actions under pi, with gradient
    :param old_log_prob: (N,) under the policy that sampled the actions
    :param ref_log_prob: (N,) under the reference
    :param estimator: "k1", "k2" or "k3"
    :return: (N,) loss of each step, to be minimised
    :raises ValueError: if ``estimator`` is unknown
    """
    ratio = (log_prob - old_log_prob).exp()
    if estimator == "k2":
        ratio = ratio.detach()
    return ratio * kl_estimate(log_prob, ref_log_prob, estimator)


def has_exact_kl(dist: Distribution) -> bool:
    """
    Whether :func:`exact_kl` supports the distribution: all those of Stable-Baselines3 itself, but no subclasses, except those
    with an ``exact_kl`` of their own.

    :param dist: distribution of actions
    :return: True if it does; otherwise, estimate the KL with :func:`kl_loss`
    """
    return type(dist) in _EXACT_KL_TYPES or hasattr(dist, "exact_kl")


def exact_kl(dist: Distribution, ref_dist: Distribution) -> th.Tensor:
    """
    Exact KL(dist || ref_dist) of each step, in nats, summed over the independent dimensions of the action.

    Squashed distributions are compared before squashing: tanh is a bijection and leaves the KL unchanged. For state-dependent
    exploration, it is the KL of the distribution of a single action, which its log probabilities refer to as well.

    :param dist: distribution of N actions
    :param ref_dist: distribution of N actions, of the same type
    :return: (N,), with gradient
    :raises ValueError: if the type has no exact KL (see :func:`has_exact_kl`), or types or squashing differ
    """
    if type(dist) is not type(ref_dist) or not has_exact_kl(dist):
        raise ValueError(f"No exact KL divergence of {type(dist).__name__} from {type(ref_dist).__name__}")
    if hasattr(dist, "exact_kl"):
        return dist.exact_kl(ref_dist)
    if (getattr(dist, "bijector", None) is None) != (getattr(ref_dist, "bijector", None) is None):
        raise ValueError("No exact KL divergence between a squashed and an unsquashed distribution")
    # SB3's own function: it sums over the parts of a MultiCategorical, but not over the dimensions of the others
    kl = kl_divergence(dist, ref_dist)
    return kl.sum(dim=1) if kl.ndim > 1 else kl
