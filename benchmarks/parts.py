"""
Which part of HalfCheetah's entry matters? ``python -m benchmarks.parts`` (resumes).

GRPO is trained with its defaults and one part of its entry in ``zoo_configs``, and with the entry without one part, as
``benchmarks.entries`` trains the defaults and the whole entry: the same steps, seeds and score.
"""

import argparse
import ast
import os
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common, entries
from benchmarks.blocks import Writers, markdown
from benchmarks.runs import Job, run_missing

RESULTS = common.RESULTS / "parts.jsonl"
ALGO, TASK, SEEDS = "grpo", "HalfCheetah-v5", range(200, 203)
_NETWORK, _DEVIATION = ("ortho_init", "activation_fn", "net_arch"), ("log_std_init",)


class Part(NamedTuple):
    """
    :param label: What it is, in Markdown
    :param keys: Its hyperparameters
    """

    label: str
    keys: tuple[str, ...]


PARTS = {
    "normalize": Part("`VecNormalize` in place of the policy's normalisation", ("normalize",)),
    "network": Part("two layers of 256, ReLU, `ortho_init=False`", _NETWORK),
    "deviation": Part("initial standard deviation of 0.14", _DEVIATION),
    "copies": Part("4 environments in place of 16", ("n_envs",)),
    "rate": Part("learning rate from 3e-4 to 0", ("learning_rate",)),
    "discount": Part("`gamma=0.98`, `gae_lambda=0.9`", ("gamma", "gae_lambda")),
}
ARMS = ("alone", "left out")


def hyperparameters(entry: dict[str, Any]) -> dict[str, Any]:
    """
    :param entry: An entry of ``zoo_configs``
    :return: The same, with those of the policy among the others, as text
    """
    found = {**entry}
    call: Any = ast.parse(found.pop("policy_kwargs", "dict()"), mode="eval").body
    return found | {each.arg: ast.unparse(each.value) for each in call.keywords}


def train(part: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param part: One of ``PARTS``
    :param arm: One of ``ARMS``
    :param seed: Seed of the training
    :param folder: Where files go
    :return: Mean return at the end
    """
    known = entries.entries(ALGO)
    defaults, whole = hyperparameters(known["default"]), hyperparameters(known[TASK])
    rest, taken = (defaults, whole) if arm == "alone" else (whole, defaults)
    keys = PARTS[part].keys
    mixed = {key: value for key, value in rest.items() if key not in keys}
    mixed |= {key: taken[key] for key in keys if key in taken}
    policy = ", ".join(f"{key}={mixed.pop(key)}" for key in (*_NETWORK, *_DEVIATION) if key in mixed)
    entry = {**mixed, "policy_kwargs": f"dict({policy})"}
    return entries.train(f"{part}-{arm.replace(' ', '-')}-{seed}", TASK, ALGO, entry, seed, folder)


def table() -> str:
    """
    :return: Mean returns with and without each part, as a table in Markdown
    """
    rows = common.rows(RESULTS)
    lines = [["nothing", *(f"{np.mean(entries.scores(TASK, ALGO, arm, SEEDS)):,.0f}" for arm in ("defaults", "entry"))]]
    for part, (label, _) in PARTS.items():
        found = [[row["mean_return"] for row in rows if (row["part"], row["arm"]) == (part, arm)] for arm in ARMS]
        lines.append([label, *(f"{np.mean(each):,.0f}" if len(each) == len(SEEDS) else "" for each in found)])
    return markdown(["", "the defaults and this", "the entry without this"], lines)


WRITERS: Writers = {"parts": table}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("parts"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    jobs: list[Job] = [{"part": part, "arm": arm, "seed": seed} for seed, arm, part in product(SEEDS, ARMS, PARTS)]
    run_missing(RESULTS, jobs, lambda job: train(**job, folder=args.folder.resolve()), args.processes)


if __name__ == "__main__":
    main()
