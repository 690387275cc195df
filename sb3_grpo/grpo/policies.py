from sb3_grpo.common.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy
from sb3_grpo.common.token_policies import TokenPolicy

MlpPolicy = ActorPolicy
CnnPolicy = ActorCnnPolicy
MultiInputPolicy = ActorMultiInputPolicy

__all__ = ["CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenPolicy"]
