from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import *  # noqa: F403
from sb3_grpo.grpo.policies import __all__ as _policies

__all__ = ["GRPO", *_policies]
