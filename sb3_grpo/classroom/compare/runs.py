"""The folder of a run: its path, and the columns of its tables."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sb3_grpo.utils.parameters import Check, short_repr

# How actions are chosen in evaluations
MODES = ("deterministic", "stochastic")
# Larger seeds are used for evaluations
MAX_SEED = 2**31 - 1
# Files in the folder of a run; the result is written last
RESULT, ERROR, CONFIG, LOG, CLIP = "result.json", "error.txt", "config.json", "log.txt", "clip.webp"
# A folder there while the run is in progress
CHECKPOINTS = "checkpoints"
KEYS = ["env", "variant", "algo", "seed"]
EVALUATION_COLUMNS = [
    *KEYS,
    *("target_steps", "steps", "seconds", "mode", "return_mean", "return_std", "length_mean", "success_rate"),
    *("n_episodes", "final"),
]
DIAGNOSTIC_COLUMNS = [*KEYS, "steps", "seconds", "key", "value"]
RUN_COLUMNS = [
    *KEYS,
    *("status", "steps", "seconds", "steps_per_second", "peak_memory_mib", "n_parameters", "n_critic_parameters"),
    *("discarded_fraction", "net_arch", "provenance", "error"),
]
# Status of a run of combined results that was not planned in any of their folders
UNPLANNED = "unplanned"


@dataclass(frozen=True)
class Name(Check):
    """
    Text that becomes the name of a folder.

    :param pattern: pattern that it must match
    :param wanted: description of the pattern
    """

    pattern: str
    wanted: str

    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value) or {".", ".."} & {*value.split("/")}:
            raise ValueError(f"{name}: the name {short_repr(value)} becomes the name of a folder: {self.wanted}")
        return value


VARIANT_NAME = Name(r"[\w+-][\w .,;=+()-]{,119}", "use at most 120 letters, digits, blanks and . , ; = + - ( )")
ENV_ID = Name(r"([\w.:-]{1,100}/)?[\w.:-]{1,100}", "the id of an environment, such as CartPole-v1 or ALE/Pong-v5")


def run_folder(folder: Path, env: str, variant: str, seed: int) -> Path:
    """
    :param folder: folder of the experiment
    :param env: an environment
    :param variant: a variant
    :param seed: a seed
    :return: folder for the files of this run
    """
    return folder / "runs" / env / variant / str(seed)


def is_done(run: Path) -> bool:
    """
    :param run: folder of a run
    :return: whether it has results
    """
    return (run / RESULT).is_file()
