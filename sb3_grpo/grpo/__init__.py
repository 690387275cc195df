from sb3_grpo.grpo.grpo import GRPO
from sb3_grpo.grpo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, TokenPolicy

__all__ = ["GRPO", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "TokenPolicy"]
