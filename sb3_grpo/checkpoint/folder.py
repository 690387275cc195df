"""Checkpoint folders: written atomically, with a manifest of their contents."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from sb3_grpo.utils.user_warnings import warn_user

MANIFEST = "manifest.json"
FORMAT = 2
_NAME = re.compile(r"(\d{6,})_(\d+)_steps")
_PART = re.compile(r".+\.[0-9a-f]{8}\.part")


class Checkpoint(NamedTuple):
    """
    A complete, undamaged checkpoint.

    :param path: Its folder
    :param manifest: The contents of its ``manifest.json``
    """

    path: Path
    manifest: dict[str, Any]


def write_checkpoint(
    folder: Path, n_steps: int, files: Mapping[str, Callable[[IO[bytes]], None]], facts: dict[str, Any], keep: int
) -> Path:
    """
    Write a checkpoint under a temporary name, rename it once it is complete, and remove the oldest ones.

    :param folder: Folder with all checkpoints of a run
    :param n_steps: Number of steps trained so far, for the name
    :param files: For each file name, a function that writes the file
    :param facts: Further entries of the manifest
    :param keep: Number of checkpoints to keep
    :return: Folder of the new checkpoint
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = checkpoints_in(folder)
    number = 1 + max((_number(each) for each in present), default=0)
    path = folder / f"{number:06d}_{n_steps}_steps"
    part = _beside(path)
    try:
        part.mkdir()
        members = {name: _write(part / name, write) for name, write in files.items()}
        manifest = {"format": FORMAT, "steps": n_steps, **facts, "files": members}
        _write(part / MANIFEST, lambda file: file.write(json.dumps(manifest, indent=1).encode()))
        _sync_folder(part)
        os.rename(part, path)
        _sync_folder(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    for old in present[: max(len(present) + 1 - keep, 0)]:
        _remove(old)
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """
    :param folder: Folder with the checkpoints of a run
    :return: Their folders, oldest first
    """
    if not folder.is_dir():
        return []
    return sorted((each for each in folder.iterdir() if _NAME.fullmatch(each.name) and each.is_dir()), key=_number)


def remove_unfinished(folder: Path) -> None:
    """
    Remove the incomplete checkpoints that killed processes have left behind.

    :param folder: Folder with the checkpoints of a run
    """
    for each in folder.iterdir() if folder.is_dir() else ():
        if _PART.fullmatch(each.name) and _NAME.match(each.name):
            shutil.rmtree(each, ignore_errors=True)


def newest_checkpoint(folder: str | Path) -> Checkpoint:
    """
    :param folder: Folder with the checkpoints of a run, or one of these checkpoints
    :return: The newest undamaged checkpoint
    :raises FileNotFoundError: if there is none
    """
    folder = Path(folder)
    candidates = [folder] if (folder / MANIFEST).is_file() else checkpoints_in(folder)
    problems = []
    for path in reversed(candidates):
        try:
            found = Checkpoint(path, _read_manifest(path))
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
            continue
        if problems:
            warn_user(f"An older checkpoint, {path}, is taken, because a newer one is damaged. {' '.join(problems)}")
        return found
    why = " ".join(problems) or "TrainingCheckpoint(folder), given to learn() as a callback, writes them."
    raise FileNotFoundError(f"There is no checkpoint in {folder} to go on from. {why}")


def _read_manifest(path: Path) -> dict[str, Any]:
    """
    :raises ValueError: if the manifest is damaged or of another format, or a file does not match its checksum
    """
    manifest = json.loads((path / MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} is not of format {FORMAT}: another version of this package has written it.")
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{MANIFEST} is damaged: it names no files.")
    for name, expected in files.items():
        if Path(name).name != name or _digest(path / name) != expected:
            raise ValueError(f"{name} is damaged: its SHA-256 is not the one in {MANIFEST}.")
    return manifest


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> str:
    with path.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


def _remove(path: Path) -> None:
    # Rename it first: a half-deleted checkpoint must not look like a complete one
    part = _beside(path)
    os.rename(path, part)
    shutil.rmtree(part, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
