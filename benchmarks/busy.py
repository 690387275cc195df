"""
Seconds of a plain script, which sets no number of threads, on idle and on busy cores: ``python -m benchmarks.busy``.

GRPO and SB3's PPO learn CartPole with their defaults, and GRPO with a thread for each core, in turn, each in a process of its
own. Busy: for each core, another process that only counts. Nothing else should run on the machine. Writes medians, and
medians of the ratios within a round, to ``benchmarks/results/busy.json``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.timing import Round, in_process, medians, ratio

ALL_THREADS = "grpo, all threads"
# The number of threads that is set, if any
THREADS = {"ppo": None, "grpo": None, ALL_THREADS: os.cpu_count()}
# Ends by itself if this process is killed
COUNT = "import signal\nsignal.alarm(600)\nwhile True: pass"


@contextmanager
def other_work(n: int) -> Iterator[None]:
    """
    :param n: Number of processes that keep a core busy
    """
    processes = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(subject: str, steps: int) -> dict[str, float]:
    """
    :param subject: One of ``THREADS``
    :param steps: Steps to learn
    :return: Seconds by the clock and of the processor
    """
    from benchmarks.common import algorithm

    algo: Any = algorithm(subject.partition(",")[0])
    model = algo("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    begin, begin_cpu = time.perf_counter(), time.process_time()
    model.learn(steps)
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - begin_cpu}


def one_round(steps: int, n_busy: int) -> Round:
    """
    :param steps: Steps to learn
    :param n_busy: Number of busy cores
    :return: The figures of each subject
    """
    figures = {}
    for subject, n_threads in THREADS.items():
        with other_work(n_busy):
            figures[subject] = in_process("benchmarks.busy", "--steps", steps, "--one", subject, n_threads=n_threads)
        shown = {key: round(value, 2) for key, value in figures[subject].items()}
        print(f"{n_busy} busy cores, {subject:20}", shown, flush=True)
    return figures


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=THREADS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.steps)))
        return

    from benchmarks.common import write_result

    load = os.getloadavg()[0]
    runs: dict[str, list[Round]] = {"idle": [], "busy": []}
    for _ in range(args.repeats):
        for name, n_busy in (("idle", 0), ("busy", os.cpu_count() or 1)):
            runs[name].append(one_round(args.steps, n_busy))
    found = {
        name: {
            "median": medians(rounds),
            "ppo_vs_grpo": ratio(rounds, "ppo", "seconds", "grpo"),
            "all_threads_vs_grpo": ratio(rounds, ALL_THREADS, "seconds", "grpo"),
            "runs": rounds,
        }
        for name, rounds in runs.items()
    }
    write_result("busy.json", {"env": "CartPole-v1", "steps": args.steps, "seed": 0, "load before": load, **found})


if __name__ == "__main__":
    main()
