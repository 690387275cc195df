"""What the trials of a search need: their budget, the first one's parameters, and how many there are."""

import logging
from typing import Any

import optuna
from optuna.trial import TrialState
from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm


class StopAtBudget(BaseCallback):
    """
    Stop training even in the middle of a rollout, so that a trial with large updates gets no more steps than the others. If
    all steps are used up without an update, raise an error: the score of the untrained policy would be meaningless.

    :param n_timesteps: number of steps
    """

    def __init__(self, n_timesteps: int):
        super().__init__()
        self.n_timesteps = n_timesteps

    def _on_step(self) -> bool:
        return self.num_timesteps < self.n_timesteps

    def _on_training_end(self) -> None:
        # Another callback may have stopped training earlier
        if not self.model._n_updates and self.num_timesteps >= self.n_timesteps:
            dead = " (or all groups were dead)" if isinstance(self.model, OnGroupAlgorithm) else ""
            raise ValueError(
                f"no update within {self.n_timesteps} steps{dead}: give the trials more (-n), or fewer copies (n_envs)"
            )


class DefaultsFirst(optuna.samplers.TPESampler):
    """
    Optuna's default sampler, but the first trial of a study has the defaults: what is found has to be better than these. A
    search that goes on, or another worker, does not draw the same parameters as the first one did.

    :param defaults: parameters of the first trial
    :param kwargs: see Optuna
    """

    def __init__(self, defaults: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.defaults = defaults
        self._has_drawn = False

    def before_trial(self, study: Any, trial: Any) -> None:
        """See Optuna."""
        if trial.number > 0 and not self._has_drawn:
            self.reseed_rng()
        self._has_drawn = True
        super().before_trial(study, trial)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """See Optuna. Without earlier trials, or if these were interrupted, all parameters are drawn here."""
        earlier = study.get_trials(deepcopy=False)[: trial.number]
        if param_name in self.defaults and all(each.state is TrialState.FAIL for each in earlier):
            return self.defaults[param_name]
        return super().sample_independent(study, trial, param_name, param_distribution)


def without_interruption(record: logging.LogRecord) -> bool:
    """
    Optuna logs a trial that was interrupted by Ctrl-C with its traceback, as if it had a defect.

    :param record: what Optuna logs
    :return: always ``True``: it is logged without the traceback
    """
    if record.exc_info and record.exc_info[0] is KeyboardInterrupt:
        record.exc_info = None
    return True


def n_ended(study: optuna.Study) -> int:
    """
    :param study: a study
    :return: number of its trials that have ended
    """
    # Not those that were interrupted, as in the RL Zoo
    return len(study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)))
