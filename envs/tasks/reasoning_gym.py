"""The procedural data sets of reasoning-gym as tasks."""

import dataclasses
import difflib
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import PRINTABLE, Item, Scorer, Task
from sb3_grpo.envs.verifiers.answer_guard import guard_score_answer

# Items that are made to find the longest, and the seconds that this may take: some items take a second each
_N_SAMPLED = 200
_SAMPLING_SECONDS = 2.0

# An item that only a data set without an end has
_FAR = 2**31 - 1

# What a score may need that ends: sympy knows no limit
_SCORE_BYTES = 4 * 2**30


class ReasoningGymTask(Task):
    """
    A data set of `reasoning-gym <https://github.com/open-thought/reasoning-gym>`_, with its own scores.

    Where the data set can, it goes on without an end. Item k of most of them comes from ``seed + k``: for other items,
    as for a test, add at least the number of items to the seed, not 1.
    Many of its scores are a little above 0 for some wrong answers; 1 is right. Some data sets (prime_factorization) raise
    exceptions for answers that they cannot read, or take long over them (simple_integration): in the environments, these
    count as 0. What the data sets would read with ``eval`` or sympy is 0 unless it is a literal or a formula of the kind that
    is asked for.

    :param name: Name of the data set
    :param seed: Which items
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
        # Rather here than at the first answer
        guard_score_answer(name, self.dataset)
        self.n_items = len(self.dataset) if "size" in parameters or not self._goes_on() else None

    def _goes_on(self) -> bool:
        # Some data sets prepare as many items as they were created with, or some more
        try:
            self.dataset[_FAR]
        except IndexError:
            return False
        return True

    def item(self, index: int) -> Item:
        """
        :param index: Number of the item
        :return: The item. The reference is empty where any answer with the right properties will do.
        """
        entry = self.dataset[index]
        answer = entry["answer"]
        return Item(entry["question"], "" if answer is None else str(answer), {"entry": entry})

    def score(self, answer: str, item: Item) -> float:
        """
        :param answer: The agent's answer
        :param item: What it was asked
        :return: The data set's score
        """
        return guard_score_answer(self.name, self.dataset)(answer, item.metadata["entry"])

    def scorer(self) -> Scorer:
        """
        :return: The data set's own method behind a guard: a process that has only that needs nothing of this package
        """
        return Scorer(guard_score_answer(self.name, self.dataset), _entry, _SCORE_BYTES)

    def has_reference(self, item: Item) -> bool:
        """
        :param item: An item
        :return: Whether the data set knows an answer. The empty text can be one
        """
        return item.metadata["entry"]["answer"] is not None

    @cached_property
    def _sampled_items(self) -> list[Item]:
        n_items = _N_SAMPLED if self.n_items is None else min(self.n_items, _N_SAMPLED)
        rng = np.random.default_rng(0)
        indices = range(n_items) if n_items == self.n_items else (self.draw(rng) for _ in range(n_items))
        items: list[Item] = []
        end = time.monotonic() + _SAMPLING_SECONDS
        for index in indices:
            items.append(self.item(index))
            if time.monotonic() > end:
                break
        return items

    @property
    def knows_longest(self) -> bool:
        """Whether the sample has all items."""
        return len(self._sampled_items) == self.n_items

    def longest_items(self) -> Iterable[Item]:
        """
        :return: Some items
        """
        return self._sampled_items

    def alphabet(self) -> str:
        """
        :return: Printable ASCII, and what else occurs in some items
        """
        seen = {character for item in self._sampled_items for character in item.prompt + item.answer}
        return PRINTABLE + "".join(sorted(seen - set(PRINTABLE)))


def _entry(item: Item) -> dict[str, Any]:
    return item.metadata["entry"]
