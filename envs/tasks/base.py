"""Tasks of text: prompts, and what an answer to each of them is worth."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_grpo.envs.verifiers.runner import is_equivalent

# For tasks that cannot know which characters will occur
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))

# More items than this are not made to look for the longest prompt
MAX_ITEMS_LOOKED_THROUGH = 10_000

# More pairs than this are not read from an iterator, which may have no end
_MAX_PAIRS = 1_000_000

# Indices that are drawn from a task without an end
_UNLIMITED = 2**31


@dataclass(frozen=True)
class Item:
    """
    One prompt of a task.

    :param prompt: What the agent reads
    :param answer: The reference, empty where there is none
    :param metadata: Anything else that belongs to it
    """

    prompt: str
    answer: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.prompt, str) and isinstance(self.answer, str)):
            raise TypeError(
                f"An Item has two texts, prompt and answer (empty where there is none), got {self.prompt!r:.200} and "
                f"{self.answer!r:.200}"
            )


class Scorer(NamedTuple):
    """
    How an answer is scored, in a form that can be sent to another process.

    :param function: Gets the answer and what ``payload`` returns, returns the score
    :param payload: Gets the item, returns what ``function`` needs of it. It is never sent anywhere.
    :param n_bytes: Memory that the process may take in addition to what it begins with (on Linux). None: no limit
    """

    function: Callable[[str, Any], Any]
    payload: Callable[[Item], Any]
    n_bytes: int | None = None


class Task(ABC):
    """
    Where prompts come from. A task of your own needs ``item``; the rest has defaults.

    ``n_items`` is the number of items; with None, the default, every index from 0 on is an item.
    ``max_reply_tokens`` is how many tokens the replies of one episode can have.
    ``n_turns`` is how many answers the agent can give in one episode.
    ``knows_longest`` is whether no item is longer than those of ``longest_items``; otherwise there is some room added.
    ``trusted`` is whether ``score`` and ``reply`` are known to be quick and safe: they run in this process, without a time
    limit. A class says so of the methods that it has or inherits, not of those that a subclass replaces.
    """

    n_items: int | None = None
    n_turns: int = 1
    trusted: bool = True

    @abstractmethod
    def item(self, index: int) -> Item:
        """
        :param index: Number of the item
        :return: The item, the same one at every call
        """

    def score(self, answer: str, item: Item) -> float:
        """
        :param answer: The agent's (last) answer: data that may be anything
        :param item: What it was asked
        :return: 1 for a right answer, 0 for a wrong one, or something between
        """
        return float(is_equivalent(answer, self.reference(item)))

    def reply(self, item: Item, messages: list[str]) -> str | None:
        """
        What the agent gets to read next, for tasks of several turns. Unless it is trusted, it runs in the process of
        the verifier with the same time limit: it must depend on nothing but its arguments.

        :param item: What the agent was asked first
        :param messages: The agent's first answer, the reply to it, the second answer, ...: the agent's is the last one
        :return: A text that the agent has to answer, or None to end the episode with the last answer
        """
        return None

    @property
    def max_reply_tokens(self) -> int:
        return 0 if type(self).reply is Task.reply else 128

    @property
    def knows_longest(self) -> bool:
        return True

    def has_reference(self, item: Item) -> bool:
        """
        :param item: An item
        :return: Whether its ``answer`` is one
        """
        return item.answer != ""

    def reference(self, item: Item) -> str:
        """
        :param item: An item
        :return: Its ``answer``, which an agent's answer is compared with
        :raises ValueError: if there is none: with nothing to compare with, the empty answer would be right
        """
        if not self.has_reference(item):
            raise ValueError(
                "There is no reference that an answer could be compared with. Give the item one, or leave out verifier= and "
                f"use a Task whose own score() needs none. Prompt: {item.prompt!r:.200}"
            )
        return item.answer

    def scorer(self) -> Scorer:
        """
        :return: What a process that scores answers gets
        """
        if type(self).score is Task.score:
            # The reference is looked for here: mistakes of a verifier may be set to count as wrong answers
            return Scorer(is_equivalent, self.reference)
        return Scorer(self.score, _whole_item)

    def alphabet(self) -> str:
        """
        :return: The characters of the default tokenizer
        """
        return PRINTABLE

    def longest_items(self) -> Iterable[Item] | None:
        """
        :return: Items among which are those with the longest prompt and the longest answer, None if they are unknown
        """
        if self.n_items is None or self.n_items > MAX_ITEMS_LOOKED_THROUGH:
            return None
        return map(self.item, range(self.n_items))

    def draw(self, rng: np.random.Generator) -> int:
        """
        :param rng: Random generator
        :return: The index of an item
        """
        return int(rng.integers(_UNLIMITED if self.n_items is None else self.n_items))

    def worked_examples(self, n: int, seed: int = 0) -> list[tuple[str, str]]:
        """
        Prompts with the right answers, for supervised training before the first episode.

        :param n: How many, all different
        :param seed: Which ones
        :return: Pairs of prompt and answer
        """
        n_items = _UNLIMITED if self.n_items is None else self.n_items
        if not 0 <= n <= n_items:
            raise ValueError(f"n={n} worked examples: there are {n_items} items")
        indices = np.random.default_rng(seed).choice(n_items, size=n, replace=False)
        items = {int(index): self.item(int(index)) for index in indices}
        for index, item in items.items():
            if not self.has_reference(item):
                raise ValueError(
                    f"Item {index} has no reference answer, so that it cannot be a worked example: {item.prompt!r:.200}"
                )
        return [(item.prompt, item.answer) for item in items.values()]


def is_trusted(task: Task, *methods: str) -> bool:
    """
    :param task: A task
    :param methods: Names of some of its methods
    :return: Whether they may run in this process: it is trusted, and none of them is newer than the class that says so
    """
    says_so = _where("trusted", task)
    return bool(task.trusted) and all(issubclass(says_so, _where(method, task)) for method in methods)


def _where(name: str, task: Task) -> type:
    return next(each for each in type(task).__mro__ if name in vars(each))


def _whole_item(item: Item) -> Item:
    return item


class PairsTask(Task):
    """
    A list of prompts and answers. An answer is right if it equals the reference (see ``is_equivalent``).

    :param pairs: (prompt, answer), or (prompt, answer, metadata). Numbers as answers become text.
    """

    def __init__(self, pairs: Iterable[tuple[Any, ...]]):
        if not isinstance(pairs, list | tuple):
            pairs = list(islice(pairs, _MAX_PAIRS + 1))
            if len(pairs) > _MAX_PAIRS:
                raise ValueError(
                    f"There are more than {_MAX_PAIRS} pairs, perhaps without an end: give a list, or a function from an "
                    "index to a pair"
                )
        self._items = [_pair(pair, f"Pair {index}") for index, pair in enumerate(pairs)]
        self.n_items = len(self._items)
        if not self._items:
            raise ValueError("The task has no items: give at least one pair (prompt, answer)")

    @classmethod
    def from_jsonl(cls, path: str | Path, prompt_key: str = "prompt", answer_key: str = "answer") -> "PairsTask":
        """
        :param path: File with one JSON object per line; blank lines are skipped
        :param prompt_key: Where the prompt is in it
        :param answer_key: Where the answer is in it. Everything else becomes the item's metadata.
        :return: The task
        """
        pairs = []
        try:
            # str.splitlines() would also split at characters that JSON has in its texts
            with open(path, encoding="utf-8-sig") as lines:  # some editors begin a file with a mark
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        pairs.append(_json_pair(line, f"{path}, line {number}", prompt_key, answer_key))
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {str(path)!r} to read prompts from") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not in UTF-8 ({error}): save it with that encoding") from None
        if not pairs:
            raise ValueError(f"{path} has no lines: expected one JSON object with {prompt_key!r} and {answer_key!r} per line")
        return cls(pairs)

    def item(self, index: int) -> Item:
        """
        :param index: Number of the pair
        :return: The pair
        """
        return self._items[index]

    def longest_items(self) -> Iterable[Item]:
        """
        :return: All pairs
        """
        return self._items

    def alphabet(self) -> str:
        """
        :return: All characters of all pairs
        """
        return "".join(sorted({character for item in self._items for character in item.prompt + item.answer}))


class GeneratorTask(Task):
    """
    Prompts from a function.

    :param function: Gets an index, returns (prompt, answer) or (prompt, answer, metadata), always the same for one index
    :param n_items: Indices are smaller than this; None: there is no end
    :param alphabet: The characters that occur; None: printable ASCII
    """

    def __init__(self, function: Callable[[int], tuple[Any, ...]], n_items: int | None = None, alphabet: str | None = None):
        if n_items is not None and n_items < 1:
            raise ValueError(f"n_items={n_items}: a task has at least one item")
        _check_takes_index(function)
        self.function = function
        self.n_items = n_items
        self._alphabet = PRINTABLE if alphabet is None else alphabet

    def item(self, index: int) -> Item:
        """
        :param index: Number of the item
        :return: What the function returns for it
        """
        return _pair(self.function(index), f"What {getattr(self.function, '__name__', self.function)}({index}) returned")

    def alphabet(self) -> str:
        """
        :return: The characters that occur
        """
        return self._alphabet


def _check_takes_index(function: Callable[[int], tuple[Any, ...]]) -> None:
    name = getattr(function, "__name__", repr(function))
    if inspect.isgeneratorfunction(function):
        raise TypeError(
            f"task={name} is a generator function. Give what it generates, task={name}(), "
            "or a function from an index to one pair (prompt, answer), with return in place of yield"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in functions do not tell
    try:
        signature.bind(0)
    except TypeError:
        raise TypeError(
            f"task={name} takes {signature}: it has to be a function of one index that returns a pair (prompt, answer)"
        ) from None


def _pair(pair: Any, where: str) -> Item:
    if not isinstance(pair, tuple | list) or not 2 <= len(pair) <= 3:
        raise ValueError(f"{where} is not a pair (prompt, answer) of texts: {pair!r:.200}")
    prompt, answer, metadata = pair if len(pair) == 3 else (*pair, {})
    if isinstance(answer, Real) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(prompt, str) or not isinstance(answer, str) or not isinstance(metadata, dict):
        raise ValueError(f"{where} is not a pair (prompt, answer) of texts: {pair!r:.200}")
    if not prompt:
        raise ValueError(f"{where} has an empty prompt: the agent needs at least one token to read")
    return Item(prompt, answer, metadata)


def _json_pair(line: str, where: str, prompt_key: str, answer_key: str) -> tuple[Any, ...]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error}): {line!r:.200}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not a JSON object: {line!r:.200}")
    for key in (prompt_key, answer_key):
        if key not in entry:
            raise ValueError(
                f"{where} has no {key!r}, only {', '.join(map(repr, entry)) or 'nothing'}. "
                "Name the keys of your file with prompt_key and answer_key."
            )
    metadata = {key: value for key, value in entry.items() if key not in (prompt_key, answer_key)}
    item = _pair((entry[prompt_key], entry[answer_key], metadata), where)
    return item.prompt, item.answer, item.metadata
