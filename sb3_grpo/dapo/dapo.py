from typing import Any, TypeVar

from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from sb3_grpo.common.losses import WeightFunction
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.grpo.grpo import GRPO

SelfDAPO = TypeVar("SelfDAPO", bound="DAPO")


class DAPO(GRPO):
    """
    Decoupled Clip and Dynamic sAmpling Policy Optimization (DAPO)

    Paper: https://arxiv.org/abs/2503.14476

    :class:`GRPO` with other defaults: both share one training loop, and DAPO takes every parameter of GRPO. The KL divergence
    from a reference policy is off in both. Overlong filtering and the soft overlong penalty (``overlong_filter``,
    ``overlong_range``) are off by default, because in control tasks the episodes truncated by the time limit are often the
    best ones (CartPole), or every episode is truncated (Pendulum). The paper's settings are available as a preset:
    ``DAPO(policy, env, **sb3_grpo.presets.DAPO_PAPER)``.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str: 16 copies are made with
        :func:`make_group_env` or, if it is an Atari game, with :func:`make_atari_group_env`)
    :param learning_rate: The learning rate, it can be a function
        of the current progress remaining (from 1 to 0)
    :param clip_range_high: The ratio may rise to ``1 + clip_range_high``
    :param loss_average: Average the loss over all steps
    :param dynamic_sampling: Drop groups whose raw outcomes are all equal, and draw new ones instead. With ``n_steps``,
        their steps do not count: the rollout continues until there are enough others
    :param kwargs: See :class:`GRPO`
    """

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-3,
        *,
        clip_range_high: float | Schedule | None = 0.28,
        loss_average: str | float | WeightFunction = "step",
        dynamic_sampling: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            clip_range_high=clip_range_high,
            loss_average=loss_average,
            dynamic_sampling=dynamic_sampling,
            **kwargs,
        )

    def learn(
        self: SelfDAPO,
        total_timesteps: int | None = None,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "DAPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfDAPO:
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )
