"""Ready-made comparisons: files that ``compare --config`` finds by name."""

from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).resolve().parent


def ready_path(name: str) -> Path | None:
    """
    :param name: name of a comparison
    :return: its file; None if there is none with this name
    """
    return next((path for path in _FOLDER.glob("*.yml") if path.stem == name), None)


def ready_comparisons() -> dict[str, dict[str, Any]]:
    """
    :return: content of the files of all ready-made comparisons by name, the shortest first
    """
    ready = {path.stem: yaml.safe_load(path.read_text()) for path in _FOLDER.glob("*.yml")}
    return dict(sorted(ready.items(), key=lambda each: each[1]["minutes"]))
