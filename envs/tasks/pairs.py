"""A task with a list of prompts and answers, from memory or from a file."""

import copy
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import Item, Task, is_prompt
from sb3_grpo.utils.parameters import Whole


class PairsTask(Task):
    """
    A task with a list of prompts and answers. An answer is right if it equals the reference (see ``is_equivalent``).

    :param pairs: Tuples (prompt, answer) or (prompt, answer, metadata), items, prompts alone, or dictionaries, e.g. the rows
        of a ``datasets.Dataset``. Answers that are numbers are converted to text.
    :param prompt_key: Key of the prompt in dictionaries
    :param answer_key: Key of the answer. None: ``answer`` where there is one. All other keys become the item's metadata.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[Any, ...] | Item | Mapping[str, Any] | str],
        prompt_key: str = "prompt",
        answer_key: str | None = None,
    ):
        if isinstance(pairs, str | Path):
            raise TypeError(f"For the file {str(pairs)!r}, write PairsTask.from_file(...)")
        pairs = [(pair, "") if is_prompt(pair) else pair for pair in pairs]
        self._items = [as_item(pair, f"Pair {index}", prompt_key, answer_key) for index, pair in enumerate(pairs)]
        self.n_items = len(self._items)
        self._of_alphabet = self._items
        if not self._items:
            raise ValueError("The task has no items: give at least one pair (prompt, answer)")

    @classmethod
    def from_file(cls, path: str | Path, prompt_key: str = "prompt", answer_key: str | None = None) -> "PairsTask":
        """
        :param path: File that ends in ``.csv``, with names in the first line, or else with one JSON object per line; blank
            lines are skipped
        :param prompt_key: Name of the prompt
        :param answer_key: Name of the answer. None: ``answer`` where there is one
        :return: The task
        """
        rows = _csv_rows if str(path).lower().endswith(".csv") else _json_rows
        try:
            items = [as_item(row, where, prompt_key, answer_key) for where, row in rows(path)]
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {str(path)!r} to read prompts from") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not in UTF-8 ({error}): save it with that encoding") from None
        if not items:
            raise ValueError(f"{path} has no rows: expected {prompt_key!r} and the answer, one JSON object per line or CSV")
        return cls(items)

    def split(self, n_test: int, seed: int = 0) -> tuple["PairsTask", "PairsTask"]:
        """
        :param n_test: Number of items to hold out
        :param seed: Seed for choosing them
        :return: The task without these items, and with nothing but them, both with the alphabet of all
        """
        n_test = Whole(1, len(self._items) - 1).check("n_test", n_test)
        order = np.random.default_rng(seed).permutation(len(self._items))
        parts = copy.copy(self), copy.copy(self)
        for part, chosen in zip(parts, (order[n_test:], order[:n_test]), strict=True):
            part._items = [self._items[int(index)] for index in chosen]
            part.n_items = len(chosen)
        return parts

    def item(self, index: int) -> Item:
        """
        :param index: Index of the pair
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
        return "".join(sorted({character for item in self._of_alphabet for character in f"{item.prompt}{item.answer}"}))


def as_item(pair: Any, where: str, prompt_key: str = "prompt", answer_key: str | None = None) -> Item:
    """
    :param pair: See :class:`PairsTask`
    :param where: Where it was found, for errors
    :param prompt_key: Key of the prompt in a dictionary
    :param answer_key: Key of the answer. None: ``answer`` if there is one
    :return: The item
    """
    if isinstance(pair, Item):
        return pair
    if isinstance(pair, Mapping):
        rest = dict(pair)
        for key in (prompt_key, answer_key):
            if key is not None and key not in rest:
                raise ValueError(
                    f"{where} has no {key!r}, only {', '.join(map(repr, rest)) or 'nothing'}. "
                    "Name the keys of your data with prompt_key and answer_key (--prompt-key, --answer-key)."
                )
        # The answer stays there for reward functions, as it is
        pair = (rest.pop(prompt_key), rest.get(answer_key or "answer", ""), rest)
    is_pair = isinstance(pair, tuple | list) and 2 <= len(pair) <= 3
    prompt, answer, metadata = (*pair, {})[:3] if is_pair else (None, None, None)
    if isinstance(answer, Real) and not isinstance(answer, bool):
        answer = str(answer)
    if not (is_prompt(prompt) and isinstance(answer, str) and isinstance(metadata, dict)):
        raise ValueError(f"{where} is not a pair (prompt, answer) of texts: {pair!r:.200}")
    if not prompt:
        raise ValueError(f"{where} has an empty prompt: the agent needs at least one token to read")
    return Item(prompt, answer, metadata)


def _csv_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    :param path: A file with names in the first line
    :return: Where each row is, and its values, all of them texts
    """
    # The end of a line is left to csv; some editors begin a file with a byte order mark
    with open(path, encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        names = list(reader.fieldnames or ())
        if len(set(names)) < len(names):
            raise ValueError(f"{path} has {max(names, key=names.count)!r} more than once in its first line")
        try:
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise ValueError(f"{where} has not as many values as the first line has names, {len(names)}")
                row.pop("", None)  # an index, as pandas writes it
                yield where, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error


def _json_rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    :param path: A file with one JSON object per line
    :return: Where each object is, and the object
    """
    # str.splitlines() would also split at characters that JSON strings may contain
    with open(path, encoding="utf-8-sig") as lines:  # some editors begin a file with a byte order mark
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                entry = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where} is not JSON ({error}): {line!r:.200}") from None
            if not isinstance(entry, dict):
                raise ValueError(f"{where} is not a JSON object: {line!r:.200}")
            yield where, entry
