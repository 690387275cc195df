"""The rules shared by the text environment and its vectorized version: answers, replies, episode ends and rewards."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_grpo.envs.tasks.base import Scorer, Task, is_trusted
from sb3_grpo.envs.tasks.reasoning_gym import ReasoningGymTask
from sb3_grpo.envs.text.encoded_task import EncodedItem, EncodedTask
from sb3_grpo.envs.verifiers.runner import Check, Reply, Verdict, VerifierRunner, is_equivalent, make_math_verifier
from sb3_grpo.text.tokens import Tokenizer

# Memory limit for comparing two formulas
_MATH_BYTES = 4 * 2**30


@dataclass(slots=True)
class Exchange:
    """
    The conversation in an episode.

    :param encoded: The item that the agent was asked
    :param messages: The agent's complete answers and the replies to them
    :param turn_start: Position of the first token of the current answer
    :param n_reply_tokens: Number of tokens of the replies so far
    :param error: Error in the reply to the last answer, which ended the episode
    """

    encoded: EncodedItem
    messages: list[str] = field(default_factory=list)
    turn_start: int = 0
    n_reply_tokens: int = 0
    error: str | None = None


class Turn(NamedTuple):
    """
    An answer that has just ended.

    :param exchange: The episode, to which the answer and the reply to it are added
    :param row: (L,) the tokens
    :param n_tokens: Number of tokens
    :param n_given: Number of tokens that the agent wrote
    """

    exchange: Exchange
    row: np.ndarray
    n_tokens: int
    n_given: int


class TurnEnd(NamedTuple):
    """
    What follows after an answer.

    :param complete: Whether the episode ends with this answer
    :param reply: Tokens of the reply that the agent has to answer next. None if there is no room for them, or if the agent
        has already written ``max_answer_tokens`` tokens
    """

    complete: bool
    reply: np.ndarray | None


class TextEpisodeRules(EncodedTask):
    """
    The rules of text episodes: everything except the tokens written in them.

    :param task: See :func:`make_task`
    :param task_kwargs: Arguments for the task
    :param tokenizer: A :class:`Tokenizer`, the path of a ``tokenizer.json``, or a tokenizer of the packages ``tokenizers``
        or ``transformers`` (see :class:`HuggingFaceTokenizer`). None: one token per character of the task's alphabet
    :param verifier: Scores an answer against the reference: a function ``f(answer, reference)``, ``"exact"``
        (:func:`is_equivalent`) or ``"math"`` (:func:`math_equivalent`). None: use the task's own score
    :param max_answer_tokens: Maximum number of tokens that the agent can write in an episode, including those that end
        answers. None: enough for the longest answer of the task, or 64 with a warning if that is unknown. Where there is no
        reference, an answer can be as long as the prompt, and at least 64 tokens
    :param max_prompt_tokens: Maximum number of tokens of a prompt. None: enough for the longest prompt of the task, or 128
        with a warning if that is unknown
    :param max_reply_tokens: Maximum number of tokens of all replies in an episode. None: as defined by the task
    :param reward_correct: Reward for an answer with score 1
    :param reward_wrong: Reward for an answer with score 0, and for an unfinished one. Less than ``reward_correct``
    :param success_score: Minimum score of a successful episode
    :param truncate: Whether an answer that is unfinished when there is no room left is truncated (DAPO's overlong filtering
        looks at this) or terminated. Use False for algorithms with a critic: after a truncation, PPO bootstraps from the value
        of a state that training never sees, and learns never to end an answer
    :param verifier_timeout: Maximum seconds per answer if the verifier runs in its own process, and per reply to an answer
    :param verifier_step_timeout: Maximum seconds for all answers of a step together; answers not scored by then count as
        failures of the verifier. None: only the limit per answer applies
    :param on_verifier_error: ``"raise"`` an error, or count failures of the verifier (and of replies) as score ``"zero"``.
        None: zero for ``"math"`` and the scores of reasoning-gym, as some answers are too hard for them; otherwise raise
    """

    def __init__(
        self,
        task: Any = "arithmetic",
        task_kwargs: dict[str, Any] | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        verifier: Callable[[str, str], float] | str | None = None,
        max_answer_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_reply_tokens: int | None = None,
        reward_correct: float = 1.0,
        reward_wrong: float = 0.0,
        success_score: float = 1.0,
        truncate: bool = True,
        verifier_timeout: float = 5.0,
        verifier_step_timeout: float | None = None,
        on_verifier_error: str | None = None,
    ):
        super().__init__(task, task_kwargs, tokenizer, max_answer_tokens, max_prompt_tokens, max_reply_tokens)
        scorer, trusted = _make_scorer(verifier, self.task)
        self._payload = scorer.payload
        self.multi_turn = type(self.task).reply is not Task.reply
        reply = self.task.reply if self.multi_turn else None
        name = _name_of_ours(verifier, self.task)
        default = "raise" if name is None else "zero"
        self.runner = VerifierRunner(
            scorer.function,
            trusted,
            verifier_timeout,
            default if on_verifier_error is None else on_verifier_error,
            reply,
            reply_trusted=is_trusted(self.task, "reply"),
            n_bytes=scorer.n_bytes,
            reply_on_error="raise" if on_verifier_error is None else on_verifier_error,
            name=name,
            step_limit=verifier_step_timeout,
        )
        _check_rewards(reward_correct, reward_wrong, success_score)
        self.reward_correct, self.reward_wrong, self.success_score = reward_correct, reward_wrong, success_score
        self.truncate = truncate

    def begin(self, encoded: EncodedItem) -> tuple[Exchange, dict[str, Any]]:
        """
        :param encoded: The item to ask the agent
        :return: The episode, and the info for ``reset``
        """
        return Exchange(encoded, [], encoded.n_tokens), {"prompt": encoded.item.prompt, "item": encoded.index}

    def end_turns(self, turns: list[Turn]) -> list[TurnEnd]:
        """
        Process answers that have just ended.

        :param turns: The answers
        :return: How each of the episodes continues
        """
        for exchange, row, n_tokens, _ in turns:
            exchange.messages.append(self.tokenizer.decode(row[exchange.turn_start : n_tokens].tolist()))
        if not self.multi_turn:
            return [TurnEnd(complete=True, reply=None)] * len(turns)
        replies = self.runner.reply([(turn.exchange.encoded.item, turn.exchange.messages) for turn in turns])
        return [self._append_reply(turn, reply) for turn, reply in zip(turns, replies, strict=True)]

    def _append_reply(self, turn: Turn, reply: Reply) -> TurnEnd:
        exchange = turn.exchange
        if reply.text is None:
            exchange.error = reply.error
            return TurnEnd(complete=True, reply=None)
        tokens = self.tokenizer.encode(reply.text)
        exchange.messages.append(reply.text)
        exchange.n_reply_tokens += len(tokens)
        exchange.turn_start = turn.n_tokens + len(tokens)
        if turn.n_given >= self.max_answer_tokens or exchange.n_reply_tokens > self.max_reply_tokens:
            return TurnEnd(complete=False, reply=None)
        return TurnEnd(complete=False, reply=np.array(tokens, np.int64))

    def score(self, exchanges: list[Exchange]) -> list[Verdict]:
        """
        :param exchanges: Episodes that ended with a complete answer
        :return: The verdicts on the answers
        """
        checked = [exchange for exchange in exchanges if exchange.error is None]
        verdicts = iter(self.runner.score([self._check(exchange) for exchange in checked]))
        return [next(verdicts) if exchange.error is None else Verdict(0.0, exchange.error) for exchange in exchanges]

    def _check(self, exchange: Exchange) -> Check:
        item = exchange.encoded.item
        return Check(exchange.messages[-1], self._payload(item), item.prompt)

    def outcome(
        self, exchange: Exchange, verdict: Verdict | None, row: np.ndarray, n_tokens: int
    ) -> tuple[float, dict[str, Any]]:
        """
        :param exchange: An episode that has ended
        :param verdict: The verdict on its answer, None if the answer is not complete
        :param row: (L,) the tokens
        :param n_tokens: Number of tokens
        :return: The reward and the info of the last step
        """
        item = exchange.encoded.item
        score = 0.0 if verdict is None else verdict.score
        info = {
            "prompt": item.prompt,
            "item": exchange.encoded.index,
            "answer": self._unfinished_answer(exchange, row, n_tokens) if verdict is None else exchange.messages[-1],
            "reference": item.answer,
            "verdict": score,
            "is_success": score >= self.success_score,
        }
        if self.multi_turn:
            info["messages"] = list(exchange.messages)
        if verdict is not None and verdict.error is not None:
            info["verifier_error"] = verdict.error
        return self.reward_wrong + score * (self.reward_correct - self.reward_wrong), info

    def _unfinished_answer(self, exchange: Exchange, row: np.ndarray, n_tokens: int) -> str:
        return self.tokenizer.decode(row[exchange.turn_start : n_tokens].tolist())

    def transcript(self, exchange: Exchange, row: np.ndarray, n_tokens: int) -> str:
        """
        :param exchange: An episode
        :param row: (L,) the tokens
        :param n_tokens: Number of tokens
        :return: The conversation so far, line by line
        """
        unfinished = self._unfinished_answer(exchange, row, n_tokens)
        ended = len(exchange.messages) % 2 == 1
        said = [exchange.encoded.item.prompt, *exchange.messages] + ([] if ended else [unfinished])
        return "\n".join(f"{'Agent' if turn % 2 else 'Task'}: {text}" for turn, text in enumerate(said))

    def change(self, name: str, value: Any) -> None:
        """
        Change a parameter.

        :param name: ``reward_correct``, ``reward_wrong``, ``success_score`` or ``truncate``
        :param value: The new value
        """
        rewards = {key: getattr(self, key) for key in ("reward_correct", "reward_wrong", "success_score")}
        if name in rewards:
            _check_rewards(**{**rewards, name: value})
        setattr(self, name, value)

    def close(self) -> None:
        """End the verifier's process."""
        self.runner.close()


def _changeable(name: str) -> Any:
    return property(
        lambda self: getattr(self.rules, name), lambda self, value: self.rules.change(name, value), doc=f"See rules.{name}"
    )


class HasRules:
    """Mixin for environments with rules: exposes the parameters that can be changed, and worked examples of the task."""

    rules: TextEpisodeRules
    reward_correct = _changeable("reward_correct")
    reward_wrong = _changeable("reward_wrong")
    success_score = _changeable("success_score")
    truncate = _changeable("truncate")

    def worked_examples(self, n: int, seed: int = 0) -> list[tuple[str, str]]:
        """
        :param n: Number of examples, all different
        :param seed: Seed for drawing them
        :return: Pairs of prompt and answer, see :meth:`Task.worked_examples`
        """
        return self.rules.task.worked_examples(n, seed)


def _check_rewards(reward_correct: float, reward_wrong: float, success_score: float) -> None:
    values = {"reward_correct": reward_correct, "reward_wrong": reward_wrong, "success_score": success_score}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{name}={value!r} has to be a finite number")
    if reward_correct <= reward_wrong:
        raise ValueError(f"reward_correct={reward_correct} has to be greater than reward_wrong={reward_wrong}")
    if not 0.0 < success_score <= 1.0:
        raise ValueError(f"success_score={success_score} has to be above 0 and at most 1, like the scores of right answers")


def _make_scorer(verifier: Any, task: Task) -> tuple[Scorer, bool]:
    """
    :return: The scorer of answers, and whether it is trusted
    """
    if verifier is None:
        return task.scorer(), is_trusted(task, "score", "scorer")
    if verifier == "exact":
        return Scorer(is_equivalent, task.reference), True
    if verifier == "math":
        return Scorer(make_math_verifier(), task.reference, _MATH_BYTES), False
    if callable(verifier):
        return Scorer(verifier, task.reference), False
    raise ValueError(f"verifier={verifier!r} has to be a function f(answer, reference), 'exact', 'math' or None")


def _name_of_ours(verifier: Any, task: Task) -> str | None:
    """
    :return: Name of the verifier if it is a built-in one that some answers may be too hard for
    """
    if verifier == "math":
        return "math"
    if verifier is None and isinstance(task, ReasoningGymTask) and type(task).scorer is ReasoningGymTask.scorer:
        return f"reasoning_gym:{task.name}"
    return None
