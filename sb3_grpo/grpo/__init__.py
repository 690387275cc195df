from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import POLICIES, __getattr__  # noqa: F401  the policies by name

__all__ = ["GRPO", "TokenActorCriticPolicy", *POLICIES]
