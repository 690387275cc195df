"""Many copies of the environment of text as one object, without a loop over the copies at each step."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_grpo.common.snapshots import begin, capture
from sb3_grpo.common.start_queue import QueuedStart, StartQueue
from sb3_grpo.common.starts import SeedStart, SnapshotStart, Start
from sb3_grpo.common.tokens import PAD

from .text_rules import EncodedItem, Exchange, HasRules, TextEpisodeRules, Turn
from .verifier_text import VerifierTextEnv, check_render_mode
from .verifiers import Verdict


class VerifierTextVecEnv(HasRules, VecEnv):
    """
    The same as ``num_envs`` copies of :class:`VerifierTextEnv` in a ``DummyVecEnv``, each of them in a ``Monitor`` and a
    ``StartQueue``, but faster. All answers that end in the same step go to the verifier together.

    The infos of copies whose episode goes on are empty. ``queue`` has the starts that the next episodes begin from:
    whichever copy ends first takes the next one.

    :param num_envs: Number of copies
    :param seed: Copy i begins with ``reset(seed=seed + i)``. None: with a seed from the system
    :param task: What is asked, see :func:`make_task`
    :param render_mode: See :class:`VerifierTextEnv`
    :param settings: The parameters of :class:`TextEpisodeRules`
    """

    def __init__(
        self,
        num_envs: int,
        seed: int | None = None,
        task: Any = "arithmetic",
        *,
        render_mode: str | None = None,
        **settings: Any,
    ):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise ValueError(f"num_envs={num_envs!r} has to be a whole number greater than 0")
        check_render_mode(render_mode)
        self.rules = rules = TextEpisodeRules(task, **settings)
        self.render_mode = render_mode
        self.queue: deque[QueuedStart] = deque()
        self._set_up_copies(num_envs, rules.length)
        # Whatever is rare is left to it, so that it is done as in a single environment
        self._single = VerifierTextEnv.from_rules(rules)
        self._last_start: tuple[SeedStart, EncodedItem] | None = None
        self._last_snapshot: tuple[SnapshotStart, dict[str, Any]] | None = None
        self._actions = np.empty(0, np.int64)
        self._interrupted = False
        self._t_start = time.time()
        super().__init__(num_envs, *rules.make_spaces())
        if seed is not None:
            self.seed(seed)

    def _set_up_copies(self, n: int, length: int) -> None:
        self._rows = np.arange(n)
        self._tokens = np.full((n, length), PAD, np.int64)
        self._n_tokens = np.zeros(n, np.int64)
        self._n_given = np.zeros(n, np.int64)  # by the agent in this episode
        self._exchanges: list[Exchange | None] = [None] * n
        self._tickets: list[int | None] = [None] * n
        self._first: list[np.ndarray | None] = [None] * n
        # A copy that begins from a start gets the start's generator, but only when somebody draws from it
        self._generators: list[np.random.Generator | QueuedStart | None] = [None] * n

    @property
    def verifier_errors(self) -> int:
        """How many failures of the verifier were counted as wrong answers."""
        return self.rules.runner.n_errors

    def reset(self) -> np.ndarray:
        """
        Begin an episode in every copy.

        :return: The observations
        """
        for idx in range(self.num_envs):
            self._begin(idx, self._seeds[idx], self._options[idx])
        self._reset_seeds()
        self._reset_options()
        self._interrupted = False
        return self._tokens.copy()

    def step_async(self, actions: np.ndarray) -> None:
        """
        :param actions: The next token of each copy
        """
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: Observations, rewards, whether episodes have ended, infos
        """
        actions = self._checked(self._actions)
        # Unless nothing goes wrong from here on
        self._interrupted = True
        self._tokens[self._rows, self._n_tokens] = actions
        self._n_tokens += 1
        self._n_given += 1
        rewards = np.zeros(self.num_envs, np.float32)
        dones = np.zeros(self.num_envs, bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        stopped = (actions == self.rules.tokenizer.eos_id) | (self._n_given >= self.rules.max_answer_tokens)
        if stopped.any():
            ended = self._end_turns(np.flatnonzero(stopped), actions)
            # In this order, the copies take the next starts
            copies = sorted(ended)
            dones[copies] = True
            rewards[copies] = self._end(copies, ended, infos)
            for idx in copies:
                self._begin(idx)
        self._interrupted = False
        return self._tokens.copy(), rewards, dones, infos

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        vocab_size = self.rules.tokenizer.vocab_size
        if self._exchanges[0] is None:
            raise gym.error.ResetNeeded("Call reset() first")
        if self._interrupted:
            raise gym.error.ResetNeeded(
                "The last step() was ended by an error: call reset() (a model that goes on with this environment does so "
                "after model.set_env(env))"
            )
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"Expected {self.num_envs} whole numbers as actions, one token for each copy, "
                f"got an array of shape {actions.shape} and type {actions.dtype}"
            )
        if actions.min() < 0 or actions.max() >= vocab_size:
            raise ValueError(f"Expected tokens from 0 to {vocab_size - 1} as actions, got {actions.tolist()!r:.200}")
        return actions

    def _end_turns(self, copies: np.ndarray, actions: np.ndarray) -> dict[int, Verdict | None]:
        """
        :param copies: Those with an answer that has ended or has become too long
        :return: Those whose episode has ended, each with the verdict if the answer is complete
        """
        has_end = actions[copies] == self.rules.tokenizer.eos_id
        answered = copies[has_end]
        ended: dict[int, Verdict | None] = dict.fromkeys(copies[~has_end].tolist())
        n_tokens, n_given = self._n_tokens[answered].tolist(), self._n_given[answered].tolist()
        exchanges = [self._exchange(idx) for idx in answered.tolist()]
        turns = list(map(Turn, exchanges, self._tokens[answered], n_tokens, n_given))
        complete: dict[int, Exchange] = {}
        for idx, turn, end in zip(answered.tolist(), turns, self.rules.end_turns(turns), strict=True):
            if end.complete:
                complete[idx] = turn.exchange
            elif end.reply is None:
                ended[idx] = None
            else:
                self._tokens[idx, turn.n_tokens : turn.n_tokens + len(end.reply)] = end.reply
                self._n_tokens[idx] += len(end.reply)
        if complete:
            ended.update(zip(complete, self.rules.score([*complete.values()]), strict=True))
        return ended

    def _end(self, copies: list[int], verdicts: dict[int, Verdict | None], infos: list[dict[str, Any]]) -> list[float]:
        """
        :param copies: Those whose episode has ended
        :param verdicts: See ``_end_turns``
        :param infos: Where what is to be known about them goes
        :return: Their rewards
        """
        rewards = []
        seconds = round(time.time() - self._t_start, 6)
        n_tokens, n_given = self._n_tokens[copies].tolist(), self._n_given[copies].tolist()
        for idx, tokens, given in zip(copies, n_tokens, n_given, strict=True):
            verdict = verdicts[idx]
            observation = self._tokens[idx].copy()
            reward, info = self.rules.outcome(self._exchange(idx), verdict, observation, tokens)
            info["TimeLimit.truncated"] = verdict is None and self.rules.truncate
            info["terminal_observation"] = observation
            info["episode"] = {"r": round(reward, 6), "l": given, "t": seconds}
            rewards.append(reward)
            infos[idx] = info
        return rewards

    def _exchange(self, idx: int) -> Exchange:
        exchange = self._exchanges[idx]
        if exchange is None:
            raise gym.error.ResetNeeded("Call reset() first")
        return exchange

    def _begin(self, idx: int, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin from the next queued start, or do an ordinary reset if there is none."""
        if not self.queue:
            self._tickets[idx] = None
            index = self.rules.chosen(options)
            if seed is not None:
                self._generators[idx] = gym.utils.seeding.np_random(seed)[0]
            encoded = self.rules.drawn(self._generator(idx)) if index is None else self.rules.encoded(index)
            self.reset_infos[idx] = self._begin_item(idx, encoded)
            return
        queued = self.queue.popleft()
        self._generators[idx] = queued
        if isinstance(queued.start, SeedStart):
            encoded = self._encoded_start(queued.start)
            info = self._begin_item(idx, encoded)
            self._first[idx] = encoded.row
        else:
            info = {}
            self._put_state(idx, self._snapshot_state(queued))
            self._first[idx] = self._tokens[idx].copy()
        self._tickets[idx] = info["group_start"] = queued.ticket
        self.reset_infos[idx] = info

    def _begin_item(self, idx: int, encoded: EncodedItem) -> dict[str, Any]:
        self._exchanges[idx], info = self.rules.begin(encoded)
        self._tokens[idx] = encoded.row
        self._n_tokens[idx] = encoded.n_tokens
        self._n_given[idx] = 0
        return info

    def _encoded_start(self, start: SeedStart) -> EncodedItem:
        # Making a generator takes longer than all the rest, and the members of a group come one after the other
        if self._last_start is None or self._last_start[0] is not start:
            index = self.rules.chosen(start.options)
            generator = gym.utils.seeding.np_random(start.seed)[0]
            self._last_start = start, self.rules.drawn(generator) if index is None else self.rules.encoded(index)
        return self._last_start[1]

    def _snapshot_state(self, queued: QueuedStart) -> dict[str, Any]:
        start = queued.start
        if self._last_snapshot is None or self._last_snapshot[0] is not start:
            begin(self._single, start)
            assert isinstance(start, SnapshotStart)  # begin() refuses anything else
            self._last_snapshot = start, self._single.get_state()
        return self._last_snapshot[1]

    def _generator(self, idx: int) -> np.random.Generator:
        generator = self._generators[idx]
        if isinstance(generator, QueuedStart):
            # The generator as the start left it, where the start has one
            self._single.np_random = gym.utils.seeding.np_random()[0]
            begin(self._single, generator.start, generator.noise_seed)
            generator = self._single.np_random
        elif generator is None:
            generator = gym.utils.seeding.np_random()[0]
        self._generators[idx] = generator
        return generator

    def _put_state(self, idx: int, state: dict[str, Any]) -> None:
        self._single.set_state(state)
        self._exchanges[idx] = self._single._exchange
        self._tokens[idx] = self._single._tokens
        self._n_tokens[idx], self._n_given[idx] = self._single._n_tokens, self._single._n_given

    def _get_state(self, idx: int) -> dict[str, Any]:
        single = self._single
        single._exchange, single._ended = self._exchange(idx), False
        single._tokens = self._tokens[idx].copy()
        single._n_tokens, single._n_given = int(self._n_tokens[idx]), int(self._n_given[idx])
        return single.get_state()

    def capture_start(self, idx: int = 0) -> SnapshotStart:
        """
        :param idx: The copy
        :return: The present state of its episode
        """
        generator = self._generator(idx)
        self._get_state(idx)
        self._single.np_random = generator
        return capture(self._single, self._tokens[idx])

    def queue_start(self, ticket: int, start: Start, noise_seed: int | None = None) -> None:
        """
        Put a start at the end of the queue. Whichever copy ends its episode first takes it.

        :param ticket: Number by which the episode will be recognised
        :param start: Where the episode begins
        :param noise_seed: See ``begin``
        """
        self.queue.append(QueuedStart(ticket, start, noise_seed))

    def clear_starts(self) -> None:
        """Drop all queued starts. The present episodes go on."""
        self.queue.clear()

    def close(self) -> None:
        """End the verifier's process."""
        self.rules.close()

    def _transcript(self, idx: int) -> str | None:
        if self.render_mode is None:
            return None
        return self.rules.transcript(self._exchange(idx), self._tokens[idx], int(self._n_tokens[idx]))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        :param attr_name: ``current_ticket``, ``first_observation``, ``np_random``, or what the copies share
        :param indices: Which copies, None for all
        :return: The attribute of each of them
        """
        copies = self._get_indices(indices)
        if attr_name == "current_ticket":
            return [self._tickets[idx] for idx in copies]
        if attr_name == "first_observation":
            return [self._first[idx] for idx in copies]
        if attr_name == "np_random":
            return [self._generator(idx) for idx in copies]
        if attr_name in ("metadata", "spec"):
            return [getattr(self._single, attr_name) for _ in copies]
        if attr_name.startswith("_"):
            raise AttributeError(f"The copies in a {type(self).__name__} have no attribute {attr_name!r}")
        value = getattr(self, attr_name)
        return [value for _ in copies]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        :param attr_name: An attribute that the copies share: ``reward_correct``, ``reward_wrong``, ``success_score``,
            ``truncate``, or one of your own
        :param value: Its new value
        :param indices: All copies
        """
        if len(set(self._get_indices(indices))) < self.num_envs:
            raise ValueError(f"The copies in a {type(self).__name__} share {attr_name!r}: it can only be set for all of them")
        if hasattr(self.rules, attr_name) and not hasattr(HasRules, attr_name):
            raise AttributeError(f"{attr_name!r} cannot be changed: create a new {type(self).__name__} with another one")
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        :param method_name: ``queue_start``, ``clear_starts``, ``capture_start``, ``get_state`` or ``render``
        :param method_args: Arguments
        :param indices: Which copies, None for all
        :param method_kwargs: Arguments
        :return: What it returns for each of them
        """
        shared = {"queue_start": self.queue_start, "clear_starts": self.clear_starts}
        own: dict[str, Callable[..., Any]] = {
            "capture_start": self.capture_start,
            "get_state": self._get_state,
            "render": self._transcript,
        }
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
        :param indices: Which copies, None for all
        :return: Whether the copies do what the wrapper does: Monitor and StartQueue
        """
        return [wrapper_class in (Monitor, StartQueue) for _ in self._get_indices(indices)]
