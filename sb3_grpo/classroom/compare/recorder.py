"""Records of a run during training: evaluations, time, logged values."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.classroom.compare.evaluation import Evaluator
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.utils.machine import peak_memory


class Recorder(BaseCallback):
    """
    Evaluates at the steps at which all runs are evaluated, ends the training at its budget, even in the middle of a rollout,
    and measures the training time without evaluations and checkpoints.

    :param evaluator: evaluates the model
    :param timesteps: budget of the run
    :param n_evaluations: number of evaluations, in addition to the one before training
    :param n_episodes: episodes per evaluation
    :param report: function that is called with the number of steps so far
    :param checkpoint: callback that writes checkpoints, including the state of this one
    """

    def __init__(
        self,
        evaluator: Evaluator,
        timesteps: int,
        n_evaluations: int,
        n_episodes: int,
        report: Callable[[int], None],
        checkpoint: TrainingCheckpoint | None,
    ):
        super().__init__()
        self.evaluator = evaluator
        self.targets = [k * timesteps / n_evaluations for k in range(n_evaluations + 1)]
        self.n_episodes = n_episodes
        self.rows: list[dict[str, Any]] = []
        self._report = report
        self._checkpoint = checkpoint
        self._n_evaluated = 0  # number of targets evaluated so far
        self._begin = 0.0  # when training would have begun without pauses
        self._rollout_steps, self._rollout_seconds = 0, 0.0  # at the start of the rollout
        self._earlier_memory = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        writing = 0.0 if self._checkpoint is None else self._checkpoint.seconds
        return time.perf_counter() - self._begin - writing

    @property
    def memory(self) -> float:
        """Peak memory in MiB of this process, or of the one before an interruption."""
        return max(self._earlier_memory, peak_memory())

    def state_dict(self) -> dict[str, Any]:
        """
        :return: state for a checkpoint
        """
        evaluated = {"rows": self.rows, "n_evaluated": self._n_evaluated}
        return {**evaluated, "steps": self._rollout_steps, "seconds": self._rollout_seconds, "memory": self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: state from a checkpoint
        """
        self.rows, self._n_evaluated, self._earlier_memory = state["rows"], state["n_evaluated"], state["memory"]
        self._rollout_steps = state["steps"]
        self._begin = time.perf_counter() - state["seconds"]

    def _on_training_start(self) -> None:
        self._begin = time.perf_counter()
        if getattr(self.model, "resumption", None) is None:
            self._reach(0)

    def _on_rollout_start(self) -> None:
        # Must not include the time for writing a checkpoint, which comes next
        self._rollout_steps, self._rollout_seconds = self.model.num_timesteps, self.seconds

    def _on_step(self) -> bool:
        # The last evaluation comes after the last update within the budget
        if self.num_timesteps >= self.targets[self._n_evaluated] and self._n_evaluated < len(self.targets) - 1:
            self._reach(self.num_timesteps)
        self._report(self.num_timesteps)
        # An update now would learn from more steps than the budget. If there has been none, there is one nevertheless
        return self.num_timesteps <= self.targets[-1] or self._rollout_steps == 0

    def _reach(self, steps: int) -> None:
        reached = [target for target in self.targets[self._n_evaluated : -1] if target <= steps]
        self._n_evaluated += len(reached)
        self._evaluate(reached, self.n_episodes, final=False)

    def finish(self, n_episodes: int) -> None:
        """
        Evaluate after the training: as before, and once more with different starts.

        :param n_episodes: number of episodes with different starts
        """
        self._evaluate(self.targets[self._n_evaluated :], self.n_episodes, final=False)
        self._evaluate(self.targets[-1:], n_episodes, final=True)

    def _evaluate(self, targets: list[float], n_episodes: int, final: bool) -> None:
        seconds = self.seconds
        begin = time.perf_counter()
        for row in self.evaluator.evaluate(n_episodes, final):
            steps = {"steps": self.model.num_timesteps, "seconds": round(seconds, 3)}
            self.rows += [{"target_steps": target, **steps, **row} for target in targets]
        self._begin += time.perf_counter() - begin


class DroppedSteps(BaseCallback):
    """Counts the steps of groups that dynamic sampling has dropped."""

    model: OnGroupAlgorithm

    def __init__(self) -> None:
        super().__init__()
        self.n_dropped = 0
        self._drawn: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        """
        :return: state for a checkpoint
        """
        return {"n_dropped": self.n_dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: state from a checkpoint
        """
        self.n_dropped = state["n_dropped"]

    def _on_rollout_start(self) -> None:
        self._note_groups()

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            self._note_groups()
        return True

    def _note_groups(self) -> None:
        assert self.model.collector is not None
        self._drawn = self.model.collector.queue.wanted_groups()

    def _on_rollout_end(self) -> None:
        n_drawn = sum(episode.length for group in self._drawn for episode in group.episodes)
        n_kept = 0 if self.model.batch is None else int(self.model.batch.lengths.sum())
        self.n_dropped += n_drawn - n_kept


class Diagnostics(KVWriter):
    """
    Collects the values that a model logs, averaged over intervals of the training.

    :param interval: number of steps per interval
    :param seconds: function that returns the seconds of training
    """

    def __init__(self, interval: float, seconds: Callable[[], float]):
        self.rows: list[dict[str, Any]] = []
        self._interval = interval
        self._seconds = seconds
        self._values: dict[str, list[float]] = defaultdict(list)
        self._next = interval

    def state_dict(self) -> dict[str, Any]:
        """
        :return: state for a checkpoint
        """
        return {"rows": self.rows, "values": dict(self._values), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: state from a checkpoint
        """
        self.rows, self._next = state["rows"], state["next"]
        self._values.update(state["values"])

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """
        :param key_values: logged values
        :param key_excluded: not used
        :param step: environment steps so far
        """
        for key, value in key_values.items():
            if not key.startswith("time/") and isinstance(value, int | float | np.number) and np.isfinite(value):
                self._values[key].append(float(value))
        if step >= self._next:
            self.flush(step)
            self._next = (step // self._interval + 1) * self._interval

    def flush(self, step: int) -> None:
        """
        :param step: environment steps so far
        """
        where = {"steps": step, "seconds": round(self._seconds(), 3)}
        self.rows += [{**where, "key": key, "value": float(np.mean(values))} for key, values in self._values.items()]
        self._values.clear()

    def close(self) -> None:
        """Nothing to close."""
