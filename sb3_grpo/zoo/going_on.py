"""Resuming RL Zoo runs from a checkpoint."""

from pathlib import Path
from typing import Any

import yaml

from sb3_grpo.checkpoint.folder import Checkpoint, newest_checkpoint
from sb3_grpo.console import UsageError

# In the folder of a run
CHECKPOINTS = "checkpoints"


def as_model(path: str) -> str:
    """
    :param path: the argument of ``-i``
    :return: the newest checkpoint if it is a folder, which the RL Zoo does not accept; otherwise the path itself
    :raises UsageError: if it is neither a model nor a folder with checkpoints
    """
    if Path(path).is_file():
        return path
    of_run = Path(path, CHECKPOINTS)
    try:
        return str(newest_checkpoint(of_run if of_run.is_dir() else path).path)
    except FileNotFoundError as error:
        raise UsageError(
            f"-i {path}: {error} Runs of grpo and dapo that are not complete have checkpoints in LOGS/ALGO/ENV_NUMBER; to "
            "continue with what a complete run has learned, name its ENV.zip"
        ) from error


def entry_of(checkpoint: Checkpoint, env_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    :param checkpoint: a checkpoint of an RL Zoo run
    :param env_name: name of the environment, as in file names
    :return: the hyperparameters and the options that the RL Zoo saved for the run
    :raises UsageError: if there are none
    """
    found = []
    for name in "config.yml", "args.yml":
        path = run_of(checkpoint) / env_name / name
        if not path.is_file():
            raise UsageError(
                f"-i {checkpoint.path}: there is no {path}. The environment is not that of the run, or train did not begin "
                f"it: then go on with {checkpoint.manifest['algorithm']}.resume(...) in a script"
            )
        # Unsafe, as in the RL Zoo: checkpoints are pickled anyway
        found.append(dict(yaml.load(path.read_text(), Loader=yaml.UnsafeLoader)))
    entry, options = found
    return entry, options


def run_of(checkpoint: Checkpoint) -> Path:
    """
    :param checkpoint: a checkpoint of an RL Zoo run
    :return: folder of the run
    """
    return checkpoint.path.resolve().parents[1]
