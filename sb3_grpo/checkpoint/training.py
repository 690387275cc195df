"""Saving a training run between two updates, and restoring it in another process."""

import os
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_grpo.checkpoint.folder import Checkpoint, write_checkpoint
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.utils.machine import versions
from sb3_grpo.utils.random_states import process_state
from sb3_grpo.utils.ranks import gather, n_ranks, rank
from sb3_grpo.utils.user_warnings import warn_user
from sb3_grpo.utils.vec_envs import ask, call, innermost, offers

# Attributes of a VecEnvWrapper that are not training state: a description and a clock
_NOT_STATE = frozenset({"class_attributes", "t_start"})
# Attributes of a logger: what is recorded and not yet written
_LOGGED = ("name_to_value", "name_to_count", "name_to_excluded")


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
    :param total_timesteps: Number of timesteps that ``learn`` was called with
    :param nanoseconds: How long ``learn`` had been running
    :param random_states: States of all random generators
    :param logged: What the last update recorded and the log has not yet, by attribute of the logger
    :param also: States of the further objects that were saved, by name
    """

    path: Path
    begun_at: int
    total_timesteps: int
    nanoseconds: int
    random_states: Any = field(repr=False)
    logged: dict[str, dict[str, Any]] = field(repr=False)
    also: dict[str, dict[str, Any]] = field(repr=False)


class _NoEpisodesError(Exception):
    """The episodes in progress cannot be saved, or not be reached again."""


def save_training(folder: Path, model: Any, keep: int, also: Mapping[str, Stateful]) -> Path | None:
    """
    Write a checkpoint of a training run between two updates.

    :param folder: Folder with the checkpoints of this run
    :param model: The model, in ``on_rollout_start``
    :param keep: Number of checkpoints to keep
    :param also: Further objects to save, by name
    :return: The new checkpoint; ``None`` on the ranks that do not write it
    """
    try:
        episodes, differs = _save_episodes(model), None
    except _NoEpisodesError as error:
        episodes, differs = None, str(error)
    of_rank = {
        # The file of the model has those of the first rank
        "starts": model._start_rng.bit_generator.state,
        "last_obs": model._last_obs,
        # Saved even without episodes: without its statistics, a VecNormalize would change what the policy sees
        "wrappers": [_attributes_of(each) for each in _wrappers(model.env)],
        "episodes": episodes,
        # A model about to resume has not restored its generators yet: keep the states it will resume with
        "random_states": process_state() if model.resumption is None else model.resumption.random_states,
    }
    of_ranks = gather(of_rank)
    if rank() > 0:
        return None
    state = {
        "of_ranks": of_ranks,
        "parts": {name: part.state_dict() for name, part in model.training_parts().items()},
        "begun_at": model._num_timesteps_at_start,
        "total_timesteps": model._total_timesteps - model._num_timesteps_at_start,
        "nanoseconds": time.time_ns() - model.start_time,
        "logged": {name: dict(getattr(model.logger, name)) for name in _LOGGED},
        "also": {name: each.state_dict() for name, each in also.items()},
    }
    facts = {
        "algorithm": type(model).__name__,
        "env_id": model.env_id,
        "env": describe_env(model.env),
        "n_envs": model.n_envs,
        "n_ranks": n_ranks(),
        "seed": model.seed,
        "differs": differs,
        "versions": versions(),
    }
    return write_checkpoint(folder, model, state, facts, keep)


def load_training(model: Any, checkpoint: Checkpoint) -> None:
    """
    Restore the state of a training run.

    :param model: The model loaded from the checkpoint, with an environment like that of the training
    :param checkpoint: The checkpoint
    """
    now, then = versions(), checkpoint.manifest["versions"]
    compared = then.keys() - {"sb3_grpo commit"}
    changed = [f"{name} {then[name]} (now {now.get(name)})" for name in sorted(compared) if now.get(name) != then[name]]
    if changed:
        warn_user(f"{checkpoint.path} was written with {', '.join(changed)}: perhaps not every bit will be the same.")
    state = checkpoint.read_state()
    state |= state.pop("of_ranks")[rank()]
    model._start_rng.bit_generator.state, model._last_obs = state.pop("starts"), state.pop("last_obs")
    for wrapper, attributes in zip(_wrappers(model.env), state.pop("wrappers"), strict=True):
        vars(wrapper).update({name: pickle.loads(value) for name, value in attributes.items()})
    try:
        _load_episodes(model, state.pop("episodes"), checkpoint.manifest["differs"])
    except _NoEpisodesError as error:
        warn_user(f"{error} So the training goes on with new episodes.")
        model._last_obs = None
    parts = state.pop("parts")
    for name, part in model.training_parts().items():
        part.load_state_dict(parts[name])
    model.resumption = Resumption(checkpoint.path, **state)


def describe_env(env: VecEnv) -> str:
    """
    :param env: A training environment
    :return: How it is made: its wrappers, and the copies in them
    """
    names = [type(each).__name__ for each in (*_wrappers(env), innermost(env))]
    return f"{' around '.join(names)} of {env.num_envs} copies"


def _wrappers(env: VecEnv) -> Iterator[VecEnvWrapper]:
    while isinstance(env, VecEnvWrapper):
        yield env
        env = env.venv


def _attributes_of(wrapper: VecEnvWrapper) -> dict[str, bytes]:
    """
    :param wrapper: A wrapper of the training environment
    :return: Its pickled state: all attributes but those that cannot be pickled, such as files and locks
    """
    pickled = {}
    for name, value in vars(wrapper).items():
        if name not in _NOT_STATE and not isinstance(value, VecEnv | gym.Env | gym.Space):
            with suppress(Exception):
                pickled[name] = cloudpickle.dumps(value)
    return pickled


def _save_episodes(model: Any) -> bytes:
    """
    :param model: The model
    :return: The groups and episodes in progress
    :raises _NoEpisodesError: if they cannot be saved
    """
    copies: Any = innermost(model.env)
    if ask(False, hasattr, copies, "state_dict"):
        episodes = copies.state_dict()
    elif offers(copies, "save_episode"):
        saved = call(copies, "save_episode", os.getpid())
        for idx, each in enumerate(saved):
            if isinstance(each, str):
                raise _NoEpisodesError(f"Environment copy {idx}: {each.rstrip(' .')}.")
        episodes = list(zip(saved, copies.reset_infos, strict=True))
    else:
        raise _NoEpisodesError(
            f"The copies in this {type(copies).__name__} have no StartQueue, which saves episodes: build them with "
            "make_group_env(...)."
        )
    try:
        return cloudpickle.dumps((episodes, model.collector.state_dict(), model.rollout_buffer.state_dict()))
    except Exception as error:
        raise _NoEpisodesError(f"The episodes in progress cannot be pickled ({error}).") from error


def _load_episodes(model: Any, saved: bytes | None, differs: str | None) -> None:
    """
    :param model: The model
    :param saved: What ``_save_episodes`` returned, ``None`` if they could not be saved
    :param differs: Why they could not be saved
    :raises _NoEpisodesError: if they cannot be continued
    :raises StartMismatchError: if the copies of the environment differ from those saved
    """
    if saved is None:
        raise _NoEpisodesError(differs)
    episodes, collector, buffer = pickle.loads(saved)
    model.begin_groups()
    copies: Any = innermost(model.env)
    if ask(False, hasattr, copies, "load_state_dict"):
        copies.load_state_dict(episodes)
    else:
        errors = [call(copies, "load_episode", *each, indices=idx)[0] for idx, each in enumerate(episodes)]
        # This resets into the episodes just loaded. If one was not, the next reset begins new ones
        copies.reset()
        for idx, error in enumerate(errors):
            if isinstance(error, StartMismatchError):
                raise error
            if error is not None:
                raise _NoEpisodesError(f"Environment copy {idx}: {error}")
    # This fills the queues of the copies
    model.collector.load_state_dict(collector)
    model.rollout_buffer.load_state_dict(buffer)
