"""The callback that writes checkpoints from which a training goes on."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_grpo.checkpoint.environments import prepare_env
from sb3_grpo.checkpoint.folder import checkpoints_in, remove_unfinished
from sb3_grpo.checkpoint.training import Stateful, save_training
from sb3_grpo.utils.parameters import Whole, short_repr
from sb3_grpo.utils.user_warnings import warn_user

# Without save_freq: seconds between two checkpoints, at least, and how many times as long as one takes to write
SECONDS = 60.0
COST = 100.0


class TrainingCheckpoint(BaseCallback):
    """
    Write checkpoints from which :meth:`GRPO.resume` goes on as if nothing had been, to the last bit: the model, all random
    generators, the groups that are open, and the environments in the middle of their episodes::

        model.learn(1_000_000, callback=TrainingCheckpoint("checkpoints"))
        DAPO.resume("checkpoints", env).learn()

    One is written before the first step, and others between two updates. Each is a folder that is renamed when it is
    complete. A disk that is full is a warning, and the training goes on. Give it last in a list of callbacks: those after it
    are not to draw random numbers in ``on_rollout_start``.

    :param folder: Where the checkpoints of this training are written, and of no other
    :param save_freq: Steps of all copies together from one checkpoint to the next. ``None``: a minute, or a hundred times as
        long as it takes to write one
    :param keep: How many checkpoints stay
    :param also: What else is saved, by name, and put in place when the training goes on: callbacks of your own with
        ``state_dict()`` and ``load_state_dict(state)``
    :param verbose: Verbosity level: 0 for no output, 1 for saying which checkpoints are written
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
        self.seconds = 0.0  # of writing, in all
        self._next_steps, self._next_time = 0, 0.0

    def _on_training_start(self) -> None:
        model: Any = self.model
        if not hasattr(model, "training_parts"):
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
        remove_unfinished(self.folder)
        prepare_env(self.training_env)
        self._next_steps, self._next_time = 0, 0.0  # not those of a training before this one
        if resumed is not None:
            for name, each in self.also.items():
                if name in resumed.also:
                    each.load_state_dict(resumed.also[name])
        if is_here:
            # What it goes on from is one
            self._plan_next(0.0)

    def _on_rollout_start(self) -> None:
        # on_rollout_start is no step, after which SB3 would count
        n_steps = self.model.num_timesteps
        if n_steps < self._next_steps or time.perf_counter() < self._next_time:
            return
        begin = time.perf_counter()
        try:
            path = save_training(self.folder, self.model, self.keep, self.also)
        except OSError as error:
            warn_user(f"No checkpoint after {n_steps} steps ({error}): the training goes on, and the older ones are there.")
        else:
            if self.verbose >= 1:
                print(f"Checkpoint after {n_steps} steps: {path}")
        self._plan_next(time.perf_counter() - begin)

    def _plan_next(self, seconds: float) -> None:
        """
        :param seconds: How long it took to write the last one
        """
        self.seconds += seconds
        if self.save_freq is None:
            self._next_time = time.perf_counter() + max(SECONDS, COST * seconds)
        else:
            self._next_steps = self.model.num_timesteps + self.save_freq

    def _on_step(self) -> bool:
        return True
