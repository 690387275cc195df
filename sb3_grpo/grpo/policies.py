from sb3_grpo.common.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy
from sb3_grpo.text.causal_lm import CausalLMPolicy
from sb3_grpo.text.policies import TokenActorCriticPolicy, TokenPolicy

MlpPolicy = ActorPolicy
CnnPolicy = ActorCnnPolicy
MultiInputPolicy = ActorMultiInputPolicy

__all__ = ["CausalLMPolicy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenActorCriticPolicy", "TokenPolicy"]
