"""The common setting of all subjects of :mod:`benchmarks.text_speed`: task, sizes, network, warm start."""

from typing import Any

from sb3_grpo.envs import ArithmeticTask, Item

GROUP_SIZE, N_GROUPS = 16, 32
N_ANSWERS = GROUP_SIZE * N_GROUPS  # per update
N_COPIES = N_ANSWERS
# Digits of the numbers that are added, and how often the sum is repeated; set by --digits and --times
DIGITS = 1
TIMES = 1
MAX_ANSWER_TOKENS = 3
N_EPOCHS = 2
N_MINIBATCHES = 2
NETWORK: dict[str, Any] = {"n_layers": 2, "width": 64, "n_heads": 4}
# In steps. The 512 answers of an update have about 1250 tokens: two minibatches of about equal size
BATCH_SIZE = N_ANSWERS * MAX_ANSWER_TOKENS // N_MINIBATCHES
# Too small to change the answers: all subjects keep sampling from the warm-started policy, so that the lengths
# of answers and the share of dead groups stay the same throughout. It costs as much as any other
LEARNING_RATE = 1e-6
CLIP_RANGE, CLIP_RANGE_HIGH, MAX_GRAD_NORM = 0.2, 0.28, 0.5
# Passes over all 100 sums (with numbers below 100: as many times 2,000 of the 10,000): about half of the sampled answers are
# right, and few groups of 16 are dead
N_EXAMPLES, N_PASSES_TWO_DIGITS = 2000, 14
WARM_START: dict[str, Any] = {"n_epochs": 80, "batch_size": 50, "learning_rate": 1e-3}
SEED = 0

SETTINGS: dict[str, Any] = {
    "group_size": GROUP_SIZE,
    "n_groups": N_GROUPS,
    "batch_size": BATCH_SIZE,
    "n_epochs": N_EPOCHS,
    "learning_rate": LEARNING_RATE,
    "gamma": 1.0,
    "advantage": "outcome",
    "advantage_scale": "group",
    "clip_range": CLIP_RANGE,
    "clip_range_high": CLIP_RANGE_HIGH,
    "max_grad_norm": MAX_GRAD_NORM,
}


def set_task(digits: int, times: int) -> None:
    """
    Set the length of prompts and answers.

    :param digits: Of the numbers that are added
    :param times: How often the sum is repeated
    """
    global DIGITS, TIMES, MAX_ANSWER_TOKENS
    DIGITS, TIMES = digits, times
    MAX_ANSWER_TOKENS = times * (digits + 1) + 1
    if digits == 2:
        WARM_START["n_epochs"] = N_PASSES_TWO_DIGITS
    # Still two minibatches per epoch
    SETTINGS["batch_size"] = N_ANSWERS * MAX_ANSWER_TOKENS // N_MINIBATCHES


class RepeatedSums(ArithmeticTask):
    """Sums, each written ``TIMES`` times in a row."""

    def item(self, index: int) -> Item:
        """
        :param index: Number of the item
        :return: Its prompt and answer
        """
        item = super().item(index)
        return Item(item.prompt, item.answer * TIMES)


def task() -> ArithmeticTask:
    """
    :return: The task
    """
    return ArithmeticTask(digits=DIGITS) if TIMES == 1 else RepeatedSums(digits=DIGITS)


def warm_start_examples() -> list[tuple[str, str]]:
    """
    :return: Prompts with the right answers
    """
    sums = task()
    return sums.worked_examples(min(sums.n_items, N_EXAMPLES), seed=SEED)
