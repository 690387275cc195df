from sb3_grpo.common.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy

MlpPolicy = ActorPolicy
CnnPolicy = ActorCnnPolicy
MultiInputPolicy = ActorMultiInputPolicy
