"""What the scripts that record the lecture's data share."""

import json
from pathlib import Path
from typing import Any

import torch as th

from benchmarks.common import command, machine

DATA = Path(__file__).resolve().parents[1] / "sb3_grpo" / "classroom" / "lecture" / "data"
# The last digits depend on the number of threads
th.set_num_threads(1)


def short(thing: Any, digits: int = 3) -> Any:
    """
    :param thing: Anything that JSON can hold
    :param digits: Number of significant digits
    :return: The same with rounded numbers, without -0 and ".0"
    """
    if isinstance(thing, dict):
        return {key: short(value, digits) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [short(value, digits) for value in thing]
    if not isinstance(thing, float):
        return thing
    rounded = float(f"{thing:.{digits}g}") + 0.0
    return int(rounded) if rounded.is_integer() else rounded


def made(seeds: tuple[int, ...]) -> dict[str, Any]:
    """
    :param seeds: Seeds of the runs
    :return: Where the numbers come from, for readers
    """
    return {"command": command(), "seeds": seeds, **{key: value for key, value in machine().items() if key != "commit"}}


def write(name: str, results: Any) -> None:
    """
    :param name: Name of a file of the lecture's data
    :param results: Its content
    """
    path = DATA / f"{name}.json"
    path.write_text(json.dumps(results, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
