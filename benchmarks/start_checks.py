"""
What the checks of starts cost: processor seconds of training with this checkout over those with an older one, in turn.

    git worktree add ../before 55e0aa1
    python -m benchmarks.start_checks --before ../before
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "results" / "start_checks.json"


class Walk(gym.Env):
    """Small and fast, with ``get_state`` and ``set_state``: where checks cost most."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.normal()), 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.array([self.x, self.t / 100], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += 0.1 * (2 * int(action) - 1) + 0.02 * float(self.np_random.normal())
        self.t += 1
        return self._observe(), -abs(self.x), False, self.t == 100, {}

    def get_state(self) -> tuple[float, int]:
        return self.x, self.t

    def set_state(self, state: tuple[float, int]) -> None:
        self.x, self.t = state


# Environment, steps, and what the training is told
CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "CartPole-v1, visited states": ("CartPole-v1", 100_000, {"vine_share": 0.5}),
    "Acrobot-v1, visited states": ("Acrobot-v1", 60_000, {"vine_share": 0.5}),
    "LunarLander-v3, visited states": ("LunarLander-v3", 40_000, {"vine_share": 0.5}),
    "Pendulum-v1, horizon 50": ("Pendulum-v1", 80_000, {"horizon": 50}),
    "HalfCheetah-v5, horizon 100": ("HalfCheetah-v5", 60_000, {"horizon": 100}),
    "own environment, visited states": (Walk, 100_000, {"vine_share": 0.5}),
    "own environment, horizon 25": (Walk, 100_000, {"horizon": 25}),
    "own environment, seeds": (Walk, 100_000, {}),
    "CartPole-v1, seeds": ("CartPole-v1", 100_000, {}),
}


def train(case: str) -> float:
    """
    :param case: one of ``CASES``
    :return: processor seconds for 1000 steps of the training, its updates included
    """
    import torch as th

    from sb3_grpo import DAPO, make_group_env

    th.set_num_threads(1)
    env_id, n_steps, settings = CASES[case]
    model = DAPO("MlpPolicy", make_group_env(env_id, n_envs=16, seed=0), seed=0, device="cpu", **settings)
    begin = time.process_time()
    model.learn(n_steps)
    return 1000 * (time.process_time() - begin) / model.num_timesteps


def in_process(case: str, checkout: Path) -> float:
    """
    :param case: one of ``CASES``
    :param checkout: the sources to train with
    :return: see ``train``
    """
    path = Path(__file__).resolve()
    code = f"import sys, runpy; sys.path.insert(0, {str(checkout)!r}); sys.argv = ['', '--one', {case!r}]; "
    code += f"runpy.run_path({str(path)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=checkout).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="folder of an older checkout")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=CASES)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    args = parser.parse_args()
    if args.one:
        print(train(args.one))
        return
    from benchmarks.common import command, machine

    runs = [(case, checkout) for _ in range(args.repeats) for case in args.cases for checkout in (args.before, ROOT)]
    seconds: dict[str, list[float]] = {}
    for case, checkout in tqdm(runs):
        seconds.setdefault(case, []).append(in_process(case, checkout.resolve()))
    results = {}
    for case, figures in seconds.items():
        ratios = [after / before for before, after in zip(figures[::2], figures[1::2], strict=True)]
        results[case] = {
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in sorted(ratios)],
            "seconds_per_1000_steps": round(statistics.median(figures[1::2]), 4),
        }
        print(f"{case}: {results[case]['ratio']:.3f}  {results[case]['ratios']}")
    before = subprocess.run(["git", "describe", "--always"], cwd=args.before, capture_output=True, text=True, check=True)
    about = {"command": command(), "before": before.stdout.strip(), "repeats": args.repeats, **machine()}
    FILE.write_text(json.dumps({**about, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
