"""
Normal values of the log, and those of a run with a learning rate that is far too high: ``python -m benchmarks.healthy_log``.

Trains three times (less than two minutes), draws ``docs/images/healthy_log.svg`` and prints the table and the picture of
``docs/algorithms/logging.md``.
"""

from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger

from benchmarks.blocks import markdown, picture
from benchmarks.figures import COLOURS, figure_of
from sb3_grpo import GRPO

# Title, environment, steps and arguments: all of GRPO's defaults, and one that makes training fail
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", 30_000, {}),
    "LunarLander": ("LunarLander-v3", 60_000, {}),
    "LunarLander, rate 0.05": ("LunarLander-v3", 60_000, {"learning_rate": 0.05}),
}
TABLE = ("train/approx_kl", "train/clip_fraction", "train/ratio_max", "train/entropy")
PANELS = ("group/return_mean", "train/approx_kl", "train/clip_fraction", "train/entropy")
CAPTION = (
    "LunarLander, 60,000 steps, one seed: GRPO's defaults (learning rate 0.001), and a learning rate of 0.05. "
    "`python -m benchmarks.healthy_log`"
)


class Kept(KVWriter):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append((step, dict(key_values)))

    def close(self) -> None:
        pass

    def of(self, key: str) -> np.ndarray:
        """
        :param key: A logged value
        :return: (updates, 2) steps and values
        """
        return np.array([(step, values[key]) for step, values in self.rows if key in values])


def main() -> None:
    """Train, draw and print."""
    logs = {}
    for name, (env_id, steps, arguments) in RUNS.items():
        logs[name] = Kept()
        model = GRPO("MlpPolicy", env_id, seed=0, device="cpu", **arguments)
        model.set_logger(Logger(None, [logs[name]]))
        model.learn(steps)

    with figure_of("healthy_log", 2, 2, figsize=(4.8, 4.4), sharex=True) as (figure, grid):
        for axes, key in zip(grid.flat, PANELS, strict=True):
            for look, (name, title) in enumerate([("LunarLander", "healthy"), ("LunarLander, rate 0.05", "sick")], start=1):
                steps, values = logs[name].of(key).T
                axes.plot(steps / 1000, values, color=COLOURS[look], linestyle="--" if look > 1 else "-", label=title)
            axes.set_title(key, fontsize=10)
            axes.set_yscale("log" if key == "train/approx_kl" else "linear")
            axes.grid(alpha=0.3)
        for axes in grid[1]:
            axes.set_xlabel("steps (thousands)")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)

    cells = [[np.percentile(log.of(key)[:, 1], (10, 90)) for log in logs.values()] for key in TABLE]
    rows = [[f"`{key}`", *(f"{low:.2g} to {high:.2g}" for low, high in row)] for key, row in zip(TABLE, cells, strict=True)]
    print(markdown(["value", *logs], rows))
    alt = "Return, KL divergence, clip fraction and entropy of a run that learns and of one that does not"
    print(f"\n{picture('healthy_log', alt, CAPTION)}")


if __name__ == "__main__":
    main()
