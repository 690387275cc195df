"""
How biased and how noisy is each estimator, and what does it cost? Projection of its mean gradient on the exact one (1:
unbiased), and the cosine between the two, on a random walk with slip whose exact gradient is computed by dynamic programming;
standard deviation of the projections over their mean, with "constant"; milliseconds per update.

    python -m benchmarks.gradient_bias
"""

import argparse
import time
from typing import NamedTuple

import numpy as np
import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.values import RunningRegression, StateFeatures, UpdateRegression
from sb3_grpo.groups.group import live_groups

N_STEPS, WIDTH, SLIP = 12, 7, 0.2
GROUP_SIZE, N_GROUPS = 4, 4
N_EPISODES = GROUP_SIZE * N_GROUPS
AVERAGES = ("constant", "step", "episode")
# What is compared, and whether the member itself is left out; "gae, n_steps": with the values of the previous updates
ESTIMATORS = (
    ("outcome", True),
    ("outcome", False),
    ("return_to_go", True),
    ("gae", True),
    ("gae", False),
    ("gae, n_steps", True),
    ("gae, n_steps", False),
)


def exact_gradient(logits: np.ndarray) -> np.ndarray:
    """
    :param logits: (WIDTH,) logits of moving right in each place
    :return: (WIDTH,) gradient of the probability of reaching the right end
    """
    parameters = th.tensor(logits, requires_grad=True)
    right = th.sigmoid(parameters) * (1 - SLIP) + th.sigmoid(-parameters) * SLIP
    inside = th.ones(WIDTH, dtype=th.float64)
    inside[0] = inside[-1] = 0.0
    arrived = th.zeros(WIDTH, dtype=th.float64)
    arrived[-1] = 1.0
    values = arrived
    for _ in range(N_STEPS):
        values = inside * (right * values.roll(-1) + (1 - right) * values.roll(1)) + arrived
    values[WIDTH // 2].backward()
    assert parameters.grad is not None
    return parameters.grad.numpy()


def play(n: int, right: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    :param n: Number of episodes
    :param right: (WIDTH,) probability of moving right in each place
    :param rng: Random generator
    :return: (n, N_STEPS) each: places, actions, rewards, and which steps exist
    """
    places, actions, rewards, mask = (np.zeros((n, N_STEPS)) for _ in range(4))
    place, alive = np.full(n, WIDTH // 2), np.ones(n, bool)
    for t in range(N_STEPS):
        action = rng.random(n) < right[place]
        places[:, t], actions[:, t], mask[:, t] = place, action, alive
        place = np.where(alive, place + np.where(action ^ (rng.random(n) < SLIP), 1, -1), place)
        rewards[:, t] = alive & (place == WIDTH - 1)
        alive = alive & (place > 0) & (place < WIDTH - 1)
    return places.astype(int), actions, rewards, mask.astype(bool)


def residuals(rewards: th.Tensor, mask: th.Tensor, places: th.Tensor, regression: RunningRegression | None) -> th.Tensor:
    """
    What ``advantage="gae"`` compares, for one update.

    :param rewards: (B, G, T)
    :param mask: (B, G, T)
    :param places: (B, G, T)
    :param regression: Regression of the previous updates, with ``n_steps``; None for whole groups
    :return: (B, G, T)
    """
    returns, steps = discounted_returns_to_go(rewards, mask, 1.0), th.arange(N_STEPS).expand_as(mask)[mask]
    numbers = places[mask][:, None].float()
    states, values = StateFeatures(numbers, numbers[:, :0]), th.zeros_like(rewards)
    if regression is None:
        of_update = UpdateRegression()
        of_update.fit(states, returns[mask], steps)
        values[mask] = of_update.predict(states, steps)
        return th.where(live_groups(returns[..., 0])[:, None, None], td_residuals(rewards, values, mask, 1.0), 0.0)
    if regression.is_fitted:
        values[mask] = regression.predict(states)
    regression.fit(states, returns[mask])
    return td_residuals(rewards, values, mask, 1.0)


def gradients(terms: np.ndarray, lengths: np.ndarray, average: str) -> np.ndarray:
    """
    :param terms: (U, N_EPISODES, WIDTH) sums of the episodes' steps
    :param lengths: (U, N_EPISODES)
    :param average: averaging of the loss
    :return: (U, WIDTH) gradient of each update, times the mean length except with "constant"
    """
    if average == "constant":
        return terms.mean(1)
    if average == "episode":
        return lengths.mean() * (terms / lengths[..., None]).mean(1)
    return lengths.mean() * terms.sum(1) / lengths.sum(1)[:, None]


class Figures(NamedTuple):
    """
    Figures of an estimator.

    :param projection: Projection of its mean gradient on the exact one
    :param error: Standard error of this projection
    :param cosine: Cosine between the two
    :param noise: Standard deviation of the projections of single updates, over their mean
    """

    projection: float
    error: float
    cosine: float
    noise: float


def measure(name: str, leave_one_out: bool, n_updates: int, seed: int = 0) -> tuple[dict[str, Figures], float]:
    """
    :param name: Name of an estimator
    :param leave_one_out: Whether a member is left out of its own comparison
    :param n_updates: Number of updates to average over
    :param seed: Seed of the episodes
    :return: Figures for each averaging of the loss, and milliseconds per update
    """
    logits = 0.7 * np.random.default_rng(0).normal(size=WIDTH)
    right, exact = 1 / (1 + np.exp(-logits)), exact_gradient(logits)
    places, actions, rewards, mask = play(n_updates * N_EPISODES, right, np.random.default_rng([seed, 1]))
    shape = (n_updates * N_GROUPS, GROUP_SIZE, N_STEPS)
    compared, exists = th.tensor(rewards).view(shape), th.tensor(mask).view(shape)
    kind, gamma, begun = name.partition(",")[0], 1.0, time.process_time()
    if kind == "gae":
        regression = None if name == kind else RunningRegression()
        parts = (compared.split(N_GROUPS), exists.split(N_GROUPS), th.tensor(places).view(shape).split(N_GROUPS))
        compared, gamma = th.cat([residuals(*part, regression) for part in zip(*parts, strict=True)]), 0.95
    advantages = group_advantages(compared, exists, kind=kind, gamma=gamma, leave_one_out=leave_one_out, scale="none")
    cost = 1000 * (time.process_time() - begun) / n_updates
    # Gradient of the log probability of an action in a place
    scores = advantages.view(-1, N_STEPS).numpy() * (actions - right[places]) * mask
    terms = np.stack([(scores * (places == place)).sum(1) for place in range(WIDTH)], axis=1)
    figures = {}
    for average in AVERAGES:
        each = gradients(terms.reshape(n_updates, N_EPISODES, WIDTH), mask.sum(1).reshape(n_updates, -1), average)
        mean, projections = each.mean(0), each @ exact / (exact @ exact)
        cosine = mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)
        deviation = projections.std()
        figures[average] = Figures(projections.mean(), deviation / n_updates**0.5, cosine, deviation / projections.mean())
    return figures, cost


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40_000, help="updates to average over (gae: a tenth of them)")
    n_all = parser.parse_args().updates
    th.set_num_threads(1)
    print("| advantage | leave_one_out | " + " | ".join(AVERAGES) + " | noise | ms |\n|---|---|---|---|---|---|---|")
    for name, leave_one_out in ESTIMATORS:
        figures, cost = measure(name, leave_one_out, n_all // 10 if name.startswith("gae") else n_all)
        cells = [f"{each.projection:.2f} (standard error {each.error:.3f}), {each.cosine:.3f}" for each in figures.values()]
        print(f"| {name} | {leave_one_out} | {' | '.join(cells)} | {figures['constant'].noise:.2f} | {cost:.2f} |", flush=True)


if __name__ == "__main__":
    main()
