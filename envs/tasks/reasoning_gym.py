"""Tasks from the procedural data sets of reasoning-gym."""

import contextlib
import dataclasses
import difflib
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import PRINTABLE, Item, Scorer, Task
from sb3_grpo.envs.verifiers.answer_guard import guard_score_answer

# Number of items to create when looking for the longest, and the time limit in seconds, as some items take a second each
_N_SAMPLED = 200
_SAMPLING_SECONDS = 2.0

# Index of an item that only an unlimited data set has
_FAR = 2**31 - 1


class ReasoningGymTask(Task):
    """
    A data set of `reasoning-gym <https://github.com/open-thought/reasoning-gym>`_, with its own scores.

    The number of items is unlimited if the data set allows it. In most data sets, item k comes from ``seed + k``: to get
    different items, e.g. for a test, add at least the number of items to the seed, not 1.
    A right answer has a score of 1, and many data sets give some wrong answers a score slightly above 0. Some data sets raise
    exceptions for answers that they cannot parse (prime_factorization), or take long (simple_integration): in the
    environments, these count as 0. Answers that the data sets would parse with ``eval`` or sympy score 0 unless they are a
    literal or a formula of the expected kind.

    :param name: Name of the data set
    :param seed: Seed of the data set, which determines its items
    :param parameters: Parameters of the data set. ``size`` limits the number of items.
    """

    def __init__(self, name: str, seed: int = 0, **parameters: Any):
        try:
            from reasoning_gym import create_dataset
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise ImportError(
                f'The task reasoning_gym:{name} needs the package reasoning-gym: pip install "sb3-grpo[text]"'
            ) from error
        if name not in DATASETS:
            close = difflib.get_close_matches(name, DATASETS, n=5, cutoff=0.4) or sorted(DATASETS)
            raise ValueError(f"reasoning-gym has no data set {name!r}. Names like it: {', '.join(close)}")
        known = [field.name for field in dataclasses.fields(DATASETS[name][1])]
        if unknown := sorted(set(parameters) - set(known)):
            raise ValueError(f"reasoning_gym:{name} has no parameter {', '.join(unknown)}, only {', '.join(known)}")
        self.name = name
        try:
            self.dataset = create_dataset(name, seed=seed, **parameters)
        except (AssertionError, ValueError, TypeError) as error:
            raise ValueError(f"reasoning_gym:{name} refuses the parameters {parameters}: {error}") from error
        # Raises an error here rather than at the first answer
        guard_score_answer(name, self.dataset)
        self.n_items: int | None = len(self.dataset)
        if "size" not in parameters:
            # Some data sets prepare a fixed number of items, at least as many as their size
            with contextlib.suppress(IndexError):
                self.dataset[_FAR]
                self.n_items = None

    def item(self, index: int) -> Item:
        """
        :param index: Index of the item
        :return: The item. The reference is empty if any answer with the right properties is accepted.
        """
        entry = self.dataset[index]
        answer = entry["answer"]
        return Item(entry["question"], "" if answer is None else str(answer), {"entry": entry})

    def score(self, answer: str, item: Item) -> float:
        """
        :param answer: The agent's answer
        :param item: The item that it was asked
        :return: The data set's score
        """
        return guard_score_answer(self.name, self.dataset)(answer, item.metadata["entry"])

    def scorer(self) -> Scorer:
        """
        :return: The data set's own method, protected by a guard. The process that runs it does not need this package
        """
        return Scorer(guard_score_answer(self.name, self.dataset), _entry, f"reasoning_gym:{self.name}")

    def has_reference(self, item: Item) -> bool:
        """
        :param item: An item
        :return: Whether the data set has an answer, which can be the empty text
        """
        return item.metadata["entry"]["answer"] is not None

    @cached_property
    def _sampled_items(self) -> list[Item]:
        n_items = _N_SAMPLED if self.n_items is None else min(self.n_items, _N_SAMPLED)
        rng = np.random.default_rng(0)
        items: list[Item] = []
        end = time.monotonic() + _SAMPLING_SECONDS
        while len(items) < n_items and time.monotonic() < end:
            items.append(self.item(len(items) if n_items == self.n_items else self.draw(rng)))
        return items

    @property
    def knows_longest(self) -> bool:
        """Whether the sample includes all items."""
        return len(self._sampled_items) == self.n_items

    def longest_items(self) -> Iterable[Item]:
        """
        :return: A sample of the items
        """
        return self._sampled_items

    def alphabet(self) -> str:
        """
        :return: Printable ASCII, and all other characters in a sample of the items
        """
        seen = {character for item in self._sampled_items for character in item.prompt + item.answer}
        return PRINTABLE + "".join(sorted(seen - set(PRINTABLE)))


def _entry(item: Item) -> dict[str, Any]:
    return item.metadata["entry"]
