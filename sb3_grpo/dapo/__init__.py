from sb3_grpo.dapo.dapo import DAPO
from sb3_grpo.grpo.policies import POLICIES, __getattr__  # noqa: F401  the policies by name

__all__ = ["DAPO", "TokenActorCriticPolicy", *POLICIES]
