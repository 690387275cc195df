"""Base class for vectorized environments that are a single object and support exact starts."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_grpo.starts.layers import env_name
from sb3_grpo.starts.probes import Trace, play_probe
from sb3_grpo.starts.snapshots import begin, capture, compare_captured
from sb3_grpo.starts.start_queue import OrdinarySeeds, QueuedStart, StartQueue
from sb3_grpo.starts.starts import SnapshotStart, Start

EpisodeStart = TypeVar("EpisodeStart")


class BatchedVecEnv(VecEnv, Generic[EpisodeStart]):
    """
    Equivalent to ``num_envs`` copies of an environment in a ``DummyVecEnv``, each wrapped in a ``Monitor`` and a
    ``StartQueue``. A subclass steps all copies at once. Rare operations are left to one ordinary environment, so that they
    work as everywhere else.

    A subclass must set ``render_mode`` before calling this ``__init__``.

    The info dicts of copies whose episode continues are empty. ``queue`` contains the starts of the next episodes:
    the first copy to end its episode takes the next one.

    :param num_envs: Number of copies
    :param single: The ordinary environment, with its wrappers
    :param seed: Copy i begins with ``reset(seed=seed + i)``. None: with a seed from the system
    """

    # Attributes, other than environments and spaces, that are not part of the episodes in progress. A subclass adds its own
    not_state: ClassVar[frozenset[str]] = frozenset({"_t_start", "metadata", "num_envs", "queue", "render_mode"})

    def __init__(self, num_envs: int, single: gym.Env, seed: int | None):
        self._single = single
        self.queue: deque[QueuedStart] = deque()
        self._tickets: list[int | None] = [None] * num_envs
        self._first: list[np.ndarray | None] = [None] * num_envs
        self._traces: list[Trace | str | None] = [None] * num_envs
        # A copy that begins from a start gets the start's generator, but only once random numbers are drawn
        self._generators: list[np.random.Generator | QueuedStart | None] = [None] * num_envs
        self._ordinary_seeds = [OrdinarySeeds() for _ in range(num_envs)]
        # The members of a group come one after another
        self._last_start: tuple[Start, EpisodeStart] | None = None
        self._actions = np.empty(0)
        self._was_reset = self._interrupted = False
        super().__init__(num_envs, single.observation_space, single.action_space)
        if seed is not None:
            self.seed(seed)

    @abstractmethod
    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: Actions given by the user
        :return: The same actions
        :raises ValueError: if they are not one valid action per copy
        """

    @abstractmethod
    def _step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """
        Step all copies, and call ``_begin`` for those whose episode has ended, in order.

        :param actions: One action per copy
        :return: Observations, rewards, dones, infos
        """

    @abstractmethod
    def _observations(self) -> np.ndarray:
        """
        :return: (num_envs, \\*obs_shape) observations of the copies, in a new array
        """

    @abstractmethod
    def _reset_copy(self, idx: int, options: dict[str, Any] | None) -> dict[str, Any]:
        """
        Do an ordinary reset, drawing from ``_generator(idx)``.

        :param idx: Index of the copy
        :param options: Options for ``reset``
        :return: The info dict
        """

    @abstractmethod
    def _prepare_start(self, start: Start) -> EpisodeStart:
        """
        :param start: A start
        :return: The start in the form that ``_begin_start`` needs
        """

    @abstractmethod
    def _begin_start(self, idx: int, start: EpisodeStart) -> tuple[np.ndarray, dict[str, Any]]:
        """
        :param idx: Index of the copy
        :param start: The result of ``_prepare_start``
        :return: The first observation, which is not modified, and a new info dict
        """

    @abstractmethod
    def _load(self, idx: int) -> np.ndarray:
        """
        Put ``_single`` into the state of a copy, except for the random generator.

        :param idx: Index of the copy
        :return: The last observation
        """

    def step_async(self, actions: np.ndarray) -> None:
        """
        :param actions: One action per copy
        """
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: Observations, rewards, dones, infos
        """
        self._check_ready()
        actions = self._check_actions(self._actions)
        with self._whole():
            return self._step(actions)

    def reset(self) -> np.ndarray:
        """
        Begin an episode in every copy.

        :return: The observations
        """
        with self._whole():
            for idx in range(self.num_envs):
                self._begin(idx, self._seeds[idx], self._options[idx])
        self._was_reset = True
        self._reset_seeds()
        self._reset_options()
        return self._observations()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Mark an operation that, interrupted by an error, leaves the copies at different steps."""
        self._interrupted = True
        yield
        self._interrupted = False

    def _check_ready(self) -> None:
        if not self._was_reset:
            raise gym.error.ResetNeeded("Call reset() first")
        if self._interrupted:
            raise gym.error.ResetNeeded(
                "The last step() or reset() was ended by an error: call reset() (a model that goes on with this environment "
                "does so after model.set_env(env))"
            )

    def _begin(self, idx: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin from the next queued start, or do an ordinary reset if there is none."""
        self._tickets[idx] = None
        if not self.queue:
            seed = self._ordinary_seeds[idx].ordinary(seed)
            if seed is not None:
                self._generators[idx] = gym.utils.seeding.np_random(seed)[0]
            self.reset_infos[idx] = self._reset_copy(idx, options)
            return
        self._ordinary_seeds[idx].note(seed)
        queued = self.queue.popleft()
        if self._last_start is None or self._last_start[0] is not queued.start:
            self._last_start = queued.start, self._prepare_start(queued.start)
        self._generators[idx] = queued
        self._first[idx], info = self._begin_start(idx, self._last_start[1])
        self._tickets[idx] = queued.ticket
        self.reset_infos[idx] = queued.add_names(info)
        if queued.probe is not None and isinstance(queued.start, SnapshotStart):
            self._traces[idx] = self._probe(idx, queued)

    def _probe(self, idx: int, queued: QueuedStart) -> Trace | str:
        """
        :param idx: Index of the copy that has begun from the start
        :param queued: The start, with a probe
        :return: The trace of the ordinary environment from there; if its state differs from the copy's, the difference
        """
        assert isinstance(queued.start, SnapshotStart) and queued.probe is not None
        self._generator(idx)
        self._single.unwrapped.np_random = gym.utils.seeding.np_random()[0]
        trace = play_probe(self._single, queued.start, queued.probe)
        observation, _ = self._begin_single(queued.start, queued.noise_seed)
        start, sides = capture(self._single, observation), ("in the start", "in the copy")
        difference = compare_captured(self._single, start, self._capture_copy(idx), sides)
        return trace if difference is None else f"{self.env_name}: a copy is not in the state of its start: {difference}."

    @property
    def env_name(self) -> str:
        """The id of the environment."""
        return env_name(self._single)

    def _begin_single(self, start: Start, noise_seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """
        :param start: Start for the ordinary environment
        :param noise_seed: See ``begin``
        :return: The first observation and the info dict
        """
        # begin() may write into the current generator, which belongs to some copy
        self._single.unwrapped.np_random = gym.utils.seeding.np_random()[0]
        return begin(self._single, start, noise_seed)

    def _generator(self, idx: int) -> np.random.Generator:
        """
        :param idx: Index of the copy
        :return: Its random generator
        """
        generator = self._generators[idx]
        if isinstance(generator, QueuedStart):
            # The generator as the start left it, if the start has one
            self._begin_single(generator.start, generator.noise_seed)
            generator = self._single.unwrapped.np_random
        elif generator is None:
            generator = gym.utils.seeding.np_random()[0]
        self._generators[idx] = generator
        return generator

    def capture_start(self, idx: int = 0) -> SnapshotStart:
        """
        :param idx: Index of the copy
        :return: The current state of its episode
        """
        self._check_ready()
        return self._capture_copy(idx)

    def _capture_copy(self, idx: int) -> SnapshotStart:
        generator = self._generator(idx)
        observation = self._load(idx)
        self._single.unwrapped.np_random = generator
        return capture(self._single, observation)

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The episodes in progress, without queued starts: all that ``load_state_dict`` needs to continue them in
            another process
        """
        self._check_ready()
        for idx, generator in enumerate(self._generators):
            if generator is None:
                self._generator(idx)
        return {
            name: value
            for name, value in vars(self).items()
            if name not in self.not_state and not isinstance(value, gym.Env | gym.Space)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict`` for the same number of copies of the same environment
        """
        vars(self).update(state)

    def queue_start(self, ticket: int, start: Start, noise_seed: int | None = None, *more: Any, **named: Any) -> None:
        """
        Append a start to the queue. The first copy to end its episode takes the next one.

        :param ticket: Number that identifies the episode
        :param start: Where the episode begins
        :param noise_seed: See ``begin``
        :param more: Further fields of ``QueuedStart``
        :param named: Further fields by name
        """
        self.queue.append(QueuedStart(ticket, start, noise_seed, *more, **named))

    def clear_starts(self) -> None:
        """Drop all queued starts. Current episodes continue, followed by ordinary ones with their own seeds."""
        self.queue.clear()
        for seeds in self._ordinary_seeds:
            seeds.draw_from_now_on()

    def close(self) -> None:
        """Close the ordinary environment."""
        self._single.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        :param attr_name: ``current_ticket``, ``first_observation``, ``start_trace``, ``np_random``, or a shared attribute
        :param indices: Indices of the copies, None for all
        :return: The attribute of each of them
        """
        copies = self._get_indices(indices)
        if attr_name == "current_ticket":
            return [self._tickets[idx] for idx in copies]
        if attr_name == "first_observation":
            return [self._first[idx] for idx in copies]
        if attr_name == "start_trace":
            return [self._traces[idx] for idx in copies]
        if attr_name == "np_random":
            return [self._generator(idx) for idx in copies]
        if attr_name in ("metadata", "spec"):
            return [getattr(self._single, attr_name) for _ in copies]
        if attr_name.startswith("_"):
            raise AttributeError(f"The copies in a {type(self).__name__} have no attribute {attr_name!r}")
        value = getattr(self, attr_name) if hasattr(self, attr_name) else self._single.get_wrapper_attr(attr_name)
        return [value for _ in copies]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        :param attr_name: Name of an attribute that the copies share
        :param value: Its new value
        :param indices: Must be all copies
        """
        if len(set(self._get_indices(indices))) < self.num_envs:
            raise ValueError(f"The copies in a {type(self).__name__} share {attr_name!r}: it can only be set for all of them")
        setattr(self, attr_name, value)

    def _own_methods(self) -> dict[str, Callable[..., Any]]:
        """
        :return: Methods of single copies for ``env_method``, with the index of the copy as their first argument
        """
        return {"capture_start": self.capture_start}

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        :param method_name: ``queue_start``, ``clear_starts``, ``capture_start``, or another method of the copies
        :param method_args: Positional arguments
        :param indices: Indices of the copies, None for all
        :param method_kwargs: Keyword arguments
        :return: The result for each of them
        """
        shared = {"queue_start": self.queue_start, "clear_starts": self.clear_starts}
        own = self._own_methods()
        copies = self._get_indices(indices)
        if method_name in shared:
            return [shared[method_name](*method_args, **method_kwargs) for _ in copies]  # type: ignore[operator]
        if method_name in own:
            return [own[method_name](idx, *method_args, **method_kwargs) for idx in copies]
        raise AttributeError(
            f"The copies in a {type(self).__name__} have no method {method_name!r}, only {', '.join([*shared, *own])}"
        )

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        :param wrapper_class: Class of a wrapper
        :param indices: Indices of the copies, None for all
        :return: Whether the copies act as if wrapped: by Monitor, StartQueue, and the wrappers of the ordinary environment
        """
        wrapped = wrapper_class in (Monitor, StartQueue) or is_wrapped(self._single, wrapper_class)
        return [wrapped for _ in self._get_indices(indices)]
