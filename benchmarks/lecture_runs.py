"""
The training runs shown in the chapters of the lecture: ``python -m benchmarks.lecture_runs``.

Each algorithm trains on CartPole with five seeds, with the program printed in its chapter, which stands in
``sb3_grpo/classroom/lecture/data/runs.json``: to change one, edit it there. The results are written to the same file.
PPO and TRPO use RL Zoo's settings for this task, except for schedules and the number of copies. The papers' settings are
for language models: here groups are smaller, and an update has more optimizer steps. Algorithms with several epochs per
update use PPO's learning rate. The policy gradient's is the best of 3e-4, 1e-3, 3e-3 and 1e-2 on the seeds 101 to 103.
"""

import copy
import json
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.lecture_data import DATA, made, short, write
from sb3_grpo import make_group_env
from sb3_grpo.classroom.compare.statistics import iqm_curve
from sb3_grpo.common.kl import exact_kl

TIMESTEPS, EVALUATE_EVERY = 50_000, 2_500
N_POINTS = TIMESTEPS // EVALUATE_EVERY + 1
SEEDS = (1, 2, 3, 4, 5)
# Episodes per evaluation, each in its own copy
N_EPISODES, EVALUATION_SEED = 20, 10_000

RECORDED = json.loads((DATA / "runs.json").read_text("utf-8"))["runs"]
PROGRAMS: dict[str, str] = {name: of["program"] for name, of in RECORDED.items()}


class Recorder(BaseCallback):
    """
    Evaluates the sampling policy, and measures each update on the states it was computed from. Training is unaffected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []
        self.updates: list[dict[str, Any]] = []
        self._states: list[np.ndarray] = []
        self._is_new = True
        self._before: tuple[th.Tensor, Any, dict[str, float]] | None = None

    def _on_training_start(self) -> None:
        self._evaluation = make_group_env("CartPole-v1", N_EPISODES, seed=EVALUATION_SEED)
        self._evaluate()

    def _evaluate(self) -> None:
        with th.random.fork_rng():
            th.manual_seed(EVALUATION_SEED)
            mean, _ = evaluate_policy(self.model, self._evaluation, N_EPISODES, deterministic=False, warn=False)
        self.returns.append(float(np.mean(mean)))

    def _on_step(self) -> bool:
        if self._is_new:
            # Groups may be complete before a step is taken: then the states are those of the previous rollout
            self._states, self._is_new = [], False
        self._states.append(self.locals["new_obs"])
        if self.num_timesteps >= len(self.returns) * EVALUATE_EVERY:
            self._evaluate()
        return True

    def _distribution(self, states: th.Tensor) -> Any:
        with th.no_grad():
            # SB3 has one object, which it refills
            return copy.deepcopy(self.model.policy.get_distribution(states))  # type: ignore[operator]

    def _on_rollout_end(self) -> None:
        states = th.as_tensor(np.concatenate(self._states))
        self._before = states, self._distribution(states), dict(self.logger.name_to_value)
        self._is_new = True

    def _on_rollout_start(self) -> None:
        self._measure()

    def _on_training_end(self) -> None:
        self._measure()
        self._evaluation.close()

    def _measure(self) -> None:
        """Measure the update, if there was one."""
        if self._before is None:
            return
        states, before, of_groups = self._before
        after, values = self._distribution(states), self.logger.name_to_value
        update = {
            "steps": self.num_timesteps,
            "kl": exact_kl(before, after).mean().item(),
            "entropy": after.entropy().mean().item(),
            "clipped": values.get("train/clip_fraction"),
            "dead": of_groups.get("group/dead_fraction"),
        }
        reference = getattr(self.model, "reference", None)
        if reference is not None:
            with th.no_grad():
                update["kl_ref"] = exact_kl(after, reference.policy.get_distribution(states)).mean().item()
        self.updates.append(update)
        self._before = None


def train(name: str, seed: int) -> Recorder:
    """
    :param name: Name of a run
    :param seed: Seed of environment and algorithm
    :return: What was recorded
    """
    *lines, _ = PROGRAMS[name].replace("seed=1", f"seed={seed}").splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    recorder = Recorder()
    names["model"].learn(TIMESTEPS, callback=recorder)
    return recorder


def columns(updates: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """
    :param updates: Rows
    :return: The columns that have values: within an update, no group may have ended
    """
    filled = [key for key in updates[0] if any(row.get(key) is not None for row in updates)]
    return {key: short([row[key] for row in updates]) for key in filled}


def run(name: str) -> dict[str, Any]:
    """
    :param name: Name of a run
    :return: What the page shows about it
    """
    recorders = [train(name, seed) for seed in SEEDS]
    # Where an update takes whole groups, the last one ends later
    curves = np.array([recorder.returns[:N_POINTS] for recorder in recorders])
    return {
        "program": PROGRAMS[name],
        "curves": short(curves.tolist(), digits=4),
        "iqm": [short(part.tolist(), digits=4) for part in iqm_curve(curves)],
        "updates": [columns([row for row in recorder.updates if row["steps"] <= TIMESTEPS]) for recorder in recorders],
    }


if __name__ == "__main__":
    steps = [EVALUATE_EVERY * point for point in range(N_POINTS)]
    write("runs", {"made": made(SEEDS), "steps": steps, "runs": {name: run(name) for name in PROGRAMS}})
