"""A training between two updates: written into a checkpoint, and put in place again in another process."""

import functools
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch as th
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.logger import Logger

from sb3_grpo.checkpoint.environments import NotSavedError, load_env, save_env
from sb3_grpo.checkpoint.folder import Checkpoint, newest_checkpoint, write_checkpoint
from sb3_grpo.starts.atari import make_env_of
from sb3_grpo.utils.chance import process_state, set_process_state, set_space_states, space_states
from sb3_grpo.utils.machine import versions
from sb3_grpo.utils.user_warnings import warn_user

MODEL, STATE = "model.zip", "training.pkl"


class Stateful(Protocol):
    """What can be saved with a training: callbacks of your own, for example."""

    def state_dict(self) -> dict[str, Any]:
        """
        :return: What ``load_state_dict`` needs, which can be pickled
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: What ``state_dict`` returned
        """


@dataclass
class Resumption:
    """
    A training that was interrupted, until it goes on.

    :param path: The checkpoint
    :param begun_at: Steps that the model had when ``learn`` was called
    :param total_timesteps: Steps that it was to have at the end
    :param nanoseconds: How long ``learn`` had been at it
    :param chance: The states of all generators
    :param logged: What the last update has logged, which the next one writes
    :param also: The states of what else was saved, by name
    """

    path: Path
    begun_at: int
    total_timesteps: int
    nanoseconds: int
    chance: dict[str, Any] = field(repr=False)
    logged: dict[str, Any] = field(repr=False)
    also: dict[str, dict[str, Any]] = field(repr=False)


def save_training(folder: Path, model: Any, keep: int, also: Mapping[str, Stateful]) -> Path:
    """
    Write a checkpoint of a training that is between two updates.

    :param folder: Where the checkpoints of this training are
    :param model: The model, in ``on_rollout_start``
    :param keep: How many checkpoints stay
    :param also: What else to save
    :return: The folder of the checkpoint
    """
    episodes, differs = None, None
    try:
        collected = {"collector": model.collector.state_dict(), "buffer": model.rollout_buffer.state_dict()}
        episodes = {"env": save_env(model.env), **collected}
    except NotSavedError as error:
        differs = str(error)
    state = {
        "episodes": episodes,
        "parts": {name: part.state_dict() for name, part in model.training_parts().items()},
        "begun_at": model._num_timesteps_at_start,
        "total_timesteps": model._total_timesteps,
        "nanoseconds": time.time_ns() - model.start_time,
        # Of a model that is about to go on, those with which it will
        "chance": _chance(model) if model.resumption is None else model.resumption.chance,
        "logged": _logged(model.logger),
        "also": {name: each.state_dict() for name, each in also.items()},
    }
    facts = {
        "algorithm": type(model).__name__,
        "env_id": model.env_id,
        "n_envs": model.n_envs,
        "seed": model.seed,
        "differs": differs,
        "versions": _versions(),
    }
    # cloudpickle: functions of a script by value, which pickle takes by name only
    files = {MODEL: model.save, STATE: functools.partial(cloudpickle.dump, state)}
    return write_checkpoint(folder, model.num_timesteps, files, facts, keep)


def resume_training(algorithm: Any, folder: str | Path, env: Any, device: Any, custom_objects: dict[str, Any] | None) -> Any:
    """
    The parameters are explained at :meth:`OnGroupAlgorithm.resume`.

    :param algorithm: Class of the model
    :return: The model
    """
    checkpoint = newest_checkpoint(folder)
    manifest = checkpoint.manifest
    name, n_envs = manifest["algorithm"], manifest["n_envs"]
    if name != algorithm.__name__:
        raise ValueError(f"{checkpoint.path} is a checkpoint of {name}: write {name}.resume(...).")
    env = manifest["env_id"] if env is None else env
    if env is None:
        raise ValueError(
            f"{name}.resume({str(folder)!r}) needs env=..., made like that of the training, with {n_envs} copies."
        )
    env_id = env if isinstance(env, str) else None
    if env_id is not None:
        env = make_env_of(env_id, n_envs, manifest["seed"])
    model = algorithm.load(checkpoint.path / MODEL, env, device, custom_objects, force_reset=False)
    model.env_id = env_id
    if model.n_envs != n_envs:
        raise ValueError(f"The training had {n_envs} copies of the environment, and env= has {model.n_envs}.")
    _load_training(model, checkpoint)
    return model


def _load_training(model: Any, checkpoint: Checkpoint) -> None:
    """
    Put a training in place.

    :param model: The model that was loaded from the checkpoint, with its environment
    :param checkpoint: The checkpoint
    """
    now = _versions()
    then = checkpoint.manifest["versions"]
    changed = [f"{name} {then[name]} (now {now.get(name)})" for name in then if now.get(name) != then[name]]
    if changed:
        warn_user(f"{checkpoint.path} was written with {', '.join(changed)}: perhaps not every bit will be the same.")
    with (checkpoint.path / STATE).open("rb") as file:
        state = pickle.load(file)
    episodes = state.pop("episodes")
    if episodes is None:
        warn_user(f"{checkpoint.manifest['differs']} So the training goes on with new episodes.")
        model._last_obs = None
    else:
        model.begin_groups()
        load_env(model.env, episodes["env"])
        # Fills the queues of the copies
        model.collector.load_state_dict(episodes["collector"])
        model.rollout_buffer.load_state_dict(episodes["buffer"])
    for name, part in model.training_parts().items():
        part.load_state_dict(state["parts"][name])
    del state["parts"]
    model.resumption = Resumption(checkpoint.path, **state)


@functools.cache
def _versions() -> dict[str, str]:
    return {name: version for name, version in versions().items() if not name.endswith("commit")}


def _chance(model: Any) -> dict[str, Any]:
    return {
        "process": process_state(),
        "devices": [state.numpy() for state in th.cuda.get_rng_state_all()] if th.cuda.is_initialized() else [],
        "spaces": [space_states(space) for space in _spaces(model)],
        "noise": [each.detach().cpu().numpy() for each in _noise(model)],
    }


def draw_on(model: Any, chance: dict[str, Any]) -> None:
    """
    Let all generators go on where they were, and gSDE with the noise of then: the last thing before the first step.

    :param model: The model
    :param chance: Of a checkpoint
    """
    set_process_state(chance["process"])
    if chance["devices"] and len(chance["devices"]) == th.cuda.device_count():
        th.cuda.set_rng_state_all([th.from_numpy(state) for state in chance["devices"]])
    for space, states in zip(_spaces(model), chance["spaces"], strict=True):
        set_space_states(space, states)
    for each, then in zip(_noise(model), chance["noise"], strict=True):
        each.detach().copy_(th.from_numpy(then))


def _logged(logger: Logger) -> dict[str, Any]:
    values = {name: value for name, value in logger.name_to_value.items() if isinstance(value, int | float | np.number | str)}
    return {"values": values, "counts": dict(logger.name_to_count), "excluded": dict(logger.name_to_excluded)}


def log_on(logger: Logger, logged: dict[str, Any]) -> None:
    """
    Let a logger go on with what has been logged and not yet written.

    :param logger: The logger of the model
    :param logged: Of a checkpoint
    """
    logger.name_to_value.update(logged["values"])
    logger.name_to_count.update(logged["counts"])
    logger.name_to_excluded.update(logged["excluded"])


def _spaces(model: Any) -> list[Any]:
    return [model.observation_space, model.action_space, model.env.observation_space, model.env.action_space]


def _noise(model: Any) -> list[th.Tensor]:
    noise = model.policy.action_dist
    return [noise.exploration_mat, noise.exploration_matrices] if isinstance(noise, StateDependentNoiseDistribution) else []
