"""GRPO and DAPO for Stable-Baselines3: groups of episodes with one start, no critic network."""

import os

# For each minibatch size and layer, PyTorch's convolutions on the CPU cache a megabyte or two of compiled code, up to 1024
# entries. Our minibatches change size at each update, so this would add up to gigabytes. Read when a convolution first runs.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")

import gymnasium as gym

import sb3_grpo._layout  # noqa: F401  makes sb3_grpo.envs importable
from sb3_grpo import presets
from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.dapo import DAPO
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.groups.samplers import StartSampler, VisitedStates
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.atari import make_atari_group_env
from sb3_grpo.starts.check_starts import check_starts
from sb3_grpo.starts.start_queue import StartQueue, capture_starts, make_group_env
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, UnequalStartError
from sb3_grpo.utils.machine import VERSION as __version__

# What it needs is imported when it is made
gym.register("sb3_grpo/VerifierText-v0", entry_point="sb3_grpo.envs.text.env:VerifierTextEnv")

__all__ = [
    "DAPO",
    "GRPO",
    "EnvironmentFault",
    "SeedStart",
    "SnapshotStart",
    "StartQueue",
    "StartSampler",
    "TrainingCheckpoint",
    "UnequalStartError",
    "VisitedStates",
    "__version__",
    "capture_starts",
    "check_starts",
    "make_atari_group_env",
    "make_group_env",
    "presets",
]
