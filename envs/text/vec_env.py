"""Vectorized version of the text environment, without a loop over the copies at each step."""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_grpo.envs.text.encoded_task import EncodedItem
from sb3_grpo.envs.text.env import VerifierTextEnv, check_render_mode
from sb3_grpo.envs.text.rules import Exchange, HasRules, TextEpisodeRules, Turn
from sb3_grpo.envs.verifiers.runner import Verdict
from sb3_grpo.starts.batched_vec_env import BatchedVecEnv
from sb3_grpo.starts.starts import SeedStart, Start
from sb3_grpo.text.tokens import PAD
from sb3_grpo.utils.parameters import Whole


class VerifierTextVecEnv(HasRules, BatchedVecEnv[EncodedItem | dict[str, Any]]):
    """
    Equivalent to ``num_envs`` copies of :class:`VerifierTextEnv` in a ``DummyVecEnv``, each wrapped in a ``Monitor`` and a
    ``StartQueue``, but faster, see :class:`BatchedVecEnv`. All answers that end in the same step are passed to the verifier
    together.

    :param num_envs: Number of copies
    :param seed: Copy i begins with ``reset(seed=seed + i)``. None: use a seed from the system
    :param task: The task, see :func:`make_task`
    :param render_mode: See :class:`VerifierTextEnv`
    :param settings: Parameters of :class:`TextEpisodeRules`
    """

    _single: VerifierTextEnv
    not_state = BatchedVecEnv.not_state | {"_rows", "rules"}

    def __init__(
        self,
        num_envs: int,
        seed: int | None = None,
        task: Any = "arithmetic",
        *,
        render_mode: str | None = None,
        **settings: Any,
    ):
        num_envs = Whole().check("num_envs", num_envs)
        check_render_mode(render_mode)
        self.rules = rules = TextEpisodeRules(task, **settings)
        self.render_mode = render_mode
        self._rows = np.arange(num_envs)
        self._tokens = np.full((num_envs, rules.length), PAD, np.int64)
        self._n_tokens = np.zeros(num_envs, np.int64)
        self._n_given = np.zeros(num_envs, np.int64)  # tokens written by the agent in this episode
        self._exchanges: list[Exchange | None] = [None] * num_envs
        self._t_start = time.time()
        super().__init__(num_envs, VerifierTextEnv.from_rules(rules), seed)

    @property
    def verifier_errors(self) -> int:
        """Number of failures of the verifier that were counted as wrong answers."""
        return self.rules.runner.n_errors

    def _observations(self) -> np.ndarray:
        return self._tokens.copy()

    def _step(self, actions: np.ndarray) -> VecEnvStepReturn:
        self._tokens[self._rows, self._n_tokens] = actions
        self._n_tokens += 1
        self._n_given += 1
        rewards = np.zeros(self.num_envs, np.float32)
        dones = np.zeros(self.num_envs, bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        stopped = (actions == self.rules.tokenizer.eos_id) | (self._n_given >= self.rules.max_answer_tokens)
        if stopped.any():
            ended = self._end_turns(np.flatnonzero(stopped), actions)
            # The copies take the next starts in this order
            copies = sorted(ended)
            dones[copies] = True
            rewards[copies] = self._end(copies, ended, infos)
            for idx in copies:
                self._begin(idx)
        return self._observations(), rewards, dones, infos

    def _check_actions(self, actions: np.ndarray) -> np.ndarray:
        vocab_size = self.rules.tokenizer.vocab_size
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
        :param copies: Copies whose answer has ended or has become too long
        :return: For each copy whose episode has ended, the verdict, or None if the answer is not complete
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
        :param copies: Copies whose episode has ended
        :param verdicts: See ``_end_turns``
        :param infos: Infos of all copies, which are updated
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

    def _reset_copy(self, idx: int, options: dict[str, Any] | None) -> dict[str, Any]:
        return self._begin_item(idx, self.rules.choose_item(options, self._generator(idx)))

    def _begin_item(self, idx: int, encoded: EncodedItem) -> dict[str, Any]:
        self._exchanges[idx], info = self.rules.begin(encoded)
        self._tokens[idx] = encoded.row
        self._n_tokens[idx] = encoded.n_tokens
        self._n_given[idx] = 0
        return info

    def _prepare_start(self, start: Start) -> EncodedItem | dict[str, Any]:
        if not isinstance(start, SeedStart):
            self._begin_single(start)
            return self._single.get_state()
        # As in reset; creating the generator takes longer than everything else
        return self.rules.choose_item(start.options, gym.utils.seeding.np_random(start.seed)[0])

    def _begin_start(self, idx: int, start: EncodedItem | dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        if isinstance(start, EncodedItem):
            return start.row, self._begin_item(idx, start)
        self._single.set_state(start)
        self._exchanges[idx] = self._single._exchange
        self._tokens[idx] = self._single._tokens
        self._n_tokens[idx], self._n_given[idx] = self._single._n_tokens, self._single._n_given
        return self._tokens[idx].copy(), {}

    def _load(self, idx: int) -> np.ndarray:
        single = self._single
        single._exchange, single._ended = self._exchange(idx), False
        single._tokens = self._tokens[idx].copy()
        single._n_tokens, single._n_given = int(self._n_tokens[idx]), int(self._n_given[idx])
        return single._tokens

    def _get_state(self, idx: int) -> dict[str, Any]:
        self._load(idx)
        return self._single.get_state()

    def _transcript(self, idx: int) -> str | None:
        if self.render_mode is None:
            return None
        return self.rules.transcript(self._exchange(idx), self._tokens[idx], int(self._n_tokens[idx]))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        :param attr_name: Name of an attribute that all copies share: ``reward_correct``, ``reward_wrong``, ``success_score``,
            ``truncate``, or one of your own
        :param value: Its new value
        :param indices: Must be all copies
        """
        if hasattr(self.rules, attr_name) and not hasattr(HasRules, attr_name):
            raise AttributeError(f"{attr_name!r} cannot be changed: create a new {type(self).__name__} with another one")
        super().set_attr(attr_name, value, indices)

    def _own_methods(self) -> dict[str, Callable[..., Any]]:
        def worked_examples(idx: int, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
            return self.worked_examples(*args, **kwargs)

        shown = {"get_state": self._get_state, "render": self._transcript}
        return {**super()._own_methods(), **shown, "worked_examples": worked_examples}
