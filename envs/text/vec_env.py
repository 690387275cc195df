"""Vectorized version of the text environment, without a loop over the copies at each step."""

import inspect
import time
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_grpo.envs.text.env import VerifierTextEnv
from sb3_grpo.envs.text.episodes import TextEpisodes
from sb3_grpo.envs.text.rules import EncodedItem, TextEpisodeRules
from sb3_grpo.starts.known_envs import env_name
from sb3_grpo.starts.snapshots import begin, capture
from sb3_grpo.starts.start_queue import OrdinarySeeds, QueuedStart, StartQueue
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, Start
from sb3_grpo.utils.parameters import Whole, did_you_mean

# Attributes that are part of the episodes in progress
_STATE = ("_first", "_generators", "_ordinary_seeds", "reset_infos")


# Names that TRL has for arguments
_OF_TRL = {"reward_funcs": "verifier", "max_completion_length": "max_answer_tokens", "max_prompt_length": "max_prompt_tokens"}


class VerifierTextVecEnv(TextEpisodes, VecEnv):
    """
    Equivalent to ``num_envs`` copies of :class:`VerifierTextEnv` in a ``DummyVecEnv``, each wrapped in a ``Monitor`` and a
    ``StartQueue``, but faster. All answers that end in the same step are passed to the verifier together.

    The info dicts of copies whose episode continues are empty. ``queue`` contains the starts of the next episodes:
    the first copy to end its episode takes the next one.

    :param num_envs: Number of copies
    :param seed: Copy i begins with ``reset(seed=seed + i)``. None: use a seed from the system
    :param task: The task, see :func:`make_task`
    :param settings: Parameters of :class:`TextEpisodeRules`
    """

    def __init__(self, num_envs: int, seed: int | None = None, task: Any = "arithmetic", **settings: Any):
        known = inspect.signature(TextEpisodeRules).parameters
        for name in settings.keys() - known.keys():
            meant = f"write {_OF_TRL[name]}" if name in _OF_TRL else did_you_mean(name, known)
            raise TypeError(f"{type(self).__name__} has no argument {name!r}: {meant}")
        num_envs = Whole().check("num_envs", num_envs)
        TextEpisodes.__init__(self, TextEpisodeRules(task, **settings), num_envs)
        # Rare operations are left to one ordinary environment, so that they work as everywhere else
        self._single = VerifierTextEnv(self.rules)
        self.queue: deque[QueuedStart] = deque()
        self._first: list[np.ndarray | None] = [None] * num_envs
        # A copy that begins from a start gets the start's generator, but only once random numbers are drawn
        self._generators: list[np.random.Generator | QueuedStart | None] = [None] * num_envs
        self._ordinary_seeds = [OrdinarySeeds() for _ in range(num_envs)]
        # The members of a group come one after another
        self._last_start: tuple[Start, EncodedItem | dict[str, Any]] | None = None
        self._actions = np.empty(0)
        self._t_start = time.time()
        VecEnv.__init__(self, num_envs, self.observation_space, self.action_space)
        if seed is not None:
            self.seed(seed)

    @property
    def env_name(self) -> str:
        """The id of the environment."""
        return env_name(self._single)

    def step_async(self, actions: np.ndarray) -> None:
        """
        :param actions: One token per copy
        """
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: Observations, rewards, dones, infos
        """
        rewards, endings = self._write(self._actions)
        dones = np.zeros(self.num_envs, bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        seconds = round(time.time() - self._t_start, 6)
        for idx, (truncated, info) in endings.items():
            dones[idx] = True
            infos[idx] = {
                **info,
                "TimeLimit.truncated": truncated,
                "terminal_observation": self._tokens[idx].copy(),
                "episode": {"r": round(float(self._returns[idx]), 6), "l": int(self._n_given[idx]), "t": seconds},
            }
            self._begin_next(idx)
        self._in_progress = True
        return self._tokens.copy(), rewards.astype(np.float32), dones, infos

    def reset(self) -> np.ndarray:
        """
        Begin an episode in every copy.

        :return: The observations
        """
        self._in_progress = False
        for idx in range(self.num_envs):
            self._begin_next(idx, self._seeds[idx], self._options[idx])
        self._in_progress = True
        self._reset_seeds()
        self._reset_options()
        return self._tokens.copy()

    def _begin_next(self, idx: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin from the next queued start, or do an ordinary reset if there is none."""
        if not self.queue:
            seed = self._ordinary_seeds[idx].ordinary(seed)
            if seed is not None:
                self._generators[idx] = gym.utils.seeding.np_random(seed)[0]
            self.reset_infos[idx] = self._begin(idx, self.rules.choose_item(options, self._generator(idx)))
            return
        self._ordinary_seeds[idx].note(seed)
        queued = self.queue.popleft()
        start = queued.start
        if self._last_start is None or self._last_start[0] is not start:
            if isinstance(start, SeedStart):
                # As in reset; creating the generator takes longer than everything else
                rng = gym.utils.seeding.np_random(start.seed)[0]
                self._last_start = start, self.rules.choose_item(start.options, rng)
            else:
                self._begin_single(start)
                self._last_start = start, self._single.get_state()
        self._generators[idx] = queued
        prepared, info = self._last_start[1], {}
        if isinstance(prepared, EncodedItem):
            info = self._begin(idx, prepared)
        else:
            self._set_episode(idx, prepared)
        self._first[idx] = self._tokens[idx].copy()
        self.reset_infos[idx] = queued.add_names(info)

    def _begin_single(self, start: Start, noise_seed: int | None = None) -> None:
        # begin() may write into the current generator, which belongs to some copy
        self._single.np_random = gym.utils.seeding.np_random()[0]
        begin(self._single, start, noise_seed)

    def _generator(self, idx: int) -> np.random.Generator:
        """
        :param idx: Index of the copy
        :return: Its random generator
        """
        generator = self._generators[idx]
        if isinstance(generator, QueuedStart):
            # The generator as the start left it
            self._begin_single(generator.start, generator.noise_seed)
            generator = self._single.np_random
        elif generator is None:
            generator = gym.utils.seeding.np_random()[0]
        self._generators[idx] = generator
        return generator

    def capture_start(self, idx: int = 0) -> SnapshotStart:
        """
        :param idx: Index of the copy
        :return: The current state of its episode
        """
        self._check_in_progress()
        generator = self._generator(idx)
        self._single.set_state(self._get_episode(idx))
        self._single.np_random = generator
        return capture(self._single, self._tokens[idx].copy())

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The episodes in progress, without queued starts: all that ``load_state_dict`` needs to continue them in
            another process
        """
        self._check_in_progress()
        # A generator that is not there yet would be another one in another process
        self._generators = [each or self._generator(idx) for idx, each in enumerate(self._generators)]
        return {
            "episodes": [self._get_episode(idx) for idx in range(self.num_envs)],
            **{name: getattr(self, name) for name in _STATE},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict`` for the same number of copies of the same environment
        """
        for idx, episode in enumerate(state["episodes"]):
            self._set_episode(idx, episode)
        self._in_progress = True
        for name in _STATE:
            setattr(self, name, state[name])

    def queue_start(self, *fields: Any, **named: Any) -> None:
        """
        Append a start to the queue. The first copy to end its episode takes the next one.

        :param fields: Fields of ``QueuedStart``
        :param named: Further fields by name
        """
        self.queue.append(QueuedStart(*fields, **named))

    def clear_starts(self) -> None:
        """Drop all queued starts. Current episodes continue, followed by ordinary ones with their own seeds."""
        self.queue.clear()
        for seeds in self._ordinary_seeds:
            seeds.draw_from_now_on()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        :param attr_name: ``first_observation``, ``np_random``, or a shared attribute
        :param indices: Indices of the copies, None for all
        :return: The attribute of each of them
        """
        copies = self._get_indices(indices)
        if attr_name == "first_observation":
            return [self._first[idx] for idx in copies]
        if attr_name == "np_random":
            return [self._generator(idx) for idx in copies]
        return [getattr(self._single if hasattr(self._single, attr_name) else self, attr_name) for _ in copies]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        :param attr_name: Name of an attribute that all copies share: ``reward_correct``, ``reward_wrong``, ``success_score``,
            ``truncate``, or one of your own
        :param value: Its new value
        :param indices: Must be all copies
        """
        if hasattr(self.rules, attr_name) and not hasattr(TextEpisodes, attr_name):
            raise AttributeError(f"{attr_name!r} cannot be changed: create a new {type(self).__name__} with another one")
        if len(set(self._get_indices(indices))) < self.num_envs:
            raise ValueError(f"The copies in a {type(self).__name__} share {attr_name!r}: it can only be set for all of them")
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        :param method_name: ``queue_start``, ``clear_starts``, ``worked_examples`` or ``capture_start``
        :param method_args: Positional arguments
        :param indices: Indices of the copies, None for all
        :param method_kwargs: Keyword arguments
        :return: The result for each of them
        """
        copies = self._get_indices(indices)
        if method_name == "capture_start":
            return [self.capture_start(idx) for idx in copies]
        if method_name in ("queue_start", "clear_starts", "worked_examples"):
            return [getattr(self, method_name)(*method_args, **method_kwargs) for _ in copies]
        raise AttributeError(
            f"The copies in a {type(self).__name__} have no method {method_name!r}, only queue_start, clear_starts, "
            "worked_examples and capture_start"
        )

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        :param wrapper_class: Class of a wrapper
        :param indices: Indices of the copies, None for all
        :return: Whether the copies act as if wrapped in it
        """
        return [wrapper_class in (Monitor, StartQueue)] * len([*self._get_indices(indices)])
