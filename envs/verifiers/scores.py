"""Scores of verifiers and reward functions, checked. These functions are sent to the process that runs verifiers."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    only_keywords = [each.kind for each in parameters.values()] == [inspect.Parameter.VAR_KEYWORD]
    return not inspect.isclass(function) and ("completions" in parameters or only_keywords)


class RewardFunctions:
    """
    Reward functions as TRL has them: ``f(prompts, completions, **columns)`` takes lists, and returns a list of rewards, in
    which None means that the reward does not apply. Where a prompt is a list of messages, so is a completion. The columns are
    the answers and metadata of the items.

    :param functions: The functions. Each is a part of the score, by its name
    :param columns: Names of the columns
    :raises ValueError: if a function needs another column, or is asynchronous
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], columns: Iterable[str]):
        self.columns = sorted(columns)
        self.functions: dict[str, Callable[..., Any]] = {}
        self._accepted: dict[str, set[str]] = {}
        for place, function in enumerate(functions):
            name = getattr(function, "__name__", type(function).__name__)
            name = name if name not in self.functions else f"{name}_{place}"
            self.functions[name] = function
            parameters = inspect.signature(function).parameters.values()
            known = {"prompts", "completions", *self.columns}
            takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
            needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
            if missing := [each for each in needed if each not in known]:
                there_are = ", ".join(map(repr, self.columns))
                raise ValueError(f"The reward function {name} needs {missing[0]!r}, and the data have {there_are}")
            if inspect.iscoroutinefunction(function):
                raise ValueError(f"The reward function {name} is asynchronous: write def, not async def")
            self._accepted[name] = known if takes_all else known & {each.name for each in parameters}
        self.__qualname__ = " and ".join(self.functions)

    def __call__(self, answers: list[str], payloads: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
        """
        :param answers: Answers
        :param payloads: Prompt and columns of each
        :return: For each answer, its rewards by the name of the function
        """
        given: dict[str, list[Any]] = {name: [columns.get(name) for _, columns in payloads] for name in self.columns}
        given["prompts"] = [prompt for prompt, _ in payloads]
        given["completions"] = [
            [{"role": "assistant", "content": answer}] if isinstance(prompt, list) else answer
            for prompt, answer in zip(given["prompts"], answers, strict=True)
        ]
        found: list[dict[str, Any]] = [{} for _ in answers]
        for name, function in self.functions.items():
            rewards = function(**{each: given[each] for each in self._accepted[name]})
            if not hasattr(rewards, "__len__") or len(rewards) != len(answers):
                raise ValueError(
                    f"{name} was given {len(answers)} completions and returned {rewards!r:.100}, not a list of as many rewards"
                )
            for parts, reward in zip(found, rewards, strict=True):
                if reward is not None:
                    parts[name] = reward
        return found


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
        parts = {str(name): _number(part, f"the verifier returned {name!r}: ") for name, part in value.items()}
        # Of reward functions, each of which may not apply, the names are known
        if (unknown := scoring.weights.keys() - parts.keys()) and not scoring.batched:
            known = ", ".join(map(repr, parts)) or "none"
            raise ValueError(f"the verifier returned the parts {known}, and reward_weights has {min(unknown)!r}")
        total = sum(scoring.weights.get(name, 1.0) * part for name, part in parts.items())
    elif scoring.weights:
        raise ValueError(f"the verifier returned {value!r:.100}, and reward_weights needs a dictionary of parts")
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


def _number(value: Any, what: str = "the verifier returned ") -> float:
    if value is None or isinstance(value, (str, bytes)):
        raise TypeError(f"{what}{value!r:.100}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what}{value!r:.100} of type {type(value).__name__}, not a number") from None
    if number - number != 0:
        raise ValueError(f"{what}{number}, not a finite number")
    return number


def checked_reply(
    function: Callable[[Any, list[str]], Any], answer: str, payload: tuple[Any, list[str]]
) -> tuple[str | None, float]:
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
    return None if text is None else str.__str__(text), _number(reward, "the reward of the reply is ")
