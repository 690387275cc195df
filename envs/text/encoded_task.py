"""Tokenized tasks: the lengths of prompts and answers, and the choice of the item that an episode begins with."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_grpo.envs.tasks.base import Item, Task
from sb3_grpo.envs.tasks.builtin import make_task
from sb3_grpo.envs.text.tokenizers import CharTokenizer, HuggingFaceTokenizer
from sb3_grpo.text.tokens import PAD, Tokenizer, TokenSpace
from sb3_grpo.utils.user_warnings import warn_user

# Defaults if the task does not know how long its prompts and answers are
_DEFAULT_PROMPT_TOKENS = 128
_DEFAULT_ANSWER_TOKENS = 64

# If the task only knows the lengths of a sample: a quarter more, rounded up, so as not to depend much on the sample
_ROOM = 1.25
_ROOM_STEP = 64

# Beyond this number of texts, shorter ones are only encoded if they could still have the most tokens
_MAX_ENCODED = 10_000

# Number of draws after which an error says that no item fits
_MAX_DRAWS = 1000

# Maximum number of tokens of cached prompts, including padding
_MAX_KEPT = 8_000_000


@dataclass(frozen=True)
class EncodedItem:
    """
    An item with the tokens of its prompt.

    :param index: Index of the item
    :param item: The item
    :param row: (L,) the first observation of an episode with this item
    :param n_tokens: Number of tokens of the prompt
    """

    index: int
    item: Item
    row: np.ndarray
    n_tokens: int


class EncodedTask:
    """
    A task with tokenized items. See :class:`TextEpisodeRules` for the parameters.

    :raises ValueError: if a limit is not a whole number of tokens, the task has no items, or no answer could end
    """

    def __init__(
        self,
        task: Any,
        task_kwargs: dict[str, Any] | None,
        tokenizer: Tokenizer | str | Path | None,
        max_answer_tokens: int | None,
        max_prompt_tokens: int | None,
        max_reply_tokens: int | None,
    ):
        self.task = make_task(task, **(task_kwargs or {}))
        if self.task.n_items is not None and self.task.n_items < 1:
            raise ValueError(f"{type(self.task).__name__} has n_items={self.task.n_items}: a task has at least one item")
        self.tokenizer = _make_tokenizer(tokenizer, self.task)
        limits = {"max_prompt_tokens": max_prompt_tokens, "max_answer_tokens": max_answer_tokens}
        prompt_tokens, answer_tokens = self._longest([name for name, value in limits.items() if value is None])
        self.max_prompt_tokens = _limit("max_prompt_tokens", max_prompt_tokens, prompt_tokens, 1)
        self.max_answer_tokens = _limit("max_answer_tokens", max_answer_tokens, answer_tokens, 1)
        self.max_reply_tokens = _limit("max_reply_tokens", max_reply_tokens, self.task.max_reply_tokens, 0)
        self._kept: dict[int, EncodedItem] = {}
        self._passed_over = False
        self._too_long = False

    @property
    def length(self) -> int:
        """Maximum number of tokens of an observation."""
        return self.max_prompt_tokens + self.max_answer_tokens + self.max_reply_tokens

    def make_spaces(self) -> tuple[TokenSpace, spaces.Discrete]:
        """
        :return: New observation space and action space
        """
        return TokenSpace(self.length, self.tokenizer), spaces.Discrete(self.tokenizer.vocab_size)

    def _longest(self, wanted: list[str]) -> tuple[int, int]:
        """
        :param wanted: Names of the limits that were not given
        :return: Maximum number of tokens of prompts, and of answers. Without meaning where it is not wanted
        """
        items = self.task.longest_items() if wanted else None
        if items is None:
            default = _DEFAULT_PROMPT_TOKENS, _DEFAULT_ANSWER_TOKENS
            guesses = dict(zip(("max_prompt_tokens", "max_answer_tokens"), default, strict=True))
            if wanted:
                warn_user(
                    f"{type(self.task).__name__} has too many items to look for the longest. Guessed: "
                    f"{', '.join(f'{name}={guesses[name]}' for name in wanted)}. A longer prompt is an error, and a longer "
                    "answer is cut off: give the environment the limits that you need."
                )
            return default
        items = [_checked(item, self.task) for item in items]
        prompt_tokens = self._most_tokens([item.prompt for item in items]) if "max_prompt_tokens" in wanted else 0
        answer_tokens = self._longest_answer(items) if "max_answer_tokens" in wanted else 0
        if not self.task.knows_longest:
            prompt_tokens, answer_tokens = _with_room(prompt_tokens), _with_room(answer_tokens)
        return prompt_tokens, answer_tokens * self.task.n_turns

    def _longest_answer(self, items: list[Item]) -> int:
        """
        :param items: Some items
        :return: Maximum number of tokens of an answer to one of them
        """
        answers = [item.answer for item in items if self.task.has_reference(item)]
        without = [item.prompt for item in items if not self.task.has_reference(item)]
        n_tokens = self._most_tokens(answers) + 1 if answers else 0
        return max(n_tokens, self._most_tokens(without), _DEFAULT_ANSWER_TOKENS) if without else n_tokens

    def _most_tokens(self, texts: list[str]) -> int:
        """
        :param texts: Some texts
        :return: Number of tokens of the text that has the most
        """
        sized = sorted(((len(text.encode(errors="surrogatepass")), text) for text in dict.fromkeys(texts)), reverse=True)
        most = 0
        for rank, (n_bytes, text) in enumerate(sized):
            # A token is at least one byte, except for one that a tokenizer may prepend
            if rank >= _MAX_ENCODED and n_bytes < most:
                break
            most = max(most, len(self.tokenizer.encode(text)))
        return most

    def encode_item(self, index: int) -> EncodedItem:
        """
        :param index: Index of an item
        :return: The tokenized item, with which an episode can begin
        """
        found = self._kept.get(index)
        if found is not None:
            return found
        item = _checked(self.task.item(index), self.task)
        tokens = self.tokenizer.encode(item.prompt)
        if not 1 <= len(tokens) <= self.max_prompt_tokens:
            raise ValueError(
                f"The prompt of item {index} has {len(tokens)} tokens, and there has to be room for it: from 1 to "
                f"max_prompt_tokens={self.max_prompt_tokens}. Prompt: {item.prompt!r:.200}"
            )
        vocab_size = self.tokenizer.vocab_size
        if not all(0 <= token < vocab_size for token in tokens):
            raise ValueError(
                f"The tokenizer ({type(self.tokenizer).__name__}) encodes the prompt of item {index} with ids from "
                f"{min(tokens)} to {max(tokens)}, but vocab_size={vocab_size} allows 0 to {vocab_size - 1}: vocab_size has to "
                f"count added tokens, too. Prompt: {item.prompt!r:.200}"
            )
        self._check_reference(index, item)
        row = np.full(self.length, PAD, np.int64)
        row[: len(tokens)] = tokens
        row.setflags(write=False)
        if len(self._kept) * self.length >= _MAX_KEPT:
            self._kept.clear()
        found = self._kept[index] = EncodedItem(index, item, row, len(tokens))
        return found

    def _check_reference(self, index: int, item: Item) -> None:
        if self._too_long or not self.task.has_reference(item):
            return
        try:
            n_tokens = len(self.tokenizer.encode(item.answer)) + 1
        except ValueError:
            return  # a verifier may accept answers that are written differently
        if n_tokens > self.max_answer_tokens:
            self._too_long = True
            warn_user(
                f"The reference of item {index} has {n_tokens} tokens with its end, but there is room for "
                f"max_answer_tokens={self.max_answer_tokens}: an answer that is as long is cut off, and wrong. There may be "
                f"more such items. Prompt: {item.prompt!r:.200}"
            )

    def choose_item(self, options: dict[str, Any] | None, rng: np.random.Generator) -> EncodedItem:
        """
        :param options: The options passed to ``reset``: ``{"item": k}`` chooses item k
        :param rng: Random generator, which otherwise draws an item
        :return: The item to begin the episode with
        """
        if not options:
            return self._draw_item(rng)
        if set(options) != {"item"}:
            raise ValueError(f"options={options}: the only option is 'item', the number of the item to begin with")
        return self.encode_item(self.check_index(options["item"]))

    def _draw_item(self, rng: np.random.Generator) -> EncodedItem:
        """
        :param rng: Random generator
        :return: A random item. If the task does not know its longest items, items that do not fit or cannot be encoded are
            skipped
        """
        error: ValueError | None = None
        for _ in range(_MAX_DRAWS):
            try:
                return self.encode_item(self.task.draw(rng))
            except ValueError as raised:
                if self.task.knows_longest:
                    raise
                error = raised
                if not self._passed_over:
                    warn_user(f"Items like this one are passed over: {error}")
                self._passed_over = True
        raise ValueError(f"{_MAX_DRAWS} items were drawn, and none of them can be used. The last one: {error}") from error

    def check_index(self, index: Any) -> int:
        """
        :param index: Index of an item, to be checked
        :return: The index
        """
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise ValueError(f"item={index!r:.100} has to be the number of an item, not {type(index).__name__}")
        n_items = self.task.n_items
        if index < 0 or (n_items is not None and index >= n_items):
            there_are = "from 0 on" if n_items is None else f"from 0 to {n_items - 1}"
            raise ValueError(f"There is no item {index}: they are numbered {there_are}")
        return int(index)


def _checked(item: Any, task: Task) -> Item:
    if not isinstance(item, Item):
        raise TypeError(
            f"The items of {type(task).__name__} have to be of the class Item, Item(prompt, answer), got {item!r:.200}"
        )
    return item


def _with_room(n_tokens: int) -> int:
    return _ROOM_STEP * math.ceil(_ROOM * n_tokens / _ROOM_STEP)


def _limit(name: str, value: int | None, default: int, least: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r} has to be a whole number of tokens, at least {least}")
    return int(value)


def _make_tokenizer(tokenizer: Any, task: Task) -> Tokenizer:
    if tokenizer is None:
        return CharTokenizer(task.alphabet())
    if isinstance(tokenizer, str | Path):
        return HuggingFaceTokenizer(tokenizer)
    missing = [name for name in ("vocab_size", "eos_id", "encode", "decode") if not hasattr(tokenizer, name)]
    if missing and {cls.__module__.split(".")[0] for cls in type(tokenizer).__mro__} & {"tokenizers", "transformers"}:
        return HuggingFaceTokenizer(tokenizer)
    if missing:
        raise TypeError(
            f"tokenizer={type(tokenizer).__name__} has no {', '.join(missing)}. Pass a CharTokenizer, the path of a "
            "tokenizer.json, or a tokenizer of the packages tokenizers or transformers."
        )
    size, end = tokenizer.vocab_size, tokenizer.eos_id
    if not all(isinstance(each, int | np.integer) for each in (size, end)) or not 0 <= end < size:
        raise ValueError(
            f"tokenizer={type(tokenizer).__name__} has vocab_size={size!r} and eos_id={end!r}: no answer could end. "
            "eos_id has to be a whole number from 0 to vocab_size - 1."
        )
    return tokenizer
