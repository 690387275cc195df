from sb3_grpo.dapo.dapo import DAPO
from sb3_grpo.grpo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, TokenPolicy

__all__ = ["DAPO", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenPolicy"]
