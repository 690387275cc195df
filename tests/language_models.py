"""Small language models of transformers with random weights, and a task for them."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from digit_texts import LENGTH, Digits
from gymnasium import spaces

from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.text.causal_lm import CausalLMPolicy
from sb3_grpo.text.tokens import PAD, TokenSpace

# More rows than Digits has tokens, as many models have
ROWS = 20
SIZES = {"vocab_size": ROWS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONFIGS = {
    # Weights far from zero, or no layer would matter
    "llama": {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.3},
    "qwen2": {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.3},
    "qwen3": {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.3},
    "gpt2": {"vocab_size": ROWS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.3},
}
TOKENS = {"bos_token_id": 1, "eos_token_id": Digits.eos_id}
SPACES = TokenSpace(LENGTH, Digits()), spaces.Discrete(Digits.vocab_size)


def make_language_model(name: str = "llama", **config: Any) -> Any:
    import transformers

    th.manual_seed(0)
    config = {**CONFIGS.get(name, SIZES), **TOKENS, **config}
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **config))


class SameDigitEnv(gym.Env):
    """The prompt is a digit, to be repeated until the text is full."""

    observation_space, action_space = SPACES

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.text = [int(self.np_random.integers(10)) for _ in range(self.np_random.integers(1, 4))]
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array(self.text + [PAD] * (LENGTH - len(self.text)))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.text.append(int(action))
        ended = action == Digits.eos_id or len(self.text) == LENGTH
        return self.observe(), float(action == self.text[0]), bool(ended), False, {}


def make_grpo(model: Any, kl_coef: float = 0.1, device: str = "cpu", **kwargs: Any) -> GRPO:
    return GRPO(
        CausalLMPolicy,
        make_group_env(SameDigitEnv, 4),
        group_size=4,
        learning_rate=1e-3,
        n_groups=2,
        n_epochs=2,
        batch_size=32,
        kl_coef=kl_coef,
        policy_kwargs={"model": model, **kwargs},
        device=device,
        seed=0,
    )
