from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import (
    CausalLMPolicy,
    CnnLstmPolicy,
    CnnPolicy,
    MlpLstmPolicy,
    MlpPolicy,
    MultiInputLstmPolicy,
    MultiInputPolicy,
    TokenActorCriticPolicy,
    TokenPolicy,
)

__all__ = [
    "GRPO",
    "CausalLMPolicy",
    "CnnLstmPolicy",
    "CnnPolicy",
    "MlpLstmPolicy",
    "MlpPolicy",
    "MultiInputLstmPolicy",
    "MultiInputPolicy",
    "TokenActorCriticPolicy",
    "TokenPolicy",
]
