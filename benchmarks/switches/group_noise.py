"""
How much gradient noise a larger group removes: ``python -m benchmarks.switches.group_noise``.

A policy learns CartPole for a while, as in GRPO's paper, and then plays large groups without learning. Split into smaller
ones, these give many estimates of the same gradient. Writes ``benchmarks/results/group_noise.json``.
"""

import argparse
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.common import write_result
from benchmarks.switches.tasks import N_COPIES, TASKS, arguments
from sb3_grpo import GRPO, make_group_env
from sb3_grpo.common.advantages import group_advantages
from sb3_grpo.common.batch import GroupBatch

SIZES = (2, 4, 8, 16, 32)
LARGEST, N_STARTS = 128, 24
STEPS_BEFORE = 10_000
RESAMPLES = 2000


class Episodes(NamedTuple):
    """
    :param rewards: (starts, members, T)
    :param mask: (starts, members, T)
    :param scores: (starts, members, parameters) gradient of the mean log probability of an episode's actions
    """

    rewards: th.Tensor
    mask: th.Tensor
    scores: th.Tensor


class _Keep(BaseCallback):
    """Keeps the groups of the last rollout."""

    batch: GroupBatch

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.batch = self.model.batch  # type: ignore[attr-defined]


def play(steps: int = STEPS_BEFORE, n_starts: int = N_STARTS, members: int = LARGEST, seed: int = 0) -> Episodes:
    """
    :param steps: Training steps before
    :param n_starts: Number of groups that are played afterwards
    :param members: Members per group
    :param seed: Random seed
    :return: The episodes
    """
    task = TASKS["sizes"]
    learned = GRPO(
        "MlpPolicy", make_group_env(task.title, N_COPIES, seed=seed), seed=seed, device="cpu", **arguments(task, ())
    )
    learned.learn(steps)
    kwargs = arguments(task, (f"group_size={members}", f"n_groups={n_starts}"))
    env = make_group_env(task.title, members, seed=seed + 1)
    model: Any = GRPO("MlpPolicy", env, seed=seed, device="cpu", learning_rate=0.0, **{**kwargs, "n_epochs": 1})
    model.policy.load_state_dict(learned.policy.state_dict())
    keep = _Keep()
    model.learn(1, callback=keep)
    return Episodes(keep.batch.rewards, keep.batch.mask, scores_of(model, keep.batch))


def scores_of(model: Any, batch: GroupBatch) -> th.Tensor:
    """
    :param model: A model
    :param batch: Episodes it has played
    :return: (B, G, parameters) gradient of the mean log probability of each episode's actions
    """
    parameters = [parameter for parameter in model.policy.parameters() if parameter.requires_grad]
    gradients = []
    for steps in batch.rows.split(batch.lengths.flatten().tolist()):
        log_prob = model.policy.get_distribution(batch.observations[steps]).log_prob(batch.actions[steps])  # type: ignore[index]
        of_one = th.autograd.grad(log_prob.mean(), parameters)
        gradients.append(th.cat([each.flatten() for each in of_one]))
    return th.stack(gradients).view(*batch.lengths.shape, -1)


def noise(episodes: Episodes, size: int, scale: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param episodes: The episodes
    :param size: Size of the groups that they are split into
    :param scale: As in :func:`group_advantages`
    :return: (starts,) variance of the gradient from a group of this size, around the mean over the groups from the
        same start; (starts, parameters) these means
    """
    n_starts, members, n_steps = episodes.rewards.shape
    pieces = (n_starts * members // size, size, n_steps)
    advantages = group_advantages(episodes.rewards.reshape(pieces), episodes.mask.reshape(pieces), scale=scale)[..., 0]
    weighted = advantages.reshape(n_starts, -1, size, 1).float() * episodes.scores.view(
        n_starts, -1, size, episodes.scores.shape[-1]
    )
    gradients = weighted.mean(2)
    return gradients.var(1).sum(-1).numpy(), gradients.mean(1).numpy()


def relative_noise(variances: np.ndarray, means: np.ndarray, n_groups: int) -> float:
    """
    :param variances: (starts,) variances
    :param means: (starts, parameters) means
    :param n_groups: Number of groups in each mean
    :return: Standard deviation of a group's gradient over the norm of what it estimates
    """
    # A mean is longer than what it estimates, because of its own noise
    signal = (np.square(means).sum(-1) - variances / n_groups).mean()
    return float(np.sqrt(variances.mean() / signal))


def slope(sizes: tuple[int, ...], noises: list[float]) -> float:
    """
    :param sizes: Group sizes
    :param noises: Noise of their gradients
    :return: Slope of the logarithms
    """
    return float(np.polyfit(np.log(sizes), np.log(noises), 1)[0])


def measure(episodes: Episodes, scale: str) -> dict[str, Any]:
    """
    :param episodes: The episodes
    :param scale: As in :func:`group_advantages`
    :return: The noise for each size with its interval, and slopes against G and against G - 1 with theirs
    """
    parts = [noise(episodes, size, scale) for size in SIZES]
    rng, (n_starts, members) = np.random.default_rng(0), episodes.rewards.shape[:2]

    def figures(drawn: np.ndarray) -> list[float]:
        noises = [
            relative_noise(variances[drawn], means[drawn], members // size)
            for size, (variances, means) in zip(SIZES, parts, strict=True)
        ]
        return [*noises, slope(SIZES, noises), slope(tuple(size - 1 for size in SIZES), noises)]

    value = figures(np.arange(n_starts))
    low, high = np.percentile([figures(rng.integers(n_starts, size=n_starts)) for _ in range(RESAMPLES)], [2.5, 97.5], axis=0)
    rows = [[round(float(x), 4) for x in row] for row in zip(value, low, high, strict=True)]
    return {"noise": rows[:-2], "slope": rows[-2], "slope_of_others": rows[-1]}


def main() -> None:
    """Play, measure, write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    th.set_num_threads(1)
    episodes = play()
    result = {
        "task": TASKS["sizes"].title,
        "steps_before": STEPS_BEFORE,
        "starts": N_STARTS,
        "members": LARGEST,
        "mean_length": round(float(episodes.mask.sum(-1).double().mean()), 1),
        "sizes": SIZES,
        **{scale: measure(episodes, scale) for scale in ("none", "group")},
    }
    write_result("group_noise.json", result)


if __name__ == "__main__":
    main()
