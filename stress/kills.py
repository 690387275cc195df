"""
Training that is killed again and again, and continues each time, until it is complete.

``python -m stress.kills`` kills (SIGKILL) 50 processes at random moments while they train and write a checkpoint before
each update. After each kill the newest checkpoint must be complete, its model must load, and the next process continues from
it. When a training run is complete, its result must be bit-identical to that of an undisturbed one.
"""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

from benchmarks.common import write_result
from sb3_grpo import TrainingCheckpoint
from sb3_grpo.checkpoint.folder import checkpoints_in, newest_checkpoint
from stress.resume import SEED, Setting, digest, settings

N_KILLS = 50
NAMES = ("DAPO, Dummy, steps", "GRPO, Subproc, steps", "DAPO, VerifierTextVecEnv, HardPrompts")
# Steps, as a multiple of those in stress.resume
LONGER = 3


def train(name: str, folder: Path, disturbed: bool) -> None:
    """
    Begin or continue training, and write its digest when it is complete.

    :param name: Name of a setting
    :param folder: Folder of the training run
    :param disturbed: Whether it writes checkpoints and continues from them
    """
    th.set_num_threads(1)
    warnings.filterwarnings("ignore", "No update at")
    setting = settings()[name]
    env = setting.make_env()
    callback = None
    if disturbed:
        callback = TrainingCheckpoint(folder / "checkpoints", save_freq=1, keep=2)
    if checkpoints_in(folder / "checkpoints"):
        model = setting.algorithm.resume(folder / "checkpoints", env, device="cpu")
    else:
        model = setting.algorithm(setting.policy, env, seed=SEED, device="cpu", **setting.kwargs)
    (folder / "begun").touch()
    model.learn(LONGER * setting.timesteps, callback=callback)
    env.close()
    (folder / "digest").write_text(digest(model))


def start(*arguments: Any) -> Any:
    """
    :param arguments: Arguments for ``train``
    :return: A new process, forked from this one, which has imported everything and done nothing
    """
    process = multiprocessing.get_context("fork").Process(target=train, args=arguments)
    process.start()
    return process


def is_resumable(setting: Setting, folder: Path) -> bool:
    """
    :param setting: A training setting
    :param folder: Folder where it was killed
    :return: Whether there is a checkpoint, the newest one is complete, and its model loads
    """
    path = newest_checkpoint(folder / "checkpoints").path
    model = setting.algorithm.load(path, device="cpu")
    return path == checkpoints_in(folder / "checkpoints")[-1] and model.num_timesteps == int(path.name.split("_")[1])


def main() -> None:
    """Kill, check, continue, and write down the results."""
    rng = np.random.default_rng(0)
    root = Path(tempfile.mkdtemp())
    expected, seconds = {}, {}
    for name in NAMES:
        (root / name).mkdir()
        start(name, root / name, False).join()
        seconds[name] = time.time() - (root / name / "begun").stat().st_mtime
        expected[name] = (root / name / "digest").read_text()
    counts = {"kills": 0, "while_writing": 0, "resumable": 0, "trainings_ended": 0, "identical": 0}
    folders = {name: Path(tempfile.mkdtemp(dir=root)) for name in NAMES}
    while counts["kills"] < N_KILLS or counts["trainings_ended"] == 0:
        name = NAMES[counts["kills"] % len(NAMES)]
        folder = folders[name]
        (folder / "begun").unlink(missing_ok=True)
        process = start(name, folder, True)
        while not (folder / "begun").exists() and process.is_alive():
            time.sleep(0.01)
        # The first process needs something to continue from
        while not checkpoints_in(folder / "checkpoints") and process.is_alive():
            time.sleep(0.01)
        process.join(rng.uniform(0.0, seconds[name]))
        if process.is_alive() and counts["kills"] < N_KILLS:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            counts["kills"] += 1
            counts["while_writing"] += any(folder.glob("checkpoints/*.part"))
            counts["resumable"] += is_resumable(settings()[name], folder)
            continue
        process.join()
        if (folder / "digest").exists():
            counts["trainings_ended"] += 1
            counts["identical"] += (folder / "digest").read_text() == expected[name]
            folders[name] = Path(tempfile.mkdtemp(dir=root))
        print(json.dumps(counts), flush=True)
    shutil.rmtree(root)
    write_result("kills.json", {**counts, "settings": NAMES})


if __name__ == "__main__":
    main()
