from sb3_grpo.dapo.dapo import DAPO
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
    "DAPO",
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
