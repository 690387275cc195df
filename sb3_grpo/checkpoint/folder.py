"""Checkpoint folders: written atomically, with a manifest of their contents."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from sb3_grpo.utils.files import replace_file, replace_text
from sb3_grpo.utils.user_warnings import warn_user

MANIFEST, MODEL, STATE = "manifest.json", "model.zip", "training.pkl"
FORMAT = 2
_NAME = re.compile(r"\d{6,}_\d+_steps")
# Name of a checkpoint that is being written
_UNFINISHED = "unfinished.part"


class Checkpoint(NamedTuple):
    """
    A complete, undamaged checkpoint.

    :param path: Its folder
    :param manifest: The contents of its ``manifest.json``
    """

    path: Path
    manifest: dict[str, Any]


def write_checkpoint(folder: Path, model: Any, state: dict[str, Any], facts: dict[str, Any], keep: int) -> Path:
    """
    Write a checkpoint under a temporary name, rename it once it is complete, and remove the oldest ones.

    :param folder: Folder with all checkpoints of a run
    :param model: The model
    :param state: What a checkpoint stores in addition
    :param facts: Further entries of the manifest
    :param keep: Number of checkpoints to keep
    :return: Folder of the new checkpoint
    """
    present = checkpoints_in(folder)
    part = folder / _UNFINISHED
    shutil.rmtree(part, ignore_errors=True)  # left behind by a process that was killed
    part.mkdir(parents=True)
    try:
        model.save(part / MODEL)
        with replace_file(part / STATE) as file:
            # cloudpickle saves the functions of a script by value, pickle only by name
            cloudpickle.dump(state, file)
        digests = {name: _digest(part / name) for name in (MODEL, STATE)}
        manifest = {"format": FORMAT, "steps": model.num_timesteps, **facts, "files": digests}
        replace_text(part / MANIFEST, json.dumps(manifest, indent=1))
        number = 1 + (_number(present[-1]) if present else 0)
        path = part.rename(folder / f"{number:06d}_{model.num_timesteps}_steps")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    for old in present[: max(len(present) + 1 - keep, 0)]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """
    :param folder: Folder with the checkpoints of a run
    :return: Their folders, oldest first
    """
    return sorted((each for each in folder.glob("*_steps") if _NAME.fullmatch(each.name)), key=_number)


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
        except (OSError, ValueError, LookupError, TypeError) as error:
            problems.append(f"{path} is damaged: {error}.")
            continue
        if problems:
            warn_user(f"An older checkpoint, {path}, is taken. {' '.join(problems)}")
        return found
    why = " ".join(problems) or "TrainingCheckpoint(folder), given to learn() as a callback, writes them."
    raise FileNotFoundError(f"There is no checkpoint in {folder} to go on from. {why}")


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = json.loads((path / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"{MANIFEST} is not of format {FORMAT}")
    for name in (MODEL, STATE):
        if _digest(path / name) != manifest["files"][name]:
            raise ValueError(f"the SHA-256 of {name} is not the one in {MANIFEST}")
    return manifest


def _number(path: Path) -> int:
    return int(path.name.split("_")[0])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
