"""
Long training, many training runs and many copies: does anything grow? ``python -m stress.soak`` runs all parts, each in
its own process, ``python -m stress.soak calls copies`` some of them.

The rule, for the last fifth of a part against its second: memory at most 5% and 10 MB more, without the lists of SB3's
Monitor; steps per CPU second at least 90%; no more file handles, processes and threads. After ``env.close()`` there are
no more of these three than before the model was created. (Before that, a first training run has let libraries import and
allocate what they keep.)
"""

import argparse
import gc
import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_grpo import GRPO, make_group_env
from sb3_grpo.cli.text import LESSONS, N_ENVS, NETWORK, SETTINGS
from sb3_grpo.envs import VerifierTextVecEnv
from stress.common import write_trust

STEPS, TOKENS, EPISODES, CALLS, COPIES, ROUNDS = 10_000_000, 1_000_000, 1_000_000, 1_000, 256, 6

SAMPLES = 100
COUNTED = ("files", "processes", "threads")
MB = 2**20


class Sample(NamedTuple):
    """
    Resources that a process holds.

    :param done: Steps, calls or rounds so far
    :param cpu_seconds: Of this process and of its finished children
    :param memory: Resident memory in MB
    :param files: Number of open file handles
    :param processes: Number of descendant processes
    :param threads: Number of threads of this process
    :param monitors: MB of memory taken by the lists of SB3's ``Monitor``
    """

    done: int
    cpu_seconds: float
    memory: float
    files: int
    processes: int
    threads: int
    monitors: float = 0.0


def look(done: int = 0, env: VecEnv | None = None) -> Sample:
    """
    :param done: Steps, calls or rounds so far
    :param env: The training environment
    :return: The resources of this process
    """
    process = psutil.Process()
    return Sample(
        done,
        sum(process.cpu_times()[:4]),
        process.memory_info().rss / MB,
        process.num_fds(),
        len(process.children(recursive=True)),
        process.num_threads(),
        sum(map(_lists_of, env.envs)) / MB if isinstance(env, DummyVecEnv) else 0.0,
    )


def _lists_of(env: gym.Env) -> int:
    lists = [env.get_wrapper_attr(name) for name in ("episode_returns", "episode_lengths", "episode_times")]
    return sum(sys.getsizeof(each) + len(each) * sys.getsizeof(each[-1]) for each in lists if each)


class Watch(BaseCallback):
    """
    Takes samples regularly.

    :param every: Steps between samples
    """

    def __init__(self, every: int):
        super().__init__()
        self.every = every
        self.samples: list[Sample] = []

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.every * len(self.samples):
            self.samples.append(look(self.num_timesteps, self.training_env))
            if len(self.samples) % 10 == 0:
                print(*self.samples[-1], flush=True)
        return True


def fifths(samples: list[Sample]) -> list[dict[str, float]]:
    """
    :param samples: Samples in chronological order
    :return: For each fifth, mean memory, speed, and the largest counts
    """
    edges = np.linspace(0, len(samples) - 1, 6).astype(int)
    rows = []
    for first, last in itertools.pairwise(edges):
        part = samples[first : last + 1]
        speed = (part[-1].done - part[0].done) / (part[-1].cpu_seconds - part[0].cpu_seconds)
        row = {"memory": float(np.mean([each.memory for each in part])), "speed": speed}
        row["monitors"] = float(np.mean([each.monitors for each in part]))
        row |= {name: max(getattr(each, name) for each in part) for name in COUNTED}
        rows.append({name: float(f"{value:.5g}") for name, value in row.items()})
    return rows


def judge(rows: list[dict[str, float]], before: Sample, after: Sample) -> dict[str, bool]:
    """
    :param rows: Result of ``fifths``
    :param before: Before the model was created
    :param after: After the environment was closed
    :return: Whether each figure meets the rule
    """
    second, last = rows[1], rows[-1]
    return {
        "memory": last["memory"] - last["monitors"] <= 1.05 * (second["memory"] - second["monitors"]) + 10.0,
        "speed": last["speed"] >= 0.9 * second["speed"],
        **{name: last[name] <= second[name] for name in COUNTED},
        **{f"{name} left over": getattr(after, name) <= getattr(before, name) for name in COUNTED},
    }


def _cart_pole(**kwargs: Any) -> GRPO:
    return GRPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **kwargs)


def _sums() -> GRPO:
    lesson = LESSONS[2]
    env = VerifierTextVecEnv(N_ENVS, 0, task_kwargs={"digits": 2}, max_answer_tokens=4)
    kwargs = {**SETTINGS, **lesson.settings, "learning_rate": lesson.learning_rate, "policy_kwargs": NETWORK}
    return GRPO("TokenPolicy", env, seed=0, device="cpu", **kwargs)


def _long(make: Callable[[], GRPO], steps: int) -> tuple[Sample, list[Sample]]:
    _close(make().learn(50_000))
    before, watch, model = look(), Watch(steps // SAMPLES), make()
    model.learn(steps, callback=watch)
    _close(model)
    return before, watch.samples


def _close(model: GRPO) -> None:
    assert model.env is not None
    model.env.close()
    model.logger.close()


def soak_episodes() -> tuple[Sample, list[Sample]]:
    """
    :return: Samples of one long ``learn`` on the shortest episodes, with a Monitor file
    """
    with tempfile.TemporaryDirectory() as folder:

        def make() -> GRPO:
            env = make_group_env("Pendulum-v1", seed=0, monitor_dir=folder, env_kwargs={"max_episode_steps": 1})
            return GRPO("MlpPolicy", env, seed=0, device="cpu")

        return _long(make, EPISODES)


def soak_calls() -> tuple[Sample, list[Sample]]:
    """
    :return: Samples of many calls of ``learn``, every second of which begins a new TensorBoard run
    """
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        _close(_cart_pole(tensorboard_log=folder).learn(10_000))
        before, model = look(), _cart_pole(tensorboard_log=folder)
        for call in range(CALLS):
            model.learn(2_048, reset_num_timesteps=call % 2 == 0)
            if call % (CALLS // SAMPLES) == 0:
                samples.append(look(call))
        _close(model)
    return before, samples


def soak_copies() -> tuple[Sample, list[Sample]]:
    """
    :return: Samples of training with many copies, created and closed repeatedly: in this process, and each in its own
    """
    # "fork" shares torch's memory among the processes
    kinds: list[tuple[type[DummyVecEnv | SubprocVecEnv], dict[str, Any]]] = [
        (DummyVecEnv, {}),
        (SubprocVecEnv, {"start_method": "fork"}),
    ]

    def train() -> None:
        for vec_env_cls, kwargs in kinds:
            env = make_group_env("CartPole-v1", COPIES, seed=0, vec_env_cls=vec_env_cls, vec_env_kwargs=kwargs)
            _close(GRPO("MlpPolicy", env, n_steps=16, n_epochs=1, seed=0, device="cpu").learn(2 * 16 * COPIES))

    train()
    gc.collect()
    before, samples = look(), []
    for done in range(ROUNDS):
        train()
        gc.collect()
        samples.append(look(done))
        print(*samples[-1], flush=True)
    return before, samples


PARTS: dict[str, tuple[str, Callable[[], tuple[Sample, list[Sample]]]]] = {
    "steps": (
        f"{STEPS:,} steps of CartPole in one `learn` of GRPO with defaults",
        lambda: _long(_cart_pole, STEPS),
    ),
    "tokens": (
        f"{TOKENS:,} tokens in one `learn` of GRPO on sums with a verifier, {N_ENVS} copies",
        lambda: _long(_sums, TOKENS),
    ),
    "episodes": (f"{EPISODES:,} one-step episodes in one `learn` of GRPO", soak_episodes),
    "calls": (f"{CALLS:,} calls of `learn` on one model, with TensorBoard", soak_calls),
    "copies": (f"{COPIES} copies in a `DummyVecEnv` and in {COPIES} processes, {ROUNDS} training runs each", soak_copies),
}


def run(part: str) -> None:
    """
    Run one part in this process, and write down the result.

    :param part: One of ``PARTS``
    """
    th.set_num_threads(1)
    warnings.filterwarnings("ignore", "No update at")
    what, soak = PARTS[part]
    begin = time.perf_counter()
    before, samples = soak()
    seconds = time.perf_counter() - begin
    gc.collect()
    after, rows = look(), fifths(samples)
    kept = judge(rows, before, after)
    write_trust(
        f"soak_{part}",
        what,
        "memory, speed, file handles, processes and threads in the last fifth as in the second; "
        "none of the last three left over",
        len(kept),
        [name for name, right in kept.items() if not right],
        seconds=round(seconds),
        before=before._asdict(),
        after=after._asdict(),
        fifths=rows,
    )


def main() -> None:
    """Run the parts, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all of them if none is named")
    parts = parser.parse_args().parts or list(PARTS)
    if len(parts) == 1:
        run(parts[0])
        return
    for part in parts:
        subprocess.run([sys.executable, "-m", "stress.soak", part], check=True)


if __name__ == "__main__":
    main()
