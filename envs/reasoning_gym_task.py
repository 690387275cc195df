"""The procedural data sets of reasoning-gym as tasks."""

import dataclasses
import difflib
from typing import Any

from .tasks import Item, Scorer, Task


class ReasoningGymTask(Task):
    """
    A data set of `reasoning-gym <https://github.com/open-thought/reasoning-gym>`_, with its own scores.

    Where the data set can, it goes on without an end. Item k of most of them comes from ``seed + k``: for other items,
    as for a test, add at least the number of items to the seed, not 1.
    Many of its scores are a little above 0 for some wrong answers; 1 is right. Some data sets (prime_factorization) raise
    exceptions for answers that they cannot read: use them with ``on_verifier_error="zero"``.

    :param name: Name of the data set
    :param seed: Which items
    :param parameters: Parameters of the data set. With ``size``, there are only so many items.
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
        self.n_items = len(self.dataset) if "size" in parameters or not self._goes_on() else None

    def _goes_on(self) -> bool:
        # Some data sets prepare as many items as they were created with
        try:
            self.dataset[len(self.dataset)]
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
        return self.dataset.score_answer(answer, item.metadata["entry"])

    def scorer(self) -> Scorer:
        """
        :return: The data set's own method: a process that has only that needs nothing of this package
        """
        return Scorer(self.dataset.score_answer, _entry)


def _entry(item: Item) -> dict[str, Any]:
    return item.metadata["entry"]
