"""
The defaults from 1 to 4,096 copies of the environment: ``python -m benchmarks.many_copies``.

GRPO with its defaults, and PPO of Stable-Baselines3 with the same copies, steps, minibatches, epochs and learning rate, on
simulators whose copies all begin and end together, and on Gymnasium's environments. Each run is a process with one torch
thread; its row is appended to ``benchmarks/results/many_copies.jsonl`` when it ends. What has a row is not run again.
``--table`` prints the table of the page.
"""

import argparse
import json
import os
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from benchmarks import common
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process

RESULTS = common.RESULTS / "many_copies.jsonl"
COPIES, SEEDS = (1, 16, 256, 1024, 4096), 3
# With more copies, an update takes more steps
FEW, STEPS, STEPS_OF_MANY = 256, 50_000, 200_000
PPO = {"n_epochs": 10, "learning_rate": 1e-3}
EVALUATION_SEED, N_EPISODES = 10_000, 48


class Simulator(VecEnv):
    """
    Copies as a simulator on a GPU plays them: as arrays, and in lockstep, from reset to time limit. They cannot be reset
    one by one, nor in a given state.

    :param num_envs: Number of copies
    :param seed: Seed of their first states
    """

    shape: tuple[int, int] = (4, 2)  # numbers in an observation and in an action
    limit = 100

    def __init__(self, num_envs: int, seed: int):
        self.render_mode = None
        n_observed, n_actions = self.shape
        observations = spaces.Box(-np.inf, np.inf, (n_observed,), np.float32)
        super().__init__(num_envs, observations, spaces.Box(-1.0, 1.0, (n_actions,), np.float32))
        self.rng = np.random.default_rng(seed)

    def begin(self) -> np.ndarray:
        """
        :return: (num_envs, 4) first states: places and velocities
        """
        raise NotImplementedError

    def move(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: (num_envs, n_actions)
        :return: (num_envs,) rewards
        """
        raise NotImplementedError

    def observe(self) -> np.ndarray:
        """
        :return: (num_envs, n_observed)
        """
        return self.state.astype(np.float32)

    def reset(self) -> np.ndarray:
        self.state, self.time = self.begin(), 0
        return self.observe()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = np.clip(actions, -1.0, 1.0)

    def step_wait(self) -> VecEnvStepReturn:
        rewards = self.move(self.actions).astype(np.float32)
        self.time += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        dones = np.full(self.num_envs, self.time == self.limit)
        if self.time == self.limit:
            for info, last in zip(infos, self.observe(), strict=True):
                info |= {"terminal_observation": last, "TimeLimit.truncated": True}
            self.reset()
        return self.observe(), rewards, dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Points(Simulator):
    """Points with friction are pushed to the origin."""

    def begin(self) -> np.ndarray:
        return np.concatenate([self.rng.uniform(-1.0, 1.0, (self.num_envs, 2)), np.zeros((self.num_envs, 2))], 1)

    def move(self, actions: np.ndarray) -> np.ndarray:
        self.state[:, 2:] = 0.95 * self.state[:, 2:] + 0.05 * actions
        self.state[:, :2] += 0.1 * self.state[:, 2:]
        return -np.square(self.state[:, :2]).sum(1)


class Drift(Simulator):
    """Points without friction, which fly away if they are not stopped."""

    def begin(self) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, (self.num_envs, 4)) * [1.0, 1.0, 0.5, 0.5]

    def move(self, actions: np.ndarray) -> np.ndarray:
        self.state[:, :2] += 0.1 * self.state[:, 2:]
        self.state[:, 2:] += 0.1 * actions
        return -np.square(self.state[:, :2]).sum(1) - 0.1 * np.square(self.state[:, 2:]).sum(1)


class Swing(Simulator):
    """The equations of Gymnasium's Pendulum-v1, and its 200 steps."""

    shape = (3, 1)
    limit = 200

    def begin(self) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, (self.num_envs, 2)) * [np.pi, 1.0]

    def observe(self) -> np.ndarray:
        angle, velocity = self.state.T
        return np.stack([np.cos(angle), np.sin(angle), velocity], 1).astype(np.float32)

    def move(self, actions: np.ndarray) -> np.ndarray:
        angle, velocity = self.state.T
        torque = 2.0 * actions[:, 0]
        rewards = -np.square((angle + np.pi) % (2 * np.pi) - np.pi) - 0.1 * np.square(velocity) - 0.001 * np.square(torque)
        velocity = np.clip(velocity + 0.05 * (15.0 * np.sin(angle) + 3.0 * torque), -8.0, 8.0)
        self.state = np.stack([angle + 0.05 * velocity, velocity], 1)
        return rewards


SIMULATORS = {"points": Points, "drift": Drift, "swing": Swing}
TASKS = (*SIMULATORS, "Pendulum-v1", "CartPole-v1")


def learn(task: str, n_envs: int, algo: str, seed: int) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param n_envs: Number of copies
    :param algo: "grpo" or "ppo"
    :param seed: Random seed
    :return: Mean returns of deterministic episodes before and after training, and the steps of an update per copy
    """
    import torch as th
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    from sb3_grpo import GRPO, make_group_env

    th.set_num_threads(1)
    make = SIMULATORS.get(task)
    ours = GRPO(
        "MlpPolicy",
        make_group_env(task, n_envs, seed=seed) if make is None else make(n_envs, seed),
        unrelated_starts=make is not None,
        seed=seed,
        device="cpu",
    )
    model: Any = ours
    if algo == "ppo":
        env = make_vec_env(task, n_envs, seed=seed) if make is None else make(n_envs, seed)
        model = SB3PPO("MlpPolicy", env, n_steps=ours.n_steps, batch_size=ours.batch_size, seed=seed, device="cpu", **PPO)  # type: ignore[arg-type]
    test_env = make_vec_env(task, 16, seed=EVALUATION_SEED) if make is None else make(16, EVALUATION_SEED)
    before = evaluate_policy(model, test_env, N_EPISODES, warn=False)[0]
    model.learn(STEPS if n_envs <= FEW else STEPS_OF_MANY)
    after = evaluate_policy(model, test_env, N_EPISODES, warn=False)[0]
    return {"n_steps": ours.n_steps, "before": round(float(before), 2), "after": round(float(after), 2)}


def table() -> str:
    """
    :return: Final returns of each seed, and the mean of the untrained policies, as Markdown
    """
    found = pd.DataFrame(common.rows(RESULTS)).sort_values("seed")
    rows = ["| | copies | steps per update and copy | untrained | GRPO | PPO |", "|---|---|---|---|---|---|"]
    for (task, n_envs), runs in found.groupby(["task", "n_envs"], sort=False):
        by_algo = {algo: ", ".join(f"{each:,.0f}" for each in part["after"]) for algo, part in runs.groupby("algo")}
        cells = task, f"{n_envs:,}", runs["n_steps"].iloc[0], f"{runs['before'].mean():,.0f}", by_algo["grpo"], by_algo["ppo"]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--copies", nargs="+", type=int, default=[*COPIES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(SEEDS)])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(learn(**json.loads(args.one))))
    elif args.table:
        print(table())
    else:
        names = "task", "n_envs", "algo", "seed"
        every = product(args.tasks, args.copies, ("grpo", "ppo"), args.seeds)
        jobs: list[Job] = [dict(zip(names, each, strict=True)) for each in every]
        run_missing(RESULTS, jobs, lambda job: in_process("benchmarks.many_copies", "--one", json.dumps(job)), args.processes)


if __name__ == "__main__":
    main()
