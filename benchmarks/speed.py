"""
Environment steps per second of training, against SB3's PPO on the same environment copies: ``python -m benchmarks.speed``.

Subjects alternate, several times, in processes with one torch thread: random stepping, PPO with RL Zoo's hyperparameters, PPO
with GRPO's epochs and minibatches, GRPO, DAPO. Prints medians and ratios, and writes ``benchmarks/results/speed.json``.
"""

import argparse
import inspect
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
N_ENVS = 16
# PPO with GRPO's epochs and minibatches
SAME_PASSES = "ppo_passes"


def make_env(env_id: str, n_envs: int, vec_env: str, groups: bool, env_kwargs: dict[str, Any]) -> Any:
    """
    :param env_id: id of a registered environment
    :param n_envs: Number of copies
    :param vec_env: "dummy" or "subproc"
    :param groups: Whether the algorithm needs exact starts. Copies in one process get them from the model
    :param env_kwargs: Arguments for ``gym.make``
    :return: The copies
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    if vec_env == "dummy":
        return make_vec_env(env_id, n_envs, seed=0, env_kwargs={"render_mode": None, **env_kwargs})
    if groups:
        # Imported only where it is needed, so that each process holds only its own algorithm in memory
        from sb3_grpo import make_group_env as make_vec_env
    return make_vec_env(env_id, n_envs, seed=0, vec_env_cls=SubprocVecEnv, env_kwargs={"render_mode": None, **env_kwargs})


def random_stepping(
    env_id: str, steps: int, n_envs: int = N_ENVS, vec_env: str = "dummy", env_kwargs: dict[str, Any] | None = None
) -> dict[str, float]:
    """
    :param env_id: id of a registered environment
    :param steps: Environment steps, summed over all copies
    :param n_envs: Number of copies
    :param vec_env: See ``make_env``
    :param env_kwargs: Arguments for ``gym.make``
    :return: Rate of the bare ``VecEnv`` with random actions, without the entry's ``VecNormalize``, if any
    """
    env = make_env(env_id, n_envs, vec_env, False, env_kwargs or {})
    actions = [np.array([env.action_space.sample() for _ in range(n_envs)]) for _ in range(1000)]
    env.reset()
    begin = time.perf_counter()
    for i in range(steps // n_envs):
        env.step(actions[i % 1000])
    rate = steps / (time.perf_counter() - begin)
    env.close()
    return {"steps_per_second": rate}


def training(
    algo: str,
    env_id: str,
    steps: int,
    n_envs: int = N_ENVS,
    vec_env: str = "dummy",
    env_kwargs: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> dict[str, float]:
    """
    :param algo: "ppo", "grpo" or "dapo"
    :param env_id: id of a registered environment
    :param steps: Environment steps, summed over all copies
    :param n_envs: Number of copies
    :param vec_env: See ``make_env``
    :param env_kwargs: Arguments for ``gym.make``
    :param changes: Hyperparameters that differ from the configuration
    :return: Rates, peak memory in MiB, and the share of time spent in each stage
    """
    import torch as th

    from benchmarks.common import algorithm, hyperparameters
    from sb3_grpo.utils.entries import parse_value

    th.set_num_threads(1)
    kwargs = {**hyperparameters(algo, env_id), **(changes or {})}
    kwargs.pop("n_envs", None)
    normalize = kwargs.pop("normalize", False)
    env = make_env(env_id, n_envs, vec_env, algo != "ppo", env_kwargs or {})
    if normalize:
        from stable_baselines3.common.vec_env import VecNormalize

        # RL Zoo's format: true, or a call in a string. The discount factor does not affect speed
        env = VecNormalize(env, **(parse_value(normalize) if isinstance(normalize, str) else {}))
    model = algorithm(algo)(env=env, seed=0, device="cpu", **kwargs)
    spent: dict[str, float] = defaultdict(float)

    def clock(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - begin

        return wrapper

    model.collect_rollouts = clock("collect", model.collect_rollouts)  # type: ignore[attr-defined]
    model.train = clock("train", model.train)  # type: ignore[attr-defined]
    model.env.step = clock("env", model.env.step)  # type: ignore[union-attr, method-assign]
    begin = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - begin
    n_steps = model.num_timesteps
    env.close()
    return {
        "steps_per_second": n_steps / seconds,
        "collect_steps_per_second": n_steps / spent["collect"],
        "share_env": spent["env"] / seconds,
        "share_rest_of_collect": (spent["collect"] - spent["env"]) / seconds,
        "share_train": spent["train"] / seconds,
        "share_other": (seconds - spent["collect"] - spent["train"]) / seconds,
        # Not peak_memory(): importing it would load our algorithms into PPO's process
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def passes(hyperparams: dict[str, Any]) -> dict[str, int]:
    """
    :param hyperparams: An entry of GRPO
    :return: Its number of epochs and minibatches, defaults included
    """
    from sb3_grpo import GRPO

    defaults = inspect.signature(GRPO).parameters
    return {name: hyperparams.get(name, defaults[name].default) for name in ("n_epochs", "batch_size")}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--changes", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        if args.one == "random":
            measure = random_stepping(args.env, args.steps)
        else:
            measure = training(args.one, args.env, args.steps, changes=args.changes)
        print(json.dumps(measure))
        return

    from benchmarks.common import command, hyperparameters, machine

    algos = ("ppo", "grpo", "dapo")
    subjects = ["random", "ppo", SAME_PASSES, "grpo", "dapo"]
    same_passes = passes(hyperparameters("grpo", args.env))
    runs: dict[str, list[dict[str, float]]] = {subject: [] for subject in subjects}
    for repeat in range(args.repeats):
        for subject in subjects:
            options = ["--env", args.env, "--steps", str(args.steps), "--one", subject]
            if subject == SAME_PASSES:
                options[-1:] = ["ppo", "--changes", json.dumps(same_passes)]
            output = subprocess.run(
                [sys.executable, "-m", "benchmarks.speed", *options],
                check=True,
                capture_output=True,
                text=True,
                cwd=RESULTS.parents[1],
            ).stdout
            runs[subject].append(json.loads(output.splitlines()[-1]))
            print(f"{repeat + 1}/{args.repeats} {subject:10} {runs[subject][-1]['steps_per_second']:8.0f} steps/s", flush=True)

    median = {
        subject: {key: float(np.median([run[key] for run in measures])) for key in measures[0]}
        for subject, measures in runs.items()
    }

    def ratio(algo: str, key: str, peer: str, peer_key: str) -> float:
        pairs = zip(runs[algo], runs[peer], strict=True)
        return float(np.median([ours[key] / theirs[peer_key] for ours, theirs in pairs]))

    ratios = {
        algo: {
            "training_vs_ppo": ratio(algo, "steps_per_second", "ppo", "steps_per_second"),
            "training_vs_ppo_with_the_same_passes": ratio(algo, "steps_per_second", SAME_PASSES, "steps_per_second"),
            "collection_vs_random_stepping": ratio(algo, "collect_steps_per_second", "random", "steps_per_second"),
            "peak_memory_vs_ppo": ratio(algo, "peak_memory_mib", "ppo", "peak_memory_mib"),
        }
        for algo in ("grpo", "dapo")
    }
    result = {
        "env": args.env,
        "n_envs": N_ENVS,
        "steps": args.steps,
        "median": median,
        "median_of_paired_ratios": ratios,
        "runs": runs,
        "hyperparameters": {algo: {k: str(v) for k, v in hyperparameters(algo, args.env).items()} for algo in algos},
        "same_passes": same_passes,
        "command": command(),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "speed.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"median": median, "median_of_paired_ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
