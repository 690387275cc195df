"""Training in the page: advantages and updates of PPO, GRPO and DAPO on random batches, by SB3, PyTorch and this package."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_grpo.classroom.lecture.golden import Grid
from sb3_grpo.common.advantages import group_advantages
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate, step_weights
from sb3_grpo.groups.group import live_groups

ALGORITHMS = ("PPO", "GRPO", "DAPO")
HIDDEN = (3, 2)
# Number of steps of a run in the page
BUDGET = 60_000
LEARNING_RATE, CLIP_LOW, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.1, 0.2, 0.01, 0.5, 0.5


class Chance:
    """
    The page's random number generator: mulberry32.

    :param seed: Seed
    """

    def __init__(self, seed: int):
        self._state = seed

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """
        :param low: Lower bound
        :param high: Upper bound
        :return: A number between them
        """
        self._state = (self._state + 0x6D2B79F5) & 0xFFFFFFFF
        t = ((self._state ^ (self._state >> 15)) * (self._state | 1)) & 0xFFFFFFFF
        t ^= (t + (t ^ (t >> 7)) * (t | 61)) & 0xFFFFFFFF
        return low + (high - low) * ((t ^ (t >> 14)) / 2**32)

    def below(self, n: int) -> int:
        """
        :param n: Number of possible values
        :return: An integer from 0 to n - 1
        """
        return int(n * self.uniform())

    def uniforms(self, n: int, low: float, high: float) -> th.Tensor:
        """
        :param n: Number of values
        :param low: Lower bound
        :param high: Upper bound
        :return: (n,) values in double precision
        """
        return th.tensor([self.uniform(low, high) for _ in range(n)], dtype=th.float64)


def random_groups(chance: Chance) -> tuple[th.Tensor, th.Tensor]:
    """
    :param chance: Random number generator
    :return: (3, 3, 6) rewards and mask. All members of the last group are identical
    """
    episodes = [[chance.uniform(-1, 1) for _ in range(1 + chance.below(6))] for _ in range(6)] + [[1.0, 1.0]] * 3
    rewards, mask = th.zeros(9, 6, dtype=th.float64), th.zeros(9, 6, dtype=th.bool)
    for i, episode in enumerate(episodes):
        rewards[i, : len(episode)] = th.tensor(episode, dtype=th.float64)
        mask[i, : len(episode)] = True
    return rewards.view(3, 3, 6), mask.view(3, 3, 6)


def advantages(seed: int, kind: int, gamma: float, scale: int) -> list[float]:
    """
    :param seed: Seed of the groups
    :param kind: 0: outcome, 1: return to go
    :param gamma: Discount factor
    :param scale: Standard deviation by which they are divided, 0: of the group, 1: of the batch
    :return: Advantages of all steps
    """
    rewards, mask = random_groups(Chance(seed))
    chosen: dict[str, Any] = dict(kind=("outcome", "return_to_go")[kind], scale=("group", "batch")[scale])
    return group_advantages(rewards, mask, gamma=gamma, **chosen)[mask].tolist()


def gae(seed: int, gamma: float, gae_lambda: float) -> list[float]:
    """
    :param seed: Seed of rewards, values and ends of episodes
    :param gamma: Discount factor
    :param gae_lambda: Factor of GAE
    :return: SB3's advantages
    """
    chance, n = Chance(seed), 12
    rewards, values = chance.uniforms(n, -1, 1).numpy(), chance.uniforms(n + 1, -2, 2)
    ends = np.array([chance.below(4) == 0 for _ in range(n)])
    buffer = RolloutBuffer(n, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gae_lambda=gae_lambda, gamma=gamma)
    # Replace the buffer's own arrays, which are in single precision
    buffer.rewards, buffer.values, buffer.advantages = rewards[:, None], values[:n, None].numpy(), np.zeros((n, 1))
    buffer.episode_starts = np.concatenate([[False], ends[:-1]])[:, None].astype(np.float64)
    buffer.compute_returns_and_advantage(values[n:], ends[-1:])
    return buffer.advantages[:, 0].tolist()


class Layers(NamedTuple):
    """
    A network with tanh between its layers.

    :param sizes: Sizes of the layers
    :param weights: All weights in one tensor
    """

    sizes: Sequence[int]
    weights: th.Tensor

    def __call__(self, inputs: th.Tensor) -> th.Tensor:
        begin, last = 0, len(self.sizes) - 2
        for layer, (n, m) in enumerate(pairwise(self.sizes)):
            matrix, bias = self.weights[begin : begin + n * m].view(m, n), self.weights[begin + n * m : begin + n * m + m]
            inputs = inputs @ matrix.T + bias
            inputs = inputs if layer == last else inputs.tanh()
            begin += n * m + m
        return inputs


def n_weights(sizes: Sequence[int]) -> int:
    """
    :param sizes: Sizes of the layers of a network
    :return: Number of its weights
    """
    return sum((n + 1) * m for n, m in pairwise(sizes))


class Batch(NamedTuple):
    """
    Steps to learn from.

    :param observations: (N, 4) observations
    :param actions: (N,) actions
    :param old_log_prob: (N,) log probabilities of the actions when they were sampled
    :param ref_log_prob: (N,) log probabilities under the reference policy
    :param advantages: (N,) advantages
    :param weights: (N,) weights of the steps in the loss, for GRPO and DAPO
    :param returns: (N,) returns, for PPO
    """

    observations: th.Tensor
    actions: th.Tensor
    old_log_prob: th.Tensor
    ref_log_prob: th.Tensor
    advantages: th.Tensor
    weights: th.Tensor
    returns: th.Tensor


def random_batch(name: str, chance: Chance) -> tuple[th.Tensor, Batch]:
    """
    :param name: Name of the algorithm
    :param chance: Random number generator
    :return: Weights of the networks, and a batch of steps
    """
    rewards, mask = random_groups(chance)
    if name == "DAPO":
        live = live_groups(rewards.sum(2))
        rewards, mask = rewards[live], mask[live]
    n = int(mask.sum())
    sizes = [(4, *HIDDEN, 2), (4, *HIDDEN, 1)][: 2 if name == "PPO" else 1]
    n_all = sum(n_weights(each) for each in sizes)
    weights = chance.uniforms(n_all, -1, 1)
    observations = chance.uniforms(4 * n, -1, 1).view(n, 4)
    actions = th.tensor([chance.below(2) for _ in range(n)])
    log_prob = Layers(sizes[0], weights)(observations).log_softmax(1).gather(1, actions[:, None])[:, 0]
    old, ref = log_prob + chance.uniforms(n, -0.4, 0.4), log_prob + chance.uniforms(n, -0.4, 0.4)
    if name == "PPO":
        estimates, returns = chance.uniforms(n, -2, 2), chance.uniforms(n, -2, 2)
        return weights, Batch(observations, actions, old, ref, estimates, th.zeros(n), returns)
    estimates = group_advantages(rewards, mask)[mask]
    n_episodes = rewards.shape[0] * rewards.shape[1]
    episode = th.arange(n_episodes).repeat_interleave(mask.sum(2).flatten())
    of_steps = step_weights(episode, n_episodes, "step" if name == "DAPO" else "episode")
    return weights, Batch(observations, actions, old, ref, estimates, of_steps, estimates)


def loss_of(name: str, weights: th.Tensor, batch: Batch, part: slice) -> th.Tensor:
    """
    :param name: Name of the algorithm
    :param weights: Weights of the networks
    :param batch: Batch of steps
    :param part: The minibatch, one of two
    :return: Its loss
    """
    observations, actions, old, ref, estimates, of_steps, returns = (each[part] for each in batch)
    actor = (4, *HIDDEN, 2)
    log_probs = Layers(actor, weights)(observations).log_softmax(1)
    log_prob, entropy = log_probs.gather(1, actions[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(1)
    if name == "PPO":
        # stable_baselines3.PPO.train
        estimates = (estimates - estimates.mean()) / (estimates.std() + 1e-8)
        values = Layers((4, *HIDDEN, 1), weights[n_weights(actor) :])(observations)[:, 0]
        policy_loss = clipped_surrogate(log_prob - old, estimates, CLIP_LOW, CLIP_LOW).mean()
        return policy_loss - ENT_COEF * entropy.mean() + VF_COEF * th.nn.functional.mse_loss(returns, values)
    clip_high, kl_coef = (0.28, 0.0) if name == "DAPO" else (CLIP_LOW, 0.04)
    losses = clipped_surrogate(log_prob - old, estimates, CLIP_LOW, clip_high) - ENT_COEF * entropy
    losses = losses + kl_coef * kl_estimate(log_prob, ref, "k3")
    return (2 * of_steps * losses).sum()


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside the ``with`` block, new tensors are in double precision."""
    before = th.get_default_dtype()
    th.set_default_dtype(th.float64)
    try:
        yield
    finally:
        th.set_default_dtype(before)


def learn(algorithm: int, seed: int) -> list[float]:
    """
    Three steps of Adam on two minibatches.

    :param algorithm: 0: PPO, 1: GRPO, 2: DAPO
    :param seed: Seed of networks and steps
    :return: The losses, the gradient of the first step, and the weights after the third
    """
    name = ALGORITHMS[algorithm]
    with double_precision():
        weights, batch = random_batch(name, Chance(seed))
        weights.requires_grad_()
        optimizer = th.optim.Adam([weights], lr=LEARNING_RATE, eps=1e-5)
        half = len(batch.actions) // 2
        losses, first = [], th.zeros(0)
        for part in (slice(0, half), slice(half, None), slice(0, half)):
            optimizer.zero_grad()
            loss = loss_of(name, weights, batch, part)
            loss.backward()
            assert weights.grad is not None
            losses.append(loss.item())
            first = first if first.numel() else weights.grad.clone()
            th.nn.utils.clip_grad_norm_([weights], MAX_GRAD_NORM)
            optimizer.step()
        return [*losses, *first.tolist(), *weights.tolist()]


def entropy(probability: float) -> float:
    """
    :param probability: Probability of one of two actions
    :return: Entropy of the policy, in nats
    """
    return th.distributions.Bernoulli(th.tensor(probability, dtype=th.float64)).entropy().item()


def recorded(learning_rate: str, clip: int, algorithm: str) -> str:
    """
    :param learning_rate: Learning rate of a recorded example
    :param clip: Whether this example clips the ratio
    :param algorithm: PPO, GRPO or DAPO
    :return: The last returns of the three seeds, as text
    """
    examples = json.loads((files("sb3_grpo.classroom.lecture") / "data" / "live.json").read_text("utf-8"))
    settings = learning_rate, clip
    runs = next(each["runs"] for each in examples if (each["state"]["lr"], each["state"]["clip"]) == settings)
    within = ([point for point in run["points"] if point[0] <= BUDGET] for run in runs if run["algorithm"] == algorithm)
    first, second, third = (f"{points[-1][1]:.0f}" for points in within)
    return f"{first}, {second} and {third}"


GRIDS: dict[str, Grid] = {
    "sampledAdvantages": (advantages, (range(6), (0, 1), (0.9, 1.0), (0, 1))),
    "sampledGae": (gae, (range(5), (0.9, 0.99), (0.0, 0.95, 1.0))),
    "learn": (learn, ((0, 1, 2), range(4))),
}
EXAMPLES: dict[str, Callable[..., Any]] = {"recorded": recorded, "entropy": entropy}
