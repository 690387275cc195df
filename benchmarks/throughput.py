"""
How environment steps per second and memory scale with copies, kind of vectorized environment, task, group size, network width
and episode length: ``python -m benchmarks.throughput``.

Random stepping, PPO with RL Zoo's hyperparameters, GRPO and DAPO alternate, several times, each in its own process with one
torch thread. Writes ``benchmarks/results/throughput.json`` after each cell, and continues from there if interrupted. Prints
medians, and the medians of ratios within each repeat. Memory is that of the training process: without the processes of
copies, and with this package even where PPO trains on its environments.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import RESULTS, command, machine
from benchmarks.speed import N_ENVS, random_stepping, training

OUTPUT = RESULTS / "throughput.json"
ALL = ("random", "ppo", "grpo", "dapo")


class Cell(NamedTuple):
    """
    A measurement of several subjects, which alternate.

    :param sweep: what changes from cell to cell
    :param value: its value here
    :param subjects: what is measured
    :param arguments: arguments of the measurement
    """

    sweep: str
    value: str
    subjects: tuple[str, ...]
    arguments: dict[str, Any]


def cells() -> Iterator[Cell]:
    """
    :return: All cells
    """
    cart_pole = {"env_id": "CartPole-v1", "steps": 50_000}
    for vec_env in ("dummy", "subproc"):
        for n_envs in (1, 8, 16, 64):
            steps = 20_000 if n_envs == 1 else 50_000
            yield Cell(
                f"copies, {vec_env}", str(n_envs), ALL, {**cart_pole, "steps": steps, "n_envs": n_envs, "vec_env": vec_env}
            )
    for env_id in ("Acrobot-v1", "MountainCar-v0", "LunarLander-v3"):
        yield Cell("task", env_id, ALL, {"env_id": env_id, "steps": 50_000})
    for group_size in (4, 8, 16, 32):
        yield Cell(
            "group_size",
            str(group_size),
            ("grpo", "dapo"),
            {**cart_pole, "changes": {"group_size": group_size, "n_groups": 4}},
        )
    for width in (64, 256, 1024):
        changes = {"policy_kwargs": {"net_arch": [width, width]}}
        yield Cell("width", str(width), ("ppo", "grpo", "dapo"), {**cart_pole, "changes": changes})
    for length in (50, 200, 800):
        arguments = {"env_id": "Pendulum-v1", "steps": 50_000, "env_kwargs": {"max_episode_steps": length}}
        yield Cell("episode length", str(length), ALL, arguments)


def measure(cell: Cell, subject: str) -> dict[str, float]:
    """
    :param cell: the cell
    :param subject: the subject
    :return: see :mod:`benchmarks.speed`
    """
    arguments = dict(cell.arguments)
    if subject != "random":
        return training(subject, **arguments)
    arguments.pop("changes", None)
    return random_stepping(**arguments)


def _measure_in_process(cell: int, subject: str) -> dict[str, float]:
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.throughput", "--one", str(cell), subject],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=RESULTS.parents[1],
    ).stdout
    return json.loads(output.splitlines()[-1])


def _summary(cell: Cell, runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    median = {
        subject: {key: float(np.median([run[subject][key] for run in runs])) for key in runs[0][subject]}
        for subject in cell.subjects
    }

    def ratio(subject: str, key: str, peer: str) -> float:
        return float(np.median([run[subject][key] / run[peer]["steps_per_second"] for run in runs]))

    ratios = {
        subject: {
            **({"training_vs_ppo": ratio(subject, "steps_per_second", "ppo")} if "ppo" in cell.subjects else {}),
            **(
                {"collection_vs_random_stepping": ratio(subject, "collect_steps_per_second", "random")}
                if "random" in cell.subjects
                else {}
            ),
        }
        for subject in cell.subjects
        if subject in ("grpo", "dapo")
    }
    return {"median": median, "median_of_paired_ratios": ratios}


def _print(cell: Cell, summary: dict[str, Any]) -> None:
    for subject, median in summary["median"].items():
        ratios = "  ".join(
            f"{name} {value:.2f}" for name, value in summary["median_of_paired_ratios"].get(subject, {}).items()
        )
        memory = f"{median['peak_memory_mib']:6.0f} MiB" if "peak_memory_mib" in median else " " * 10
        print(f"{cell.sweep:16} {cell.value:>14} {subject:6} {median['steps_per_second']:9.0f} steps/s {memory}  {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    sweeps = list(dict.fromkeys(cell.sweep for cell in cells()))
    parser.add_argument(
        "--sweeps", nargs="+", choices=sweeps, default=sweeps, metavar="SWEEP", help=f"of {', '.join(map(repr, sweeps))}"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    planned = list(cells())
    if args.one:
        print(json.dumps(measure(planned[int(args.one[0])], args.one[1])))
        return

    here = machine()
    commit = here.pop("commit")
    described = {
        "cells": [cell._asdict() | {"subjects": list(cell.subjects)} for cell in planned],
        "n_envs": N_ENVS,
        "machine": here,
    }
    result = described | {"command": command(), "runs": [[] for _ in planned]}
    if OUTPUT.is_file():
        result = json.loads(OUTPUT.read_text())
        if {key: result[key] for key in described} != described:
            parser.error(f"{OUTPUT} has other cells, or was made on another machine: delete it to begin anew")
    for repeat in range(args.repeats):
        for index, cell in enumerate(planned):
            runs = result["runs"][index]
            if len(runs) > repeat or cell.sweep not in args.sweeps:
                continue
            runs.append({subject: _measure_in_process(index, subject) for subject in cell.subjects} | {"commit": commit})
            result["summaries"] = [
                {"sweep": cell.sweep, "value": cell.value, **_summary(cell, runs)}
                for cell, runs in zip(planned, result["runs"], strict=True)
                if runs
            ]
            OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
            print(f"repeat {repeat + 1}/{args.repeats}, cell {index + 1}/{len(planned)}", flush=True)
            _print(cell, _summary(cell, runs[-1:]))
    print()
    for cell, runs in zip(planned, result["runs"], strict=True):
        if runs:
            _print(cell, _summary(cell, runs))


if __name__ == "__main__":
    main()
