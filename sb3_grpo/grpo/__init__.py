from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import CausalLMPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, TokenActorCriticPolicy, TokenPolicy

__all__ = ["GRPO", "CausalLMPolicy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenActorCriticPolicy", "TokenPolicy"]
