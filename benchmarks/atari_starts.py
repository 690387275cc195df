"""
Are starts exact in all Atari games that ale-py ships? Each game is tried with and without sticky actions, in its own process.
Games that are already in the table are skipped.

    python -m benchmarks.atari_starts
"""

import argparse
import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from tqdm import tqdm

from benchmarks.common import RESULTS
from sb3_grpo.utils.machine import describe_machine, versions

FILE = RESULTS / "atari_starts.csv"
STICKY = (0.0, 0.25)
# The emulator also writes its name to the output
MARK = "atari_starts: "


def check(game: str, sticky: float, n_starts: int, n_steps: int) -> dict[str, Any]:
    """
    :param game: id of the environment
    :param sticky: probability with which an action is repeated
    :param n_starts: how many starts of each kind are tried
    :param n_steps: how many steps are played from each
    :return: a row of the table
    """
    import functools

    import ale_py
    import gymnasium as gym

    from sb3_grpo import check_starts

    gym.register_envs(ale_py)
    make = functools.partial(gym.make, game, repeat_action_probability=sticky)
    checks = check_starts(make, n_starts, n_steps, verbose=0).checks
    words = {True: "yes", False: "no", None: "-"}
    row = {"game": game.removeprefix("ALE/"), "sticky": sticky}
    return row | {f"{check.starts}: {check.what}": words[check.exact] for check in checks}


def in_process(task: tuple[str, float], n_starts: int, n_steps: int) -> dict[str, Any]:
    """
    :param task: game and sticky-action probability
    :param n_starts: see ``check``
    :param n_steps: see ``check``
    :return: a row of the table
    """
    arguments = [task[0], str(task[1]), "--starts", str(n_starts), "--steps", str(n_steps)]
    command = [sys.executable, "-m", "benchmarks.atari_starts", "--one", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith(MARK)).removeprefix(MARK))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("GAME", "STICKY"), help="only this one, to the output")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.one is not None:
        print(MARK + json.dumps(check(args.one[0], float(args.one[1]), args.starts, args.steps)))
        return
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    games = sorted(name for name in gym.registry if name.startswith("ALE/"))
    with FILE.open(newline="") if FILE.exists() else nullcontext([]) as file:
        done = {(row["game"], float(row["sticky"])) for row in csv.DictReader(file)}
    tasks = [(game, sticky) for game in games for sticky in STICKY if (game.removeprefix("ALE/"), sticky) not in done]
    about = {"starts": args.starts, "steps": args.steps, **versions("ale-py"), **describe_machine()}
    FILE.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    with FILE.open("a", newline="") as file, ThreadPoolExecutor(args.jobs) as pool:
        rows = pool.map(lambda task: in_process(task, args.starts, args.steps), tasks)
        for row in tqdm(rows, total=len(tasks)):
            writer = csv.DictWriter(file, row, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
