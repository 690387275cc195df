"""Critic-free GRPO and DAPO for Stable-Baselines3."""

import os
from pathlib import Path

# For each size of a minibatch, PyTorch's convolutions on the CPU keep a megabyte or two of compiled code, for the last 1024
# sizes and layers. Ours have another size in each update, so gigabytes would add up. It is read when a convolution first runs.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")

from sb3_grpo.common.check_starts import check_starts
from sb3_grpo.common.start_queue import StartQueue, capture_starts, make_group_env
from sb3_grpo.common.starts import SeedStart, SnapshotStart
from sb3_grpo.dapo import DAPO
from sb3_grpo.grpo import GRPO

_package = Path(__file__).resolve().parent
# A wheel has sb3_grpo/envs. In a source checkout that folder lies beside the package, and Python has to be told.
if not (_package / "envs").is_dir() and (_package.parent / "envs" / "__init__.py").is_file():
    __path__.append(str(_package.parent))

__version__ = (_package / "version.txt").read_text().strip()

__all__ = [
    "DAPO",
    "GRPO",
    "SeedStart",
    "SnapshotStart",
    "StartQueue",
    "__version__",
    "capture_starts",
    "check_starts",
    "make_group_env",
]
