from sb3_grpo.dapo.dapo import DAPO
from sb3_grpo.grpo import policies
from sb3_grpo.grpo.policies import *  # noqa: F403

__all__ = ["DAPO", *policies.__all__]
