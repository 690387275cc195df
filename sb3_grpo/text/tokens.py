"""The interface between text environments and text policies: observations are token ids, to which tokens are only appended."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch as th
from gymnasium import spaces

# Padding on the right of text observations. It is not a token id, so it cannot collide with any tokenizer.
PAD = -1


class Tokenizer(Protocol):
    """Converts between text and token ids."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids range from 0 to ``vocab_size - 1``."""

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a text."""

    def encode(self, text: str) -> list[int]:
        """
        :param text: A text
        :return: Its token ids, without the end-of-text token
        """

    def decode(self, ids: Any) -> str:
        """
        :param ids: Token ids
        :return: Their text, up to the end-of-text token
        """


def distinct_rows(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Like ``np.unique(texts, axis=0)``, but in the order of appearance, and several times as fast for short rows.

    :param texts: (n, L) token ids
    :return: (d,) index of the first occurrence of each distinct row, and (n,) index of each row among the d distinct ones
    """
    places: dict[bytes, int] = {}
    same = np.array([places.setdefault(row.tobytes(), len(places)) for row in texts], np.int64)
    return np.unique(same, return_index=True)[1], same


class TokenSpace(spaces.Box):
    """
    Observation space of text: token ids padded with ``PAD``, where each observation of an episode extends the previous one.

    :param length: Maximum number of tokens
    :param tokenizer: Tokenizer of the ids
    """

    is_text: ClassVar[bool] = True

    def __init__(self, length: int, tokenizer: Tokenizer):
        super().__init__(PAD, tokenizer.vocab_size - 1, (length,), np.int64)
        self.tokenizer = tokenizer

    @property
    def length(self) -> int:
        """Maximum number of tokens."""
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        """Also compare the vocabularies: a policy reads and writes ids, which must mean the same texts."""
        if not isinstance(other, TokenSpace) or not super().__eq__(other):
            return False
        return self.tokenizer is other.tokenizer or self._vocabulary() == other._vocabulary()

    def _vocabulary(self) -> tuple[int, list[str]]:
        return self.tokenizer.eos_id, [self.tokenizer.decode([token]) for token in range(self.tokenizer.vocab_size)]

    def __repr__(self) -> str:
        return f"TokenSpace({self.length}, {self.tokenizer!r})"


def check_token_ids(observations: np.ndarray | th.Tensor) -> None:
    """
    :param observations: Observations of texts
    :raises ValueError: if they are not whole numbers
    """
    if "float" in str(observations.dtype):
        raise ValueError(
            f"Token ids must be whole numbers, but these observations are {observations.dtype}: has a VecNormalize scaled "
            "them? Use VecNormalize(env, norm_obs=False)."
        )


def token_lengths(observations: np.ndarray) -> np.ndarray:
    """
    :param observations: (..., L) token ids padded on the right
    :return: (...) number of tokens
    """
    return (observations != PAD).sum(axis=-1)


@dataclass
class TokenSteps:
    """
    M steps in S texts, in a form that needs one forward pass per text instead of one per token.

    :param texts: (S, L) token ids padded on the right
    :param text: (M,) index of each step's text
    :param last: (M,) position of the last token that had been written at that step; later tokens were not yet there
    """

    texts: th.Tensor
    text: th.Tensor
    last: th.Tensor
