"""
How biased is each estimator? Projection of its mean gradient on the exact one (1: unbiased), and the cosine between the two,
on a random walk with slip whose exact gradient dynamic programming gives.

    python -m benchmarks.gradient_bias
"""

import argparse

import numpy as np
import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages
from sb3_grpo.common.baselines import regression_values, td_residuals
from sb3_grpo.groups.group import live_groups

N_STEPS, WIDTH, SLIP = 12, 7, 0.2
GROUP_SIZE, N_GROUPS = 4, 4
N_EPISODES = GROUP_SIZE * N_GROUPS
AVERAGES = ("constant", "step", "episode")
ESTIMATORS = (("outcome", True), ("outcome", False), ("return_to_go", True), ("gae", True), ("gae", False))


def exact_gradient(logits: np.ndarray) -> np.ndarray:
    """
    :param logits: (WIDTH,) of the probability to go to the right in each place
    :return: (WIDTH,) gradient of the probability to arrive at the right end
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
    :param n: Episodes
    :param right: (WIDTH,) probability to go to the right in each place
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


def residuals(rewards: th.Tensor, mask: th.Tensor, places: th.Tensor) -> th.Tensor:
    """
    What ``advantage="gae"`` compares, for one update.

    :param rewards: (B, G, T)
    :param mask: (B, G, T)
    :param places: (B, G, T)
    :return: (B, G, T)
    """
    returns = discounted_returns_to_go(rewards, mask, 1.0)
    time = th.arange(N_STEPS).expand_as(mask)[mask]
    values = th.zeros_like(rewards)
    values[mask] = regression_values(places[mask][:, None].float(), time, returns[mask])
    return th.where(live_groups(returns[..., 0])[:, None, None], td_residuals(rewards, values, mask, 1.0), 0.0)


def gradients(terms: np.ndarray, lengths: np.ndarray, average: str) -> np.ndarray:
    """
    :param terms: (U, N_EPISODES, WIDTH) sums of the episodes' steps
    :param lengths: (U, N_EPISODES)
    :param average: of the loss
    :return: (U, WIDTH) gradient of each update, times the mean length but for "constant"
    """
    if average == "constant":
        return terms.mean(1)
    if average == "episode":
        return lengths.mean() * (terms / lengths[..., None]).mean(1)
    return lengths.mean() * terms.sum(1) / lengths.sum(1)[:, None]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40_000, help="updates to average over (gae: a tenth of them)")
    n_all = parser.parse_args().updates
    th.set_num_threads(1)
    rng = np.random.default_rng(0)
    logits = 0.7 * rng.normal(size=WIDTH)
    right = 1 / (1 + np.exp(-logits))
    exact = exact_gradient(logits)
    print("| advantage | leave_one_out | " + " | ".join(AVERAGES) + " |\n|---|---|---|---|---|")
    for kind, leave_one_out in ESTIMATORS:
        n_updates = n_all // 10 if kind == "gae" else n_all
        places, actions, rewards, mask = play(n_updates * N_EPISODES, right, rng)
        shape = (n_updates * N_GROUPS, GROUP_SIZE, N_STEPS)
        compared, exists = th.tensor(rewards).view(shape), th.tensor(mask).view(shape)
        if kind == "gae":
            parts = (compared.split(N_GROUPS), exists.split(N_GROUPS), th.tensor(places).view(shape).split(N_GROUPS))
            compared = th.cat([residuals(*part) for part in zip(*parts, strict=True)])
        gamma = 0.95 if kind == "gae" else 1.0
        advantages = group_advantages(compared, exists, kind=kind, gamma=gamma, leave_one_out=leave_one_out, scale="none")
        # The gradient of the log probability of an action in a place
        scores = advantages.view(-1, N_STEPS).numpy() * (actions - right[places]) * mask
        terms = np.stack([(scores * (places == place)).sum(1) for place in range(WIDTH)], axis=1)
        cells = []
        for average in AVERAGES:
            each = gradients(terms.reshape(n_updates, N_EPISODES, WIDTH), mask.sum(1).reshape(n_updates, -1), average)
            mean, projections = each.mean(0), each @ exact / (exact @ exact)
            cosine = mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)
            error = projections.std() / n_updates**0.5
            cells.append(f"{projections.mean():.2f} (standard error {error:.3f}), {cosine:.3f}")
        print(f"| {kind} | {leave_one_out} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
