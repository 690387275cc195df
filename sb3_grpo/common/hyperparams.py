"""Where the hyperparameters of an algorithm are written down, and how they were found."""

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml

import sb3_grpo

UNDOCUMENTED = "no record of how these values were found"


def config_path(algo: str) -> Path:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :return: the file with its hyperparameters in RL Zoo's format: ours, or the RL Zoo's own if we have none
    :raises ValueError: if there is neither
    """
    # In a wheel the folder lies in the package, in a source checkout beside it: both are on the package's path
    ours = [folder / f"{algo}.yml" for path in sb3_grpo.__path__ if (folder := Path(path) / "zoo_configs").is_dir()]
    zoo = importlib.util.find_spec("rl_zoo3")
    theirs = [Path(path) / "hyperparams" / f"{algo}.yml" for path in (zoo and zoo.submodule_search_locations) or []]
    for path in (*ours, *theirs):
        if path.is_file():
            return path
    known = sorted({path.stem for candidate in (*ours, *theirs) for path in candidate.parent.glob("*.yml")})
    raise ValueError(f"There are no hyperparameters for {algo!r}, only for {', '.join(known)}")


def entry_name(entries: dict[str, Any], env_id: str) -> str:
    """
    Find the entry that the RL Zoo takes for an environment.

    :param entries: of a configuration file
    :param env_id: id of an environment, ``module:`` before it is ignored
    :return: the environment's own, ``"atari"`` or ``"default"``
    :raises ValueError: if there is none
    """
    env_id = env_id.rpartition(":")[2]
    if env_id in entries:
        return env_id
    # Importing it registers the games
    with suppress(ImportError):
        import ale_py  # noqa: F401
    spec = gym.envs.registration.registry.get(env_id)
    fallback = "atari" if spec is not None and "AtariEnv" in str(spec.entry_point) else "default"
    if fallback not in entries:
        raise ValueError(f"No hyperparameters for {env_id}, and no entry {fallback!r}")
    return fallback


def provenance(algo: str, env_id: str) -> str:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :param env_id: id of an environment
    :return: what the comment directly above the entry that applies says of how its values were found
    """
    text = config_path(algo).read_text(encoding="utf-8")
    name = entry_name(yaml.safe_load(text), env_id)
    lines = text.splitlines()
    row = next(i for i, line in enumerate(lines) if line.split(":")[0].strip("'\"") == name)
    comment: list[str] = []
    while row > 0 and lines[row - 1].startswith("#"):
        row -= 1
        comment.insert(0, lines[row].lstrip("# ").rstrip())
    return " ".join(comment) or UNDOCUMENTED
