"""
A pretrained language model learns tasks with several turns: ``python -m benchmarks.language_model.turns``.

SmolLM2-135M-Instruct with LoRA learns to guess a number from hints, and to multiply with a calculator. Each run has a process
of its own with one torch thread, and appends a row to ``benchmarks/results/language_model/turns.jsonl``; what has a row is not
run again. Seconds are CPU seconds without those of evaluations.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th

from benchmarks import common
from benchmarks.timing import in_process
from sb3_grpo import DAPO
from sb3_grpo.cli.text import LORA, PRETRAINED
from sb3_grpo.envs import CalculatorTask, GuessNumberTask, Task, VerifierTextVecEnv
from sb3_grpo.text.callbacks import TextEvalCallback
from sb3_grpo.text.pretrained import SMOLLM2, end_texts, load_tokenizer

OUTPUT = common.RESULTS / "language_model" / "turns.jsonl"
LEARNING_RATE = 5e-4
N_POINTS = 4
N_TEST = 64
N_SHOWN = 6


class Problem(NamedTuple):
    """
    :param train: Prompts to learn from
    :param test: Prompts to evaluate
    :param examples: Pairs of prompt and answer, put before each prompt
    :param max_answer_tokens: Maximum number of tokens of all answers in an episode
    :param tokens: Number of tokens to train for
    """

    train: Task
    test: Task
    examples: list[tuple[str, str]]
    max_answer_tokens: int
    tokens: int


def guess_number(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: Ten numbers, with four guesses; there are no others to hold out
    """
    games = ["5\nH8\nL6", "5\nL3\nL1", "5\nH7\nH9"]
    return Problem(GuessNumberTask(), GuessNumberTask(), [("0-9?", game) for game in games], 8, 6_000)


def calculator(seed: int) -> Problem:
    """
    :param seed: Seed of the run
    :return: Products of numbers below 100, with a calculator
    """
    train, test = (CalculatorTask(split=split, n_test=N_TEST) for split in ("train", "test"))
    (prompt, answer), with_call = train.worked_examples(2, seed=seed)
    # Only one of two examples calls the calculator
    return Problem(train, test, [(prompt, answer.split("\n")[-1]), with_call], 24, 6_000)


TASKS: dict[str, Callable[[int], Problem]] = {"guess_number": guess_number, "calculator": calculator}


class Curve(TextEvalCallback):
    """
    Evaluates, and records tokens, completions, seconds of training and accuracy at each point.

    :param eval_env: Prompts to evaluate
    :param eval_freq: Minimum number of tokens between two evaluations
    """

    def __init__(self, eval_env: VerifierTextVecEnv, eval_freq: int):
        super().__init__(eval_env, eval_freq, N_TEST, k=None, verbose=0)
        self.curve: list[list[float]] = []
        self.shown: list[list[str]] = []
        self.n_completions = 0
        self.begin = time.process_time()

    def _on_step(self) -> bool:
        self.n_completions += int(np.sum(self.locals["dones"]))
        return True

    def _evaluate(self) -> None:
        now = time.process_time()
        super()._evaluate()
        assert self.latest is not None
        self.curve.append([self.num_timesteps, self.n_completions, now - self.begin, self.latest.accuracy])
        self.shown.append([conversation(info) for info in self.latest.answers[:N_SHOWN]])
        print(self.curve[-1], flush=True)
        self.begin += time.process_time() - now


def conversation(info: dict[str, Any]) -> str:
    """
    :param info: The info at the end of an episode
    :return: Prompt, answers and replies: answers end with a line, and replies end as the task says
    """
    answers = [f"{text}\n" if turn % 2 == 0 else text for turn, text in enumerate(info["messages"])]
    return f"{info['prompt']}{''.join(answers)} ({'right' if info['is_success'] else 'wrong'}: {info['reference']})"


def one(task: str, seed: int) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param seed: Random seed
    :return: A row of the results
    """
    problem = TASKS[task](seed)
    tokenizer = load_tokenizer(SMOLLM2)
    settings: dict[str, Any] = {
        "tokenizer": tokenizer,
        "stop": ["\n", *end_texts(SMOLLM2, tokenizer)],
        "examples": problem.examples,
        "max_answer_tokens": problem.max_answer_tokens,
    }
    n_envs = PRETRAINED["group_size"] * PRETRAINED["n_groups"]
    env = VerifierTextVecEnv(n_envs, seed=seed, task=problem.train, **settings)
    test_env = VerifierTextVecEnv(n_envs, task=problem.test, **settings)
    language_model = {"model": SMOLLM2, "lora": LORA}
    model = DAPO("CausalLMPolicy", env, learning_rate=LEARNING_RATE, policy_kwargs=language_model, seed=seed, **PRETRAINED)
    curve = Curve(test_env, problem.tokens // N_POINTS)
    model.learn(problem.tokens, callback=curve)
    answers = {"before": curve.shown[0], "after": curve.shown[-1]}
    return {"task": task, "seed": seed, "curve": curve.curve, "answers": answers, "machine": common.machine()}


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to SEEDS-1 (settings were chosen on seeds from 100 on)")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        th.set_num_threads(1)
        print(json.dumps(one(args.one[0], int(args.one[1]))))
        return
    done = {(row["task"], row["seed"]) for row in common.rows(OUTPUT)}
    for seed in range(args.seeds):
        for task in args.task:
            if (task, seed) not in done:
                row = in_process("benchmarks.language_model.turns", "--one", task, seed)
                print(task, seed, row["curve"], flush=True)
                with OUTPUT.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
