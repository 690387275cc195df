from sb3_grpo.dapo.dapo import DAPO
from sb3_grpo.grpo.policies import CausalLMPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, TokenActorCriticPolicy, TokenPolicy

__all__ = ["DAPO", "CausalLMPolicy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenActorCriticPolicy", "TokenPolicy"]
