"""
Does the same seed give the same training? ``python -m stress.determinism``: GRPO and DAPO, with 1, 2, 4, 8 and 16 copies.

Each setting is trained twice, in two new processes, the second of which works through the list from its end. Both must agree
in the SHA-256 of :func:`stress.resume.digest`: parameters, optimizer, regression, counters and random generators. So must
a ``SubprocVecEnv`` and a ``DummyVecEnv`` with unrelated starts. Nothing is promised with
``--device cuda`` and ``--threads 2``, which can be tried, too.
"""

import argparse
import functools
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch as th
from rich.progress import track
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from benchmarks.common import write_result
from benchmarks.timing import in_process
from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.envs import VerifierTextVecEnv
from stress.common import write_trust
from stress.resume import digest

COPIES = (1, 2, 4, 8, 16)
SEED = 5
# Steps of an update, summed over all copies; there are two updates
STEPS = 1024
# In total: more than one update of four groups of eight answers
TOKENS = 128
# Episodes have to end within two updates, also with 16 copies
LIMIT = {"max_episode_steps": 25}
# Settings per process: importing takes longer than training
AT_A_TIME = 30


class Setting(NamedTuple):
    """
    A training run.

    :param algorithm: "GRPO" or "DAPO"
    :param copies: "DummyVecEnv", "SubprocVecEnv" or "VerifierTextVecEnv"
    :param env: id of the environment, or "sums"
    :param n_envs: Number of copies
    :param width: Width of the layers
    :param unrelated: Whether the members of a group do not share a start
    """

    algorithm: str
    copies: str
    env: str
    n_envs: int
    width: int = 64
    unrelated: bool = False


def _dummy(env_id: str, n_envs: int, seed: int) -> VecEnv:
    return make_group_env(env_id, n_envs, seed, env_kwargs=LIMIT)


def _subproc(env_id: str, n_envs: int, seed: int) -> VecEnv:
    # A "fork" process starts at once
    fork = {"start_method": "fork"}
    return make_group_env(env_id, n_envs, seed, vec_env_cls=SubprocVecEnv, vec_env_kwargs=fork, env_kwargs=LIMIT)


SAME_COPIES: dict[str, Callable[[str, int, int], VecEnv]] = {
    "DummyVecEnv": _dummy,
    "SubprocVecEnv": _subproc,
}
TEXT = "VerifierTextVecEnv"


def settings() -> list[Setting]:
    """
    :return: What is trained with one thread
    """
    tasks = ("CartPole-v1", "Pendulum-v1")
    kinds: list[tuple[str, str, bool]] = [(copies, env, False) for copies in SAME_COPIES for env in tasks]
    kinds += [(copies, env, True) for copies in ("DummyVecEnv", "SubprocVecEnv") for env in tasks]
    kinds.append((TEXT, "sums", False))
    return [
        Setting(algorithm, copies, env, n_envs, unrelated=unrelated)
        for algorithm in ("GRPO", "DAPO")
        for copies, env, unrelated in kinds
        for n_envs in COPIES
    ]


def train(setting: Setting, device: str = "cpu") -> str:
    """
    :param setting: What is trained
    :param device: PyTorch device
    :return: Digest of what was learned
    """
    algorithm = {"GRPO": GRPO, "DAPO": DAPO}[setting.algorithm]
    if setting.copies == TEXT:
        env: VecEnv = VerifierTextVecEnv(setting.n_envs, SEED, task_kwargs={"digits": 1}, max_answer_tokens=3)
        network: dict[str, Any] = {"n_layers": 1, "width": setting.width, "n_heads": 2}
        rounds = {"max_sampling_rounds": 2} if algorithm is DAPO else {}
        make: Any = functools.partial(algorithm, "TokenPolicy", env, n_groups=4, group_size=8, **rounds)
    else:
        env = SAME_COPIES[setting.copies](setting.env, setting.n_envs, SEED)
        network = {"net_arch": [setting.width, setting.width]}
        n_steps = STEPS // setting.n_envs
        make = functools.partial(algorithm, "MlpPolicy", env, n_steps=n_steps, unrelated_starts=setting.unrelated)
    model = make(n_epochs=2, policy_kwargs=network, seed=SEED, device=device)
    model.learn(TOKENS if setting.copies == TEXT else 2 * STEPS)
    env.close()
    return digest(model)


def in_new_process(wanted: list[Setting], n_threads: int = 1, device: str = "cpu") -> dict[Setting, str]:
    """
    :param wanted: What is trained
    :param n_threads: Number of torch threads
    :param device: PyTorch device
    :return: The digests
    """
    child = json.dumps([n_threads, device, wanted])
    return dict(zip(wanted, in_process("stress.determinism", "--child", child, n_threads=n_threads), strict=True))


def _child(n_threads: int, device: str, wanted: list[list[Any]]) -> None:
    th.set_num_threads(n_threads)
    for message in ("No update at", "You are trying to run .* on the GPU"):
        warnings.filterwarnings("ignore", message)
    print(json.dumps([train(Setting(*each), device) for each in wanted]))


def train_all(wanted: list[Setting], n_threads: int = 1, device: str = "cpu") -> dict[Setting, str]:
    """
    :param wanted: What is trained, in several new processes
    :param n_threads: Number of torch threads
    :param device: PyTorch device
    :return: The digests
    """
    parts = [wanted[begin : begin + AT_A_TIME] for begin in range(0, len(wanted), AT_A_TIME)]
    found: dict[Setting, str] = {}
    with ThreadPoolExecutor(4) as pool:
        for digests in track(pool.map(lambda part: in_new_process(part, n_threads, device), parts), total=len(parts)):
            found |= digests
    return found


def elsewhere(device: str, n_threads: int) -> None:
    """
    Where nothing is promised: train some settings twice, and print how many results are the same.

    :param device: PyTorch device
    :param n_threads: Number of torch threads
    """
    some = [each for each in settings() if each.n_envs == 16 and each.copies != "SubprocVecEnv" and not each.unrelated]
    some += [each._replace(width=256) for each in some]
    first, again = (train_all(order, n_threads, device) for order in (some, some[::-1]))
    same = {" ".join(map(str, each)): first[each] == again[each] for each in some}
    print(f"{sum(same.values())} of {len(same)} are the same again")
    if device == "cuda":
        write_result("determinism_cuda.json", {"gpu": th.cuda.get_device_name(), "same": same})
        return
    one = train_all(some)
    print(f"{sum(first[each] == one[each] for each in some)} of {len(some)} are the same as with one thread")


def copies_of(found: dict[Setting, str], copies: str, unrelated: bool) -> dict[str, bool]:
    """
    :param found: Digests
    :param copies: Other than "DummyVecEnv"
    :param unrelated: Whether the members of a group do not share a start
    :return: For each setting with these copies, whether training with a ``DummyVecEnv`` gives the same result
    """
    those = [each for each in found if (each.copies, each.unrelated) == (copies, unrelated)]
    return {" ".join(map(str, each)): found[each] == found[each._replace(copies="DummyVecEnv")] for each in those}


def main() -> None:
    """Train all settings, and write down which results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _child(*args.child)
        return
    if args.device != "cpu" or args.threads > 1:
        elsewhere(args.device, args.threads)
        return
    wanted = settings()
    first, again = train_all(wanted), train_all(wanted[::-1])
    wrong = [" ".join(map(str, each)) for each in wanted if first[each] != again[each]]
    promise = "parameters, optimizer, regression and random generators are bit-identical"
    write_trust("determinism", "training with the same seed in two new processes, one thread", promise, len(wanted), wrong)
    equal = copies_of(first, "SubprocVecEnv", True)
    write_trust(
        "determinism_copies",
        "the same for `SubprocVecEnv` against `DummyVecEnv`, with unrelated starts",
        promise,
        len(equal),
        [name for name, same in equal.items() if not same],
    )


if __name__ == "__main__":
    main()
