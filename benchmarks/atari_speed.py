"""
Steps per second and memory of training on an Atari game, against SB3's PPO with the same copies, epochs, minibatches and
network: ``python -m benchmarks.atari_speed``.

Subjects alternate, several times, each in its own process with one thread. Steps are counted per CPU second, which
other work on the machine hardly changes, and per second of wall-clock time. Writes ``benchmarks/results/atari_speed.json``,
with ``--device cuda`` ``atari_speed_cuda.json``.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
GAME = "KungFuMasterNoFrameskip-v4"
N_ENVS = 4
# From the entries for Atari in zoo_configs
SAME = {"n_epochs": 4, "batch_size": 256, "ent_coef": 0.01}
OURS = {"group_size": 4, "n_groups": 1, "learning_rate": 5e-4, "gamma": 0.95}
PPOS = {"n_steps": 256, "learning_rate": 2.5e-4, "clip_range": 0.1}
SUBJECTS = ("ppo", "grpo", "dapo", "grpo, bfloat16", "dapo, bfloat16")


def make_model(subject: str, device: str) -> Any:
    """
    :param subject: One of ``SUBJECTS``
    :param device: "cpu" or "cuda"
    :return: The model. PPO's process does not import this package, so none of it is in memory
    """
    algo, _, precision = subject.partition(", ")
    if algo == "ppo":
        import ale_py  # noqa: F401  registers the game
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        env = VecFrameStack(make_atari_env(GAME, N_ENVS, seed=0, wrapper_kwargs={"terminal_on_life_loss": False}), 4)
        return PPO("CnnPolicy", env, seed=0, device=device, **SAME, **PPOS)  # type: ignore[arg-type]
    from sb3_grpo import DAPO, GRPO, make_atari_group_env

    return {"grpo": GRPO, "dapo": DAPO}[algo](
        "CnnPolicy",
        make_atari_group_env(GAME, N_ENVS, seed=0),
        policy_kwargs={"use_bfloat16": True} if precision else None,
        seed=0,
        device=device,
        **SAME,
        **OURS,
    )


def measure(subject: str, steps: int, device: str) -> dict[str, float]:
    """
    :param subject: One of ``SUBJECTS``
    :param steps: Environment steps, summed over all copies
    :param device: "cpu" or "cuda"
    :return: Time and memory of the training
    """
    import torch as th

    th.set_num_threads(1)
    model = make_model(subject, device)
    spent: dict[str, float] = defaultdict(float)

    def clock(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.process_time() - begin

        return wrapper

    model.collect_rollouts = clock("collect", model.collect_rollouts)
    model.train = clock("train", model.train)
    model.env.step = clock("env", model.env.step)
    begin, begin_wall = time.process_time(), time.perf_counter()
    model.learn(steps)
    seconds, wall = time.process_time() - begin, time.perf_counter() - begin_wall
    n_steps = model.num_timesteps
    on_gpu = {"peak_gpu_memory_mib": th.cuda.max_memory_allocated() / 2**20} if device == "cuda" else {}
    return {
        "steps": n_steps,
        "steps_per_cpu_second": n_steps / seconds,
        "steps_per_second": n_steps / wall,
        "ms_env": 1e3 * spent["env"] / n_steps,
        "ms_rest_of_collect": 1e3 * (spent["collect"] - spent["env"]) / n_steps,
        "ms_train": 1e3 * spent["train"] / n_steps,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **on_gpu,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--one", choices=SUBJECTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.steps, args.device)))
        return

    import torch as th

    from benchmarks.common import command, machine

    runs: dict[str, list[dict[str, float]]] = {subject: [] for subject in args.subjects}
    for repeat in range(args.repeats):
        for subject in args.subjects:
            options = ["--steps", str(args.steps), "--device", args.device, "--one", subject]
            output = subprocess.run(
                [sys.executable, "-m", "benchmarks.atari_speed", *options],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                cwd=RESULTS.parents[1],
            ).stdout
            runs[subject].append(json.loads(output.splitlines()[-1]))
            print(f"{repeat + 1}/{args.repeats} {subject:15}", runs[subject][-1], flush=True)

    median = {
        subject: {key: float(np.median([run[key] for run in of_subject])) for key in of_subject[0]}
        for subject, of_subject in runs.items()
    }

    def against_ppo(subject: str, key: str) -> float:
        pairs = zip(runs[subject], runs["ppo"], strict=True)
        return float(np.median([ours[key] / theirs[key] for ours, theirs in pairs]))

    ratios = {
        subject: {key: against_ppo(subject, key) for key in ("steps_per_cpu_second", "steps_per_second", "peak_memory_mib")}
        for subject in args.subjects
        if subject != "ppo" and "ppo" in runs
    }
    device = th.cuda.get_device_name() if args.device == "cuda" else "cpu"
    settings = {"game": GAME, "device": device, "n_envs": N_ENVS, "same": SAME, "ours": OURS, "ppo": PPOS}
    result = {
        "settings": settings,
        "median": median,
        "median_of_paired_ratios": ratios,
        "runs": runs,
        "command": command(),
        "machine": machine(),
    }
    name = "atari_speed_cuda.json" if args.device == "cuda" else "atari_speed.json"
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
