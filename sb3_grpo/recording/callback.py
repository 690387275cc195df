"""The callback that records one update."""

import json
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo.recording.recorders import check_recordable, recorder_of
from sb3_grpo.recording.recording import UpdateRecorder
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.user_warnings import warn_user


class RecordUpdate(BaseCallback):
    """
    Record one update of PPO, GRPO or DAPO: what was played, how it was judged, and what each step of the optimizer did.
    The training is the same with and without it. Afterwards ``callback.record`` has, and so has the file, as JSON:

    - ``groups`` (GRPO, DAPO): the returns of the members, their mean and standard deviation, whether the group is ``dead``,
      i.e. without any advantage. Groups that dynamic sampling dropped are not there.
    - ``episodes``: the first step of each, how many there are, their ``group`` (or copy of the environment, ``env``), whether
      it has ``ended``, and what was asked where observations are texts. PPO: the ``next_value`` where it has not.
    - ``steps``: for each step of the rollout its observation (if it is up to 16 numbers), action (and ``token``), reward,
      advantage and the log probability of the action. PPO: value and return, and at a time limit the reward has the
      discounted value of what would follow in it, as Stable-Baselines3 does it. GRPO, DAPO: the ``weight`` in the loss;
      rewards, and the returns of the members, are less the KL penalty with ``kl_estimator="k1_in_reward"``, and without the
      overlong penalty.
    - ``optimizer_steps``: the steps of the minibatch, and at the parameters *before*: their advantages as the loss takes them
      (PPO normalises them in each minibatch), their ratios, which of them are cut off ``below`` and ``above``, loss and
      approximate KL; and ``log_prob``, that of the actions of *all* steps, *after*.
    - ``settings`` that the numbers come from (``None`` where there is no limit), and whether a KL limit has ``stopped_early``.

    Probabilities are computed for the record in evaluation mode: a network with dropout or batch normalisation learns from
    slightly other ones. One update is recorded at a time, all of it in memory.

    :param path: JSON file to write. ``None``: only ``callback.record``
    :param update: Which one, from 1 on in each call of ``learn``; if it has nothing to learn from, the first after it that has
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
            # Of an update that was interrupted
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
        """Keep what was recorded, if there was an update since the last rollout."""
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
