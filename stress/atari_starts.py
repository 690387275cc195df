"""
Are starts exact in all Atari games that ale-py ships? Each game is tried with and without sticky actions, in its own process.
Games that are already in the table are skipped: ``python -m stress.atari_starts``.
"""

import argparse
import csv
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import ale_py
import gymnasium as gym
from tqdm import tqdm

from benchmarks.common import RESULTS
from benchmarks.timing import in_process
from sb3_grpo import check_starts

FILE = RESULTS / "atari_starts.csv"
STICKY = (0.0, 0.25)


def check(game: str, sticky: float, n_starts: int, n_steps: int) -> dict[str, Any]:
    """
    :param game: id of the environment
    :param sticky: probability with which an action is repeated
    :param n_starts: how many starts of each kind are tried
    :param n_steps: how many steps are played from each
    :return: a row of the table
    """
    make = functools.partial(gym.make, game, repeat_action_probability=sticky)
    checks = check_starts(make, n_starts, n_steps, verbose=0).checks
    words = {True: "yes", False: "no", None: "-"}
    row = {"game": game.removeprefix("ALE/"), "sticky": sticky}
    return row | {f"{check.starts}: {check.what}": words[check.exact] for check in checks}


def main() -> None:
    """Try the games that have no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("GAME", "STICKY"), help=argparse.SUPPRESS)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    gym.register_envs(ale_py)
    if args.one is not None:
        print(json.dumps(check(args.one[0], float(args.one[1]), args.starts, args.steps)))
        return
    with FILE.open(newline="") if FILE.exists() else nullcontext([]) as file:
        done = {(row["game"], float(row["sticky"])) for row in csv.DictReader(file)}
    games = sorted(name for name in gym.registry if name.startswith("ALE/"))
    tasks = [(game, sticky) for game in games for sticky in STICKY if (game.removeprefix("ALE/"), sticky) not in done]
    options = ("--starts", args.starts, "--steps", args.steps, "--one")
    with FILE.open("a", newline="") as file, ThreadPoolExecutor(args.jobs) as pool:
        rows = pool.map(lambda task: in_process("stress.atari_starts", *options, *task), tasks)
        for row in tqdm(rows, total=len(tasks)):
            writer = csv.DictWriter(file, row, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
