"""Tokenizers for text environments: one token per character, or a Hugging Face tokenizer."""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sb3_grpo.text.pretrained import load_tokenizer
from sb3_grpo.text.tokens import PAD, Tokenizer

__all__ = ["CharTokenizer", "HuggingFaceTokenizer", "Tokenizer"]

# Names of the end-of-text token in published tokenizers
_EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
# Texts that another one may follow without sharing a token with it
_BEFORE = ("\n", "a", "1")


def _up_to_eos(ids: Iterable[Any], eos_id: int, vocab_size: int) -> list[int]:
    """
    :param ids: Token ids, padded or not
    :param eos_id: Id of the end-of-text token
    :param vocab_size: Size of the vocabulary, which all ids are smaller than
    :return: The token ids before the first end-of-text token, without padding
    """
    kept = []
    for token in map(int, ids):
        if token == eos_id:
            break
        if token == PAD:
            continue
        if not 0 <= token < vocab_size:
            raise ValueError(f"There is no token {token}: ids are from 0 to {vocab_size - 1} (and {PAD} for padding)")
        kept.append(token)
    return kept


class CharTokenizer:
    """
    A tokenizer with one token per character. Ids follow the order of the alphabet, and the end-of-text token comes last.

    :param alphabet: All characters that may occur, without duplicates
    """

    def __init__(self, alphabet: Sequence[str]):
        self.alphabet = "".join(alphabet)
        self.vocab_size, self.eos_id = len(self.alphabet) + 1, len(self.alphabet)
        self._ids = {character: index for index, character in enumerate(self.alphabet)}
        if not self.alphabet:
            raise ValueError("The alphabet is empty: CharTokenizer needs at least one character, e.g. '0123456789+='")
        if len(self._ids) < len(self.alphabet):
            twice = sorted({character for character in self.alphabet if self.alphabet.count(character) > 1})
            raise ValueError(f"The alphabet {self.alphabet!r} has {', '.join(map(repr, twice))} more than once")

    def encode(self, text: str) -> list[int]:
        """
        :param text: A text of characters in the alphabet
        :return: Its token ids, without the end-of-text token
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ValueError(
                f"The character {error.args[0]!r} in {text!r:.100} is not in the alphabet {self.alphabet!r}. "
                "Pass tokenizer=CharTokenizer(...) with all characters that can occur, or a HuggingFaceTokenizer."
            ) from None

    def decode(self, ids: Any) -> str:
        """
        :param ids: Token ids, padded or not
        :return: Their text, up to the end-of-text token
        """
        return "".join([self.alphabet[token] for token in _up_to_eos(ids, self.eos_id, self.vocab_size)])

    def __repr__(self) -> str:
        return f"CharTokenizer({self.alphabet!r})"


class HuggingFaceTokenizer:
    """
    A tokenizer in Hugging Face's format. Texts are neither truncated nor padded.

    Special tokens stay visible in decoded texts, and so do ids without a token (``<id 7>``), as an answer that contains one
    differs from the answer without it.

    :param source: Path of a ``tokenizer.json``; a pretrained model, by its name on the hub, its folder, or ``"smollm2"``; a
        ``tokenizers.Tokenizer``; or a fast tokenizer of ``transformers``
    :param eos_token: The end-of-text token. None: the one defined by the tokenizer of ``transformers``, or the only one of
        the usual names in the vocabulary
    """

    def __init__(self, source: Any, eos_token: str | None = None):
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise ImportError(
                'HuggingFaceTokenizer needs the package tokenizers: pip install "sb3-grpo[text]", '
                "or use CharTokenizer, which needs nothing."
            ) from error
        # Of a tokenizer of transformers: its chat template
        self.chat_template: Any = None
        if isinstance(source, str | Path) and (Path(source).is_file() or str(source).endswith(".json")):
            if not Path(source).is_file():
                raise FileNotFoundError(f"There is no file {str(source)!r} to read a tokenizer from")
            self._backend = Backend.from_file(str(source))
        else:
            source = load_tokenizer(source) if isinstance(source, str | Path) else source
            eos_token = eos_token or getattr(source, "eos_token", None)
            backend = getattr(source, "backend_tokenizer", source)
            if not isinstance(backend, Backend):
                raise TypeError(
                    "Expected the path of a tokenizer.json, the name of a model, a tokenizers.Tokenizer, or a fast tokenizer "
                    f"of transformers, not {type(source).__name__}"
                )
            # A copy, as the changes below must not affect other users of this tokenizer
            self._source = copy.deepcopy(source)
            self._backend = getattr(self._source, "backend_tokenizer", self._source)
            self.chat_template = getattr(source, "chat_template", None)
        self._backend.no_padding()
        self._backend.no_truncation()
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.eos_token = _find_eos(vocabulary, eos_token)
        self.eos_id = vocabulary[self.eos_token]
        # Ids may have gaps
        self.vocab_size = max(vocabulary.values()) + 1
        # WordPiece has other tokens inside of words (##42): there, a text that follows another one would become such tokens
        self._before = {
            each: self._backend.encode(each, add_special_tokens=False).ids
            for each in _BEFORE
            if not getattr(self._backend.model, "continuing_subword_prefix", None)
        }
        self._gaps = frozenset(range(self.vocab_size)).difference(vocabulary.values())

    def encode(self, text: str) -> list[int]:
        """
        :param text: A text that continues another one, such as an answer
        :return: Its token ids, without the end-of-text token, and without the space that tokenizers may put before texts
        """
        for before, given in self._before.items():
            joint = self._backend.encode(before + text, add_special_tokens=False)
            n_given = len(given)
            if given and joint.ids[:n_given] == given and joint.offsets[n_given - 1][1] <= len(before):
                return joint.ids[n_given:]
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """
        :param text: A prompt
        :return: Its token ids. If the tokenizer puts a token before texts (BOS), they begin with it, once
        """
        tokens, extended = self._backend.encode(text, add_special_tokens=False).ids, self._backend.encode(text)
        places = [place for place, sequence in enumerate(extended.sequence_ids) if sequence is not None]
        added = extended.ids[: places[0]] if places else []
        return tokens if tokens[: len(added)] == added else added + tokens

    def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        """
        :param messages: Messages with ``role`` and ``content``; needs a tokenizer with a ``chat_template``
        :return: Their text, up to the beginning of the answer
        """
        settings = {"chat_template": self.chat_template, "add_generation_prompt": True, "tokenize": False}
        return self._source.apply_chat_template(messages, **settings)

    def decode(self, ids: Any) -> str:
        """
        :param ids: Token ids, padded or not
        :return: Their text, up to the end-of-text token
        """
        rest = _up_to_eos(ids, self.eos_id, self.vocab_size)
        texts: list[str] = []
        # The tokenizer itself would omit these ids
        for place in [place for place, token in enumerate(rest) if token in self._gaps][::-1]:
            texts[:0] = [f"<id {rest[place]}>", self._backend.decode(rest[place + 1 :], skip_special_tokens=False)]
            rest = rest[:place]
        return "".join([self._backend.decode(rest, skip_special_tokens=False), *texts])

    def __repr__(self) -> str:
        return f"HuggingFaceTokenizer({self.vocab_size} tokens, eos_token={self.eos_token!r})"


def make_tokenizer(tokenizer: Any, alphabet: Callable[[], str]) -> Tokenizer:
    """
    :param tokenizer: See :class:`TextEpisodeRules`
    :param alphabet: Returns the characters of the default tokenizer
    :return: The tokenizer
    :raises ValueError: if no answer could end
    """
    if tokenizer is None:
        return CharTokenizer(alphabet())
    if isinstance(tokenizer, str | Path):
        return HuggingFaceTokenizer(tokenizer)
    missing = [name for name in ("vocab_size", "eos_id", "encode", "decode") if not hasattr(tokenizer, name)]
    if missing and {cls.__module__.split(".")[0] for cls in type(tokenizer).__mro__} & {"tokenizers", "transformers"}:
        return HuggingFaceTokenizer(tokenizer)
    if missing:
        raise TypeError(
            f"tokenizer={type(tokenizer).__name__} has no {', '.join(missing)}. Pass a CharTokenizer, the path of a "
            "tokenizer.json, the name of a model, or a tokenizer of the packages tokenizers or transformers."
        )
    size, end = tokenizer.vocab_size, tokenizer.eos_id
    if not all(isinstance(each, int | np.integer) for each in (size, end)) or not 0 <= end < size:
        raise ValueError(
            f"tokenizer={type(tokenizer).__name__} has vocab_size={size!r} and eos_id={end!r}: no answer could end. "
            "eos_id has to be a whole number from 0 to vocab_size - 1."
        )
    return tokenizer


def _find_eos(vocabulary: dict[str, int], eos_token: str | None) -> str:
    if eos_token is None:
        candidates = [name for name in _EOS_NAMES if name in vocabulary]
        if len(candidates) == 1:
            return candidates[0]
        found = f"it has {' and '.join(candidates)}" if candidates else f"it has none of {', '.join(_EOS_NAMES)}"
        raise ValueError(f"Which token ends a text? The tokenizer does not say, and {found}: pass eos_token='...'.")
    if eos_token not in vocabulary:
        raise ValueError(f"eos_token={eos_token!r} is not one of the {len(vocabulary)} tokens of this tokenizer")
    return eos_token
