from sb3_grpo.grpo import policies
from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import *  # noqa: F403

__all__ = ["GRPO", *policies.__all__]
