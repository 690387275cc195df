"""Callbacks: a progress bar for rollouts of whole episodes, and the record of an update."""

import importlib
import warnings
from typing import Any

from stable_baselines3.common.callbacks import ProgressBarCallback


class ClampedProgressBarCallback(ProgressBarCallback):
    """
    SB3's progress bar, for rollouts of whole episodes that go on beyond ``total_timesteps``, and for steps that samplers of
    starts make.
    """

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._n_before = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(min(self.num_timesteps - self._n_before, self.pbar.total) - self.pbar.n)
        return True

    def _on_training_end(self) -> None:
        # The RL Zoo calls it in any case, also where an error came before the training began
        if hasattr(self, "pbar"):
            super()._on_training_end()


def __getattr__(name: str) -> Any:
    # Configuration files of version 0.1 name them
    if name in ("PlainAttention", "WarmStart"):
        warnings.warn(f"{__name__}.{name} is sb3_grpo.text.callbacks.{name} now.", DeprecationWarning)
        return getattr(importlib.import_module("sb3_grpo.text.callbacks"), name)
    raise AttributeError(name)
