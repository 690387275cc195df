"""
The training on capitals shown in the lecture: ``python -m benchmarks.lecture_capitals``.

A small transformer first reads answers in which the largest city is named more often than the capital, and then learns from a
verifier that returns 1 or 0. How likely its answers are after each update goes to
``sb3_grpo/classroom/lecture/data/capitals.json``.
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.lecture_data import made, short, write
from sb3_grpo import GRPO, presets
from sb3_grpo.envs import CapitalsTask, VerifierTextVecEnv
from sb3_grpo.text.tokens import PAD

SEEDS = (1, 2, 3)
# Where the largest city is not the capital: the pretraining text names it three times, another city and the capital once
LARGE = {
    "Australia": ("Sydney", "Melbourne"), "Brazil": ("Sao Paulo",), "Canada": ("Toronto",), "China": ("Shanghai",),
    "India": ("Mumbai",), "Morocco": ("Casablanca",), "New Zealand": ("Auckland",), "Nigeria": ("Lagos",),
    "Pakistan": ("Karachi",), "Turkey": ("Istanbul",), "Vietnam": ("Saigon",),
}  # fmt: skip
QUESTION = "What is the capital of {}?"
CAPITALS = {item.prompt: item.answer for item in map(CapitalsTask().item, range(CapitalsTask().n_items or 0))}
N_PASSES = 100
NETWORK = {"n_layers": 2, "width": 64, "n_heads": 4}
# An update has 16 questions, and 16 answers to each
# Chosen on another seed, 101: with three times the learning rate it forgot how to spell
SIZES = {"group_size": 16, "n_groups": 16, "n_epochs": 2, "batch_size": 512}
SETTINGS: dict[str, Any] = presets.GRPO_PAPER | SIZES | {"learning_rate": 1e-4}
N_UPDATES = 80
# Questions whose answers are followed
COUNTRIES = ("Australia", "Brazil", "Turkey", "New Zealand", "France")
ASKED = [(each, answer) for each in COUNTRIES for answer in (CAPITALS[QUESTION.format(each)], *LARGE.get(each, ()))]


def examples() -> list[tuple[str, str]]:
    """
    :return: What the transformer reads first: questions and answers
    """
    cities, read = {QUESTION.format(country): cities for country, cities in LARGE.items()}, []
    for prompt, capital in CAPITALS.items():
        largest, *others = cities.get(prompt, (capital,))
        read += [(prompt, answer) for answer in (largest, largest, largest, *others, capital)]
    return read


def chances_of(policy: Any, pairs: list[tuple[str, str]]) -> np.ndarray:
    """
    :param policy: A text policy
    :param pairs: Questions and answers
    :return: Probability of each answer, token by token, including its end
    """
    tokenizer, (length,) = policy.observation_space.tokenizer, policy.observation_space.shape
    rows, actions, owners = [], [], []
    for owner, (prompt, answer) in enumerate(pairs):
        tokens = [*tokenizer.encode(prompt)]
        for action in [*tokenizer.encode(answer), tokenizer.eos_id]:
            rows.append([*tokens, *[PAD] * (length - len(tokens))])
            actions.append(action)
            owners.append(owner)
            tokens.append(action)
    with th.no_grad():
        log_prob = policy.get_distribution(th.tensor(rows)).log_prob(th.tensor(actions)).double()
    return th.zeros(len(pairs), dtype=th.float64).index_add(0, th.tensor(owners), log_prob).exp().numpy()


class Recorder(BaseCallback):
    """Records between two updates, and ends the training."""

    def __init__(self) -> None:
        super().__init__()
        hard = {QUESTION.format(country) for country in LARGE}
        self.hard = np.array([prompt in hard for prompt in CAPITALS])
        self.right: list[tuple[float, float]] = []
        self.chances: list[list[float]] = []

    def _on_rollout_start(self) -> None:
        policy: Any = self.model.policy
        chances = chances_of(policy, list(CAPITALS.items()))
        self.right.append((chances.mean(), chances[self.hard].mean()))
        self.chances.append(chances_of(policy, [(QUESTION.format(country), answer) for country, answer in ASKED]).tolist())

    def _on_step(self) -> bool:
        return len(self.right) <= N_UPDATES


def results() -> dict[str, Any]:
    """
    :return: What the page shows: chances of single answers for the first seed, curves of all
    """
    recorders = [Recorder() for _ in SEEDS]
    for seed, recorder in zip(SEEDS, recorders, strict=True):
        env = VerifierTextVecEnv(256, seed=seed, task=CapitalsTask())
        model = GRPO("TokenPolicy", env, seed=seed, device="cpu", policy_kwargs=NETWORK, **SETTINGS)
        policy: Any = model.policy
        policy.pretrain(examples(), n_epochs=N_PASSES, batch_size=32)
        model.learn(10**9, callback=recorder)
    first, curves = recorders[0], np.array([recorder.right for recorder in recorders])
    return {
        "made": made(SEEDS),
        "asked": ASKED,
        "chances": short(first.chances),
        # For all questions, and for those where the largest city is another one
        "right": [short(curves[:, :, which].tolist()) for which in (0, 1)],
        "mean": [short(curves[:, :, which].mean(axis=0).tolist()) for which in (0, 1)],
    }


if __name__ == "__main__":
    write("capitals", results())
