"""The checkpoints in a folder. Each is one file: the zip file of a model, with two members more."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.user_warnings import warn_user

# Not the files of SB3's CheckpointCallback, whose names begin with a prefix
_NAMES = "[0-9]*_steps.zip"
_MANIFEST, _STATE = "checkpoint.json", "checkpoint.pkl"


class Checkpoint(NamedTuple):
    """
    A complete, undamaged checkpoint.

    :param path: Its file, from which ``load`` loads the model
    :param manifest: What describes the training: steps, algorithm, versions and others
    """

    path: Path
    manifest: dict[str, Any]

    def read_state(self) -> dict[str, Any]:
        """
        :return: What is stored in addition to the model
        """
        with zipfile.ZipFile(self.path) as archive, archive.open(_STATE) as file:
            return pickle.load(file)


def write_checkpoint(folder: Path, model: Any, state: dict[str, Any], facts: dict[str, Any], keep: int) -> Path:
    """
    Write a checkpoint, and remove the oldest ones.

    :param folder: Folder with all checkpoints of a run
    :param model: The model
    :param state: What a checkpoint stores in addition
    :param facts: What describes the training, as JSON
    :param keep: Number of checkpoints to keep
    :return: File of the new checkpoint
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = checkpoints_in(folder)
    for unfinished in folder.glob(f"{_NAMES}.*.part"):  # left behind by a process that was killed
        unfinished.unlink()
    number = 1 + (_number(present[-1]) if present else 0)
    path = folder / f"{number:06d}_{model.num_timesteps}_steps.zip"
    with replace_file(path) as file:
        model.save(file)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(_MANIFEST, json.dumps({"steps": model.num_timesteps, **facts}, indent=1))
            with archive.open(_STATE, "w", force_zip64=True) as member:
                # cloudpickle saves the functions of a script by value, pickle only by name
                cloudpickle.dump(state, member)
    for old in [*present, path][:-keep]:
        old.unlink()
    return path


def is_checkpoint(path: Path) -> bool:
    """
    :param path: A file
    :return: Whether it has the name of a checkpoint
    """
    return path.match(_NAMES)


def checkpoints_in(folder: Path) -> list[Path]:
    """
    :param folder: Folder with the checkpoints of a run
    :return: Their files, oldest first
    """
    return sorted(folder.glob(_NAMES), key=_number)


def newest_checkpoint(path: str | Path) -> Checkpoint:
    """
    :param path: Folder with the checkpoints of a run, or one of these checkpoints
    :return: The newest undamaged checkpoint
    :raises FileNotFoundError: if there is none
    """
    path = Path(path)
    problems = []
    for each in reversed([path] if path.is_file() else checkpoints_in(path)):
        try:
            with zipfile.ZipFile(each) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of its {damaged} is wrong")
                found = Checkpoint(each, json.loads(archive.read(_MANIFEST)))
        except Exception as error:  # damaged files can raise anything
            problems.append(f"{each} is damaged: {error}.")
            continue
        if problems:
            warn_user(f"An older checkpoint, {each}, is taken. {' '.join(problems)}")
        return found
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}.")
    why = " ".join(problems) or "TrainingCheckpoint(folder), given to learn() as a callback, writes them."
    raise FileNotFoundError(f"There is no checkpoint in {path} to go on from. {why}")


def _number(path: Path) -> int:
    return int(path.name.split("_")[0])
