"""Scores of verifiers and reward functions, checked. These functions are sent to the process that runs verifiers."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

# The process that runs verifiers does not import this package
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# A score, and the parts that it is the weighted sum of
Scored = tuple[float, dict[str, float]]


@dataclass(frozen=True)
class Scoring:
    """
    How scores are made from what a verifier returns.

    :param weights: Weights of the parts, by name, 1 unless given
    :param limits: The smallest and the largest score. None: any finite number
    :param batched: Whether the verifier takes lists of answers and payloads, and returns a list
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = (0.0, 1.0)
    batched: bool = False


def is_reward_function(function: Any) -> bool:
    """
    :param function: A function
    :return: Whether it has the signature of TRL's reward functions, ``f(prompts, completions, **columns)``
    """
    try:
        return "completions" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class RewardFunctions:
    """
    Reward functions as TRL has them: ``f(prompts, completions, **columns)`` takes lists, and returns a list of rewards, in
    which None means that the reward does not apply. Where a prompt is a list of messages, so is a completion. The columns are
    the answers and metadata of the items.

    :param functions: The functions. Each of several is a part of the score, by its name
    """

    def __init__(self, functions: Sequence[Callable[..., Any]]):
        self.functions: dict[str, Callable[..., Any]] = {}
        for place, function in enumerate(functions):
            name = getattr(function, "__name__", type(function).__name__)
            self.functions[name if name not in self.functions else f"{name}_{place}"] = function
        self.__qualname__ = " and ".join(self.functions)

    def __call__(self, answers: list[str], payloads: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """
        :param answers: Answers
        :param payloads: Prompt and columns of each
        :return: A score for each answer, or a dictionary of its parts
        """
        prompts = [prompt for prompt, _ in payloads]
        completions = [
            [{"role": "assistant", "content": answer}] if isinstance(prompt, list) else answer
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        names = {name for _, columns in payloads for name in columns}
        columns = {name: [columns.get(name) for _, columns in payloads] for name in names}
        rewards = {}
        for name, function in self.functions.items():
            values = function(prompts=prompts, completions=completions, **columns)
            if not hasattr(values, "__len__") or len(values) != len(answers):
                raise ValueError(
                    f"{name} was given {len(answers)} completions and returned {values!r:.100}, not a list of as many rewards"
                )
            rewards[name] = list(values)
        if len(rewards) == 1:
            return [0.0 if reward is None else reward for [reward] in zip(*rewards.values(), strict=True)]
        return [
            {name: values[place] for name, values in rewards.items() if values[place] is not None}
            for place in range(len(answers))
        ]


def score(function: Callable[[str, Any], Any], scoring: Scoring, answer: str, payload: Any) -> Scored:
    """
    :param function: A verifier
    :param scoring: How the score is made
    :param answer: An answer
    :param payload: What it is compared with
    :return: The score and its parts
    """
    return _checked(function(answer, payload), scoring)


def scores(
    function: Callable[[list[str], list[Any]], list[Any]], scoring: Scoring, answers: list[str], payloads: list[Any]
) -> list[Scored]:
    """
    :param function: A verifier that takes lists
    :param scoring: How scores are made
    :param answers: Answers
    :param payloads: What each is compared with
    :return: Their scores and the parts of these
    """
    return [_checked(value, scoring) for value in function(answers, payloads)]


def _checked(value: Any, scoring: Scoring) -> Scored:
    parts = {}
    if isinstance(value, Mapping):
        parts = {str(name): _number(part, f"{name!r}: ") for name, part in value.items()}
        # Of reward functions, each of which may not apply, the names are known
        if (unknown := scoring.weights.keys() - parts.keys()) and not scoring.batched:
            known = ", ".join(map(repr, parts)) or "none"
            raise ValueError(f"the verifier returned the parts {known}, and reward_weights has {min(unknown)!r}")
        total = sum(scoring.weights.get(name, 1.0) * part for name, part in parts.items())
    else:
        total = _number(value)
    if scoring.limits is None:
        return total, parts
    low, high = scoring.limits
    # Partial scores may add up to slightly more than the largest
    if not low - 1e-6 <= total <= high + 1e-6:
        raise ValueError(
            f"the verifier returned {total}: scores are from {low:g} (wrong) to {high:g} (right). What they are worth is set "
            f"with reward_wrong and reward_correct, other limits with score_range=({min(low, total):g}, {max(high, total):g})"
        )
    return min(max(total, low), high), parts


def _number(value: Any, where: str = "") -> float:
    if value is None or isinstance(value, (str, bytes)):
        raise TypeError(f"the verifier returned {where}{value!r:.100}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"the verifier returned {where}{value!r:.100} of type {type(value).__name__}, not a number") from None
    if number - number != 0:
        raise ValueError(f"the verifier returned {where}{number}, not a finite number")
    return number


def reply(function: Callable[[Any, list[str]], Any], answer: str, payload: tuple[Any, list[str]]) -> tuple[str | None, float]:
    """
    :param function: See ``Task.reply``
    :param answer: The last answer, also in the messages
    :param payload: The item and all messages
    :return: The reply, and the reward for the answer
    """
    value = function(*payload)
    text, reward = value if isinstance(value, tuple) and len(value) == 2 else (value, 0.0)
    if text is not None and not isinstance(text, str):
        raise TypeError(f"the reply is {value!r:.100} of type {type(value).__name__}, not a text, None or Reply(text, reward)")
    # A text without a class of its own: that of an enumeration may be unknown in the other process
    return None if text is None else str.__str__(text), _number(reward, "with the reply ")
