"""The reference policy: a copy of the policy; a KL penalty keeps the policy close to it."""

import copy
from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.distributions import Distribution

from sb3_grpo.common.batch import GroupBatch, minibatches
from sb3_grpo.common.kl import exact_kl, has_exact_kl, kl_estimate, kl_loss
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.utils.plugins import check_tensor, name_of

# A function of the log probabilities under the policy and under the reference
KLFunction = Callable[[th.Tensor, th.Tensor], th.Tensor]


class Reference:
    """
    Owns the reference policy and measures how far the policy is from it.

    :param policy: The policy, whose current parameters become the reference
    :param make_policy: Function that creates another policy of the same kind
    :param estimator: See ``kl_estimator`` of :class:`GRPO`
    """

    def __init__(self, policy: ActorPolicy, make_policy: Callable[[], ActorPolicy], estimator: str | KLFunction):
        self.estimator = estimator
        shared = {id(part): part for part in policy.frozen_parts()}
        # deepcopy does not copy what is in the memo
        self.policy: ActorPolicy = copy.deepcopy(policy, shared) if shared else make_policy()
        self.policy.set_training_mode(False)
        self._is_loaded = False  # whether it was loaded and differs from the policy: the first rollout must not replace it
        self.renew(policy)

    def renew(self, policy: ActorPolicy) -> None:
        """
        Make the current policy the reference.

        :param policy: The policy
        """
        self.policy.load_state_dict(policy.state_dict())

    def note_loaded(self, policy: ActorPolicy) -> None:
        """
        Call this after the parameters of the policy and of the reference have been loaded.

        :param policy: The policy
        """
        pairs = zip(self.policy.parameters(), policy.parameters(), strict=True)
        self._is_loaded = not all(th.equal(of_reference, of_policy) for of_reference, of_policy in pairs)

    def begin_rollout(self, policy: ActorPolicy, n_updates: int) -> None:
        """
        :param policy: The policy
        :param n_updates: Number of updates so far
        """
        if n_updates == 0 and not self._is_loaded:
            # The policy may have had a warm start since it was built
            self.renew(policy)
        # Both get the same observations, normalised with current statistics, as they would with VecNormalize
        self.policy.observation_norm = policy.observation_norm

    @th.no_grad()
    def log_probs(self, batch: GroupBatch, batch_size: int | None) -> th.Tensor:
        """
        :param batch: The groups of an update
        :param batch_size: Number of steps to evaluate at a time, ``None`` for all
        :return: (N,) log probabilities of their actions under the reference
        """
        log_probs = th.empty_like(batch.old_log_prob[batch.rows])
        steps = th.arange(len(batch.rows), device=batch.rows.device)
        for minibatch in minibatches(batch.episode, steps, batch_size, whole_episodes=True, n_together=batch.n_together):
            actions = batch.actions[batch.rows[minibatch.steps]]
            log_probs[minibatch.steps] = self.policy.get_distribution(*batch.inputs_at(minibatch)).log_prob(actions)
        return log_probs

    def kl(
        self,
        distribution: Distribution,
        inputs: tuple[Any, ...],
        actions: th.Tensor,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the KL divergence of the policy from the reference, and the corresponding loss.

        :param distribution: Action distribution of the policy
        :param inputs: What the policy takes: observations and, if there are any, action masks
        :param actions: (M,) or (M, d) actions of the behaviour policy
        :param log_prob: (M,) their log probabilities under the policy, with gradient
        :param old_log_prob: (M,) their log probabilities under the behaviour policy
        :return: (M,) the KL loss and (M,) the KL divergence of each step
        """
        with th.no_grad():
            reference = self.policy.get_distribution(*inputs)
        if self.estimator == "exact" and has_exact_kl(distribution):
            kl = exact_kl(distribution, reference)
            return kl, kl
        ref_log_prob = reference.log_prob(actions)
        if isinstance(self.estimator, str) and self.estimator != "k3_plain":
            estimator = "k3" if self.estimator == "exact" else self.estimator
            return kl_loss(log_prob, old_log_prob, ref_log_prob, estimator), kl_estimate(log_prob, ref_log_prob, estimator)
        if isinstance(self.estimator, str):
            kl = kl_estimate(log_prob, ref_log_prob, "k3")
        else:
            returns = f"{name_of(self.estimator)}, given as kl_estimator,"
            kl = check_tensor(returns, self.estimator(log_prob, ref_log_prob), log_prob.shape, "(M,), one entry per step")
        return kl, kl


def with_reference(params: dict[str, Any], policy: ActorPolicy, has_reference: bool) -> dict[str, Any]:
    """
    Adapt saved parameters to a model with or without a reference policy. If there is no saved reference policy, the saved
    policy is used as the reference; a reference policy that is not needed is dropped.

    :param params: Parameters of the saved model
    :param policy: The policy of the model that loads them
    :param has_reference: Whether that model has a reference policy
    :return: The parameters to load
    """
    params = dict(params)
    if not has_reference:
        params.pop("ref_policy", None)
    elif saved := params.get("ref_policy", params.get("policy")):
        # The two policies may share this module, and the policy's values take precedence
        norms = params.get("policy", policy.state_dict())
        norms = {key: value for key, value in norms.items() if key.startswith("observation_norm.")}
        params["ref_policy"] = {**saved, **norms}
    return params
