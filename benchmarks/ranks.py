"""
One training in several processes: ``python -m benchmarks.ranks``.

Subjects take turns: one process with one thread, one process with two threads, two ranks of ``torchrun`` with one thread each,
and two processes with a seed each. All play the same number of copies and make updates of the same size. ``share`` is the
share of the rollouts of a process with one thread: where each rank makes the whole update, two ranks can be at most
1 / (1 - share / 2) times as fast. Appends to ``benchmarks/results/ranks.jsonl``, and continues from there; ``--table``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import torch as th

from benchmarks import common
from benchmarks.timing import ROOT, Stopwatch, in_process
from sb3_grpo import GRPO
from sb3_grpo.utils.ranks import n_ranks, rank, shares_steps

OUTPUT = common.RESULTS / "ranks.jsonl"
SUBJECTS = ("one process", "two threads", "two ranks", "two seeds")
N_REPEATS, N_REPEATS_OF_SLOW = 5, 3
# Policy, environment, arguments, and steps that are measured after the first update
TASKS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "HalfCheetah": ("MlpPolicy", "HalfCheetah-v5", {"n_envs": 32}, 30_000),
    "BipedalWalker": ("MlpPolicy", "BipedalWalker-v3", {"n_envs": 32}, 20_000),
    "CartPole": ("MlpPolicy", "CartPole-v1", {"n_envs": 32}, 50_000),
    "Breakout": ("CnnPolicy", "ALE/Breakout-v5", {"n_envs": 16, "unrelated_starts": True}, 6_000),
    "SmolLM2": ("CausalLMPolicy", "sums", {"n_groups": 4, "group_size": 16}, 4_000),
}


def made(task: str) -> Any:
    """
    :param task: A task
    :return: The model
    """
    policy, env_id, settings, _ = TASKS[task]
    env: Any = env_id
    if task == "SmolLM2":
        from sb3_grpo.envs import VerifierTextVecEnv
        from sb3_grpo.text.pretrained import load_tokenizer

        n_envs = settings["n_groups"] * settings["group_size"] // n_ranks()
        tokenizer = load_tokenizer("smollm2")
        env = VerifierTextVecEnv(n_envs, seed=0, task="arithmetic", tokenizer=tokenizer, stop=["\n"], max_answer_tokens=8)
        lora = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
        settings = {**settings, "batch_size": 512, "policy_kwargs": {"model": "smollm2", "lora": lora}}
    return GRPO(policy, env, seed=int(os.environ.get("SEED", "0")), device="cpu", **settings)


def measured(task: str) -> dict[str, float]:
    """
    :param task: A task
    :return: Its speed in this process, or in those of ``torchrun``
    """
    model = made(task)
    model.learn(1)
    watch, begun_at = Stopwatch(time.perf_counter), model.num_timesteps
    for name in ("collect_rollouts", "train"):
        watch.watch(model, name)
    begin = time.perf_counter()
    model.learn(TASKS[task][3], reset_num_timesteps=False)
    seconds = time.perf_counter() - begin
    steps = model.num_timesteps - begun_at
    return {
        "steps_per_second": steps / seconds,
        "share": watch.spent["collect_rollouts"] / seconds,
        "shares_steps": float(shares_steps(model.policy)),
        "parameters": sum(each.numel() for each in model.policy.parameters() if each.requires_grad),
    }


def in_ranks(task: str) -> dict[str, float]:
    """
    :param task: A task
    :return: Its speed in two ranks
    """
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmarks.ranks", "--one", task]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def one(task: str, subject: str) -> dict[str, float]:
    """
    :param task: A task
    :param subject: How it is trained
    :return: Its speed
    """
    if subject == "two ranks":
        return in_ranks(task)
    if subject == "two seeds":
        with ThreadPoolExecutor(2) as pool:
            runs = [*pool.map(lambda seed: in_process("benchmarks.ranks", "--one", task, SEED=str(seed)), (0, 1))]
        return {**runs[0], "steps_per_second": sum(each["steps_per_second"] for each in runs)}
    return in_process("benchmarks.ranks", "--one", task, n_threads=2 if subject == "two threads" else 1)


def table() -> str:
    """
    :return: The results as a table in Markdown
    """
    found = common.rows(OUTPUT)
    lines = ["| | rollouts | 2 processes | limit | 2 threads | 2 seeds |", "|---|---|---|---|---|---|"]
    for task in TASKS:
        rounds: dict[int, dict[str, Any]] = {}
        for row in found:
            if row["task"] == task:
                rounds.setdefault(row["round"], {})[row["subject"]] = row
        rounds = {number: each for number, each in rounds.items() if len(each) == len(SUBJECTS)}
        if not rounds:
            continue
        share = np.median([each["one process"]["share"] for each in rounds.values()])
        speed = "steps_per_second"
        ratios = {
            subject: np.median([each[subject][speed] / each["one process"][speed] for each in rounds.values()])
            for subject in SUBJECTS
        }
        shared = next(iter(rounds.values()))["one process"]["shares_steps"]
        limit = "2.00" if shared else f"{1 / (1 - share / 2):.2f}"
        lines.append(
            f"| {task} | {share:.0%} | **{ratios['two ranks']:.2f}** | {limit} | {ratios['two threads']:.2f} | "
            f"{ratios['two seeds']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table of what has been measured")
    parser.add_argument("--one", choices=TASKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    if args.one:
        th.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        result = measured(args.one)
        if rank() == 0:
            print(json.dumps(result))
        return
    known = {(row["round"], row["task"], row["subject"]) for row in common.rows(OUTPUT)}
    for number, task, subject in product(range(N_REPEATS), TASKS, SUBJECTS):
        is_left_out = number >= N_REPEATS_OF_SLOW and task in ("Breakout", "SmolLM2")
        if (number, task, subject) not in known and not is_left_out:
            row = {"round": number, "task": task, "subject": subject, **one(task, subject), "machine": common.machine()}
            with OUTPUT.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(number, task, subject, f"{row['steps_per_second']:.0f} steps per second", flush=True)


if __name__ == "__main__":
    main()
