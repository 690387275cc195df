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
    averaged over steps (``loss_average``), and groups without a signal are replaced (``dynamic_sampling``). Both share one
    training loop and take the same parameters, which :class:`GRPO` describes in full. The KL divergence from a reference
    policy is off in both. Overlong filtering and the soft overlong punishment (``overlong_filter``, ``overlong_range``) are
    off by default, because in control tasks the episodes truncated by the time limit are often the best ones (CartPole), or
    every episode is truncated (Pendulum). The paper's settings are available as a preset:
    ``DAPO(policy, env, **sb3_grpo.presets.DAPO_PAPER)``.

    **Where the defaults differ from GRPO**

    :param clip_range_high: The ratio may rise to ``1 + clip_range_high`` ("clip higher", eq. 8)
    :param loss_average: Average the loss over all steps (``"step"``)
    :param dynamic_sampling: Drop groups whose raw outcomes are all equal, and draw new ones instead (eq. 11). With
        ``n_steps``, their steps do not count: the rollout continues until there are enough others

    **As in GRPO**

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate, it can be a function of the current progress remaining (from 1 to 0).
        ``None``: 1e-3; for ``CnnPolicy`` 5e-4; for ``CausalLMPolicy`` 1e-5, or 2e-4 with LoRA
    :param n_envs: Number of environment copies to make if ``env`` is an id, 16 by default
    :param group_size: Number of episodes that share a start
    :param n_steps: The number of steps to run for each environment copy per update
    :param n_groups: Number of whole groups per update, instead of ``n_steps``
    :param batch_size: Minibatch size, in steps. ``None``: one minibatch with all steps of the update
    :param gradient_accumulation_steps: Number of minibatches whose gradients are averaged for each optimizer step
    :param n_epochs: Number of epochs when optimizing the surrogate loss. ``None``: 10; for ``CnnPolicy`` 4;
        for ``CausalLMPolicy`` 1
    :param gamma: Discount factor. ``None``: 0.99; for ``CausalLMPolicy`` 1
    :param clip_range: The ratio may fall to ``1 - clip_range``, it can be a function of the current progress remaining
    :param advantage: What is compared within a group: ``"auto"``, ``"gae"``, ``"return_to_go"``, ``"outcome"``,
        ``"process"``, ``"maxrl"``, or a function
    :param gae_lambda: With ``advantage="gae"``, factor for trade-off of bias vs variance
    :param leave_one_out: Whether to exclude a member from the mean that it is compared with
    :param advantage_scale: Divide advantages by the standard deviation of the ``"group"``, of the ``"batch"``, or not at all
        (``"none"``)
    :param normalize_reward_parts: Normalise each part of a reward in its group before they are added (GDPO)
    :param ratio_level: Importance ratio of each ``"step"``, or of the whole ``"episode"`` (GSPO)
    :param policy_loss: A name in ``sb3_grpo.common.losses.POLICY_LOSSES``. Or a function
    :param ent_coef: Entropy coefficient for the loss calculation
    :param vf_coef: Coefficient of an auxiliary value loss, which trains the features extractor. ``None``: 0.5 for
        ``CnnPolicy`` with ``advantage="gae"``, otherwise 0
    :param max_grad_norm: The maximum value for the gradient clipping
    :param target_kl: Limit the KL divergence between updates. ``None``: no limit
    :param kl_coef: Coefficient of the KL divergence from the reference policy, which is the initial policy. 0: none
    :param kl_estimator: How that divergence is estimated: ``"exact"``, ``"k1"``, ``"k2"``, ``"k3"``, ``"k3_plain"``,
        ``"k1_in_reward"``, or a function
    :param ref_update_interval: Replace the reference by the current policy every this many updates. ``None``: never
    :param max_sampling_rounds: With ``dynamic_sampling``, the maximum number of times that groups are drawn for an update,
        and of rollouts as long as ``n_steps``. ``None``: no limit (as in the paper)
    :param overlong_filter: Exclude episodes truncated by a time limit from the loss
    :param overlong_range: Lengths in steps between which the soft punishment (eq. 13) falls linearly from 0 to -1.
        ``None``: no punishment
    :param unrelated_starts: Opt in to groups whose members do not share a start
    :param start_sampler: Draws the start of a group. ``None``: a fresh seed
    :param use_masking: Use the action masks of environments that have some (``action_masks()``)
    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE)
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE
    :param stats_window_size: Number of episodes to average the logged reward, length and success rate over
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, see :class:`GRPO` for their defaults
    :param verbose: Verbosity level: 0 for no output, 1 for info messages, 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
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
