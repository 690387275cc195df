"""Resuming RL Zoo runs from a checkpoint."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EventCallback

from sb3_grpo.checkpoint.folder import Checkpoint, is_checkpoint, newest_checkpoint
from sb3_grpo.checkpoint.training import Stateful
from sb3_grpo.console import UsageError

# In the folder of a run
CHECKPOINTS = "checkpoints"
_COUNTED = ("n_calls", "last_time_trigger", "best_mean_reward", "last_mean_reward")
_FOUND = ("evaluations_timesteps", "evaluations_results", "evaluations_length", "evaluations_successes")


def as_model(path: str) -> str:
    """
    :param path: the argument of ``-i``
    :return: the newest checkpoint if it is a folder, which the RL Zoo does not accept; otherwise the path itself
    :raises UsageError: if it is a folder without checkpoints
    """
    return str(_newest(Path(path)).path) if Path(path).is_dir() else path


def _newest(path: Path) -> Checkpoint:
    try:
        return newest_checkpoint(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"-i {path}: {error} Runs of grpo and dapo that are not complete have theirs in "
            f"LOGS/ALGO/ENV_NUMBER/{CHECKPOINTS}; to continue with what a complete run has learned, name its ENV.zip"
        ) from error


def checkpoint_of(model: str) -> Checkpoint | None:
    """
    :param model: the argument of ``-i``
    :return: the checkpoint that this model is, if it is one
    """
    return _newest(Path(model)) if is_checkpoint(Path(model)) else None


def entry_of(checkpoint: Checkpoint, env_name: str) -> dict[str, Any] | None:
    """
    :param checkpoint: a checkpoint of the run
    :param env_name: name of the environment, as in file names
    :return: the hyperparameters that the RL Zoo saved for the run; ``None`` if this is not an RL Zoo run
    """
    path = checkpoint.path.resolve().parents[1] / env_name / "config.yml"
    # Unsafe, as in the RL Zoo: checkpoints are pickled anyway
    return dict(yaml.load(path.read_text(), Loader=yaml.UnsafeLoader)) if path.is_file() else None


def best_model_of(checkpoint: Checkpoint) -> Path:
    """
    :param checkpoint: a checkpoint of an RL Zoo run
    :return: where the run saves its best model so far, if it has been evaluated
    """
    return checkpoint.path.resolve().parents[1] / "best_model.zip"


def callback_states(callbacks: Iterable[BaseCallback]) -> dict[str, Stateful]:
    """
    :param callbacks: the callbacks of a run
    :return: their states to save in checkpoints, by name
    """
    seen: Counter[str] = Counter()
    states: dict[str, Stateful] = {}
    for callback in callbacks:
        for each in _and_inside(callback):
            name = type(each).__name__
            seen[name] += 1
            # Not by position: an option such as -P that was not given before would shift them
            states[f"{name} {seen[name]}"] = CallbackState(each)
    return states


def _and_inside(callback: BaseCallback) -> Iterator[BaseCallback]:
    yield callback
    if isinstance(callback, EventCallback) and callback.callback is not None:
        yield from _and_inside(callback.callback)


class CallbackState:
    """
    The counters and results of an SB3 callback, so that it can resume with them.

    :param callback: the callback
    """

    def __init__(self, callback: BaseCallback):
        self.callback = callback

    def state_dict(self) -> dict[str, Any]:
        """
        :return: the state for a checkpoint
        """
        generators = None
        if isinstance(self.callback, EvalCallback) and self.callback.last_mean_reward > -np.inf:
            generators = self.callback.eval_env.get_attr("np_random")
        return {"kept": {name: getattr(self.callback, name) for name in self._kept}, "generators": generators}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: the state from a checkpoint
        """
        vars(self.callback).update(state["kept"])
        if state["generators"] is not None and isinstance(self.callback, EvalCallback):
            # Uses up the seed set when it was built: the next reset would otherwise apply it
            self.callback.eval_env.reset()
            for i, generator in enumerate(state["generators"]):
                self.callback.eval_env.set_attr("np_random", generator, indices=i)

    @property
    def _kept(self) -> list[str]:
        return [name for name in (*_COUNTED, *_FOUND) if hasattr(self.callback, name)]
