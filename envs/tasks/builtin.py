"""Small built-in tasks, and the lookup of tasks by name."""

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sb3_grpo.envs.tasks.arithmetic import ArithmeticTask
from sb3_grpo.envs.tasks.base import Item, PairsTask, Task
from sb3_grpo.envs.tasks.reasoning_gym import ReasoningGymTask
from sb3_grpo.utils.parameters import Whole

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


_BY_NAME: dict[str, Callable[..., Task]] = {
    "arithmetic": ArithmeticTask,
    "capitals": CapitalsTask,
    "guess_number": GuessNumberTask,
}
_REASONING_GYM = "reasoning_gym:"


def make_task(task: Any, **task_kwargs: Any) -> Task:
    """
    Create a task.

    :param task: A name (``arithmetic``, ``capitals``, ``guess_number``, ``reasoning_gym:NAME``), a :class:`Task`, a list or
        iterator of pairs (prompt, answer), or the path of a ``.jsonl`` file
    :param task_kwargs: Arguments for :class:`ArithmeticTask`, :class:`GuessNumberTask`, the data set of reasoning-gym or
        ``PairsTask.from_jsonl``
    :return: The task
    """
    if isinstance(task, Task):
        if task_kwargs:
            raise ValueError(f"task_kwargs={task_kwargs} have no use for a task that exists already: {type(task).__name__}")
        return task
    if isinstance(task, Path) or (isinstance(task, str) and task.endswith(".jsonl")):
        return PairsTask.from_jsonl(task, **task_kwargs)
    if isinstance(task, str):
        return _by_name(task, task_kwargs)
    if isinstance(task, list | tuple | Iterator):
        return PairsTask(task, **task_kwargs)
    raise TypeError(
        f"task={task!r:.200} has to be a name, a Task, a list of pairs (prompt, answer) or the path of a .jsonl file"
    )


def _by_name(name: str, task_kwargs: dict[str, Any]) -> Task:
    if name.startswith(_REASONING_GYM):
        return ReasoningGymTask(name.removeprefix(_REASONING_GYM), **task_kwargs)
    if name not in _BY_NAME:
        close = difflib.get_close_matches(name, _BY_NAME, n=1)
        raise ValueError(
            f"There is no task {name!r}{f', did you mean {close[0]!r}?' if close else '.'} "
            f"Names are {', '.join(map(repr, _BY_NAME))} and '{_REASONING_GYM}NAME'; files have to end in .jsonl."
        )
    try:
        return _BY_NAME[name](**task_kwargs)
    except TypeError as error:
        raise TypeError(f"task={name!r} does not take task_kwargs={task_kwargs}: {error}") from None
