"""Ready-made comparisons: files that ``compare --config`` finds by name."""

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def ready_path(name: str) -> Path | None:
    """
    :param name: name of a comparison
    :return: its file; None if there is none with this name
    """
    return next((path for path in _FOLDER.glob("*.yml") if path.stem == name), None)


def ready_comparisons() -> list[str]:
    """
    :return: names of all ready-made comparisons
    """
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))
