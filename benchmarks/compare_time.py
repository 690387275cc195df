"""
From command to report: how long a comparison takes, and how much of it is training.

    python -m benchmarks.compare_time --before ../sb3-grpo-before
    python -m benchmarks.compare_time --preset class --workers 2 --repeats 1 --file compare_class.json

Two checkouts are measured alternately. CPU seconds are summed over all processes, and hardly change with other work on the
machine; training seconds are wall-clock time summed over the runs.
"""

import argparse
import csv
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# The first comparison of a class
COMPARISON = ["--env", "CartPole-v1", "--algo", "a2c", "ppo", "trpo", "grpo", "dapo", "--seeds", "3", "--timesteps", "30000"]
_PR_SET_CHILD_SUBREAPER = 36


def measure(checkout: Path, comparison: list[str], workers: int) -> dict[str, float]:
    """
    :param checkout: folder with the sources
    :param comparison: arguments of ``compare``
    :param workers: how many runs in parallel
    :return: seconds from command to report, CPU seconds of all processes, seconds of training
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sb3_grpo", "compare", *comparison, "--workers", str(workers), "--output", folder]
        env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        used, begin = _processor_seconds(), time.perf_counter()
        subprocess.run(command, check=True, cwd=checkout, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        # Processes that the command leaves behind end with it, and become children of this process
        with suppress(ChildProcessError):
            while True:
                os.wait()
        with (Path(folder) / "runs.csv").open(newline="") as file:
            training = sum(float(run["seconds"]) for run in csv.DictReader(file))
    return {"seconds": seconds, "processor_seconds": _processor_seconds() - used, "seconds_of_training": training}


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--preset", help="of compare, instead of the comparison on CartPole")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--file", default="compare_time.json", help="in benchmarks/results")
    args = parser.parse_args()
    from benchmarks.common import command, machine

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    comparison = ["--preset", args.preset] if args.preset else COMPARISON
    checkouts = {"now": ROOT} if args.before is None else {"before": args.before.resolve(), "now": ROOT}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(args.repeats):
        for name, checkout in checkouts.items():
            measured[name].append(measure(checkout, comparison, args.workers))
            print(name, {key: round(value, 1) for key, value in measured[name][-1].items()}, flush=True)
    medians = {
        name: {key: round(statistics.median(each[key] for each in rows), 1) for key in rows[0]}
        for name, rows in measured.items()
    }
    result: dict[str, Any] = {"command": command(), "comparison": comparison, "workers": args.workers, "median": medians}
    if args.before is not None:
        pairs = list(zip(measured["before"], measured["now"], strict=True))
        result["median_of_paired_ratios"] = {
            key: round(statistics.median(before[key] / now[key] for before, now in pairs), 2) for key in pairs[0][0]
        }
    result |= {"runs": measured, "load_average": os.getloadavg(), "machine": machine()}
    (RESULTS / args.file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if "median" in key}, indent=1))


if __name__ == "__main__":
    main()
