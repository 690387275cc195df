"""
Kinds of vectorized environments: ``python -m benchmarks.vector_envs``.

Random steps alone, and GRPO's training, in turn, with one thread of PyTorch on this machine's cores; PPO's training with
GRPO's steps per update, epochs and minibatches. Rates are by the clock: CPU seconds of the processes of a SubprocVecEnv are
not known here. Appends to ``benchmarks/results/vector_envs.jsonl``, and continues from there; ``--table``.
"""

import argparse
import json
import os
import time
from itertools import product
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.timing import in_process

OUTPUT = common.RESULTS / "vector_envs.jsonl"
N_ENVS, N_REPEATS = 16, 3
# Steps alone, and of training
TASKS = {
    "CartPole-v1": (100_000, 40_000),
    "LunarLander-v3": (50_000, 20_000),
    "HalfCheetah-v5": (30_000, 20_000),
    "ALE/Breakout-v5": (8_000, 4_100),
}
KINDS = ("DummyVecEnv", "SubprocVecEnv", "make_vec, sync", "make_vec, async", "AtariVectorEnv")
WHAT = ("stepping", "GRPO", "PPO")


def made(task: str, kind: str) -> Any:
    """
    :param task: Id of an environment
    :param kind: One of ``KINDS``
    :return: Its copies
    """
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from sb3_grpo import make_atari_group_env, make_group_env
    from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv

    is_atari = task.startswith("ALE/")
    if kind.endswith("VecEnv"):
        return (make_atari_group_env if is_atari else make_group_env)(
            task, N_ENVS, seed=0, vec_env_cls=SubprocVecEnv if kind == "SubprocVecEnv" else None
        )
    if kind == "AtariVectorEnv":
        from ale_py.vector_env import AtariVectorEnv

        threads = os.cpu_count() or 1
        settings: dict[str, Any] = {"episodic_life": True, "repeat_action_probability": 0.25, "num_threads": threads}
        return GymnasiumVecEnv(AtariVectorEnv("breakout", N_ENVS, autoreset_mode=AutoresetMode.SAME_STEP, **settings))
    return GymnasiumVecEnv(gym.make_vec(task, N_ENVS, vectorization_mode=kind.removeprefix("make_vec, ")))


def measured(task: str, kind: str, what: str) -> dict[str, float]:
    """
    :param task: Id of an environment
    :param kind: One of ``KINDS``
    :param what: One of ``WHAT``
    :return: Steps per second
    """
    import torch as th
    from stable_baselines3 import PPO

    from sb3_grpo import GRPO

    th.set_num_threads(1)
    env = made(task, kind)
    n_steps, is_atari = TASKS[task][what != "stepping"], task.startswith("ALE/")
    model: Any = None
    if what != "stepping":
        policy = "CnnPolicy" if is_atari else "MlpPolicy"
        same = {"n_steps": 128, "n_epochs": 4 if is_atari else 10, "batch_size": 256, "seed": 0, "device": "cpu"}
        model = PPO(policy, env, **same) if what == "PPO" else GRPO(policy, env, unrelated_starts=is_atari, **same)
    actions = [np.array([env.action_space.sample() for _ in range(N_ENVS)]) for _ in range(100)]
    env.reset()
    begin = time.perf_counter()
    if model is None:
        for number in range(n_steps // N_ENVS):
            env.step(actions[number % 100])
    else:
        model.learn(n_steps)
        n_steps = model.num_timesteps
    seconds = time.perf_counter() - begin
    env.close()
    return {"per_second": n_steps / seconds}


def table() -> str:
    """
    :return: The medians as a table in Markdown
    """
    found: dict[tuple[str, str, str], list[Any]] = {}
    for row in common.rows(OUTPUT):
        found.setdefault((row["task"], row["kind"], row["what"]), []).append(row)
    lines = ["| | environments | alone | GRPO | PPO |", "|---|---|---|---|---|"]
    for task, kind in product(TASKS, KINDS):
        cells = []
        for what in WHAT:
            rows = found.get((task, kind, what), [])
            rate = np.median([row["per_second"] for row in rows]) if rows else 0.0
            cells.append(f"{float(f'{rate:.2g}'):,.0f}" if rows else "")
        if any(cells):
            lines.append(f"| {task} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table of what has been measured")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    if args.one:
        print(json.dumps(measured(*args.one)))
        return
    known = {(row["round"], row["task"], row["kind"], row["what"]) for row in common.rows(OUTPUT)}
    for number, task, kind, what in product(range(N_REPEATS), TASKS, KINDS, WHAT):
        # Gymnasium's own copies of an Atari game are not preprocessed; AtariVectorEnv is for these games only
        fits = kind.endswith("VecEnv") or (kind == "AtariVectorEnv") == task.startswith("ALE/")
        if fits and (number, task, kind, what) not in known:
            row = in_process("benchmarks.vector_envs", "--one", task, kind, what)
            row = {"round": number, "task": task, "kind": kind, "what": what, **row, "machine": common.machine()}
            with OUTPUT.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(number, task, kind, what, f"{row['per_second']:.0f} per second", flush=True)


if __name__ == "__main__":
    main()
