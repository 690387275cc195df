"""The rules of text episodes: everything except the tokens written in them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import Item, Task, is_trusted
from sb3_grpo.envs.tasks.builtin import make_task
from sb3_grpo.envs.tasks.pairs import PairsTask
from sb3_grpo.envs.text.prompts import PromptFormat
from sb3_grpo.envs.text.tokenizers import make_tokenizer
from sb3_grpo.envs.verifiers.math_answers import is_equivalent
from sb3_grpo.envs.verifiers.runner import VerifierRunner
from sb3_grpo.envs.verifiers.scorers import checked_range, checked_weights, make_scorer
from sb3_grpo.envs.verifiers.scores import RewardFunctions, Scoring
from sb3_grpo.text.tokens import PAD, Tokenizer, encode_prompt
from sb3_grpo.utils.parameters import Number, Whole
from sb3_grpo.utils.user_warnings import warn_user

# Limits if the task does not know how long its prompts and answers are
_GUESSES = {"max_prompt_tokens": 128, "max_answer_tokens": 64}

# If the task only knows the lengths of a sample: a quarter more, rounded up, so as not to depend much on the sample
_ROOM = 1.25
_ROOM_STEP = 64

# Beyond this number of texts, shorter ones are only encoded if they could still have the most tokens
_MAX_ENCODED = 10_000

# Number of prompts of a list that are checked at the beginning, the longest ones
_MAX_CHECKED = 1000

# What the last list of references was checked with, and the list: the copies of an environment have the same
_last_checked: Any = None

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


class TextEpisodeRules:
    """
    The rules of text episodes: everything except the tokens written in them.

    :param task: See :func:`make_task`
    :param task_kwargs: Arguments for the task
    :param tokenizer: A :class:`Tokenizer`, the name or folder of a pretrained model, the path of a ``tokenizer.json``, or a
        tokenizer of the packages ``tokenizers`` or ``transformers`` (see :class:`HuggingFaceTokenizer`). None: one token per
        character of the task's alphabet
    :param stop: Texts that end an answer, besides the end-of-text token, e.g. ``["\\n"]``. The token that completes one is the
        last of the answer; the verifier is given the text before it. Special tokens are written as in the vocabulary
    :param examples: Pairs of prompt and answer to put before each prompt: ``prompt + answer`` in a line each, or messages of
        the user and the assistant
    :param chat_template: Whether a prompt is a message of the user, or a list of messages, which the chat template of the
        tokenizer (of ``transformers``) turns into a text. Replies are the user's, too
    :param system_prompt: First message of all chats that do not begin with one
    :param verifier: Scores an answer against the reference: a function ``f(answer, reference)`` that returns a number or a
        dictionary of parts, ``"exact"`` (:func:`is_equivalent`) or ``"math"`` (:func:`math_equivalent`). Or reward functions
        as TRL has them, ``f(prompts, completions, **columns)``, one or a list, which are given all answers that end in a step.
        None: use the task's own score
    :param reward_weights: Weights of the parts of a score, by name, or in the order of several reward functions
    :param score_range: The smallest and the largest score. None: 0 and 1, or any number for reward functions
    :param max_answer_tokens: Maximum number of tokens that the agent can write in an episode, including those that end
        answers. None: enough for the longest answer of the task, or 64 with a warning if that is unknown. Where there is no
        reference, an answer can be as long as the prompt, and at least 64 tokens
    :param max_prompt_tokens: Maximum number of tokens of a prompt, with the examples and what the template adds. None: enough
        for the longest prompt of the task, or 128 with a warning if that is unknown
    :param max_reply_tokens: Maximum number of tokens of all replies in an episode. None: as defined by the task
    :param reward_correct: Reward for an answer with score 1
    :param reward_wrong: Reward for an answer with score 0. Less than ``reward_correct``. An unfinished answer has the smallest
        score; reward functions score it as it is
    :param success_score: Minimum score of a successful episode. None: the largest score; of reward functions, 1 for each,
        times its weight
    :param truncate: Whether an answer that is unfinished when there is no room left is truncated (DAPO's overlong filtering
        looks at this) or terminated. Use False for algorithms with a critic: after a truncation, PPO bootstraps from the value
        of a state that training never sees, and learns never to end an answer
    :param verifier_timeout: Maximum seconds per answer if the verifier runs in its own process, and per reply to an answer
    :param on_verifier_error: ``"raise"`` an error, or count failures of the verifier (and of replies) as score ``"zero"``.
        None: zero for ``"math"`` and the scores of reasoning-gym, as some answers are too hard for them; otherwise raise
    """

    reward_correct: float
    reward_wrong: float
    success_score: float
    truncate: bool

    def __init__(
        self,
        task: Any = "arithmetic",
        task_kwargs: dict[str, Any] | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        stop: Sequence[str] = (),
        examples: Sequence[tuple[Any, str]] = (),
        chat_template: bool = False,
        system_prompt: str | None = None,
        verifier: Callable[..., Any] | Sequence[Callable[..., Any]] | str | None = None,
        reward_weights: Mapping[str, float] | Sequence[float] | None = None,
        score_range: tuple[float, float] | None = None,
        max_answer_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_reply_tokens: int | None = None,
        reward_correct: float = 1.0,
        reward_wrong: float = 0.0,
        success_score: float | None = None,
        truncate: bool = True,
        verifier_timeout: float = 5.0,
        on_verifier_error: str | None = None,
    ):
        self.task = make_task(task, **(task_kwargs or {}))
        if self.task.n_items is not None and self.task.n_items < 1:
            raise ValueError(f"{type(self.task).__name__} has n_items={self.task.n_items}: a task has at least one item")
        self.tokenizer = make_tokenizer(tokenizer, self.task.alphabet)
        self.multi_turn = type(self.task).reply is not Task.reply
        if self.multi_turn and self.task.n_turns == 1 and "n_turns" not in vars(self.task):
            raise ValueError(
                f"{type(self.task).__name__} has a reply(item, messages), but n_turns=1, so that there is no answer to it: "
                "write n_turns = 3, or how many answers an episode has at most, in the class"
            )
        self.stop = _checked_stop(stop, self.tokenizer)
        self.prompts = PromptFormat(self.tokenizer, chat_template, system_prompt, examples)
        longest = Whole(none="room for the longest of the task")
        given = {
            "max_prompt_tokens": longest.check("max_prompt_tokens", max_prompt_tokens),
            "max_answer_tokens": longest.check("max_answer_tokens", max_answer_tokens),
        }
        limits = given | self._longest([name for name, limit in given.items() if limit is None])
        self.max_prompt_tokens, self.max_answer_tokens = limits["max_prompt_tokens"], limits["max_answer_tokens"]
        max_reply_tokens = Whole(0, none="that of the task").check("max_reply_tokens", max_reply_tokens)
        if max_reply_tokens is None:
            n_template = len(self.prompts.encode_reply("?")) if chat_template else 0
            max_reply_tokens = self.task.max_reply_tokens + (self.task.n_turns - 1) * n_template
        self.max_reply_tokens = max_reply_tokens
        # Maximum number of tokens of an observation
        self.length = self.max_prompt_tokens + self.max_answer_tokens + self.max_reply_tokens
        self.scorer, trusted = make_scorer(verifier, self.task)
        functions = self.scorer.function.functions if isinstance(self.scorer.function, RewardFunctions) else None
        self.weights = checked_weights(reward_weights, functions)
        # As in TRL: without a limit, any score might be more than that of other answers
        self.scores_unfinished = functions is not None
        self.score_range = checked_range(score_range, None if functions else (0.0, 1.0))
        if success_score is None:
            of_functions = sum(self.weights.get(name, 1.0) for name in functions or ())
            success_score = of_functions if self.score_range is None else self.score_range[1]
        self.runner = VerifierRunner(
            self.scorer.function,
            trusted,
            verifier_timeout,
            on_verifier_error,
            self.task.reply if self.multi_turn else None,
            is_trusted(self.task, "reply"),
            self.scorer.name,
            scoring=Scoring(self.weights, self.score_range, batched=functions is not None),
        )
        self.change(reward_correct=reward_correct, reward_wrong=reward_wrong, success_score=success_score, truncate=truncate)
        self._kept: dict[int, EncodedItem] = {}
        self._passed_over = False
        self._too_long = False
        self._check_items()

    def _longest(self, wanted: list[str]) -> dict[str, int]:
        """
        :param wanted: Names of the limits that were not given
        :return: These limits
        """
        items = self.task.longest_items() if wanted else []
        if items is None:
            guesses = {name: _GUESSES[name] for name in wanted}
            warn_user(
                f"{type(self.task).__name__} has too many items to look for the longest. Guessed: "
                f"{', '.join(f'{name}={guess}' for name, guess in guesses.items())}. A longer prompt is an error, and a "
                "longer answer is cut off: give the environment the limits that you need."
            )
            return guesses
        items = [_checked(item, self.task) for item in items]
        begin = partial(encode_prompt, self.tokenizer)
        found = {}
        if "max_prompt_tokens" in wanted:
            found["max_prompt_tokens"] = _most_tokens([self.prompts.text(item.prompt) for item in items], begin)
        if "max_answer_tokens" in wanted:
            answers = [item.answer for item in items if self.task.has_reference(item)]
            others = [self.prompts.text(item.prompt) for item in items if not self.task.has_reference(item)]
            n_end = max([1, *(len(self.tokenizer.encode(each)) for each in self.stop)])
            n_tokens = _most_tokens(answers, self.tokenizer.encode) + n_end if answers else 0
            if others:
                n_tokens = max(n_tokens, _most_tokens(others, begin), _GUESSES["max_answer_tokens"])
            found["max_answer_tokens"] = n_tokens
        if not self.task.knows_longest:
            found = {name: _ROOM_STEP * math.ceil(_ROOM * n_tokens / _ROOM_STEP) for name, n_tokens in found.items()}
        if "max_answer_tokens" in found:
            found["max_answer_tokens"] *= self.task.n_turns
        return found

    def change(self, **settings: Any) -> None:
        """
        :param settings: New values of ``reward_correct``, ``reward_wrong``, ``success_score`` or ``truncate``
        """
        new = {**vars(self), **settings}
        for name in ("reward_correct", "reward_wrong", "success_score"):
            settings[name] = Number().check(name, new[name])
        if new["reward_correct"] <= new["reward_wrong"]:
            raise ValueError(
                f"reward_correct={new['reward_correct']} has to be greater than reward_wrong={new['reward_wrong']}"
            )
        if self.score_range is not None and not self.score_range[0] < new["success_score"] <= self.score_range[1]:
            low, high = self.score_range
            raise ValueError(
                f"success_score={new['success_score']} has to be above {low:g} and at most {high:g}, like the scores of right "
                "answers"
            )
        vars(self).update(settings)

    def choose_item(self, options: dict[str, Any] | None, rng: np.random.Generator) -> EncodedItem:
        """
        :param options: The options passed to ``reset``: ``{"item": k}`` chooses item k
        :param rng: Random generator, which otherwise draws an item
        :return: The item to begin the episode with. If the task does not know its longest items, drawn items that do not fit
            or cannot be encoded are skipped
        """
        if options:
            if set(options) != {"item"}:
                raise ValueError(f"options={options}: the only option is 'item', the number of the item to begin with")
            return self.encode_item(options["item"])
        for _ in range(_MAX_DRAWS):
            try:
                return self.encode_item(self.task.draw(rng))
            except ValueError as error:
                if self.task.knows_longest:
                    raise
                last = error
                if not self._passed_over:
                    warn_user(f"Items like this one are passed over: {error}")
                self._passed_over = True
        raise ValueError(f"{_MAX_DRAWS} items were drawn, and none of them can be used. The last one: {last}") from last

    def encode_item(self, index: int) -> EncodedItem:
        """
        :param index: Index of an item
        :return: The tokenized item, with which an episode can begin
        """
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise ValueError(f"item={index!r:.100} has to be the number of an item, not {type(index).__name__}")
        index, n_items = int(index), self.task.n_items
        if index in self._kept:
            return self._kept[index]
        if index < 0 or (n_items is not None and index >= n_items):
            there_are = "from 0 on" if n_items is None else f"from 0 to {n_items - 1}"
            raise ValueError(f"There is no item {index}: they are numbered {there_are}")
        item = _checked(self.task.item(index), self.task)
        tokens = encode_prompt(self.tokenizer, self.prompts.text(item.prompt))
        if not 1 <= len(tokens) <= self.max_prompt_tokens:
            raise ValueError(
                f"The prompt of item {index} has {len(tokens)} tokens, and there has to be room for it: from 1 to "
                f"max_prompt_tokens={self.max_prompt_tokens}. Prompt: {item.prompt!r:.200}"
            )
        vocab_size = self.tokenizer.vocab_size
        if min(tokens) < 0 or max(tokens) >= vocab_size:
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
        self._kept[index] = EncodedItem(index, item, row, len(tokens))
        return self._kept[index]

    def _check_items(self) -> None:
        """If the task has a list of its items, check them now, not when they are drawn."""
        if type(self.task).longest_items not in (Task.longest_items, PairsTask.longest_items) or not self.task.knows_longest:
            return
        items = list(self.task.longest_items() or ())
        if self.scorer.payload == self.task.reference:
            for item in items:
                self.task.reference(item)
        # The longest ones
        for index in np.argsort([-_n_bytes(str(item.prompt)) for item in items])[:_MAX_CHECKED]:
            self.encode_item(index)
        global _last_checked
        checked = (self.tokenizer, self.stop, self.max_answer_tokens, self.scorer.function, [item.answer for item in items])
        if checked != _last_checked:
            for number, item in enumerate(items):
                self._check_reference(number, item)
            _last_checked = checked

    def _check_reference(self, index: int, item: Item) -> None:
        if not self.task.has_reference(item):
            return
        is_compared = self.scorer.function is is_equivalent
        n_tokens = 0
        if is_compared or (_n_bytes(item.answer) >= self.max_answer_tokens and not self._too_long):
            try:
                tokens = self.tokenizer.encode(item.answer)
            except ValueError:
                tokens = []  # a verifier may accept answers that are written differently
            n_tokens, written = len(tokens) + 1, self.tokenizer.decode(tokens)
            if is_compared and not is_equivalent(written, item.answer):
                raise ValueError(
                    f"No answer equals the reference of item {index}, {item.answer!r:.200}: of it, the tokenizer can write "
                    f"{written!r:.200}. Write the reference with the tokenizer's texts, or pass a tokenizer that has more."
                )
        if self._too_long:
            return
        contained = [each for each in self.stop if each in item.answer]
        if contained:
            warn_user(
                f"The reference of item {index} contains {contained[0]!r}, which is in stop: an answer ends before it, and "
                f"is wrong. There may be more such items. Reference: {item.answer!r:.200}"
            )
        elif n_tokens > self.max_answer_tokens:
            warn_user(
                f"The reference of item {index} has {n_tokens} tokens with its end, but there is room for "
                f"max_answer_tokens={self.max_answer_tokens}: an answer that is as long is cut off, and wrong. There may be "
                f"more such items. Prompt: {item.prompt!r:.200}"
            )
        else:
            return
        self._too_long = True


def _n_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _most_tokens(texts: list[str], encode: Callable[[str], list[int]]) -> int:
    """
    :param texts: Some texts
    :param encode: Returns the tokens of a text
    :return: Number of tokens of the text that has the most
    """
    sized = sorted(((_n_bytes(text), text) for text in set(texts)), reverse=True)
    most = 0
    for rank, (n_bytes, text) in enumerate(sized):
        # A token is at least one byte, except for one that a tokenizer may prepend
        if rank >= _MAX_ENCODED and n_bytes < most:
            break
        most = max(most, len(encode(text)))
    return most


def _checked(item: Any, task: Task) -> Item:
    if not isinstance(item, Item):
        raise TypeError(
            f"The items of {type(task).__name__} have to be of the class Item, Item(prompt, answer), got {item!r:.200}"
        )
    return item


def _checked_stop(stop: Any, tokenizer: Tokenizer) -> tuple[str, ...]:
    if not isinstance(stop, list | tuple) or not all(isinstance(each, str) and each for each in stop):
        raise ValueError(f"stop={stop!r} has to be a list of texts that are not empty, e.g. stop=['\\n']")
    for each in stop:
        try:
            tokens = tokenizer.encode(each)
        except ValueError as error:
            raise ValueError(f"stop={each!r} can never be written. {error}") from error
        # Twice, as a decoder may strip the first token's space. The end-of-text token ends an answer anyway
        if tokenizer.eos_id not in tokens and each not in tokenizer.decode([*tokens, *tokens]):
            raise ValueError(
                f"stop={each!r} can never be written: the tokenizer can only write {tokenizer.decode(tokens)!r}. Leave it out "
                "(the end-of-text token ends answers), write a text that the tokenizer has tokens for, or take another one."
            )
    return tuple(stop)
