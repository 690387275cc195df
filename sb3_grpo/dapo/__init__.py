from sb3_grpo.dapo.dapo import DAPO
from sb3_grpo.grpo.policies import *  # noqa: F403
from sb3_grpo.grpo.policies import __all__ as _policies

__all__ = ["DAPO", *_policies]
