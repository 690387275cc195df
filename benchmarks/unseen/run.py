"""
Learn the tasks of a list with defaults: ``python -m benchmarks.unseen.run development --algos ppo grpo dapo``.

Each run is a process with one torch thread; its row is appended to ``benchmarks/results/unseen.jsonl`` when it ends.
Continues where it was interrupted. Runs of our algorithms carry the name of a design (``--design``).
"""

import argparse
import json
import os
import time
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import common
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process
from benchmarks.unseen.tasks import LISTS, SEEDS, Task
from sb3_grpo import presets

RESULTS = common.RESULTS / "unseen.jsonl"
# PPO with our copies, rollouts and minibatches (ours grow to 8,192 steps per update), with its own learning rate and with ours
PPO_16 = {
    f"ppo-16{norm}-{rate}": {"n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": float(rate)}
    for rate in ("3e-4", "1e-3")
    for norm in ("", "-norm")
}
# PPO with ``VecNormalize``, by what it is without
NORMALIZED = {"ppo": "ppo-norm"} | {name: name.replace("16", "16-norm") for name in PPO_16 if "norm" not in name}
PEERS = ("ppo", "ppo-norm", *PPO_16, "a2c", "trpo")
OURS = ("grpo-paper", "grpo", "dapo")
# Shares of the budget: early ones, because ours end when PPO has taken a fifth of its steps
EVALUATED_AT = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
N_EPISODES, N_FINAL_EPISODES = 10, 100
# Evaluations have their own seeds
EVALUATION_SEED = 10_000
# What the paper optimises, with our sizes: 64 answers to a question and a single step of the optimizer are a language model's
PAPER: dict[str, Any] = {**presets.GRPO_PAPER, "group_size": 4, "n_epochs": 10, "batch_size": 256}


class Evaluate(BaseCallback):
    """
    Evaluates regularly, and counts the CPU seconds in between: other work on the machine does not count.

    :param env: Environment for evaluations
    :param at: Numbers of steps at which to evaluate
    """

    def __init__(self, env: VecEnv, at: list[float]):
        super().__init__()
        self.env, self.at = env, at
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.returns: list[float] = []
        self.spent, self.begun = 0.0, time.process_time()

    def _on_step(self) -> bool:
        if len(self.steps) < len(self.at) and self.num_timesteps >= self.at[len(self.steps)]:
            self.note(N_EPISODES)
        return True

    def note(self, n_episodes: int) -> None:
        """
        :param n_episodes: Number of episodes to play
        """
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import sync_envs_normalization

        now = time.process_time()
        training_env = self.model.get_env()
        assert training_env is not None
        sync_envs_normalization(training_env, self.env)
        returns, _ = evaluate_policy(self.model, self.env, n_episodes, warn=False, return_episode_rewards=True)
        self.steps.append(self.num_timesteps)
        self.seconds.append(round(now - self.begun - self.spent, 2))
        self.returns.append(round(float(np.mean(returns)), 4))
        self.spent += time.process_time() - now


def make_model(task: Task, algo: str, seed: int, changes: dict[str, Any]) -> Any:
    """
    :param task: What to learn
    :param algo: One of ``PEERS`` or ``OURS``
    :param seed: Random seed
    :param changes: Arguments that a design changes
    :return: The algorithm with its environment copies
    """
    import sb3_contrib
    import stable_baselines3
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    import sb3_grpo

    th.set_num_threads(1)
    gym.logger.min_level = gym.logger.ERROR
    name = algo.partition("-")[0].upper()
    if algo in OURS:
        env: VecEnv = sb3_grpo.make_group_env(task.make, 16, seed=seed)
        cls: Any = getattr(sb3_grpo, name)
        kwargs = {**(PAPER if algo == "grpo-paper" else {}), **changes}
    else:
        env = make_vec_env(task.make, 16 if algo in PPO_16 else 1, seed=seed)
        if algo in NORMALIZED.values():
            env = VecNormalize(env)
        cls = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
        kwargs = PPO_16.get(algo, {})
    return cls("MlpPolicy", env, seed=seed, device="cpu", **kwargs)


def learn(task: Task, algo: str, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """
    :param task: What to learn
    :param algo: One of ``PEERS`` or ``OURS``
    :param seed: Random seed
    :param changes: Arguments that a design changes
    :return: The row
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    eval_env: VecEnv = make_vec_env(task.make, 10, seed=EVALUATION_SEED + seed)
    if algo in NORMALIZED.values():
        eval_env = VecNormalize(eval_env, training=False, norm_reward=False)
    model = make_model(task, algo, seed, changes)
    evaluate = Evaluate(eval_env, [share * task.timesteps for share in EVALUATED_AT])
    model.learn(task.timesteps, callback=evaluate)
    evaluate.note(N_FINAL_EPISODES)
    return {"steps": evaluate.steps, "seconds": evaluate.seconds, "returns": evaluate.returns}


def random_return(task: Task) -> float:
    """
    :param task: A task
    :return: Mean return of a random policy
    """
    env, returns = task.make(), []
    env.action_space.seed(0)
    for episode in range(200):
        env.reset(seed=episode)
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def rows() -> list[dict[str, Any]]:
    """
    :return: All runs so far
    """
    return common.rows(RESULTS)


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", choices=LISTS)
    parser.add_argument("--algos", nargs="+", choices=(*PEERS, *OURS), default=[*PEERS, *OURS])
    parser.add_argument("--tasks", nargs="+", help="only these (development)")
    parser.add_argument("--seeds", type=int, help="only so many (development)")
    parser.add_argument("--design", default="0.1", help="name of a design of our algorithms")
    parser.add_argument("--changes", type=json.loads, default={}, help='its arguments, such as {"batch_size": 64}')
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--random", action="store_true", help="print the returns of random policies instead")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    tasks = {task.env_id: task for task in LISTS[args.list] if not args.tasks or task.env_id in args.tasks}
    if args.random:
        for task in tasks.values():
            print(f"{task.env_id:32} {random_return(task):10.3f} (written down: {task.low})", flush=True)
        return
    if args.one:
        env_id, algo, seed = args.one
        print(json.dumps(learn(tasks[env_id], algo, int(seed), args.changes)))
        return

    jobs = [
        {"list": args.list, "task": env_id, "algo": algo, "seed": seed, "design": args.design if algo in OURS else ""}
        for seed, env_id, algo in product(range(args.seeds or SEEDS[args.list]), tasks, args.algos)
    ]
    # Without normalisation this is PPO
    jobs = [job for job in jobs if job["algo"] not in NORMALIZED.values() or tasks[job["task"]].is_continuous]

    def run(job: Job) -> dict[str, Any]:
        one = ["--one", job["task"], job["algo"], job["seed"], "--changes", json.dumps(args.changes)]
        curve = in_process("benchmarks.unseen.run", args.list, *one)
        return curve | ({"changes": args.changes} if job["design"] and args.changes else {})

    run_missing(RESULTS, jobs, run, args.processes)


if __name__ == "__main__":
    main()
