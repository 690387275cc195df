"""Text tasks: prompts, and scores of the answers to them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sb3_grpo.envs.verifiers.math_answers import is_equivalent

# Alphabet of tasks that cannot know which characters will occur
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))

# Maximum number of items to create when looking for the longest prompt
MAX_ITEMS_LOOKED_THROUGH = 10_000

# Number of indices to draw from if a task has infinitely many items
_UNLIMITED = 2**31


def is_prompt(prompt: Any) -> bool:
    """
    :param prompt: Anything
    :return: Whether it is a text, or a list of messages
    """
    if not isinstance(prompt, list):
        return isinstance(prompt, str)
    keys = ("role", "content")
    return bool(prompt) and all(
        isinstance(each, Mapping) and all(isinstance(each.get(key), str) for key in keys) for each in prompt
    )


@dataclass(frozen=True)
class Item:
    """
    One prompt of a task.

    :param prompt: The text that the agent reads, or a list of messages ``{"role": ..., "content": ...}`` for a chat template
    :param answer: The reference answer, empty if there is none
    :param metadata: Any further data of the item
    """

    prompt: Any
    answer: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (is_prompt(self.prompt) and isinstance(self.answer, str)):
            raise TypeError(
                "An Item has two texts, prompt (or a list of messages with role and content) and answer (empty where there is "
                f"none), got {self.prompt!r:.200} and {self.answer!r:.200}"
            )


class Scorer(NamedTuple):
    """
    Scores answers, in a form that can be sent to another process.

    :param function: Takes the answer and the result of ``payload``, returns the score
    :param payload: Takes the item, returns the part of it that ``function`` needs. It is never sent to another process.
    :param name: Name of a verifier of this package or of reasoning-gym that some answers may be too hard for: it has a memory
        limit, and its failures count as wrong answers by default. None: a function that should not fail
    """

    function: Callable[[str, Any], Any]
    payload: Callable[[Item], Any]
    name: str | None = None


class Reply(NamedTuple):
    """
    A reply to the agent's answer with a reward for that answer, see :meth:`Task.reply`.

    :param text: A text that the agent has to answer, or None to end the episode
    :param reward: The reward, at the last token of the answer
    """

    text: str | None
    reward: float = 0.0


class Task(ABC):
    """
    Base class of tasks, the source of prompts. Subclasses must define ``item``; everything else has defaults.

    ``n_items`` is the number of items; with None, the default, every index from 0 on is an item.
    ``max_reply_tokens`` is the maximum number of tokens of all replies in one episode.
    ``n_turns`` is the maximum number of answers that the agent can give in one episode.
    ``knows_longest`` states that no item is longer than those of ``longest_items``; otherwise some room is added.
    ``trusted`` states that ``score`` and ``reply`` are known to be quick and safe: they run in this process, without a time
    limit. It applies to the methods that the class defines or inherits, not to those that a subclass overrides.
    """

    n_items: int | None = None
    n_turns: int = 1
    trusted: bool = True

    @abstractmethod
    def item(self, index: int) -> Item:
        """
        :param index: Index of the item
        :return: The item, the same at every call
        """

    def score(self, answer: str, item: Item) -> float | Mapping[str, float]:
        """
        :param answer: The agent's (last) answer: untrusted text
        :param item: The item that it was asked
        :return: 1 for a right answer, 0 for a wrong one, or a value in between. Or a dictionary with the parts of the score by
            name, which are added
        """
        return float(is_equivalent(answer, self.reference(item)))

    def reply(self, item: Item, messages: list[str]) -> str | Reply | None:
        """
        Reply to the agent's answer, for tasks with several turns. Unless it is trusted, this method runs in the verifier's
        process with the same time limit: it must depend on nothing but its arguments.

        :param item: The item that the agent was asked
        :param messages: The agent's first answer, the reply to it, the second answer, and so on up to the agent's last answer
        :return: A text that the agent has to answer, or None to end the episode with the last answer. With a reward for that
            answer: a :class:`Reply`
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
        :return: Whether it has a reference answer in ``answer``
        """
        return item.answer != ""

    def reference(self, item: Item) -> str:
        """
        :param item: An item
        :return: Its reference answer, with which an agent's answer is compared
        :raises ValueError: if it has none, as the empty answer would then be right
        """
        if not self.has_reference(item):
            others = f" (its other keys are {', '.join(map(repr, item.metadata))})" if item.metadata else ""
            raise ValueError(
                f"There is no reference that an answer could be compared with{others}. Give the item one, name its key with "
                "answer_key (--answer-key), or use a verifier that needs none: f(prompts, completions, **columns), or a "
                f"Task's own score(). Prompt: {item.prompt!r:.200}"
            )
        return item.answer

    def columns(self, item: Item) -> tuple[Any, dict[str, Any]]:
        """
        :param item: An item
        :return: Its prompt, and what reward functions are given with it by name: the answer and its metadata
        """
        return item.prompt, {"answer": item.answer, **item.metadata}

    def scorer(self) -> Scorer:
        """
        :return: The scorer to send to the process that scores answers
        """
        if type(self).score is Task.score:
            # A missing reference is an error in this process: errors of a verifier may be counted as wrong answers
            return Scorer(is_equivalent, self.reference)
        return Scorer(self.score, _whole_item)

    def alphabet(self) -> str:
        """
        :return: The characters of the default tokenizer
        """
        return PRINTABLE

    def longest_items(self) -> Iterable[Item] | None:
        """
        :return: Items that include those with the longest prompt and the longest answer, None if these are unknown
        """
        if self.n_items is None or self.n_items > MAX_ITEMS_LOOKED_THROUGH:
            return None
        return map(self.item, range(self.n_items))

    def draw(self, rng: np.random.Generator) -> int:
        """
        :param rng: Random generator
        :return: The index of a random item
        """
        return int(rng.integers(_UNLIMITED if self.n_items is None else self.n_items))

    def worked_examples(self, n: int, seed: int = 0) -> list[tuple[str, str]]:
        """
        Prompts with the right answers, for supervised training before the first episode.

        :param n: Number of examples, all different
        :param seed: Seed for drawing them
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
    :return: Whether they may run in this process: the task is trusted, and no subclass of the class that sets ``trusted``
        overrides any of them
    """
    says_so = _where("trusted", task)
    return bool(task.trusted) and all(issubclass(says_so, _where(method, task)) for method in methods)


def _where(name: str, task: Task) -> type:
    return next(each for each in type(task).__mro__ if name in vars(each))


def _whole_item(item: Item) -> Item:
    return item
