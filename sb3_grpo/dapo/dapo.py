from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_grpo.common.advantages import AdvantageFunction
from sb3_grpo.common.arguments import ARGUMENTS, REFUSED_ARGUMENTS, refuse_arguments
from sb3_grpo.common.losses import PolicyLoss, WeightFunction
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.reference import KLFunction
from sb3_grpo.groups.group import LiveFunction
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.starts.starts import Start


class DAPO(GRPO):
    """
    Decoupled Clip and Dynamic sAmpling Policy Optimization (DAPO)

    Paper: https://arxiv.org/abs/2503.14476

    :class:`GRPO` with three other defaults: the ratio may rise further than it may fall (``clip_range_high``), the loss is
    averaged over steps (``loss_average``), and groups without a signal are replaced (``dynamic_sampling``). The KL divergence
    from a reference policy is off in both. Overlong filtering and the soft overlong punishment (``overlong_filter``,
    ``overlong_range``) are off by default, because in control tasks the episodes truncated by the time limit are often the
    best ones (CartPole), or every episode is truncated (Pendulum). The paper's settings are available as a preset:
    ``DAPO(policy, env, **sb3_grpo.presets.DAPO_PAPER)``.

    All other parameters are described in :class:`GRPO`, and have the same defaults.

    :param clip_range_high: The ratio may rise to ``1 + clip_range_high`` ("clip higher", eq. 8)
    :param loss_average: Average the loss over all steps (``"step"``)
    :param dynamic_sampling: Drop groups whose raw outcomes are all equal, and draw new ones instead (eq. 11). With
        ``n_steps``, their steps do not count: the rollout continues until there are enough others
    """

    @refuse_arguments(REFUSED_ARGUMENTS)
    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule | None = None,
        *,
        n_envs: int | None = None,
        group_size: int = 4,
        n_steps: int | None = None,
        n_groups: int | None = None,
        batch_size: int | None = 256,
        gradient_accumulation_steps: int = 1,
        n_epochs: int | None = None,
        gamma: float | None = None,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | Schedule | None = 0.28,
        advantage: str | AdvantageFunction = "auto",
        gae_lambda: float = 0.95,
        leave_one_out: bool = False,
        advantage_scale: str = "batch",
        normalize_reward_parts: bool = False,
        loss_average: str | float | WeightFunction = "step",
        ratio_level: str = "step",
        policy_loss: str | PolicyLoss = "clip",
        ent_coef: float = 0.0,
        vf_coef: float | None = None,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        kl_coef: float = 0.0,
        kl_estimator: str | KLFunction = "exact",
        ref_update_interval: int | None = None,
        dynamic_sampling: bool | LiveFunction = True,
        max_sampling_rounds: int | None = 4,
        overlong_filter: bool = False,
        overlong_range: tuple[int, int] | None = None,
        unrelated_starts: bool = False,
        start_sampler: StartSampler | Callable[[np.random.Generator], Start] | None = None,
        use_masking: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ):
        arguments = {name: value for name, value in locals().items() if name in ARGUMENTS}
        super().__init__(policy, env, **arguments, _init_setup_model=_init_setup_model)
