from sb3_grpo.common.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy
from sb3_grpo.common.recurrent import RecurrentActorCnnPolicy, RecurrentActorMultiInputPolicy, RecurrentActorPolicy
from sb3_grpo.text.causal_lm import CausalLMPolicy
from sb3_grpo.text.policies import TokenActorCriticPolicy, TokenPolicy

MlpPolicy = ActorPolicy
CnnPolicy = ActorCnnPolicy
MultiInputPolicy = ActorMultiInputPolicy
MlpLstmPolicy = RecurrentActorPolicy
CnnLstmPolicy = RecurrentActorCnnPolicy
MultiInputLstmPolicy = RecurrentActorMultiInputPolicy

__all__ = [
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
