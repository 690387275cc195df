"""Texts of digits, and policies that read them."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.tokens import PAD, TokenSpace

DIGITS = "0123456789+="
LENGTH = 12


class Digits:
    """Characters as tokens; the last one is the end."""

    vocab_size = len(DIGITS) + 1
    eos_id = len(DIGITS)

    def encode(self, text: str) -> list[int]:
        return [DIGITS.index(character) for character in text]

    def decode(self, ids: Any) -> str:
        text = ""
        for token in ids:
            if token == self.eos_id:
                break
            text += DIGITS[token] if token != PAD else ""
        return text


def make_policy(policy_class: Any = TokenPolicy, **kwargs: Any) -> Any:
    th.manual_seed(0)
    space = TokenSpace(LENGTH, Digits())
    policy = policy_class(space, spaces.Discrete(Digits.vocab_size), lambda _: 1e-3, width=16, **kwargs)
    with th.no_grad():
        policy.action_net.weight.mul_(100.0)  # far from uniform
    policy.set_training_mode(False)
    return policy


def growing_texts(n: int, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Observations of ``n`` texts that grow, end at different times and begin anew, one array per step."""
    rng = np.random.default_rng(seed)
    texts = [list(rng.integers(Digits.vocab_size, size=rng.integers(1, 6))) for _ in range(n)]
    observations = []
    for _ in range(steps):
        padded = np.full((n, LENGTH), PAD)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        observations.append(padded)
        for idx, text in enumerate(texts):
            n_new = 3 if rng.random() < 0.1 else 1
            if rng.random() < 0.2 or len(text) + n_new > LENGTH:
                texts[idx] = list(rng.integers(Digits.vocab_size, size=rng.integers(1, 6)))
            else:
                texts[idx] = [*text, *rng.integers(Digits.vocab_size, size=n_new)]
    return observations
