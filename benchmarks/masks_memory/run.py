"""
Learn the tasks: ``python -m benchmarks.masks_memory.run``.

GRPO and DAPO with defaults, and PPO of SB3-Contrib with the same copies, minibatches, epochs, learning rate and network. Each
run is a process with one torch thread; its row is appended to ``benchmarks/results/masks_memory.jsonl`` when it ends. What has
a row is not run again. ``--speed`` measures steps per second, all subjects in turn.
"""

import argparse
import json
import os
import time
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from rich.progress import track
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import common
from benchmarks.masks_memory.tasks import BOTH, MASKS, MEMORY, TASKS
from benchmarks.runs import origin, run_missing
from benchmarks.timing import in_process

RESULTS, SPEEDS = (common.RESULTS / name for name in ("masks_memory.jsonl", "masks_memory_speed.jsonl"))
SEEDS, N_ENVS = 5, 16
LSTM = {"lstm_hidden_size": 64}
# The copies, minibatches, epochs and learning rate of GRPO and DAPO
PPO = {"n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3}
# What each variant has
HAS = {
    "dapo": {MASKS, MEMORY},
    "grpo": {MASKS, MEMORY},
    "maskable_ppo": {MASKS},
    "recurrent_ppo": {MEMORY},
    # One LSTM, as ours
    "recurrent_ppo_shared": {MEMORY},
    "dapo_masks": {MASKS},
    "dapo_memory": {MEMORY},
    # With an auxiliary value loss
    "dapo_aux": {MASKS, MEMORY},
}
VARIANTS = {
    MASKS: ("dapo", "grpo", "maskable_ppo"),
    MEMORY: ("dapo", "dapo_aux", "recurrent_ppo"),
    BOTH: ("dapo", "dapo_aux", "dapo_masks", "dapo_memory", "maskable_ppo", "recurrent_ppo"),
}
N_EVALUATIONS, N_EPISODES, N_FINAL_EPISODES = 10, 20, 100
EVALUATION_SEED = 10_000
# Speed: an update of 2,048 steps, and two after it
SPEED_TASKS = {
    "InvalidActionEnvDiscrete": ("dapo", "maskable_ppo"),
    "CartPole": ("dapo", "recurrent_ppo", "recurrent_ppo_shared"),
}
N_FIRST, N_STEPS, N_REPEATS = 2_048, 4_096, 5


def make_model(task: str, variant: str, seed: int) -> Any:
    """
    :param task: Name of a task
    :param variant: One of ``HAS``
    :param seed: Random seed
    :return: The algorithm with its environment copies
    """
    import sb3_contrib
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env

    import sb3_grpo

    th.set_num_threads(1)
    gym.logger.min_level = gym.logger.ERROR
    make = TASKS[task].make
    needs = {TASKS[task].needs} if TASKS[task].needs != BOTH else {MASKS, MEMORY}
    has_memory = MEMORY in HAS[variant] & needs
    policy, policy_kwargs = ("MlpLstmPolicy", dict(LSTM)) if has_memory else ("MlpPolicy", {})
    kwargs: dict[str, Any] = {"seed": seed, "device": "cpu"}
    if variant == "dapo_aux":
        kwargs["vf_coef"] = 0.5
    if variant.endswith("_shared"):
        policy_kwargs |= {"shared_lstm": True, "enable_critic_lstm": False}
    kwargs["policy_kwargs"] = policy_kwargs
    if "ppo" in variant:
        cls = sb3_contrib.MaskablePPO if variant == "maskable_ppo" else sb3_contrib.RecurrentPPO
        return cls(policy, make_vec_env(make, N_ENVS, seed=seed), **PPO, **kwargs)
    ours = sb3_grpo.GRPO if variant == "grpo" else sb3_grpo.DAPO
    return ours(policy, sb3_grpo.make_group_env(make, N_ENVS, seed=seed), use_masking=MASKS in HAS[variant], **kwargs)


def mean_return(model: Any, env: VecEnv, n_episodes: int, has_masks: bool) -> float:
    """
    :param model: A model; its actions are sampled, as in training
    :param env: The environment
    :param n_episodes: Number of episodes
    :param has_masks: Whether it is told what is allowed
    :return: Mean return
    """
    observations, state, starts = env.reset(), None, np.ones(env.num_envs, bool)
    totals, returns = np.zeros(env.num_envs), []
    # As many of each copy: otherwise, short episodes would count more often
    left = np.full(env.num_envs, -(-n_episodes // env.num_envs))
    while left.any():
        masks = {"action_masks": np.stack(env.env_method("action_masks"))} if has_masks else {}
        actions, state = model.predict(observations, state=state, episode_start=starts, deterministic=False, **masks)
        observations, rewards, starts, _ = env.step(actions)
        totals += rewards
        for copy in np.flatnonzero(starts):
            if left[copy]:
                returns.append(totals[copy])
                left[copy] -= 1
            totals[copy] = 0.0
    return float(np.mean(returns))


class Evaluate(BaseCallback):
    """
    Evaluates regularly, and counts the CPU seconds in between.

    :param env: Environment for evaluations
    :param has_masks: Whether the model is told what is allowed
    :param freq: Steps between evaluations
    """

    def __init__(self, env: VecEnv, has_masks: bool, freq: int):
        super().__init__()
        self.env, self.has_masks, self.freq = env, has_masks, freq
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.returns: list[float] = []
        self.spent, self.begun = 0.0, time.process_time()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.freq * (len(self.steps) + 1):
            self.note(N_EPISODES)
        return True

    def note(self, n_episodes: int) -> None:
        """
        :param n_episodes: Number of episodes to play
        """
        now = time.process_time()
        self.steps.append(self.num_timesteps)
        self.seconds.append(round(now - self.begun - self.spent, 2))
        self.returns.append(round(mean_return(self.model, self.env, n_episodes, self.has_masks), 4))
        self.spent += time.process_time() - now


def learn(task: str, variant: str, seed: int) -> dict[str, Any]:
    """
    :param task: Name of a task
    :param variant: One of ``HAS``
    :param seed: Random seed
    :return: The curve
    """
    from stable_baselines3.common.env_util import make_vec_env

    model = make_model(task, variant, seed)
    has_masks = MASKS in HAS[variant] and TASKS[task].needs != MEMORY
    eval_env = make_vec_env(TASKS[task].make, 10, seed=EVALUATION_SEED + seed)
    evaluate = Evaluate(eval_env, has_masks, TASKS[task].timesteps // N_EVALUATIONS)
    model.learn(TASKS[task].timesteps, callback=evaluate)
    evaluate.note(N_FINAL_EPISODES)
    return {"steps": evaluate.steps, "seconds": evaluate.seconds, "returns": evaluate.returns}


def measure_speed(task: str) -> dict[str, float]:
    """
    :param task: Name of a task
    :return: Steps per CPU second of each variant, in turn
    """
    rates = {}
    for variant in SPEED_TASKS[task]:
        model = make_model(task, variant, seed=0)
        model.learn(N_FIRST)
        n_before, begun = model.num_timesteps, time.process_time()
        model.learn(N_STEPS, reset_num_timesteps=False)
        rates[variant] = round((model.num_timesteps - n_before) / (time.process_time() - begun), 1)
    return rates


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--variants", nargs="+", choices=HAS, default=[*HAS])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--speed", action="store_true", help="measure speed instead")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        task, *rest = args.one
        print(json.dumps(learn(task, rest[0], int(rest[1])) if rest else measure_speed(task)))
        return
    made = origin()
    if args.speed:
        for repeat, task in track([*product(range(N_REPEATS), SPEED_TASKS)], "speed"):
            rates = in_process("benchmarks.masks_memory.run", "--one", task)
            with SPEEDS.open("a") as file:
                file.write(json.dumps({"task": task, "repeat": repeat, "rates": rates} | made) + "\n")
        return

    jobs = [
        {"task": task, "variant": variant, "seed": seed}
        for seed, task in product(range(SEEDS), args.tasks)
        for variant in VARIANTS[TASKS[task].needs]
        if variant in args.variants
    ]
    run_missing(RESULTS, jobs, lambda job: in_process("benchmarks.masks_memory.run", "--one", *job.values()), args.processes)


if __name__ == "__main__":
    main()
