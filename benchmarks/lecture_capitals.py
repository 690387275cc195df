"""
The training on capitals shown in the lecture: ``python -m benchmarks.lecture_capitals``.

A small transformer first reads answers in which the largest city is named more often than the capital, and then learns from a
verifier that returns 1 or 0. Its answers before, during and after training go to
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
# Countries whose largest city is not the capital
LARGEST = {
    "Australia": "Sydney", "Brazil": "Sao Paulo", "Canada": "Toronto", "China": "Shanghai", "India": "Mumbai",
    "Morocco": "Casablanca", "New Zealand": "Auckland", "Nigeria": "Lagos", "Pakistan": "Karachi", "Turkey": "Istanbul",
    "Vietnam": "Saigon",
}  # fmt: skip
# How often the pretraining text names the largest city, another large one, and the capital
N_LARGEST, N_CAPITAL = 3, 1
ALSO = {"Australia": ("Melbourne",)}
N_PASSES = 100
NETWORK = {"n_layers": 2, "width": 64, "n_heads": 4}
# An update has 16 questions, and 16 answers to each
# Chosen on another seed, 101: with three times the learning rate it forgot how to spell
SIZES = {"group_size": 16, "n_groups": 16, "n_epochs": 2, "batch_size": 512}
SETTINGS: dict[str, Any] = presets.GRPO_PAPER | SIZES | {"learning_rate": 1e-4}
N_UPDATES = 80
# Updates after which the answers are recorded, and the questions
LOOKS = (0, 20, N_UPDATES)
ASKED = ("Australia", "Brazil", "Turkey", "New Zealand", "France")
N_SAMPLES = 200
# Answers rarer than this are "something else"
RARE = 0.005


def question(country: str) -> str:
    """
    :param country: A country
    :return: The question of the task
    """
    return f"What is the capital of {country}?"


def examples(task: CapitalsTask) -> list[tuple[str, str]]:
    """
    :param task: The task
    :return: What the transformer reads first
    """
    capitals, read = answers_of(task), []
    for prompt, capital in capitals:
        country = prompt.removeprefix("What is the capital of ").removesuffix("?")
        answers = [capital] * (N_LARGEST + N_CAPITAL)
        if country in LARGEST:
            answers = [LARGEST[country]] * N_LARGEST + [*ALSO.get(country, ())] + [capital] * N_CAPITAL
        read += [(prompt, answer) for answer in answers]
    return read


def answers_of(task: CapitalsTask) -> list[tuple[str, str]]:
    """
    :param task: The task
    :return: All questions and right answers
    """
    return [(item.prompt, item.answer) for item in (task.item(index) for index in range(task.n_items or 0))]


class Answers:
    """
    :param env: The environment, which uses the policy's tokens
    """

    def __init__(self, env: VerifierTextVecEnv):
        self.tokenizer, self.length = env.rules.tokenizer, env.rules.length

    def probabilities(self, policy: Any, pairs: list[tuple[str, str]]) -> np.ndarray:
        """
        :param policy: A text policy
        :param pairs: Questions and answers
        :return: Probability of each answer, token by token, including its end
        """
        rows, actions, owners = [], [], []
        for owner, (prompt, answer) in enumerate(pairs):
            tokens = self.tokenizer.encode(prompt)
            for action in [*self.tokenizer.encode(answer), self.tokenizer.eos_id]:
                rows.append([*tokens, *[PAD] * (self.length - len(tokens))])
                actions.append(action)
                owners.append(owner)
                tokens = [*tokens, action]
        with th.no_grad():
            log_prob = policy.get_distribution(th.tensor(rows)).log_prob(th.tensor(actions)).double()
        return th.zeros(len(pairs), dtype=th.float64).index_add(0, th.tensor(owners), log_prob).exp().numpy()

    def likely(self, policy: Any, prompt: str) -> dict[str, float]:
        """
        :param policy: A text policy
        :param prompt: A question
        :return: Its answers, most likely first: those among ``N_SAMPLES`` answers that are not rare
        """
        drawn = sorted(set(policy.generate([prompt] * N_SAMPLES, deterministic=False)))
        chances = dict(zip(drawn, self.probabilities(policy, [(prompt, answer) for answer in drawn]).tolist(), strict=True))
        common = {answer: chance for answer, chance in chances.items() if chance >= RARE}
        return dict(sorted(common.items(), key=lambda pair: -pair[1]))


class Recorder(BaseCallback):
    """
    :param answers: Computes how likely an answer is
    :param pairs: All questions and right answers
    """

    def __init__(self, answers: Answers, pairs: list[tuple[str, str]]):
        super().__init__()
        self.answers, self.pairs = answers, pairs
        self.hard = np.array([any(prompt == question(country) for country in LARGEST) for prompt, _ in pairs])
        self.right: list[tuple[float, float]] = []
        self.looks: list[dict[str, dict[str, float]]] = []
        self.asked = [(country, answer) for country in ASKED for answer in self._candidates(country)]
        self.chances: list[list[float]] = []

    def _candidates(self, country: str) -> list[str]:
        capital = next(answer for prompt, answer in self.pairs if prompt == question(country))
        return [capital, *([LARGEST[country]] if country in LARGEST else []), *ALSO.get(country, ())]

    def look(self) -> None:
        """Record between two updates."""
        policy: Any = self.model.policy
        chances = self.answers.probabilities(policy, self.pairs)
        self.right.append((chances.mean(), chances[self.hard].mean()))
        asked = [(question(country), answer) for country, answer in self.asked]
        self.chances.append(self.answers.probabilities(policy, asked).tolist())
        if len(self.right) - 1 in LOOKS:
            with th.random.fork_rng():
                th.manual_seed(0)
                self.looks.append({country: self.answers.likely(policy, question(country)) for country in ASKED})

    def _on_rollout_start(self) -> None:
        self.look()

    def _on_step(self) -> bool:
        return len(self.right) <= N_UPDATES


def train(seed: int) -> Recorder:
    """
    :param seed: Random seed
    :return: What was recorded
    """
    task = CapitalsTask()
    env = VerifierTextVecEnv(256, seed=seed, task=task)
    model = GRPO("TokenPolicy", env, seed=seed, device="cpu", policy_kwargs=NETWORK, **SETTINGS)
    policy: Any = model.policy
    policy.pretrain(examples(task), n_epochs=N_PASSES, batch_size=32)
    recorder = Recorder(Answers(env), answers_of(task))
    # The recorder ends it
    model.learn(10**9, callback=recorder)
    env.close()
    return recorder


def results(recorders: list[Recorder]) -> dict[str, Any]:
    """
    :param recorders: Recorders of all seeds
    :return: What the page shows: answers of the first seed, curves of all
    """
    first, curves = recorders[0], np.array([recorder.right for recorder in recorders])
    return {
        "made": made(SEEDS),
        "asked": first.asked,
        "chances": short(first.chances),
        "looks": [{"update": update, "answers": short(look)} for update, look in zip(LOOKS, first.looks, strict=True)],
        # For all questions, and for those where the largest city is another one
        "right": [short(curves[:, :, which].tolist()) for which in (0, 1)],
        "mean": [short(curves[:, :, which].mean(axis=0).tolist()) for which in (0, 1)],
    }


def main() -> None:
    """Train, and write what was recorded."""
    th.set_num_threads(1)
    write("capitals", results([train(seed) for seed in SEEDS]))


if __name__ == "__main__":
    main()
