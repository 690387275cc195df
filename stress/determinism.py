"""
Does the same seed give the same training? ``python -m stress.determinism``: GRPO and DAPO, with 1, 2, 4, 8 and 16 copies.

Each setting is trained twice, in two new processes, the second of which works through the list from its end. Both must agree
in the SHA-256 of :func:`stress.resume.digest`: parameters, optimizer, regression, counters and random generators. So must
a ``SubprocVecEnv`` and a ``DummyVecEnv`` with unrelated starts. Nothing is promised with ``--device cuda``, which can be
tried, too.
"""

import argparse
import functools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch as th
from rich.progress import track
from stable_baselines3.common.vec_env import SubprocVecEnv

from benchmarks.common import write_result
from benchmarks.timing import in_process
from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.envs import VerifierTextVecEnv
from stress.common import write_trust
from stress.resume import SEED, TEXT, Setting, train

COPIES = (1, 2, 4, 8, 16)
# Steps of an update, summed over all copies; there are two updates
STEPS = 1024
# In total: more than one update of four groups of eight answers
TOKENS = 128
# Episodes have to end within two updates, also with 16 copies
LIMIT = {"max_episode_steps": 25}
# A "fork" process starts at once
FORK = {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
# Settings per process: importing takes longer than training
AT_A_TIME = 30


def settings() -> dict[str, Setting]:
    """
    :return: All settings by name
    """
    found = {}
    for name, algorithm in {"GRPO": GRPO, "DAPO": DAPO}.items():
        for n_envs in COPIES:
            for env_id in ("CartPole-v1", "Pendulum-v1"):
                for copies, kwargs in {"DummyVecEnv": {}, "SubprocVecEnv": FORK}.items():
                    make = functools.partial(make_group_env, env_id, n_envs, SEED, env_kwargs=LIMIT, **kwargs)
                    for starts, unrelated in {"shared": False, "unrelated": True}.items():
                        update = {"n_steps": STEPS // n_envs, "n_epochs": 2, "unrelated_starts": unrelated}
                        key = f"{name}, {copies}, {env_id}, {n_envs}, {starts} starts"
                        found[key] = Setting(algorithm, make, update, 2 * STEPS)
            text = functools.partial(VerifierTextVecEnv, n_envs, SEED, task_kwargs={"digits": 1}, max_answer_tokens=3)
            rounds = {"max_sampling_rounds": 2} if algorithm is DAPO else {}
            key = f"{name}, VerifierTextVecEnv, {n_envs}"
            found[key] = Setting(algorithm, text, {**TEXT, **rounds}, TOKENS, "TokenPolicy")
    return found


def in_new_process(names: list[str], device: str = "cpu") -> dict[str, str]:
    """
    :param names: Names of settings, trained in this order
    :param device: PyTorch device
    :return: The digests
    """
    return in_process("stress.determinism", "--device", device, "--child", json.dumps(names))


def train_all(names: list[str], device: str = "cpu") -> dict[str, str]:
    """
    :param names: Names of settings, trained in several new processes
    :param device: PyTorch device
    :return: The digests
    """
    parts = [names[begin : begin + AT_A_TIME] for begin in range(0, len(names), AT_A_TIME)]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(4) as pool:
        for digests in track(pool.map(lambda part: in_new_process(part, device), parts), total=len(parts)):
            found |= digests
    return found


def main() -> None:
    """Train all settings, and write down which results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        th.set_num_threads(1)
        for message in ("No update at", "You are trying to run .* on the GPU"):
            warnings.filterwarnings("ignore", message)
        print(json.dumps({name: train(settings()[name], None, args.device) for name in args.child}))
        return
    names = [*settings()]
    if args.device == "cuda":
        names = [name for name in names if "SubprocVecEnv" not in name]
    first, again = train_all(names, args.device), train_all(names[::-1], args.device)
    same = {name: first[name] == again[name] for name in names}
    if args.device == "cuda":
        print(f"{sum(same.values())} of {len(same)} are the same again")
        write_result("determinism_cuda.json", {"gpu": th.cuda.get_device_name(), "same": same})
        return
    promise = "parameters, optimizer, regression and random generators are bit-identical"
    wrong = [name for name, is_same in same.items() if not is_same]
    write_trust("determinism", "training with the same seed in two new processes, one thread", promise, len(names), wrong)
    unrelated = [name for name in names if "SubprocVecEnv" in name and "unrelated" in name]
    write_trust(
        "determinism_copies",
        "the same for `SubprocVecEnv` against `DummyVecEnv`, with unrelated starts",
        promise,
        len(unrelated),
        [name for name in unrelated if first[name] != first[name.replace("SubprocVecEnv", "DummyVecEnv")]],
    )


if __name__ == "__main__":
    main()
