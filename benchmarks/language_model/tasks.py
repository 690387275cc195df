"""The tasks on which a pretrained language model is measured."""

from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from sb3_grpo.envs import CalculatorTask, GuessNumberTask, PairsTask, Task
from sb3_grpo.envs.tasks.reasoning_gym import ReasoningGymTask

N_EXAMPLES = 4


class Problem(NamedTuple):
    """
    :param train: Prompts to learn from
    :param test: Held-out prompts
    :param examples: Pairs of prompt and answer, put before each prompt
    :param max_answer_tokens: Maximum number of tokens of all answers in an episode
    :param tokens: Number of tokens to train for
    :param learning_rate: Learning rate
    """

    train: Task
    test: Task
    examples: list[Any]
    max_answer_tokens: int
    tokens: int
    learning_rate: float = 2e-4


def _held_out(pairs: list[tuple[str, str]], n_test: int, seed: int, max_answer_tokens: int, tokens: int) -> Problem:
    order = np.random.default_rng(0).permutation(len(pairs))
    test, train = (PairsTask([pairs[index] for index in part]) for part in (order[:n_test], order[n_test:]))
    return Problem(train, test, train.worked_examples(N_EXAMPLES, seed=seed), max_answer_tokens, tokens)


def sums(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: Sums of two numbers below 100
    """
    pairs = [(f"{a} + {b} =", f" {a + b}") for a in range(100) for b in range(100)]
    return _held_out(pairs, 200, seed, 6, 16_000)


def letters(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: How often a letter occurs in a spelled word, or part of one
    """
    from sb3_grpo.text.pretrained import SMOLLM2, load_tokenizer

    # Those of the vocabulary, some of them parts of words. With hyphens, as the model does not know how its tokens are spelled
    vocabulary = load_tokenizer(SMOLLM2).get_vocab()
    words = sorted(word[1:] for word in vocabulary if word[0] == "Ġ" and word[1:].isascii() and word[1:].islower())
    rng = np.random.default_rng(0)
    pairs = []
    for word in (each for each in words if 5 <= len(each) <= 8 and each.isalpha()):
        # Not at all, once, or more often, each in a third of the prompts, where the word has such a letter
        kinds = [sorted(letter for letter in ascii_lowercase if min(word.count(letter), 2) == count) for count in range(3)]
        letter = str(rng.choice(kinds[rng.integers(3)] or kinds[0]))
        pairs.append((f"How often is {letter} in {'-'.join(word)}:", f" {word.count(letter)}"))
    return _held_out(pairs, 200, seed, 4, 8_000)


def chain_sum(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: Sums and differences of reasoning-gym
    """
    parameters = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    test = ReasoningGymTask("chain_sum", seed=10**9, size=200, **parameters)
    train = _OthersThan(test, "chain_sum", **parameters)
    return Problem(train, test, train.worked_examples(N_EXAMPLES, seed=seed), 6, 6_000)


class _OthersThan(ReasoningGymTask):
    """
    Draws only prompts that are not held out. Different seeds of reasoning-gym often give the same sum.

    :param test: The prompts that are held out
    :param name: See :class:`ReasoningGymTask`
    :param parameters: See :class:`ReasoningGymTask`
    """

    def __init__(self, test: Task, name: str, **parameters: Any):
        super().__init__(name, **parameters)
        self._held_out = {test.item(index).prompt for index in range(test.n_items or 0)}

    def draw(self, rng: np.random.Generator) -> int:
        """
        :param rng: Random generator
        :return: Index of an item
        """
        while self.item(index := super().draw(rng)).prompt in self._held_out:
            pass
        return index


def guess_number(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: One of ten numbers, to be guessed in four turns from whether it is lower or higher; none can be held out
    """
    games = ["5\nH8\nL6", "5\nL3\nL1", "5\nH7\nH9"]
    return Problem(GuessNumberTask(), GuessNumberTask(), [("0-9?", game) for game in games], 8, 6_000, 5e-4)


def calculator(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: Products of numbers below 100, with a calculator
    """
    train, test = (CalculatorTask(split=split, n_test=64) for split in ("train", "test"))
    (prompt, answer), with_call = train.worked_examples(2, seed=seed)
    # Only one of two examples calls the calculator
    return Problem(train, test, [(prompt, answer.split("\n")[-1]), with_call], 24, 6_000, 5e-4)


ONE_TURN = {"sums": sums, "letters": letters, "chain_sum": chain_sum}
SEVERAL_TURNS = {"guess_number": guess_number, "calculator": calculator}
TASKS = {**ONE_TURN, **SEVERAL_TURNS}
