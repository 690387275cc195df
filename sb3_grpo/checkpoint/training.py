"""Saving a training run between two updates, and restoring it in another process."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_grpo.checkpoint.folder import Checkpoint, newest_checkpoint, write_checkpoint
from sb3_grpo.starts.atari import make_env_of
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.utils.machine import versions
from sb3_grpo.utils.random_states import process_state, set_process_state
from sb3_grpo.utils.user_warnings import warn_user

# Attributes of a VecEnvWrapper that are not training state: descriptions, files and clocks
_NOT_STATE = frozenset({"class_attributes", "results_writer", "t_start"})


class Stateful(Protocol):
    """An object that can be saved with a training run: your own callback, for example."""

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The state for ``load_state_dict``, which can be pickled
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: What ``state_dict`` returned
        """


@dataclass
class Resumption:
    """
    State of an interrupted training run, kept until ``learn`` resumes it.

    :param path: The checkpoint
    :param begun_at: Number of timesteps of the model when ``learn`` was called
    :param total_timesteps: Number of timesteps at which training was to end
    :param nanoseconds: How long ``learn`` had been running
    :param chance: States of all random generators
    :param logged: Values recorded by the last update and not yet written to the log
    :param also: States of the further objects that were saved, by name
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
    Write a checkpoint of a training run between two updates.

    :param folder: Folder with the checkpoints of this run
    :param model: The model, in ``on_rollout_start``
    :param keep: Number of checkpoints to keep
    :param also: Further objects to save, by name
    :return: Folder of the new checkpoint
    """
    episodes = None
    # Saved even if they are not whole: without its statistics, a VecNormalize would change what the policy sees
    wrappers, differs = _save_wrappers(model.env)
    if differs is None:
        copies, differs = _save_copies(model.env.unwrapped)
    if differs is None:
        collected = {"collector": model.collector.state_dict(), "buffer": model.rollout_buffer.state_dict()}
        episodes = {"copies": copies, **collected}
    state = {
        "wrappers": wrappers,
        "episodes": episodes,
        "parts": {name: part.state_dict() for name, part in model.training_parts().items()},
        "begun_at": model._num_timesteps_at_start,
        "total_timesteps": model._total_timesteps,
        "nanoseconds": time.time_ns() - model.start_time,
        # A model about to resume has not restored its generators yet: keep the states it will resume with
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
        "versions": versions(),
    }
    return write_checkpoint(folder, model, state, facts, keep)


def resume_training(algorithm: Any, folder: str | Path, env: Any, device: Any, custom_objects: dict[str, Any] | None) -> Any:
    """
    Load a model from a checkpoint; see :meth:`OnGroupAlgorithm.resume` for the other parameters.

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
    model = algorithm.load(checkpoint.path, env, device, custom_objects, force_reset=False)
    model.env_id = env_id
    if model.n_envs != n_envs:
        raise ValueError(f"The training had {n_envs} copies of the environment, and env= has {model.n_envs}.")
    _load_training(model, checkpoint)
    return model


def _load_training(model: Any, checkpoint: Checkpoint) -> None:
    """
    Restore the state of a training run.

    :param model: The model loaded from the checkpoint, with its environment
    :param checkpoint: The checkpoint
    """
    now, then = versions(), checkpoint.manifest["versions"]
    compared = then.keys() - {"sb3_grpo commit"}
    changed = [f"{name} {then[name]} (now {now.get(name)})" for name in sorted(compared) if now.get(name) != then[name]]
    if changed:
        warn_user(f"{checkpoint.path} was written with {', '.join(changed)}: perhaps not every bit will be the same.")
    state = checkpoint.read_state()
    _load_wrappers(model.env, state.pop("wrappers"))
    episodes, problem = state.pop("episodes"), checkpoint.manifest["differs"]
    if episodes is not None:
        model.begin_groups()
        problem = _load_copies(model.env.unwrapped, episodes["copies"])
    if problem is None:
        # This fills the queues of the copies
        model.collector.load_state_dict(episodes["collector"])
        model.rollout_buffer.load_state_dict(episodes["buffer"])
    else:
        warn_user(f"{problem} So the training goes on with new episodes.")
        model._last_obs = None
    parts = state.pop("parts")
    for name, part in model.training_parts().items():
        part.load_state_dict(parts[name])
    model.resumption = Resumption(checkpoint.path, **state)


def _wrappers(env: VecEnv) -> Iterator[VecEnvWrapper]:
    while isinstance(env, VecEnvWrapper):
        yield env
        env = env.venv


def _save_wrappers(env: VecEnv) -> tuple[list[tuple[str, dict[str, Any]]], str | None]:
    """
    :param env: The training environment
    :return: Names and attributes of its layers, and why they are not whole, ``None`` if they are
    """
    layers, problem = [], None
    for layer in _wrappers(env):
        attributes = {
            name: value
            for name, value in vars(layer).items()
            if name not in _NOT_STATE and not isinstance(value, VecEnv | gym.Env | gym.Space)
        }
        reasons = {name: reason for name, value in attributes.items() if (reason := _why_not_pickled(value)) is not None}
        for name, reason in reasons.items():
            del attributes[name]
            problem = f"The attribute {name!r} of {type(layer).__name__} {reason}."
        layers.append((type(layer).__name__, attributes))
    return [*layers, (type(env.unwrapped).__name__, {})], problem


def _load_wrappers(env: VecEnv, saved: list[tuple[str, dict[str, Any]]]) -> None:
    """
    :param env: A training environment built like the saved one
    :param saved: What ``_save_wrappers`` returned
    :raises ValueError: if its class or its wrappers differ from those saved
    """
    layers = [*_wrappers(env), env.unwrapped]
    expected, present = [name for name, _ in saved], [type(layer).__name__ for layer in layers]
    if expected != present:
        raise ValueError(
            f"The checkpoint was written with {' around '.join(expected)}, and the environment is {' around '.join(present)}: "
            "give resume() an environment that is made in the same way."
        )
    for layer, (_, attributes) in zip(layers, saved, strict=True):
        vars(layer).update(attributes)


def _save_copies(copies: VecEnv) -> tuple[Any, str | None]:
    """
    :param copies: The training environment without its wrappers
    :return: Its episodes in progress, which can be pickled, and why they cannot be saved, ``None`` if they can
    """
    if hasattr(copies, "state_dict"):
        return copies.state_dict(), None
    if not copies.has_attr("save_episode"):
        name = type(copies).__name__
        return (
            None,
            f"The copies in this {name} have no StartQueue, which saves episodes: build them with make_group_env(...).",
        )
    state = list(zip(copies.env_method("save_episode", os.getpid()), copies.reset_infos, strict=True))
    for idx, each in enumerate(state):
        problem = each[0] if isinstance(each[0], str) else _why_not_pickled(each)
        if problem is not None:
            return None, f"Environment copy {idx}: {problem.rstrip(' .')}."
    return state, None


def _load_copies(copies: VecEnv, state: Any) -> str | None:
    """
    :param copies: The training environment without its wrappers
    :param state: What ``_save_copies`` returned
    :return: Why the episodes cannot be continued, None if they can
    :raises StartMismatchError: if the copies differ from those saved
    """
    if hasattr(copies, "load_state_dict"):
        copies.load_state_dict(state)
        return None
    problem = None
    for idx, (episode, info) in enumerate(state):
        (error,) = copies.env_method("load_episode", episode, info, indices=idx)
        if isinstance(error, StartMismatchError):
            raise error
        if error is not None:
            problem = f"Environment copy {idx}: {error}"
            break
    # This resets into the episodes just loaded. If one was not, the next reset begins new ones
    copies.reset()
    return problem


def _why_not_pickled(value: Any) -> str | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return f"cannot be pickled ({error})"
    return None


def _chance(model: Any) -> dict[str, Any]:
    return {
        "process": process_state(),
        "devices": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
        "noise": [each.detach().cpu() for each in _noise(model)],
    }


def draw_on(model: Any, chance: dict[str, Any]) -> None:
    """
    Restore the states of all random generators and the gSDE noise. This must come last, right before the first step.

    :param model: The model
    :param chance: Generator states from a checkpoint
    """
    set_process_state(chance["process"])
    if len(chance["devices"]) == th.cuda.device_count():
        th.cuda.set_rng_state_all(chance["devices"])
    for each, then in zip(_noise(model), chance["noise"], strict=True):
        each.detach().copy_(then)


def _noise(model: Any) -> list[th.Tensor]:
    noise = model.policy.action_dist
    return [noise.exploration_mat, noise.exploration_matrices] if isinstance(noise, StateDependentNoiseDistribution) else []


def _logged(logger: Logger) -> dict[str, Any]:
    values = {name: value for name, value in logger.name_to_value.items() if isinstance(value, int | float | np.number | str)}
    return {"values": values, "counts": dict(logger.name_to_count), "excluded": dict(logger.name_to_excluded)}


def log_on(logger: Logger, logged: dict[str, Any]) -> None:
    """
    Restore the values that had been recorded but not yet written.

    :param logger: The logger of the model
    :param logged: Logged values from a checkpoint
    """
    logger.name_to_value.update(logged["values"])
    logger.name_to_count.update(logged["counts"])
    logger.name_to_excluded.update(logged["excluded"])
