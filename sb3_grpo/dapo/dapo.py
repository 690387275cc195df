from typing import Any, TypeVar

from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.grpo.grpo import GRPO

SelfDAPO = TypeVar("SelfDAPO", bound="DAPO")


class DAPO(GRPO):
    """
    Decoupled Clip and Dynamic sAmpling Policy Optimization (DAPO)

    Paper: https://arxiv.org/abs/2503.14476

    :class:`GRPO` with other defaults: there is no second training loop.
    """

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        *args: Any,
        clip_range_high: None | float | Schedule = 0.28,
        loss_average: str = "step",
        dynamic_sampling: bool = True,
        max_sampling_rounds: int = 4,
        **kwargs: Any,
    ):
        super().__init__(
            policy,
            env,
            *args,
            clip_range_high=clip_range_high,
            loss_average=loss_average,
            dynamic_sampling=dynamic_sampling,
            max_sampling_rounds=max_sampling_rounds,
            **kwargs,
        )

    def learn(
        self: SelfDAPO,
        total_timesteps: int = 100_000,
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
