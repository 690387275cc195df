"""GRPO and DAPO for Stable-Baselines3: groups of episodes with one start, no critic network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from sb3_grpo import presets
from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.dapo import DAPO
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.groups.samplers import StartSampler, VisitedStates
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.atari import make_atari_group_env
from sb3_grpo.starts.group_env import capture_starts, make_group_env
from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, UnequalStartError
from sb3_grpo.utils.machine import VERSION as __version__

if TYPE_CHECKING:
    from sb3_grpo.starts.check_starts import check_starts

# In a source checkout, parts of the package lie outside of its folder: envs, zoo_configs, docs/notebooks
_CHECKOUT = Path(__file__).resolve().parents[1]
if not (_CHECKOUT / "sb3_grpo" / "envs").is_dir():
    __path__.extend([str(_CHECKOUT), str(_CHECKOUT / "docs")])

# What it needs is imported when it is made
gym.register("sb3_grpo/VerifierText-v0", entry_point="sb3_grpo.envs.text.env:VerifierTextEnv")


def __getattr__(name: str) -> Any:
    # Imported when it is used, with all that it needs of snapshots
    if name == "check_starts":
        from sb3_grpo.starts.check_starts import check_starts

        return check_starts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DAPO",
    "GRPO",
    "EnvironmentFault",
    "GymnasiumVecEnv",
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
