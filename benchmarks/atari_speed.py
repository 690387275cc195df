"""
Steps per second and memory of training on an Atari game, against SB3's PPO with the same copies, epochs, minibatches and
network: ``python -m benchmarks.atari_speed``. Writes ``benchmarks/results/atari_speed.json``. On a GPU:
``python -m benchmarks.gpu``.
"""

import argparse
import json
import time
from typing import Any

from benchmarks.timing import Stopwatch, medians, one_round, peak_memory_mib, ratio

GAME = "KungFuMasterNoFrameskip-v4"
N_ENVS = 8
SAME = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "ent_coef": 0.01}
OURS = {"unrelated_starts": True, "learning_rate": 5e-4, "clip_range": 0.2}
PPOS = {"learning_rate": 2.5e-4, "clip_range": 0.1}
SUBJECTS = ("ppo", "grpo")


def make_model(subject: str, device: str) -> Any:
    """
    :param subject: One of ``SUBJECTS``
    :param device: "cpu" or "cuda"
    :return: The model. PPO's process does not import this package, so none of it is in memory
    """
    if subject == "ppo":
        import ale_py  # noqa: F401  registers the game
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        env = VecFrameStack(make_atari_env(GAME, N_ENVS, seed=0), 4)
        return PPO("CnnPolicy", env, seed=0, device=device, **SAME, **PPOS)  # type: ignore[arg-type]
    from sb3_grpo import GRPO, make_atari_group_env

    return GRPO("CnnPolicy", make_atari_group_env(GAME, N_ENVS, seed=0), seed=0, device=device, **SAME, **OURS)


def measure(subject: str, steps: int, device: str) -> dict[str, float]:
    """
    :param subject: One of ``SUBJECTS``
    :param steps: Environment steps, summed over all copies
    :param device: "cpu" or "cuda"
    :return: Time and memory of the training
    """
    import torch as th

    th.set_num_threads(1)
    # A GPU works while the CPU waits for it
    model, stopwatch = make_model(subject, device), Stopwatch(time.perf_counter if device == "cuda" else time.process_time)
    # With a time limit, a step is taken in two parts
    for owner, *methods in ((model, "collect_rollouts", "train"), (model.env, "step_async", "step_wait")):
        for method in methods:
            stopwatch.watch(owner, method)
    begin, begin_wall = time.process_time(), time.perf_counter()
    model.learn(steps)
    seconds, wall = time.process_time() - begin, time.perf_counter() - begin_wall
    spent = {name: 1e3 * each / model.num_timesteps for name, each in stopwatch.spent.items()}
    in_env = spent["step_async"] + spent["step_wait"]
    on_gpu = {"peak_gpu_memory_mib": th.cuda.max_memory_allocated() / 2**20} if device == "cuda" else {}
    return {
        "steps": model.num_timesteps,
        "steps_per_cpu_second": model.num_timesteps / seconds,
        "steps_per_second": model.num_timesteps / wall,
        "ms_env": in_env,
        "ms_rest_of_collect": spent["collect_rollouts"] - in_env,
        "ms_train": spent["train"],
        "peak_memory_mib": peak_memory_mib(),
        **on_gpu,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6144)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=SUBJECTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.steps, args.device)))
        return
    if args.device != "cpu":
        parser.error("on a GPU, this is a part of python -m benchmarks.gpu")

    from benchmarks.common import write_result

    runs = [one_round(args.subjects, "benchmarks.atari_speed", "--steps", args.steps) for _ in range(args.repeats)]
    keys = ("steps_per_cpu_second", "steps_per_second", "peak_memory_mib")
    result = {
        "settings": {"game": GAME, "device": "cpu", "n_envs": N_ENVS, "same": SAME, "ours": OURS, "ppo": PPOS},
        "median": medians(runs),
        "median_of_paired_ratios": {
            subject: {key: ratio(runs, subject, key, "ppo") for key in keys}
            for subject in args.subjects
            if subject != "ppo" and "ppo" in args.subjects
        },
        "runs": runs,
    }
    write_result("atari_speed.json", result)


if __name__ == "__main__":
    main()
