"""What scores the answers of a text environment, from the arguments of its user."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sb3_grpo.envs.tasks.base import Scorer, Task, is_trusted
from sb3_grpo.envs.tasks.pairs import PairsTask
from sb3_grpo.envs.verifiers.math_answers import is_equivalent, make_math_verifier
from sb3_grpo.envs.verifiers.scores import RewardFunctions, is_reward_function
from sb3_grpo.utils.parameters import Number
from sb3_grpo.utils.user_warnings import warn_user

# Number of references for "math" that are read at the beginning, the first ones
_MAX_REFERENCES = 1000


def make_scorer(verifier: Any, task: Task) -> tuple[Scorer, bool]:
    """
    :param verifier: ``verifier`` of a text environment
    :param task: Its task
    :return: The scorer of answers, and whether it is trusted
    :raises ValueError: if it is none of the kinds of verifiers
    """
    if verifier is None:
        return task.scorer(), is_trusted(task, "score", "scorer")
    if verifier == "exact":
        return Scorer(is_equivalent, task.reference), True
    if verifier == "math":
        scorer = Scorer(make_math_verifier(), task.reference, "math")
        from sb3_grpo.envs.verifiers.markup import reference_answer  # needs the extra text, as does the verifier

        lost = [
            item.answer
            for item in list(task.longest_items() or ())[:_MAX_REFERENCES]
            if item.answer and not reference_answer(item.answer)
        ]
        if lost:
            warn_user(
                f"The verifier math finds no answer in {len(lost)} references, so that no answer to them is right. "
                f"Write a number, a formula, or a solution with \\boxed{{}} or ####. There may be more "
                f"in a list of more than {_MAX_REFERENCES}. The first one: {lost[0]!r:.200}"
            )
        return scorer, False
    functions = list(verifier) if isinstance(verifier, list | tuple) else [verifier]
    if functions and all(map(is_reward_function, functions)):
        items = task.longest_items() if isinstance(task, PairsTask) else None
        columns = {"answer", *(name for item in items or () for name in item.metadata)}
        return Scorer(RewardFunctions(functions, columns), task.columns), False
    if callable(verifier):
        _check_takes_two(verifier)
        return Scorer(verifier, task.reference), False
    raise ValueError(
        f"verifier={verifier!r:.200} has to be a function f(answer, reference), 'exact', 'math' or None, or one or several "
        "reward functions f(prompts, completions, **columns)"
    )


def _check_takes_two(verifier: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(verifier)
    except (TypeError, ValueError):  # some functions written in C have none
        return
    try:
        signature.bind("answer", "reference")
    except TypeError as error:
        name = getattr(verifier, "__name__", type(verifier).__name__)
        raise ValueError(
            f"The verifier {name}{signature} is called with an answer and its reference: {error}. Write {name}(answer, "
            f"reference), or {name}(prompts, completions, **columns), which is given lists"
        ) from None


def checked_weights(weights: Any, functions: Mapping[str, Any] | None) -> dict[str, float]:
    """
    :param weights: ``reward_weights``
    :param functions: Reward functions by name, if there are any
    :return: Weights by name
    """
    if weights is None:
        return {}
    if not isinstance(weights, Mapping):
        if functions is None or not isinstance(weights, list | tuple | np.ndarray) or len(weights) != len(functions):
            there_are = "" if functions is None else f", or {len(functions)} numbers, one for each reward function"
            raise ValueError(
                f"reward_weights={weights!r:.200} has to be a dictionary, such as {{'format': 0.2}}, with the weights of the "
                f"parts that the verifier returns{there_are}"
            )
        weights = dict(zip(functions, weights, strict=True))
    if functions is not None and (unknown := weights.keys() - functions.keys()):
        known = ", ".join(map(repr, functions))
        raise ValueError(f"reward_weights has {min(unknown)!r}, and the reward functions are {known}")
    return {name: Number().check(f"reward_weights[{name!r}]", weight) for name, weight in weights.items()}


def checked_range(given: Any, default: tuple[float, float] | None) -> tuple[float, float] | None:
    """
    :param given: ``score_range`` of a text environment
    :param default: What None means
    :return: The smallest and the largest score, None without limits
    """
    if given is None:
        return default
    if isinstance(given, tuple | list) and len(given) == 2:
        low, high = (Number().check(f"score_range[{place}]", each) for place, each in enumerate(given))
        if low < high:
            return low, high
    raise ValueError(f"score_range={given!r:.200} has to be a pair of numbers, the smallest and the largest score")
