"""Environments that come with sb3-grpo. This folder is imported as ``sb3_grpo.envs``."""

from sb3_grpo.envs.float_observation import FloatObservation
from sb3_grpo.envs.tasks.base import Item, Reply, Task
from sb3_grpo.envs.tasks.builtin import ArithmeticTask, CalculatorTask, CapitalsTask, GuessNumberTask, make_task
from sb3_grpo.envs.tasks.pairs import PairsTask
from sb3_grpo.envs.tasks.reasoning_gym import ReasoningGymTask
from sb3_grpo.envs.text.env import VerifierTextEnv
from sb3_grpo.envs.text.hard_prompts import HardPrompts
from sb3_grpo.envs.text.rules import TextEpisodeRules
from sb3_grpo.envs.text.tokenizers import CharTokenizer, HuggingFaceTokenizer, Tokenizer
from sb3_grpo.envs.text.vec_env import VerifierTextVecEnv
from sb3_grpo.envs.verifiers.math_answers import is_equivalent, math_equivalent
from sb3_grpo.envs.verifiers.process import VerifierError

__all__ = [
    "ArithmeticTask",
    "CalculatorTask",
    "CapitalsTask",
    "CharTokenizer",
    "FloatObservation",
    "GuessNumberTask",
    "HardPrompts",
    "HuggingFaceTokenizer",
    "Item",
    "PairsTask",
    "ReasoningGymTask",
    "Reply",
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
