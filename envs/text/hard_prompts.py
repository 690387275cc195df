"""Start sampler that asks hard prompts more often than those that are already answered correctly."""

from typing import Any

import numpy as np

from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.starts.starts import SeedStart


class HardPrompts(StartSampler):
    """
    Start sampler that draws prompts according to how often they are still answered wrongly, so that no samples are wasted on
    groups whose answers are all correct::

        model = DAPO("TokenPolicy", env, start_sampler=HardPrompts(n_items=100))
        model.learn(1_000_000)

    It is saved with the model, including its statistics.

    A prompt is drawn with a probability proportional to ``1 - p + floor``, where p is a running mean of its successes. Every
    prompt must fit into ``max_prompt_tokens``: prompts drawn here are not skipped.

    :param n_items: Number of items of the task
    :param floor: Weight of prompts that are always answered correctly, so that they are not forgotten
    :param rate: Weight of the latest answer in the running mean
    """

    def __init__(self, n_items: int, floor: float = 0.05, rate: float = 0.05):
        if isinstance(n_items, bool) or not isinstance(n_items, int | np.integer):
            raise ValueError(
                f"HardPrompts counts the answers to each of n_items prompts, got n_items={n_items!r}: write their number. "
                "For a task without an end (task.n_items is None) leave HardPrompts out."
            )
        if n_items < 1 or floor <= 0.0 or not 0.0 < rate <= 1.0:
            raise ValueError(
                "HardPrompts needs at least one item, a floor above 0 and a rate from above 0 to 1, "
                f"got n_items={n_items}, floor={floor} and rate={rate}."
            )
        self.success_rates = np.zeros(n_items)
        self.floor = floor
        self.rate = rate

    @property
    def n_items(self) -> int:
        """Number of items of the task."""
        return len(self.success_rates)

    def __call__(self, rng: np.random.Generator) -> SeedStart:
        weights = 1.0 - self.success_rates + self.floor
        item = rng.choice(len(weights), p=weights / weights.sum())
        return SeedStart(int(rng.integers(2**31)), {"item": int(item)})

    def after_episode(self, group: Group, episode: Episode, info: dict[str, Any]) -> None:
        """Update the success rate of the prompt."""
        if "is_success" not in info or "item" not in info:
            raise ValueError("HardPrompts counts the successes of VerifierText environments, but this one has no such info.")
        item = info["item"]
        self.success_rates[item] += self.rate * (float(info["is_success"]) - self.success_rates[item])
