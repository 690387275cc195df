"""
Real updates for the lecture to step through: ``python -m benchmarks.lecture_updates`` writes
``sb3_grpo/classroom/lecture/data/update_*.json``.

The settings are small so that an update can be read: few episodes and two epochs. Learning rates are larger than usual, and
seeds are chosen, so that something is clipped within these epochs and one of the sums has a dead group.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_grpo import GRPO, make_group_env
from sb3_grpo.classroom.lecture.recording import RecordUpdate
from sb3_grpo.envs import ArithmeticTask, VerifierTextVecEnv

DATA = Path(__file__).resolve().parents[1] / "sb3_grpo" / "classroom" / "lecture" / "data"
DIGITS = 6
SEED, PPO_SEED = 1, 13
# The paper's settings (DeepSeekMath)
PAPER: dict[str, Any] = {
    "advantage": "outcome",
    "advantage_scale": "group",
    "loss_average": "episode",
    "gamma": 1.0,
    "kl_coef": 0.04,
    "kl_estimator": "k3_plain",
    "n_epochs": 2,
}
# What a page shows or a test recomputes
SETTINGS = (
    "gamma gae_lambda n_epochs learning_rate clip_low clip_high vf_coef kl_coef normalize_advantage "
    "advantage advantage_scale leave_one_out loss_average"
).split()
OF_A_STEP = ("epoch", "minibatch", "steps", "below", "above", "loss", "policy_loss", "approx_kl", "log_prob")


def ppo() -> BaseAlgorithm:
    """
    :return: PPO on two copies of CartPole
    """
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}
    return PPO("MlpPolicy", env, learning_rate=0.01, gamma=0.98, seed=PPO_SEED, device="cpu", **sizes)


def grpo() -> BaseAlgorithm:
    """
    :return: GRPO on CartPole, two groups of four episodes
    """
    sizes: dict[str, Any] = {"group_size": 4, "n_groups": 2, "batch_size": 100}
    return GRPO(
        "MlpPolicy", make_group_env("CartPole-v1", 4, seed=SEED), learning_rate=0.01, seed=SEED, device="cpu", **sizes, **PAPER
    )


def sums() -> BaseAlgorithm:
    """
    :return: GRPO on one-digit sums, six answers to each of four, after a warm start on worked examples
    """
    task = ArithmeticTask(digits=1)
    env = VerifierTextVecEnv(24, seed=SEED, task=task)
    sizes: dict[str, Any] = {"group_size": 6, "n_groups": 4, "batch_size": 30}
    network = {"n_layers": 2, "width": 64, "n_heads": 4}
    model = GRPO("TokenPolicy", env, learning_rate=3e-4, seed=SEED, device="cpu", policy_kwargs=network, **sizes, **PAPER)
    policy: Any = model.policy
    policy.pretrain(task.worked_examples(100, seed=0), n_epochs=60, batch_size=50)
    return model


# What is trained, and which of its updates is recorded, given by the number of steps at its end
UPDATES: dict[str, tuple[Callable[[], BaseAlgorithm], int, int]] = {
    "update_ppo": (ppo, 4, 4 * 64),
    "update_grpo": (grpo, 1, 1),
    "update_sums": (sums, 1, 1),
}


def compact(record: dict[str, Any]) -> dict[str, Any]:
    """
    :param record: Record of an update
    :return: What the page shows of it, with few digits
    """
    is_ppo = record["algorithm"] == "PPO"
    return rounded(
        {
            **{key: record[key] for key in ("algorithm", "update", "num_timesteps", "groups", "episodes")},
            "settings": {key: record["settings"][key] for key in SETTINGS if key in record["settings"]},
            "steps": {key: values for key, values in record["steps"].items() if values[0] is not None},
            "optimizer_steps": [
                # GRPO uses the advantages unchanged
                {key: each[key] for key in (*OF_A_STEP, *(("advantage",) if is_ppo else ("kl_ref",)))}
                for each in record["optimizer_steps"]
            ],
        }
    )


def rounded(thing: Any) -> Any:
    """
    :param thing: Anything that JSON can hold
    :return: The same, with fewer digits
    """
    if isinstance(thing, dict):
        return {key: rounded(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [rounded(value) for value in thing]
    # No -0, and no decimal point where none is needed
    short = float(f"{thing:.{DIGITS}g}") + 0.0 if isinstance(thing, float) else thing
    return int(short) if isinstance(short, float) and short.is_integer() else short


def main() -> None:
    """Train, and write what was recorded."""
    th.set_num_threads(1)
    for name, (make, update, timesteps) in UPDATES.items():
        callback = RecordUpdate(update=update)
        make().learn(timesteps, callback=callback)
        assert callback.record is not None
        path = DATA / f"{name}.json"
        path.write_text(json.dumps(compact(callback.record), separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
        print(f"{path.relative_to(Path.cwd())}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
