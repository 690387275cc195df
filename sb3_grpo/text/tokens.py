"""What environments and policies of text agree on: observations are token ids to which tokens are only ever appended."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch as th
from gymnasium import spaces

# Observations of text are padded on the right with this. It is no token, so no tokenizer can collide with it.
PAD = -1


class Tokenizer(Protocol):
    """Between texts and token ids."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids are from 0 to ``vocab_size - 1``."""

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""

    def encode(self, text: str) -> list[int]:
        """
        :param text: A text
        :return: Its tokens, without the one that ends it
        """

    def decode(self, ids: Any) -> str:
        """
        :param ids: Tokens
        :return: Their text, up to the token that ends it
        """


def distinct_rows(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    ``np.unique(texts, axis=0)`` in the order of appearance, several times as fast for short rows.

    :param texts: (n, L)
    :return: (d,) where each distinct row is found first, and (n,) which of the d each row is
    """
    places: dict[bytes, int] = {}
    same = np.array([places.setdefault(row.tobytes(), len(places)) for row in texts])
    return np.unique(same, return_index=True)[1], same


class TokenSpace(spaces.Box):
    """
    Observations of text: token ids padded with ``PAD``, each observation of an episode an extension of the one before.

    :param length: Tokens at the most
    :param tokenizer: What the ids mean
    """

    is_text: ClassVar[bool] = True

    def __init__(self, length: int, tokenizer: Tokenizer):
        super().__init__(PAD, tokenizer.vocab_size - 1, (length,), np.int64)
        self.tokenizer = tokenizer

    @property
    def length(self) -> int:
        """Tokens at the most."""
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        """Whether the same ids mean the same texts, too: a policy reads and writes ids."""
        if not isinstance(other, TokenSpace) or not super().__eq__(other):
            return False
        return self.tokenizer is other.tokenizer or self._vocabulary() == other._vocabulary()

    def _vocabulary(self) -> tuple[int, list[str]]:
        return self.tokenizer.eos_id, [self.tokenizer.decode([token]) for token in range(self.tokenizer.vocab_size)]

    def __repr__(self) -> str:
        return f"TokenSpace({self.shape[0]}, {self.tokenizer!r})"


def token_lengths(observations: np.ndarray) -> np.ndarray:
    """
    :param observations: (..., L) token ids padded on the right
    :return: (...) how many tokens there are
    """
    return (observations != PAD).sum(axis=-1)


@dataclass
class TokenSteps:
    """
    Steps of several texts, in a form that needs one forward pass per text and none per token: M steps in S texts.

    :param texts: (S, L) token ids padded on the right
    :param text: (M,) the text in which the step is taken
    :param last: (M,) the place of the last token that had been written by then; what comes after was not yet there
    """

    texts: th.Tensor
    text: th.Tensor
    last: th.Tensor
