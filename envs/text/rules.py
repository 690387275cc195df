"""The rules shared by the text environment and its vectorized version: the task, the verifier and the rewards."""

import math
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

from sb3_grpo.envs.tasks.base import Scorer, Task, is_trusted
from sb3_grpo.envs.text.encoded_task import EncodedTask
from sb3_grpo.envs.verifiers.runner import VerifierRunner, is_equivalent, make_math_verifier
from sb3_grpo.text.tokens import Tokenizer


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
        on_verifier_error: str | None = None,
    ):
        super().__init__(task, task_kwargs, tokenizer, max_answer_tokens, max_prompt_tokens, max_reply_tokens)
        self.scorer, trusted = _make_scorer(verifier, self.task)
        self.multi_turn = type(self.task).reply is not Task.reply
        self.runner = VerifierRunner(
            self.scorer.function,
            trusted,
            verifier_timeout,
            on_verifier_error,
            self.task.reply if self.multi_turn else None,
            is_trusted(self.task, "reply"),
            self.scorer.name,
        )
        _check_rewards(reward_correct, reward_wrong, success_score)
        self.reward_correct, self.reward_wrong, self.success_score = reward_correct, reward_wrong, success_score
        self.truncate = truncate

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
    """Mixin for environments with rules: exposes the parameters that can be changed, failures, and worked examples."""

    rules: TextEpisodeRules
    reward_correct = _changeable("reward_correct")
    reward_wrong = _changeable("reward_wrong")
    success_score = _changeable("success_score")
    truncate = _changeable("truncate")

    @property
    def verifier_errors(self) -> int:
        """Number of failures of the verifier that were counted as wrong answers."""
        return self.rules.runner.n_errors

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
        return Scorer(make_math_verifier(), task.reference, "math"), False
    if callable(verifier):
        return Scorer(verifier, task.reference), False
    raise ValueError(f"verifier={verifier!r} has to be a function f(answer, reference), 'exact', 'math' or None")
