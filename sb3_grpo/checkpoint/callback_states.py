"""States of SB3's callbacks, to be saved in checkpoints."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EventCallback

from sb3_grpo.checkpoint.training import Stateful
from sb3_grpo.utils.vec_envs import ask_all

_COUNTED = ("n_calls", "last_time_trigger", "best_mean_reward", "last_mean_reward")
_FOUND = ("evaluations_timesteps", "evaluations_results", "evaluations_length", "evaluations_successes")


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
            generators = ask_all(self.callback.eval_env, "np_random", None)
        return {"kept": {name: getattr(self.callback, name) for name in self._kept}, "generators": generators}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: the state from a checkpoint
        """
        vars(self.callback).update(state["kept"])
        if any(state["generators"] or ()) and isinstance(self.callback, EvalCallback):
            # Uses up the seed set when it was built: the next reset would otherwise apply it
            self.callback.eval_env.reset()
            for i, generator in enumerate(state["generators"]):
                self.callback.eval_env.set_attr("np_random", generator, indices=i)

    @property
    def _kept(self) -> list[str]:
        return [name for name in (*_COUNTED, *_FOUND) if hasattr(self.callback, name)]
