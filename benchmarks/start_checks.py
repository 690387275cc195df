"""
What the checks of snapshots cost: CPU seconds of training with them over those without, alternating.
Training is otherwise bit-identical.

    python -m benchmarks.start_checks
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

FILE = Path(__file__).resolve().parent / "results" / "start_checks.json"


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


# Environment and steps of training, in which half of the groups begin at visited states
CASES: dict[str, tuple[Any, int]] = {
    "CartPole-v1, visited states": ("CartPole-v1", 100_000),
    "Acrobot-v1, visited states": ("Acrobot-v1", 60_000),
    "LunarLander-v3, visited states": ("LunarLander-v3", 40_000),
    "own environment, visited states": (Walk, 100_000),
}


def train(case: str, checked: bool) -> float:
    """
    :param case: one of ``CASES``
    :param checked: whether snapshots are checked
    :return: CPU seconds of training, including updates
    """
    import torch as th

    from sb3_grpo import DAPO, VisitedStates, make_group_env
    from sb3_grpo.groups import queue
    from sb3_grpo.starts import snapshots

    if not checked:
        queue.N_PROBED_FIRST, queue.PROBED_SHARE = 0, 0.0
        snapshots._compare_restored = lambda *args: None
    th.set_num_threads(1)
    env_id, n_steps = CASES[case]
    env = make_group_env(env_id, n_envs=16, seed=0)
    model = DAPO("MlpPolicy", env, start_sampler=VisitedStates(0.5), seed=0, device="cpu")
    begin = time.process_time()
    model.learn(n_steps)
    return time.process_time() - begin


def in_process(case: str, checked: bool) -> float:
    """
    :param case: one of ``CASES``
    :param checked: see ``train``
    :return: see ``train``
    """
    arguments = ["--one", case, *([] if checked else ["--without"])]
    command = [sys.executable, "-m", "benchmarks.start_checks", *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=CASES, help="only this one, to the output")
    parser.add_argument("--without", action="store_true", help="without checks")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    args = parser.parse_args()
    if args.one:
        print(train(args.one, not args.without))
        return
    from benchmarks.common import command, machine

    runs = [(case, checked) for _ in range(args.repeats) for case in args.cases for checked in (False, True)]
    seconds: dict[str, list[float]] = {}
    for case, checked in tqdm(runs):
        seconds.setdefault(case, []).append(in_process(case, checked))
    results = {}
    for case, figures in seconds.items():
        ratios = [checked / without for without, checked in zip(figures[::2], figures[1::2], strict=True)]
        results[case] = {
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in sorted(ratios)],
            "seconds": round(statistics.median(figures[1::2]), 2),
        }
        print(f"{case}: {results[case]['ratio']:.3f}  {results[case]['ratios']}")
    about = {"command": command(), "repeats": args.repeats, **machine()}
    FILE.write_text(json.dumps({**about, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
