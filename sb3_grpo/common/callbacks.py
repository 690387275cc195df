"""Callbacks: a progress bar for rollouts of whole episodes."""

from stable_baselines3.common.callbacks import ProgressBarCallback


class ClampedProgressBarCallback(ProgressBarCallback):
    """
    SB3's progress bar, adapted to rollouts of whole episodes, which may exceed ``total_timesteps``, and to the steps made by
    start samplers.
    """

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._n_before = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(min(self.num_timesteps - self._n_before, self.pbar.total) - self.pbar.n)
        return True

    def _on_training_end(self) -> None:
        # The RL Zoo calls it in any case, even if an error occurred before the training began
        if hasattr(self, "pbar"):
            super()._on_training_end()
