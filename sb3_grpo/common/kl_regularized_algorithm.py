import copy
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import TensorDict

from sb3_grpo.common.kl import KL_ESTIMATORS, adapt_kl_coef, exact_kl, has_exact_kl, kl_estimate, kl_loss
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.text.tokens import TokenSteps

# Bounds of the adaptive coefficient
MIN_KL_COEF, MAX_KL_COEF = 1e-6, 1e3
_ESTIMATORS = ("exact", *KL_ESTIMATORS)


class KLRegularizedAlgorithm(OnGroupAlgorithm):
    """
    The part of a group algorithm that keeps its policy near a reference policy: which policy that is, the divergence from it,
    its coefficient, and how it is saved. With ``kl_coef=0`` there is no reference.

    :param kl_coef: see :class:`GRPO`
    :param kl_estimator: see :class:`GRPO`
    :param kl_target: see :class:`GRPO`
    :param ref_update_interval: see :class:`GRPO`
    :param args: see :class:`OnGroupAlgorithm`
    :param kwargs: see :class:`OnGroupAlgorithm`
    """

    ref_policy: ActorPolicy | None

    def __init__(
        self,
        *args: Any,
        kl_coef: float,
        kl_estimator: str,
        kl_target: float | None,
        ref_update_interval: int | None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.kl_coef = kl_coef
        self.kl_estimator = kl_estimator
        self.kl_target = kl_target
        self.ref_update_interval = ref_update_interval
        self._n_reference_updates = 0
        self._reference_is_loaded = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.kl_estimator not in _ESTIMATORS:
            raise ValueError(f"Unknown kl_estimator={self.kl_estimator!r}, must be one of {', '.join(_ESTIMATORS)}.")
        if self.kl_coef < 0.0:
            raise ValueError(f"kl_coef must not be negative, got {self.kl_coef}.")
        if self.kl_target is not None and not (self.kl_coef > 0.0 and self.kl_target > 0.0):
            raise ValueError(
                f"kl_target={self.kl_target} adapts kl_coef, which must be positive to begin with (e.g. 0.04), "
                f"got kl_coef={self.kl_coef}."
            )
        if self.ref_update_interval is not None and not (self.kl_coef > 0.0 and self.ref_update_interval >= 1):
            raise ValueError(
                f"ref_update_interval={self.ref_update_interval} must be at least 1, and needs a reference policy: "
                f"kl_coef > 0 (e.g. 0.04), got kl_coef={self.kl_coef}."
            )

    def _setup_model(self) -> None:
        super()._setup_model()
        self.ref_policy = None
        if self.kl_coef > 0.0:
            self.ref_policy = self._make_reference()
            self.ref_policy.set_training_mode(False)
            self._reset_reference()

    def _make_reference(self) -> ActorPolicy:
        shared = {id(part): part for part in self.policy.frozen_parts()}
        # What is in the memo counts as copied
        return copy.deepcopy(self.policy, shared) if shared else self._make_policy()

    def _reset_reference(self) -> None:
        """The present policy becomes the reference."""
        assert self.ref_policy is not None
        self.ref_policy.load_state_dict(self.policy.state_dict())

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        if self.ref_policy is not None and self._n_updates == 0 and not self._reference_is_loaded:
            # The policy may have had a warm start since it was built
            self._reset_reference()
        if self.ref_policy is not None:
            # It gets what the policy gets, as it would from VecNormalize: observations in the units of the present
            self.ref_policy.observation_norm = self.policy.observation_norm
        return super()._setup_learn(*args, **kwargs)

    def _kl_ref(
        self,
        distribution: Distribution,
        observations: th.Tensor | TensorDict | TokenSteps,
        actions: th.Tensor,
        log_prob: th.Tensor,
        old_log_prob: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :return: (M,) the loss whose gradient is that of the KL divergence from the reference, and (M,) the divergence
        """
        assert self.ref_policy is not None
        with th.no_grad():
            reference = self.ref_policy.get_distribution(observations)
        if self.kl_estimator == "exact" and has_exact_kl(distribution):
            kl = exact_kl(distribution, reference)
            return kl, kl
        estimator = "k3" if self.kl_estimator == "exact" else self.kl_estimator
        ref_log_prob = reference.log_prob(actions)
        return kl_loss(log_prob, old_log_prob, ref_log_prob, estimator), kl_estimate(log_prob, ref_log_prob, estimator)

    def _update_reference(self, stats: dict[str, th.Tensor]) -> None:
        """
        After an update: adapt the KL coefficient, and reset the reference when it is time (ProRL, arXiv:2505.24864).

        :param stats: Of the last epoch
        """
        if self.ref_policy is None:
            return
        self._n_reference_updates += 1
        if self.kl_target is not None:
            adapted = adapt_kl_coef(self.kl_coef, stats["kl_ref"].item(), self.kl_target)
            # Or it would take as many updates to come back as it took to leave
            self.kl_coef = min(max(adapted, MIN_KL_COEF), MAX_KL_COEF)
        self.logger.record("train/kl_coef", self.kl_coef)
        if self.ref_update_interval is not None and self._n_reference_updates % self.ref_update_interval == 0:
            self._reset_reference()

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        Load parameters from a given zip-file or a nested dictionary, see :meth:`BaseAlgorithm.set_parameters`.
        A model that was saved without a reference policy gives one from its policy, and a reference policy
        that this model does not use is ignored.

        :param load_path_or_dict: Location of the saved data (path or file-like, see ``save``), or a nested
            dictionary containing nn.Module parameters used by the policy.
        :param exact_match: If True, the given parameters should include parameters for each
            module and each of their parameters, otherwise raises an Exception.
        :param device: Device on which the code should run.
        """
        if isinstance(load_path_or_dict, dict):
            params: dict[str, Any] = dict(load_path_or_dict)
        else:
            params = dict(load_from_zip_file(load_path_or_dict, device=device, load_data=False)[1])
        if self.ref_policy is None:
            params.pop("ref_policy", None)
        elif "policy" in params:
            params.setdefault("ref_policy", params["policy"])
        if "ref_policy" in params:
            # The two may be one and the same module, and the policy's is the one that holds
            norms = params.get("policy", self.policy.state_dict())
            norms = {key: value for key, value in norms.items() if key.startswith("observation_norm.")}
            params["ref_policy"] = {**params["ref_policy"], **norms}
        super().set_parameters(params, exact_match, device)
        self._reference_is_loaded = "ref_policy" in params

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "ref_policy"] if self.ref_policy is not None else state_dicts, variables

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "ref_policy"]
