"""Ready-made comparisons: files for ``compare --config`` that ``compare --preset`` finds by name."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FOLDER = Path(__file__).resolve().parent


class ReadyComparison(NamedTuple):
    """
    A ready-made comparison.

    :param name: its name
    :param about: what it shows
    :param minutes: duration on two cores, in minutes
    :param extras: extras of this package that it needs
    """

    name: str
    about: str
    minutes: int
    extras: list[str]


def ready_path(name: str) -> Path | None:
    """
    :param name: name of a comparison
    :return: its file; None if there is none with this name
    """
    return next((path for path in _FOLDER.glob("*.yml") if path.stem == name), None)


def ready_comparisons() -> list[ReadyComparison]:
    """
    :return: all ready-made comparisons, the shortest first
    """
    contents: dict[str, dict[str, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in _FOLDER.glob("*.yml")}
    ready = [ReadyComparison(name, each["about"], each["minutes"], each["extras"]) for name, each in contents.items()]
    return sorted(ready, key=lambda each: each.minutes)
