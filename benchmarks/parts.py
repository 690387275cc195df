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
from typing import Any

import numpy as np

from benchmarks import common, entries
from benchmarks.blocks import Writers, markdown
from benchmarks.runs import Job, run_missing
from sb3_grpo.classroom.compare.statistics import iqm

RESULTS = common.RESULTS / "parts.jsonl"
ALGO, TASK, SEEDS = "grpo", "HalfCheetah-v5", entries.SEEDS[: entries.FEWEST]
_NETWORK, _DEVIATION = ("ortho_init", "activation_fn", "net_arch"), ("log_std_init",)
# What a part is called, and its hyperparameters
PARTS = {
    "`VecNormalize`": ("normalize",),
    "two layers of 256, ReLU": _NETWORK,
    "standard deviation of 0.14": _DEVIATION,
    "both of these": (*_NETWORK, *_DEVIATION),
    "4 environments instead of 16": ("n_envs",),
    "learning rate from 3e-4 to 0": ("learning_rate",),
    "`gamma=0.98`, `gae_lambda=0.9`": ("gamma", "gae_lambda"),
}
ARMS = ("alone", "left out")


def hyperparameters(entry: dict[str, Any]) -> dict[str, Any]:
    """
    :param entry: An entry of ``zoo_configs``
    :return: The same, with those of the policy beside the others, as text
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
    mixed = {key: value for key, value in rest.items() if key not in PARTS[part]}
    mixed |= {key: taken[key] for key in PARTS[part] if key in taken}
    policy = ", ".join(f"{key}={mixed.pop(key)}" for key in (*_NETWORK, *_DEVIATION) if key in mixed)
    entry = {**mixed, "policy_kwargs": f"dict({policy})"}
    return entries.train(f"{arm[0]}-{[*PARTS].index(part)}-{seed}", TASK, ALGO, entry, seed, folder)


def table() -> str:
    """
    :return: Interquartile means with and without each part, as a table in Markdown
    """
    rows = common.rows(RESULTS)
    lines = [["none", *(f"{iqm(entries.scores(TASK, ALGO, arm, SEEDS)):,.0f}" for arm in ("defaults", "entry"))]]
    for part in PARTS:
        found = [[row["mean_return"] for row in rows if (row["part"], row["arm"]) == (part, arm)] for arm in ARMS]
        lines.append([part, *(f"{iqm(np.array(each)):,.0f}" if len(each) == len(SEEDS) else "" for each in found)])
    return markdown(["part", "defaults and this part", "entry without this part"], lines)


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
