"""Built-in tasks: arithmetic, capitals, guessing a number, and a calculator."""

import difflib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import PRINTABLE, Item, Task
from sb3_grpo.envs.tasks.calculator import CALCULATOR_ERROR, MAX_RESULT, calculate
from sb3_grpo.envs.tasks.pairs import PairsTask
from sb3_grpo.envs.tasks.reasoning_gym import ReasoningGymTask
from sb3_grpo.utils.parameters import Whole

_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

# How a call of the calculator begins
_CALL = "calc("

# Limit on the list of all pairs, which is needed to leave some of them out
_MAX_LISTED = 10_000_000

_CAPITALS = """
Australia: Canberra, Argentina: Buenos Aires, Austria: Vienna, Belgium: Brussels, Brazil: Brasilia, Bulgaria: Sofia,
Canada: Ottawa, Chile: Santiago, China: Beijing, Colombia: Bogota, Croatia: Zagreb, Cuba: Havana, Denmark: Copenhagen,
Egypt: Cairo, Finland: Helsinki, France: Paris, Germany: Berlin, Ghana: Accra, Greece: Athens, Hungary: Budapest,
Iceland: Reykjavik, India: New Delhi, Indonesia: Jakarta, Iran: Tehran, Iraq: Baghdad, Ireland: Dublin, Italy: Rome,
Japan: Tokyo, Kenya: Nairobi, Mexico: Mexico City, Mongolia: Ulaanbaatar, Morocco: Rabat, New Zealand: Wellington,
Nigeria: Abuja, Norway: Oslo, Pakistan: Islamabad, Peru: Lima, Poland: Warsaw, Portugal: Lisbon, Romania: Bucharest,
Russia: Moscow, Senegal: Dakar, Spain: Madrid, Sweden: Stockholm, Thailand: Bangkok, Tunisia: Tunis, Turkey: Ankara,
Ukraine: Kyiv, Uruguay: Montevideo, Vietnam: Hanoi
"""


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
    _width = 0

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
        self.digits, self.operations = digits, operations
        self.n_items = n_pairs = len(operations) * 10 ** (2 * digits)
        self._listed: np.ndarray | None = None
        if split != "all":
            if n_pairs > _MAX_LISTED:
                raise ValueError(f"split={split!r} needs a list of all {n_pairs} items, which is too long: use fewer digits")
            if not 0 < n_test < n_pairs:
                raise ValueError(f"split={split!r} needs n_test from 1 to {n_pairs - 1}, got {n_test}")
            shuffled = np.random.default_rng(seed).permutation(n_pairs)
            self._listed = np.sort(shuffled[:n_test] if split == "test" else shuffled[n_test:])
            self.n_items = len(self._listed)
        # The same for all splits, so that their answers have the same format
        self._width = max(len(item.answer) for item in self.longest_items()) if zero_pad else 0

    def item(self, index: int) -> Item:
        """
        :param index: Index of the item
        :return: The item
        """
        pair, b = divmod(index if self._listed is None else int(self._listed[index]), 10**self.digits)
        operation, a = divmod(pair, 10**self.digits)
        return self._item(a, self.operations[operation], b)

    def _item(self, a: int, sign: str, b: int) -> Item:
        answer = str(_COMPUTE[sign](a, b)).zfill(self._width)
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
        items = [self._item(largest, sign, largest) for sign in self.operations]
        return [*items, self._item(0, "-", largest)] if "-" in self.operations else items


class CapitalsTask(PairsTask):
    """Questions about some fifty capitals: What is the capital of Australia? Canberra."""

    def __init__(self) -> None:
        entries = (entry.strip().split(": ") for entry in _CAPITALS.replace("\n", " ").split(","))
        super().__init__((f"What is the capital of {country}?", capital) for country, capital in entries)


class GuessNumberTask(Task):
    """
    Guess a digit. The reply to a wrong guess is H (the number is higher) or L (lower), and to anything else ``?``.

    :param max_turns: Maximum number of guesses
    """

    n_items = 10
    trusted = True

    def __init__(self, max_turns: int = 4):
        self.n_turns = Whole().check("max_turns", max_turns)

    @property
    def max_reply_tokens(self) -> int:
        return self.n_turns - 1

    def item(self, index: int) -> Item:
        """
        :param index: The number to guess
        :return: The item, whose prompt is always the same
        """
        return Item("0-9?", str(index))

    def reply(self, item: Item, messages: list[str]) -> str | None:
        """
        :param item: The item with the number to guess
        :param messages: Guesses and hints so far
        :return: A hint; None if the number was found, or after the last guess
        """
        guess = messages[-1].strip()
        if guess == item.answer or len(messages) >= 2 * self.n_turns - 1:
            return None
        # str.isdecimal() is true for the digits of all scripts
        if len(guess) != 1 or guess not in "0123456789":
            return "?"
        return "H" if item.answer > guess else "L"

    def alphabet(self) -> str:
        """
        :return: Digits, and the characters of the prompt and the hints
        """
        return "0123456789HL?-"


class CalculatorTask(ArithmeticTask):
    """
    :class:`ArithmeticTask` with a calculator: an answer ``calc(12*34)`` is replied to with the result and a new line, here
    ``408``, and the first other answer is the final one, which alone is scored. Expressions have numbers, ``+-*/`` and
    brackets; to anything else between the brackets the reply is ``error``.

    :param digits: Maximum number of digits of the operands
    :param operations: Operations of the prompts, some of ``+-*``
    :param split: ``"all"`` items, those for ``"train"``, or those held out for ``"test"``
    :param n_test: Number of items held out
    :param seed: Seed for choosing the items held out
    :param max_turns: Maximum number of answers; the last one is the final one, whatever it is
    """

    # It calculates what the agent wants: in the verifier's process, with a time limit
    trusted = False

    def __init__(
        self,
        digits: int = 2,
        operations: str = "*",
        split: str = "all",
        n_test: int = 0,
        seed: int = 0,
        max_turns: int = 3,
    ):
        super().__init__(digits, operations, split=split, n_test=n_test, seed=seed)
        self.n_turns = Whole().check("max_turns", max_turns)

    @property
    def max_reply_tokens(self) -> int:
        return (self.n_turns - 1) * (MAX_RESULT + 1)

    def reply(self, item: Item, messages: list[str]) -> str | None:
        """
        :param item: The item that the agent was asked
        :param messages: Calls and results so far
        :return: The result of the last call; None if it is no call, or after the last answer
        """
        answer = messages[-1].strip()
        if not answer.startswith(_CALL) or len(messages) >= 2 * self.n_turns - 1:
            return None
        expression = answer.removeprefix(_CALL)
        return f"{calculate(expression[:-1]) if expression.endswith(')') else CALCULATOR_ERROR}\n"

    def worked_examples(self, n: int, seed: int = 0) -> list[tuple[str, str]]:
        """
        :param n: Number of examples, all different
        :param seed: Seed for drawing them
        :return: Pairs of prompt, and call, result and answer in a line each, as they are with ``stop=["\\n"]``
        """
        examples = super().worked_examples(n, seed)
        return [(prompt, f"{_CALL}{prompt.removesuffix('=')})\n{answer}\n{answer}") for prompt, answer in examples]

    def longest_items(self) -> list[Item]:
        """
        :return: Items with the longest prompt and, instead of an answer, the longest call that they need
        """
        return [Item(item.prompt, f"{_CALL}{item.prompt.removesuffix('=')})") for item in super().longest_items()]

    def alphabet(self) -> str:
        """
        :return: Printable ASCII
        """
        return PRINTABLE


_BY_NAME: dict[str, Callable[..., Task]] = {
    "arithmetic": ArithmeticTask,
    "calculator": CalculatorTask,
    "capitals": CapitalsTask,
    "guess_number": GuessNumberTask,
}
_REASONING_GYM = "reasoning_gym:"


def make_task(task: Any, **task_kwargs: Any) -> Task:
    """
    Create a task.

    :param task: A name (``arithmetic``, ``calculator``, ``capitals``, ``guess_number``, ``reasoning_gym:NAME``), a
        :class:`Task`, a list or iterator of pairs (prompt, answer), a ``datasets.Dataset``, or the path of a ``.jsonl`` or
        ``.csv`` file
    :param task_kwargs: Arguments for :class:`ArithmeticTask`, :class:`CalculatorTask`, :class:`GuessNumberTask`, the data set
        of reasoning-gym or :class:`PairsTask` (``prompt_key`` and ``answer_key``)
    :return: The task
    """
    if isinstance(task, Task):
        if task_kwargs:
            raise ValueError(f"task_kwargs={task_kwargs} have no use for a task that exists already: {type(task).__name__}")
        return task
    if isinstance(task, Path) or (isinstance(task, str) and task.lower().endswith((".jsonl", ".csv"))):
        return PairsTask.from_file(task, **task_kwargs)
    if hasattr(task, "__len__") and hasattr(task, "__getitem__") and not isinstance(task, str | Mapping):
        task = map(task.__getitem__, range(len(task)))
    if isinstance(task, Iterator):
        return PairsTask(task, **task_kwargs)
    if not isinstance(task, str):
        raise TypeError(
            f"task={task!r:.200} has to be a name, a Task, a list of pairs (prompt, answer), one split of a data set of "
            "datasets, or the path of a .jsonl or .csv file"
        )
    if task.startswith(_REASONING_GYM):
        return ReasoningGymTask(task.removeprefix(_REASONING_GYM), **task_kwargs)
    if task not in _BY_NAME:
        close = difflib.get_close_matches(task, _BY_NAME, n=1)
        raise ValueError(
            f"There is no task {task!r}{f', did you mean {close[0]!r}?' if close else '.'} "
            f"Names are {', '.join(map(repr, _BY_NAME))} and '{_REASONING_GYM}NAME'; files have to end in .jsonl or .csv."
        )
    try:
        return _BY_NAME[task](**task_kwargs)
    except TypeError as error:
        raise TypeError(f"task={task!r} does not take task_kwargs={task_kwargs}: {error}") from None
