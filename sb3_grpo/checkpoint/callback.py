"""The callback that writes checkpoints to resume training from."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.checkpoint.training import Stateful, save_training
from sb3_grpo.utils.parameters import Whole, short_repr
from sb3_grpo.utils.ranks import gather
from sb3_grpo.utils.user_warnings import warn_user
from sb3_grpo.utils.vec_envs import call, innermost, offers

# Without save_freq: minimum seconds between checkpoints, and minimum interval as a multiple of the time to write one
SECONDS = 60.0
COST = 100.0


class TrainingCheckpoint(BaseCallback):
    """
    Write checkpoints from which :meth:`GRPO.resume` continues, bit for bit as if training had never stopped. They hold the
    model, the states of all random generators, the open groups, and the environments in the middle of their episodes::

        model.learn(1_000_000, callback=TrainingCheckpoint("checkpoints"))
        DAPO.resume("checkpoints", env).learn()

    The first checkpoint is written before the first step, the others between updates. Each is a zip file, which gets its
    final name once it is complete, and which ``load`` reads as a model. If a checkpoint cannot be written (disk full), there
    is a warning and training continues. Put this callback last in a list of callbacks: those after it must not draw random
    numbers in ``on_rollout_start``.

    :param folder: Folder for the checkpoints of this run; it must not contain those of another run
    :param save_freq: Number of steps between checkpoints, over all environment copies. If ``None``, one minute, or a hundred
        times as long as it takes to write a checkpoint if that is longer
    :param keep: Number of checkpoints to keep; older ones are deleted
    :param also: Further objects to save and restore, by name, such as your own callbacks: they need ``state_dict()`` and
        ``load_state_dict(state)``
    :param verbose: Verbosity level: 0 for no output, 1 for printing each checkpoint that is written
    """

    def __init__(
        self,
        folder: str | Path,
        save_freq: int | None = None,
        keep: int = 3,
        also: Mapping[str, Stateful] | None = None,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        self.folder = Path(folder)
        self.save_freq = Whole(none="a minute").check("save_freq", save_freq)
        self.keep = Whole().check("keep", keep)
        self.also = dict(also or {})
        for name, each in self.also.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise ValueError(f"also[{name!r}] must have state_dict() and load_state_dict(state), got {short_repr(each)}.")
        self.seconds = 0.0  # total time spent writing

    def _on_training_start(self) -> None:
        model: Any = self.model
        if not hasattr(model, "resumption"):
            raise ValueError(
                f"TrainingCheckpoint is for GRPO and DAPO, not for {type(model).__name__}: use CheckpointCallback of "
                "Stable-Baselines3."
            )
        resumed = model.resumption
        is_here = resumed is not None and resumed.path.resolve().parent == self.folder.resolve()
        if not is_here and checkpoints_in(self.folder):
            raise ValueError(
                f"{self.folder} has checkpoints of another training: go on with it by "
                f"{type(model).__name__}.resume({str(self.folder)!r}, env), or choose another folder."
            )
        copies = innermost(self.training_env)
        if offers(copies, "prepare_saving"):
            call(copies, "prepare_saving")  # lets them record what is needed to save them later
        self._next_steps, self._next_time = 0, 0.0
        if resumed is not None:
            for name, each in self.also.items():
                if name in resumed.also:
                    each.load_state_dict(resumed.also[name])
        if is_here:
            # The checkpoint it resumes from counts as the last one
            self._plan_next(0.0)

    def _on_rollout_start(self) -> None:
        # SB3 updates self.num_timesteps only in on_step
        n_steps = self.model.num_timesteps
        is_due = n_steps >= self._next_steps and time.perf_counter() >= self._next_time
        # A checkpoint holds the episodes of all ranks, and the first one decides when
        if not gather(is_due)[0]:
            return
        begin = time.perf_counter()
        try:
            path = save_training(self.folder, self.model, self.keep, self.also)
        except OSError as error:
            warn_user(f"No checkpoint after {n_steps} steps ({error}): the training goes on, and the older ones are there.")
        else:
            if self.verbose >= 1 and path is not None:
                print(f"Checkpoint after {n_steps} steps: {path}")
        self._plan_next(time.perf_counter() - begin)

    def _plan_next(self, seconds: float) -> None:
        """
        :param seconds: How long it took to write the last checkpoint
        """
        self.seconds += seconds
        if self.save_freq is None:
            self._next_time = time.perf_counter() + max(SECONDS, COST * seconds)
        else:
            self._next_steps = self.model.num_timesteps + self.save_freq

    def _on_step(self) -> bool:
        return True
