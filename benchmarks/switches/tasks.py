"""The changes that can be on or off, and the tasks on which they are measured."""

from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from sb3_grpo import presets

# From GRPO's paper to DAPO, in the order of the chapter
SWITCHES: dict[str, dict[str, Any]] = {
    "clip_higher": {"clip_range_high": 0.28},
    "dynamic_sampling": {"dynamic_sampling": True, "max_sampling_rounds": 4},
    "step_loss": {"loss_average": "step"},
    "overlong_filter": {"overlong_filter": True},
    # Full for an answer that is cut off, zero for shorter ones
    "overlong_range": {"overlong_range": (3, 4)},
    "no_kl": {"kl_coef": 0.0},
}
Arm = tuple[str, ...]
# The switches that are on, in the order of SWITCHES, followed by further arguments such as "group_size=8"


class Task(NamedTuple):
    """
    :param title: Title
    :param unit: Unit of its steps
    :param score: What is measured
    :param range: Range of the score
    :param digits: Digits of the score after the decimal point
    :param timesteps: Training steps
    :param settings: What the paper leaves to the task
    :param overlong: The switch for overlong episodes
    :param arms: The combinations that are measured
    """

    title: str
    unit: str
    score: str
    range: tuple[float, float]
    digits: int
    timesteps: int
    settings: dict[str, Any]
    overlong: str
    arms: tuple[Arm, ...]

    @property
    def is_text(self) -> bool:
        """Whether it is a text task."""
        return self.unit == "tokens"


def ordered(names: set[str]) -> Arm:
    """
    :param names: Names of switches
    :return: The same, in the order of ``SWITCHES``
    """
    return tuple(name for name in SWITCHES if name in names)


def five(overlong: str) -> list[str]:
    """
    :param overlong: The switch for overlong episodes
    :return: The five switches
    """
    other = "overlong_filter" if overlong == "overlong_range" else "overlong_range"
    return [name for name in SWITCHES if name != other]


def factorial(overlong: str) -> tuple[Arm, ...]:
    """
    :param overlong: The switch for overlong episodes
    :return: All combinations of the five
    """
    names = five(overlong)
    return tuple(ordered({name for name, on in zip(names, bits, strict=True) if on}) for bits in product((0, 1), repeat=5))


def ladder(overlong: str) -> tuple[Arm, ...]:
    """
    DAPO's changes, added one by one in the order of table 1 of its paper. There the KL penalty was off from the beginning.

    :param overlong: The switch of the last rungs: with the penalty, it replaces the filter
    :return: Combinations
    """
    on: list[set[str]] = [set(), {"no_kl"}, {"no_kl", "overlong_filter"}, {"no_kl", "overlong_filter", "clip_higher"}]
    if overlong == "overlong_range":
        on.append({"no_kl", "overlong_range", "clip_higher"})
    on.append({*on[-1], "step_loss"})
    on.append({*on[-1], "dynamic_sampling"})
    return tuple(map(ordered, on))


def one_by_one(overlong: str) -> tuple[Arm, ...]:
    """
    :param overlong: The switch for overlong episodes
    :return: Each switch alone, and each left out
    """
    names = set(five(overlong))
    return tuple(ordered(arm) for name in five(overlong) for arm in ({name}, names - {name}))


# GRPO's paper, with sizes for control: 16 episodes per update
_CONTROL: dict[str, Any] = {"group_size": 4, "n_groups": 4, "n_epochs": 10, "batch_size": 256}
_TEXT: dict[str, Any] = {"group_size": 16, "n_groups": 16, "n_epochs": 4, "batch_size": 512, "learning_rate": 3e-4}
_FILTER, _PENALTY = "overlong_filter", "overlong_range"
# DAPO's other changes and the filter: neither, either, or both
_CORNERS: tuple[Arm, ...] = ((), (_FILTER,), ordered({*five(_FILTER)} - {_FILTER}), ordered({*five(_FILTER)}))
_SUMS = Task(
    "One-digit sums",
    "tokens",
    "exact answers",
    (0, 1),
    3,
    50_000,
    _TEXT,
    _PENALTY,
    tuple(dict.fromkeys((*ladder(_PENALTY), *one_by_one(_PENALTY)))),
)
_CARTPOLE = Task("CartPole-v1", "steps", "return", (0, 500), 1, 200_000, _CONTROL, _FILTER, _CORNERS)
_SIZES = tuple((f"group_size={size}", f"n_groups={16 // size}") for size in (2, 4, 8, 16))
TASKS = {
    "control": Task("Acrobot-v1", "steps", "return", (-500, 0), 1, 80_000, _CONTROL, _FILTER, factorial(_FILTER)),
    "text": _SUMS,
    # Four times as long, so that a ceiling becomes visible
    "ladder": _SUMS._replace(timesteps=200_000, arms=ladder(_PENALTY)),
    # Long enough for episodes to reach the limit
    "cartpole": _CARTPOLE,
    "sizes": _CARTPOLE._replace(timesteps=30_000, arms=_SIZES),
}
N_POINTS = 15
# Epochs over 100 worked examples, before a text task is learned
WARM_START_PASSES = 35
# The score on control is the mean return of the last training episodes, as many as an update has
N_EPISODES = 16
N_COPIES = 16


def arguments(task: Task, arm: Arm) -> dict[str, Any]:
    """
    :param task: A task
    :param arm: The switches that are on
    :return: Arguments of ``GRPO``
    """
    kwargs = {**presets.GRPO_PAPER, **task.settings}
    for name in arm:
        key, _, value = name.partition("=")
        kwargs.update({key: int(value)} if value else SWITCHES[name])
    return kwargs


def environments(name: str, seed: int) -> tuple[Any, Callable[[Any], float]]:
    """
    :param name: One of ``TASKS``
    :param seed: Random seed
    :return: The training environment, and a function of a model that returns its score
    """
    from sb3_grpo import make_group_env

    if TASKS[name].is_text:
        return _text(seed)
    return make_group_env(TASKS[name].title, N_COPIES, seed=seed), recent_return


def recent_return(model: Any) -> float:
    """
    :param model: A model whose window has ``N_EPISODES``
    :return: Mean return of the last episodes
    """
    return fmean(info["r"] for info in model.ep_info_buffer)


def sums() -> Any:
    """
    :return: The text task, all of whose prompts are trained and tested
    """
    from sb3_grpo.envs import ArithmeticTask

    return ArithmeticTask(digits=1, n_test=0, split="all")


def _text(seed: int) -> tuple[Any, Callable[[Any], float]]:
    from sb3_grpo.envs import VerifierTextVecEnv

    task = sums()
    items = [task.item(index) for index in range(task.n_items)]

    def score(model: Any) -> float:
        answers = model.policy.generate([item.prompt for item in items])
        return sum(answer == item.answer for answer, item in zip(answers, items, strict=True)) / len(items)

    # Room for one token more than the longest right answer
    return VerifierTextVecEnv(256, seed=seed, task=task, max_answer_tokens=4, truncate=True), score
