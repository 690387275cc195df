"""The interface between text environments and text policies: observations are token ids, to which tokens are only appended."""

from collections.abc import Sequence
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
        :param text: A text that continues another one, such as an answer
        :return: Its token ids, without the end-of-text token
        """

    def decode(self, ids: Any) -> str:
        """
        :param ids: Token ids
        :return: Their text, up to the end-of-text token
        """


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """
    :param tokenizer: A tokenizer. If it has an ``encode_prompt``, this encodes texts that begin an observation
    :param text: A prompt
    :return: Its token ids, with the token that begins a text (BOS) if the tokenizer adds one
    :raises ValueError: if it is not a text
    """
    if not isinstance(text, str):
        raise ValueError(f"Prompts and answers are texts, got {text!r:.200} of type {type(text).__name__}.")
    return [*getattr(tokenizer, "encode_prompt", tokenizer.encode)(text)]


class TokenSpace(spaces.Box):
    """
    Observation space of text: token ids padded with ``PAD``, where each observation of an episode extends the previous one.

    :param length: Maximum number of tokens
    :param tokenizer: Tokenizer of the ids
    :param stop: Texts that end an answer, besides the end-of-text token
    """

    is_text: ClassVar[bool] = True

    def __init__(self, length: int, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        super().__init__(PAD, tokenizer.vocab_size - 1, (length,), np.int64)
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        # By token, for those that were met
        self._may_stop: dict[int, bool] = {}

    @property
    def length(self) -> int:
        """Maximum number of tokens."""
        return self.shape[0]

    def ends(self, texts: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """
        An answer ends with the end-of-text token, or with the first token after which its text contains one of ``stop``.

        :param texts: (n, L) token ids
        :param begins: (n,) position of the first token of each answer
        :param lengths: (n,) number of tokens of each text
        :return: (n,) whether the last token of each text ends its answer
        """
        last = texts[np.arange(len(texts)), lengths - 1]
        ended = last == self.tokenizer.eos_id
        for row, token in enumerate(last.tolist()) if self.stop else ():
            if self._can_stop(token):
                text = self.tokenizer.decode(texts[row, begins[row] : lengths[row]].tolist())
                ended[row] |= any(each in text for each in self.stop)
        return ended

    def _can_stop(self, token: int) -> bool:
        """
        :param token: A token id
        :return: Whether it can be the last token of one of ``stop``; if so, the whole answer has to be decoded
        """
        if token not in self._may_stop:
            # Twice, as a decoder may strip the first token's space. It may also be a part of a character
            text = self.tokenizer.decode([token, token])
            self._may_stop[token] = "\ufffd" in text or any(each[-1] in text for each in self.stop)
        return self._may_stop[token]

    def decode_answer(self, answer: Sequence[int]) -> str:
        """
        :param answer: Token ids of an answer
        :return: Its text, without what ended it
        """
        text = self.tokenizer.decode(answer)
        return text[: min((place for each in self.stop if (place := text.find(each)) >= 0), default=len(text))]

    def __eq__(self, other: object) -> bool:
        """Also compare the vocabularies: a policy reads and writes ids, which must mean the same texts."""
        if not isinstance(other, TokenSpace) or not super().__eq__(other) or set(self.stop) != set(other.stop):
            return False
        return self.tokenizer is other.tokenizer or self._vocabulary() == other._vocabulary()

    def _vocabulary(self) -> tuple[int, list[str]]:
        return self.tokenizer.eos_id, [self.tokenizer.decode([token]) for token in range(self.tokenizer.vocab_size)]

    def __repr__(self) -> str:
        return f"TokenSpace({self.length}, {self.tokenizer!r}, stop={self.stop})"


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


def padded_tokens(texts: Sequence[list[int]]) -> th.Tensor:
    """
    :param texts: Token ids of each text
    :return: (n, length of the longest) token ids padded on the right
    """
    return th.nn.utils.rnn.pad_sequence([th.tensor(tokens) for tokens in texts], batch_first=True, padding_value=PAD)
