"""The callback that records one update."""

import json
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo.classroom.lecture.recording.recorders import check_recordable, recorder_of
from sb3_grpo.classroom.lecture.recording.recording import UpdateRecorder
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.user_warnings import warn_user


class RecordUpdate(BaseCallback):
    """
    Record one update of PPO, GRPO or DAPO: the rollout, its advantages, and the effect of each optimizer step.
    Training is the same with and without this callback. Afterwards, ``callback.record`` and the JSON file contain:

    - ``groups`` (GRPO, DAPO): the returns of the members, their mean and standard deviation, and whether the group is
      ``dead``, i.e. has no nonzero advantage. Groups dropped by dynamic sampling are not included.
    - ``episodes``: for each episode, its first step and number of steps, its ``group`` (or environment copy, ``env``), whether
      it has ``ended``, and the prompt if observations are texts. PPO: also the ``next_value`` if it has not ended.
    - ``steps``: for each step of the rollout, its observation (if it has at most 16 numbers), action (and ``token``), reward,
      advantage and the log probability of the action. PPO: also value and return; at a time limit, the reward includes the
      discounted value of the last state, as in Stable-Baselines3. GRPO, DAPO: also the ``weight`` in the loss; rewards, and
      the returns of the members, include the KL penalty of ``kl_estimator="k1_in_reward"`` but not the overlong penalty.
    - ``optimizer_steps``: for each, the steps of the minibatch and, at the parameters *before* it: their advantages as used in
      the loss (PPO normalises them per minibatch), their ratios, which of them are cut off ``below`` and ``above``, loss and
      approximate KL; and ``log_prob``, the log probabilities of the actions of *all* steps *after* it.
    - ``settings`` used for the update (``None`` where there is no limit), and whether a KL limit has ``stopped_early``.

    Recorded probabilities are computed in evaluation mode: a network with dropout or batch normalisation learns from slightly
    different ones. One update is recorded at a time and kept in memory.

    :param path: JSON file to write. ``None``: only ``callback.record``
    :param update: Update to record, counted from 1 in each call of ``learn``. If it has nothing to learn from, the next update
        that does is recorded
    """

    def __init__(self, path: str | Path | None = None, update: int = 1):
        super().__init__()
        if update < 1:
            raise ValueError(f"update must be at least 1, the first one, got {update}.")
        self.path = None if path is None else Path(path)
        self.update = update
        self.record: dict[str, Any] | None = None
        self._recorder: UpdateRecorder | None = None

    def _on_training_start(self) -> None:
        check_recordable(self.model)
        if self._recorder is not None:
            # Left over from an interrupted update
            self._recorder.close()
            self._recorder = None
        self._n_rollouts = 0
        self._wanted = True

    def _on_rollout_end(self) -> None:
        self._n_rollouts += 1
        if self._wanted and self._n_rollouts >= self.update:
            self._recorder = recorder_of(self.model, self.locals)

    def _on_rollout_start(self) -> None:
        self._finish()

    def _on_training_end(self) -> None:
        self._finish()
        if self._wanted:
            warn_user(f"Update {self.update} was not recorded: there were {self._n_rollouts}, or nothing to learn from.")

    def _finish(self) -> None:
        """Keep the record, if there was an update since the last rollout."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.close()
        if not recorder.optimizer_steps:
            return
        self._wanted = False
        self.record = {"update": self._n_rollouts, **recorder.record()}
        if self.path is not None:
            with replace_file(self.path) as file:
                file.write(json.dumps(self.record).encode())

    def _on_step(self) -> bool:
        return True
