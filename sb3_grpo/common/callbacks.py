"""Callbacks: a progress bar for rollouts of whole episodes, and learning curves."""

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback


def mean_return(model: BaseAlgorithm) -> str:
    """
    :param model: The algorithm, at the end of a rollout
    :return: The mean return of its groups (``group/return_mean``) in words, empty if it is not known
    """
    mean = model.logger.name_to_value.get("group/return_mean")
    return "" if mean is None else f"mean return {mean:.3g}"


class ClampedProgressBarCallback(ProgressBarCallback):
    """
    SB3's progress bar, adapted to rollouts of whole episodes, which may exceed ``total_timesteps``, and to the steps made by
    start samplers. It shows the mean return of the latest update, if there is one.
    """

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._n_before = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(min(self.num_timesteps - self._n_before, self.pbar.total) - self.pbar.n)
        return True

    def _on_rollout_end(self) -> None:
        if said := mean_return(self.model):
            self.pbar.set_description(said)

    def _on_training_end(self) -> None:
        # The RL Zoo calls it in any case, even if an error occurred before the training began
        if hasattr(self, "pbar"):
            super()._on_training_end()


class Curve(BaseCallback):
    """
    A learning curve, which a resumed run continues.

    :param verbose: Verbosity level: 0 for no output
    :ivar points: Number of steps, and what was measured
    """

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.points: list[tuple[int, float]] = []

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The curve so far
        """
        return {"points": self.points}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: What ``state_dict`` returned
        """
        self.points = list(state["points"])
