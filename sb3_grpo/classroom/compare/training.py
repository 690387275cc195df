"""One run of a comparison: training with evaluations that do not affect it."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.checkpoint.callback_states import callback_states
from sb3_grpo.checkpoint.folder import newest_checkpoint
from sb3_grpo.classroom.clips import leave_clip
from sb3_grpo.classroom.compare.build import Built, build, count_parameters, describe_network
from sb3_grpo.classroom.compare.evaluation import EVALUATION_SEED, FINAL_EVALUATION_SEED, Evaluator
from sb3_grpo.classroom.compare.recorder import Diagnostics, DroppedSteps, Recorder
from sb3_grpo.classroom.compare.runs import CHECKPOINTS, CONFIG, DIAGNOSTIC_COLUMNS, EVALUATION_COLUMNS, KEYS, RESULT
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.console import save_model
from sb3_grpo.utils.files import replace_text
from sb3_grpo.utils.machine import describe_machine, versions
from sb3_grpo.zoo.hyperparams import provenance

# Maximum number of rows of diagnostics per key
_N_DIAGNOSTICS = 100
# A report has a clip for each variant
_MAX_CLIP_BYTES = 100_000


class _Checkpoint(TrainingCheckpoint):
    """No checkpoint before the first step: a run that starts over ends the same."""

    model: OnGroupAlgorithm

    def _on_training_start(self) -> None:
        super()._on_training_start()
        if self.model.resumption is None:
            self._plan_next(0.0)


def train(settings: dict[str, Any], folder: Path, report: Callable[[int], None], save_freq: int | None = None) -> None:
    """
    Execute a run, or continue an interrupted one, and write its results. ``result.json`` is written last, except for the
    clip: a crash of the renderer must not cost the run.

    :param settings: see :meth:`Experiment.settings`
    :param folder: folder for the results
    :param report: function that is called with the number of steps so far
    :param save_freq: number of steps between checkpoints, see ``TrainingCheckpoint``
    """
    with build(settings) as fresh:
        built = _begin(fresh, settings, folder)
        model = built.model
        checkpoint = _Checkpoint(folder / CHECKPOINTS, save_freq, keep=2) if isinstance(model, OnGroupAlgorithm) else None
        evaluator = Evaluator(model, built.evaluation_envs)
        numbers = settings["timesteps"], settings["n_evaluations"], settings["n_eval_episodes"]
        recorder = Recorder(evaluator, *numbers, report, checkpoint)
        diagnostics = Diagnostics(settings["timesteps"] / _N_DIAGNOSTICS, lambda: recorder.seconds)
        model.set_logger(Logger(None, [diagnostics]))
        # An update that takes n_steps learns from all of them
        drops = isinstance(model, OnGroupAlgorithm) and model.dynamic_sampling and model.n_steps is None
        dropped = DroppedSteps() if drops else None
        callbacks: list[BaseCallback] = [*built.manager.callbacks, *([dropped] if dropped else []), recorder]
        if checkpoint is not None:
            checkpoint.also = {"recorder": recorder, "diagnostics": diagnostics, **({"dropped": dropped} if dropped else {})}
            checkpoint.also.update(callback_states(built.manager.callbacks))
            callbacks.append(checkpoint)
        model.learn(settings["timesteps"], callback=callbacks, log_interval=1)
        seconds = recorder.seconds
        # Values logged by the last update
        model.logger.dump(model.num_timesteps)
        diagnostics.flush(model.num_timesteps)
        recorder.finish(settings["n_final_episodes"])

        keys = _keys(settings)
        _write_csv(folder / "evaluations.csv", EVALUATION_COLUMNS, [{**keys, **row} for row in recorder.rows])
        _write_csv(folder / "diagnostics.csv", DIAGNOSTIC_COLUMNS, [{**keys, **row} for row in diagnostics.rows])
        save_model(model, folder / "model.zip")
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            normalizer.save(str(folder / "vecnormalize.pkl"))
        result = _result(model, settings, seconds, recorder.memory, dropped)
        replace_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
        # Only now: a run that is killed before this continues from them
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        if settings["clips"]:
            # From the start of the final evaluation
            where = FINAL_EVALUATION_SEED, folder, keys["variant"], _MAX_CLIP_BYTES
            print(f"Clip: {leave_clip(model, built.manager.drawn_env, *where)}")


def _begin(built: Built, settings: dict[str, Any], folder: Path) -> Built:
    """
    Continue from the checkpoints in the folder if the run will then end as if it had not been interrupted; otherwise, delete
    them.

    :param built: the newly built model
    :param settings: see :meth:`Experiment.settings`
    :param folder: folder of the run
    :return: the model to continue with
    """
    config = json.loads(json.dumps(_config(built, settings)))
    try:
        before = json.loads((folder / CONFIG).read_text())
        newest = newest_checkpoint(folder / CHECKPOINTS) if _decisive(before) == _decisive(config) else None
    except (OSError, ValueError, KeyError, TypeError):
        newest = None
    if newest is None or newest.manifest["differs"] is not None:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    else:
        print(f"Goes on after {newest.manifest['steps']} steps")
        algorithm: Any = type(built.model)
        built = built._replace(model=algorithm.resume(newest.path, built.model.get_env(), device=built.model.device))
    replace_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    return built


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    """
    :param config: configuration of a run
    :return: the part that determines its results to the last bit
    """
    machine = {key: config["machine"][key] for key in ("cpu", "torch_threads", "device")}
    return {**config, "machine": machine, "command": None}


def _result(
    model: BaseAlgorithm, settings: dict[str, Any], seconds: float, memory: float, dropped: DroppedSteps | None
) -> dict[str, Any]:
    n_parameters, n_critic_parameters = count_parameters(model.policy)
    return {
        **_keys(settings),
        "status": "done",
        "steps": model.num_timesteps,
        "seconds": round(seconds, 3),
        "steps_per_second": round(model.num_timesteps / seconds, 1),
        "peak_memory_mib": round(memory, 1),
        "n_parameters": n_parameters,
        "n_critic_parameters": n_critic_parameters,
        "discarded_fraction": round(dropped.n_dropped / model.num_timesteps, 4) if dropped else None,
        "net_arch": describe_network(model.policy),
        "provenance": _provenance(settings),
        "error": None,
    }


def _keys(settings: dict[str, Any]) -> dict[str, Any]:
    variant = settings["variant"]
    values = (settings["env"], variant["name"], variant["algo"], settings["seed"])
    return dict(zip(KEYS, values, strict=True))


def _provenance(settings: dict[str, Any]) -> str:
    variant = settings["variant"]
    changes = ", ".join(f"{key}={value}" for key, value in variant["hyperparams"].items())
    return provenance(variant["algo"], settings["env"]) + (f" Changed here: {changes}" if changes else "")


def _config(built: Built, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        **_keys(settings),
        "timesteps": settings["timesteps"],
        "hyperparameters": built.hyperparams(),
        "entry": {key: str(value) for key, value in built.entry.items()},
        "n_envs": built.manager.n_envs,
        "policy": type(built.model.policy).__name__,
        "network": describe_network(built.model.policy),
        "provenance": _provenance(settings),
        "evaluation": {key: settings[key] for key in ("n_evaluations", "n_eval_episodes", "n_final_episodes")}
        | {"seed": EVALUATION_SEED, "final_seed": FINAL_EVALUATION_SEED},
        "versions": versions("rl_zoo3", "sb3_contrib"),
        "machine": {**describe_machine(), "torch_threads": th.get_num_threads(), "device": str(built.model.device)},
        "command": settings["command"],
    }


def _write_csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_text(path, text.getvalue())
