"""
What checkpoints cost at their default interval: the seconds spent by TrainingCheckpoint as a share of learn().

``python -m benchmarks.checkpoint_cost`` trains three settings for a few minutes each: ``results/checkpoint_cost.json``.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch as th
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.common import write_result
from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.envs import VerifierTextVecEnv

SECONDS = 200.0


class Clock(BaseCallback):
    """Ends training after some time."""

    def _on_training_start(self) -> None:
        self.begin = time.perf_counter()

    def _on_step(self) -> bool:
        return time.perf_counter() - self.begin < SECONDS


def _acrobot() -> GRPO:
    return DAPO("MlpPolicy", make_group_env("Acrobot-v1", n_envs=16, seed=0), seed=0, device="cpu")


def _text() -> GRPO:
    env = VerifierTextVecEnv(512, seed=0, task_kwargs={"digits": 2}, max_answer_tokens=5)
    network = {"n_layers": 2, "width": 64, "n_heads": 4}
    return DAPO("TokenPolicy", env, n_groups=64, group_size=16, policy_kwargs=network, seed=0, device="cpu")


def _pong() -> GRPO:
    env = make_group_env(
        "PongNoFrameskip-v4", n_envs=8, seed=0, wrapper_class=AtariWrapper, wrapper_kwargs={"terminal_on_life_loss": False}
    )
    return DAPO("CnnPolicy", VecFrameStack(env, n_stack=4), n_steps=128, seed=0, device="cpu")


SETTINGS: dict[str, Callable[[], GRPO]] = {
    "Acrobot, 16 copies": _acrobot,
    "sums of two digits, 512 copies": _text,
    "Pong, 8 copies, CnnPolicy": _pong,
}


def measure(make_model: Callable[[], GRPO]) -> dict[str, float]:
    """
    :param make_model: Creates the model
    :return: Seconds, share, number and size of checkpoints
    """
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, clock = TrainingCheckpoint(folder, keep=100), Clock()
        model.learn(10**9, callback=[clock, checkpoint])
        seconds = time.perf_counter() - clock.begin
        paths = checkpoints_in(Path(folder))
        size = paths[-1].stat().st_size
    return {
        "seconds": round(seconds, 1),
        "checkpoints": len(paths),
        "seconds_per_checkpoint": round(checkpoint.seconds / len(paths), 3),
        "percent": round(100 * checkpoint.seconds / seconds, 3),
        "megabytes": round(size / 1e6, 2),
    }


def main() -> None:
    """Measure all settings."""
    th.set_num_threads(1)
    warnings.filterwarnings("ignore", "No update at")
    rows = {}
    for name, make_model in SETTINGS.items():
        rows[name] = measure(make_model)
        print(name, rows[name], flush=True)
    write_result("checkpoint_cost.json", {"settings": rows})


if __name__ == "__main__":
    main()
