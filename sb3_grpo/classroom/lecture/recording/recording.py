"""Records an update while it runs, without changing it. Used by the callback ``RecordUpdate``."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_grpo.common.losses import cut_off
from sb3_grpo.text.tokens import TokenSpace, token_lengths
from sb3_grpo.utils.plugins import name_of

# Larger observations are not recorded
MAX_NUMBERS = 16
# Settings that a reader needs to reproduce the numbers, if the algorithm has them
SETTINGS = (
    "gamma gae_lambda n_epochs batch_size n_steps n_groups group_size normalize_advantage advantage advantage_scale "
    "leave_one_out loss_average ratio_level policy_loss ent_coef vf_coef max_grad_norm target_kl kl_coef kl_estimator "
    "gradient_accumulation_steps overlong_filter overlong_range"
).split()


class Evaluation(NamedTuple):
    """
    A policy's evaluation of all steps of a rollout.

    :param log_prob: (N,) log probabilities of the actions
    :param entropy: (N,) entropies of the distributions, ``None`` if there is no closed form
    :param values: (N,) values of the critic, ``None`` without one
    """

    log_prob: th.Tensor
    entropy: th.Tensor | None = None
    values: th.Tensor | None = None


class UpdateRecorder(ABC):
    """
    Records one update. It intercepts the method that is called for each part of the update, to know which steps the part
    learns from, and evaluates the probabilities of all actions after each optimizer step.

    :param model: The model, about to update its policy
    :param source: The object whose method is intercepted
    :param method: Name of that method
    """

    def __init__(self, model: Any, source: Any, method: str):
        self.model = model
        self.timesteps = model.num_timesteps
        self.optimizer_steps: list[dict[str, Any]] = []
        # Minibatches for which the optimizer has not yet taken a step
        self.coming: deque[Any] = deque()
        self.latest: Evaluation | None = None
        # Recorded before the first step: buffers are emptied and coefficients adapted before the record is read
        self._begun: dict[str, Any] = {}
        self._source, self._method = source, method
        self._original: Callable[..., Any] = getattr(source, method)
        # On the object, not on its class, so that other models are not recorded
        vars(source)[method] = self._overheard
        self._hooks = [
            model.policy.optimizer.register_step_pre_hook(self._before_step),
            model.policy.optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()
        vars(self._source).pop(self._method, None)

    def _overheard(self, *args: Any) -> Any:
        if self._is_over():
            return self._original(*args)
        try:
            with self._looking():
                self.hear(*args)
                if self.latest is None:
                    self.latest = self.evaluate()
                    self._begun = {**self._settings(), **self.rollout()}
            return self._original(*args)
        except BaseException:
            self.close()
            raise

    def _is_over(self) -> bool:
        """
        :return: Whether this is a later update, because the recorded one was interrupted
        """
        if self.model.num_timesteps != self.timesteps:
            self.close()
            return True
        return False

    def _before_step(self, *_: Any) -> None:
        if not self._is_over() and self.coming:
            with self._looking():
                self.optimizer_steps.append(self.describe(self.coming.popleft()))

    def _after_step(self, *_: Any) -> None:
        if not self._is_over():
            with self._looking():
                self.latest = self.evaluate()
            self.optimizer_steps[-1]["log_prob"] = numbers(self.latest.log_prob)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Inside, computations do not affect the training: no gradients, random numbers or batch statistics."""
        policy = self.model.policy
        training = policy.training
        policy.set_training_mode(False)
        try:
            with th.no_grad(), th.random.fork_rng([policy.device] if policy.device.type == "cuda" else []):
                yield
        finally:
            policy.set_training_mode(training)

    def record(self) -> dict[str, Any]:
        """
        :return: The update, as JSON-compatible data
        """
        stopped_early = bool(self.coming) or self.optimizer_steps[-1]["epoch"] < self.model.n_epochs
        return {**self._begun, "optimizer_steps": self.optimizer_steps, "stopped_early": stopped_early}

    def _settings(self) -> dict[str, Any]:
        """
        :return: Algorithm, number of time steps and settings of the update
        """
        model = self.model
        settings = {name: getattr(model, name) for name in SETTINGS if hasattr(model, name)}
        low, high = self.clip_range()
        settings |= {"learning_rate": model.policy.optimizer.param_groups[0]["lr"], "clip_low": low, "clip_high": high}
        return {
            "algorithm": type(model).__name__,
            "num_timesteps": self.timesteps,
            "settings": {name: _in_json(value) for name, value in settings.items()},
        }

    def actions(self, actions: np.ndarray) -> dict[str, list[Any]]:
        """
        :param actions: (N, \\*action_shape) actions
        :return: The actions and, if they are tokens, their texts. That of the end-of-text token is empty
        """
        columns: dict[str, list[Any]] = {"action": actions.tolist()}
        if isinstance(self.model.observation_space, TokenSpace):
            tokenizer = self.model.observation_space.tokenizer
            columns["token"] = [tokenizer.decode([token]) for token in columns["action"]]
        return columns

    @abstractmethod
    def hear(self, *args: Any) -> None:
        """
        Called before the intercepted method.

        :param args: Arguments of this method
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """
        :return: The current policy's evaluation of all steps
        """

    @abstractmethod
    def describe(self, coming: Any) -> dict[str, Any]:
        """
        :param coming: The minibatch for the next optimizer step
        :return: Its part of the record
        """

    @abstractmethod
    def clip_range(self) -> tuple[float, float]:
        """
        :return: How far the ratio may fall below 1, and rise above it
        """

    @abstractmethod
    def rollout(self) -> dict[str, Any]:
        """
        :return: Groups, episodes and steps
        """


def numbers(tensor: th.Tensor) -> list[float]:
    """
    :param tensor: Any tensor
    :return: Its values in a flat list
    """
    return tensor.detach().cpu().flatten().tolist()


def _in_json(value: Any) -> Any:
    # JSON has neither functions nor infinity
    if callable(value):
        return name_of(value)
    return None if value == math.inf else value


def place(epoch: int, number: int, steps: th.Tensor) -> dict[str, Any]:
    """
    :param epoch: Epoch, counted from 0
    :param number: Number of the optimizer step within the epoch, counted from 0
    :param steps: (M,) the steps that it learns from
    :return: Entries of the record, where epochs and optimizer steps are counted from 1
    """
    return {"epoch": epoch + 1, "minibatch": number + 1, "steps": steps.tolist()}


def judged(steps: th.Tensor, advantages: th.Tensor, ratio: th.Tensor, low: float, high: float) -> dict[str, Any]:
    """
    :param steps: (M,) steps of a minibatch
    :param advantages: (M,) advantages as used in the loss
    :param ratio: (M,) probability ratios before the optimizer step
    :param low: How far the ratio may fall below 1
    :param high: How far the ratio may rise above 1
    :return: Entries of the record: advantages, ratios, and the steps whose gradient is cut off
    """
    below, above = cut_off(ratio, advantages, low, high)
    return {
        "advantage": numbers(advantages),
        "ratio": numbers(ratio),
        "below": steps[below].tolist(),
        "above": steps[above].tolist(),
    }


def described(space: spaces.Space, observations: Any, n_steps: int) -> list[Any]:
    """
    :param space: Observation space
    :param observations: Observations of all steps
    :param n_steps: Number of steps
    :return: For each step, a list of numbers; ``None`` if these are too many, or if observations are texts or dictionaries
    """
    if isinstance(space, TokenSpace) or not isinstance(observations, th.Tensor) or observations[0].numel() > MAX_NUMBERS:
        return [None] * n_steps
    return observations.reshape(n_steps, -1).tolist()


def prompt_of(space: spaces.Space, observations: Any, step: int) -> dict[str, str]:
    """
    :param space: Observation space
    :param observations: Observations of all steps
    :param step: First step of an episode
    :return: The prompt of the episode, if observations are texts
    """
    if not isinstance(space, TokenSpace):
        return {}
    if isinstance(observations, th.Tensor):
        row = observations[step].long().cpu().numpy()
        return {"prompt": space.tokenizer.decode(row[: token_lengths(row)].tolist())}
    row = observations.texts[observations.text[step]]
    return {"prompt": space.tokenizer.decode(row[: observations.last[step] + 1].tolist())}


def with_rewards(episodes: list[dict[str, Any]], rewards: np.ndarray) -> list[dict[str, Any]]:
    """
    :param episodes: Episodes with their first steps and lengths
    :param rewards: (N,) rewards of all steps
    :return: The episodes, with the sums of their rewards added
    """
    return [
        {**each, "reward": float(rewards[each["first"] : each["first"] + each["n_steps"]].sum(dtype=np.float64))}
        for each in episodes
    ]


def consecutive(lengths: Sequence[int], batch_size: int | None) -> Iterator[list[int]]:
    """
    :param lengths: Lengths of the episodes, in steps
    :param batch_size: Maximum number of steps per batch, which only a single episode may exceed. ``None``: one batch
    :return: Batches of consecutive episodes
    """
    part: list[int] = []
    n_steps = 0
    for index, length in enumerate(lengths):
        if part and batch_size is not None and n_steps + length > batch_size:
            yield part
            part, n_steps = [], 0
        part.append(index)
        n_steps += length
    yield part
