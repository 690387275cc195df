"""Finding a run in a log folder."""

from pathlib import Path
from typing import Any

from huggingface_sb3 import EnvironmentName
from rl_zoo3 import get_latest_run_id
from rl_zoo3 import utils as zoo_utils

_zoo_model_path = zoo_utils.get_model_path


def get_model_path(
    exp_id: int, folder: str, algo: str, env_name: EnvironmentName, *args: Any, **kwargs: Any
) -> tuple[str, str, str]:
    """
    The RL Zoo's function, except that "the latest" is the latest run that has the model: failed and unfinished runs have
    folders, too.

    :param exp_id: number of the run, 0 for the latest, -1 for a model without its own folder
    :param folder: the log folder
    :param algo: name of the algorithm
    :param env_name: name of the environment
    :param args: see the RL Zoo
    :param kwargs: see the RL Zoo
    :return: a prefix for file names, the path of the model and the folder of the run
    """
    latest = get_latest_run_id(f"{folder}/{algo}", env_name) if exp_id == 0 else 0
    for candidate in range(latest, 0, -1):
        try:
            found = _zoo_model_path(candidate, folder, algo, env_name, *args, **kwargs)
        except (AssertionError, ValueError):
            continue
        later = (Path(folder, algo, f"{env_name}_{number}") for number in range(candidate + 1, latest + 1))
        skipped = [path.name for path in later if path.is_dir()]
        note = f" ({', '.join(skipped)}: without this model, failed or unfinished)" if skipped else ""
        print(f"Loading latest experiment, id={candidate}{note}")
        return found
    return _zoo_model_path(exp_id, folder, algo, env_name, *args, **kwargs)


def latest_finished_run(log_path: str, env_name: EnvironmentName | str) -> int:
    """
    :param log_path: folder with the runs of an algorithm
    :param env_name: name of the environment
    :return: number of the latest run that has a trained model, 0 if there is none
    """
    latest = get_latest_run_id(log_path, EnvironmentName(env_name))
    numbers = range(latest, 0, -1)
    return next((number for number in numbers if Path(log_path, f"{env_name}_{number}", f"{env_name}.zip").is_file()), 0)
