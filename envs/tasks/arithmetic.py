"""Arithmetic task: sums, differences and products of numbers with few digits."""

import operator
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import Item, Task
from sb3_grpo.utils.parameters import Whole

_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

# Limit on the list of all pairs, which is needed to leave some of them out
_MAX_LISTED = 10_000_000


class ArithmeticTask(Task):
    """
    Prompts like ``3+4=``, with the answer ``7``. Every pair of operands from 0 to ``10**digits - 1`` is one item.
    Only answers in exactly this form are right: neither ``07`` nor ``+7``, and with ``zero_pad`` only ``07``.

    :param digits: Maximum number of digits of the operands
    :param operations: Operations to use, some of ``+-*``
    :param zero_pad: Whether to pad all answers to the same number of characters: ``07``
    :param split: ``"all"`` items, those for ``"train"``, or those held out for ``"test"``
    :param n_test: Number of items held out
    :param seed: Seed for choosing the items held out
    """

    trusted = True

    def __init__(
        self,
        digits: int = 1,
        operations: str = "+",
        zero_pad: bool = False,
        split: str = "all",
        n_test: int = 0,
        seed: int = 0,
    ):
        digits, n_test = Whole(1, 9).check("digits", digits), Whole(0).check("n_test", n_test)
        if not operations or len(set(operations)) < len(operations) or not set(operations) <= set(_COMPUTE):
            raise ValueError(f"operations={operations!r} has to be some of {''.join(_COMPUTE)!r}, each at most once")
        if split not in ("all", "train", "test"):
            raise ValueError(f"split={split!r} has to be 'all', 'train' or 'test'")
        self.digits, self.operations, self.zero_pad = digits, operations, zero_pad
        self._n_pairs = len(operations) * 10 ** (2 * digits)
        self._listed = None if split == "all" else self._list_items(split, n_test, seed)
        self.n_items = self._n_pairs if self._listed is None else len(self._listed)

    def _list_items(self, split: str, n_test: int, seed: int) -> np.ndarray:
        if self._n_pairs > _MAX_LISTED:
            raise ValueError(f"split={split!r} needs a list of all {self._n_pairs} items, which is too long: use fewer digits")
        if not 0 < n_test < self._n_pairs:
            raise ValueError(f"split={split!r} needs n_test from 1 to {self._n_pairs - 1}, got {n_test}")
        shuffled = np.random.default_rng(seed).permutation(self._n_pairs)
        return np.sort(shuffled[:n_test] if split == "test" else shuffled[n_test:])

    def _compute(self, pair: int) -> tuple[int, str, int, int]:
        """
        :param pair: Index among all pairs
        :return: First operand, operation, second operand, result
        """
        pair, b = divmod(pair, 10**self.digits)
        operation, a = divmod(pair, 10**self.digits)
        sign = self.operations[operation]
        return a, sign, b, _COMPUTE[sign](a, b)

    @cached_property
    def _width(self) -> int:
        # The same for all splits, so that their answers have the same format
        return max(len(str(answer)) for answer in self._extreme_answers())

    def _extreme_answers(self) -> list[int]:
        largest = 10**self.digits - 1
        answers = [_COMPUTE[sign](largest, largest) for sign in self.operations]
        return answers + ([-largest] if "-" in self.operations else [])

    def item(self, index: int) -> Item:
        """
        :param index: Index of the item
        :return: The item
        """
        a, sign, b, result = self._compute(index if self._listed is None else int(self._listed[index]))
        answer = f"{result:0{self._width}d}" if self.zero_pad else str(result)
        return Item(f"{a}{sign}{b}=", answer, {"a": a, "operation": sign, "b": b})

    def score(self, answer: str, item: Item) -> float:
        """
        :param answer: The agent's answer
        :param item: The item that it was asked
        :return: 1 if the answer equals the reference, else 0
        """
        return float(answer == item.answer)

    def alphabet(self) -> str:
        """
        :return: Digits, the operations (including the sign of negative answers), and ``=``
        """
        return "0123456789" + self.operations + "="

    def longest_items(self) -> Iterable[Item]:
        """
        :return: Items (of any split) with the longest prompt and the longest answer
        """
        largest = 10**self.digits - 1
        return [Item(f"{largest}{self.operations[0]}{largest}=", str(answer)) for answer in self._extreme_answers()]
