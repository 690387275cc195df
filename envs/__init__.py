"""Environments that come with sb3-grpo. This folder is imported as ``sb3_grpo.envs``."""

import gymnasium as gym

from .arithmetic import ArithmeticTask
from .builtin_tasks import CapitalsTask, GuessNumberTask, make_task
from .control_vec_env import ControlVecEnv
from .curriculum import HardPrompts
from .float_observation import FloatObservation
from .reasoning_gym_task import ReasoningGymTask
from .tasks import GeneratorTask, Item, PairsTask, Task
from .text_rules import TextEpisodeRules
from .tokenizers import CharTokenizer, HuggingFaceTokenizer, Tokenizer
from .verifier_text import VerifierTextEnv
from .verifier_text_vec_env import VerifierTextVecEnv
from .verifiers import VerifierError, is_equivalent, math_equivalent

gym.register("VerifierText-v0", entry_point="sb3_grpo.envs.verifier_text:VerifierTextEnv")

__all__ = [
    "ArithmeticTask",
    "CapitalsTask",
    "CharTokenizer",
    "ControlVecEnv",
    "FloatObservation",
    "GeneratorTask",
    "GuessNumberTask",
    "HardPrompts",
    "HuggingFaceTokenizer",
    "Item",
    "PairsTask",
    "ReasoningGymTask",
    "Task",
    "TextEpisodeRules",
    "Tokenizer",
    "VerifierError",
    "VerifierTextEnv",
    "VerifierTextVecEnv",
    "is_equivalent",
    "make_task",
    "math_equivalent",
]
