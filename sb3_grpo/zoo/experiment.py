"""The RL Zoo's ``ExperimentManager``, with support for groups of episodes and without some of its pitfalls."""

import functools
import importlib.util
import shlex
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import optuna
import yaml
from rl_zoo3 import ALGOS, linear_schedule
from rl_zoo3.exp_manager import ExperimentManager
from sqlalchemy.exc import SQLAlchemyError
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EventCallback, ProgressBarCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo import TrainingCheckpoint, presets
from sb3_grpo.classroom.clips import leave_clip
from sb3_grpo.common.arguments import ARGUMENTS, KEYWORDS
from sb3_grpo.common.callbacks import ClampedProgressBarCallback
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.console import UsageError, policy_for, say
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.utils.entries import read_entry
from sb3_grpo.utils.parameters import Number, Whole
from sb3_grpo.zoo.going_on import CHECKPOINTS, best_model_of, callback_states, checkpoint_of, entry_of
from sb3_grpo.zoo.hyperparams import config_path
from sb3_grpo.zoo.search_space import needs_whole_groups
from sb3_grpo.zoo.studies import make_tables

# Raised by impossible configurations, in the constructor or later: out of memory, PyTorch raises RuntimeError
_IMPOSSIBLE = (AssertionError, ValueError, MemoryError, RuntimeError)
# Arguments of the model. The other values of an entry are for the environments
_ARGUMENTS = ARGUMENTS.keys() | {"preset"}
# These may be written as text: lin_0.001
_SCHEDULES = ("learning_rate", "clip_range", "clip_range_high", "clip_range_vf", "delta_std")
# Seed of the clip's episodes, far from the training seeds
CLIP_SEED = 2**31


class WithinBudget(EventCallback):
    """
    Call another callback up to a number of steps. A rollout of whole episodes may exceed the requested steps: an additional
    evaluation there, for some of the seeds only, would make their curves differ in length.

    :param callback: the other callback
    :param n_timesteps: number of steps up to which it is called
    """

    def __init__(self, callback: BaseCallback, n_timesteps: int):
        super().__init__(callback)
        self.n_timesteps = n_timesteps

    def _on_step(self) -> bool:
        return self._on_event() if self.num_timesteps <= self.n_timesteps else True


class StopAtBudget(BaseCallback):
    """
    Stop training even in the middle of a rollout, so that a trial with large groups gets no more steps than the others. If
    all steps are used up without an update, raise an error: the score of the untrained policy would be meaningless.

    :param n_timesteps: number of steps
    """

    def __init__(self, n_timesteps: int):
        super().__init__()
        self.n_timesteps = n_timesteps
        self._n_rollouts = 0

    def _on_rollout_end(self) -> None:
        self._n_rollouts += 1

    def _on_step(self) -> bool:
        return self.num_timesteps < self.n_timesteps

    def _on_training_end(self) -> None:
        # Another callback may have stopped training earlier
        if not isinstance(self.model, OnGroupAlgorithm) or self.model._n_updates or self.num_timesteps < self.n_timesteps:
            return
        if self._n_rollouts:
            raise ValueError(
                f"no update within {self.n_timesteps} steps: all episodes of the rollouts were in dead groups, "
                "or left out of the loss"
            )
        raise ValueError(
            f"no update, because the first rollout did not end within {self.n_timesteps} steps: "
            "a smaller n_steps, group_size or n_groups, or more steps"
        )


class _Learner:
    """
    A model that remembers whether Ctrl-C ended its ``learn``, which the RL Zoo does not report.

    :param model: the model
    """

    def __init__(self, model: BaseAlgorithm):
        self._model = model
        self.interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def learn(self, *args: Any, **kwargs: Any) -> None:
        """
        :param args: arguments of the model's ``learn``
        :param kwargs: keyword arguments of the model's ``learn``
        """
        try:
            self._model.learn(*args, **kwargs)
        except KeyboardInterrupt:
            self.interrupted = True
            raise


class GroupExperimentManager(ExperimentManager):
    """
    Takes the parameters of the RL Zoo's ``ExperimentManager``. The differences:

    - hyperparameters come from ``zoo_configs`` unless ``config`` is given;
    - strings are parsed and not evaluated, and only wrappers and callbacks are called;
    - an entry may have a ``preset``; its other hyperparameters override it;
    - ``clip_range_high`` can also be a schedule, written ``lin_0.28``;
    - environment copies in other processes get a ``StartQueue`` if the algorithm needs it;
    - the policy of the entry ``default`` suits the observations: ``MultiInputPolicy`` for dictionaries, ``CnnPolicy`` for
      images;
    - evaluations and trials end at ``n_timesteps``;
    - Atari games do not skip frames twice;
    - ``env_kwargs`` of a configuration file also apply to evaluation;
    - training writes checkpoints, and ``trained_agent`` may be the model of a checkpoint;
    - trial 0 of a study can be loaded;
    - a complete run writes an animation of its agent next to an untrained one;
    - a trial that cannot run or makes no update is pruned, and a trial whose worker is dead is marked as failed.

    :param args: see the RL Zoo
    :param algo: see the RL Zoo
    :param env_id: see the RL Zoo
    :param log_folder: see the RL Zoo
    :param others: see the RL Zoo
    """

    # python -m sb3_grpo.zoo train --no-clip
    leaves_clip = True

    def __init__(self, args: Any, algo: str, env_id: str, log_folder: str, *others: Any, **kwargs: Any):
        super().__init__(args, algo, env_id, log_folder, *others, **kwargs)
        if kwargs.get("config") is None:
            self.config = str(config_path(algo))
        elif not _is_configuration(self.config):
            raise UsageError(f"--conf-file {self.config}: that is neither a file that ends in .yml, .yaml or .py nor a module")
        if self.n_timesteps < 1 and self.n_timesteps != -1:
            raise UsageError(f"--n-timesteps {self.n_timesteps} is less than one step; without it, the budget is the entry's")
        if self.optimize_hyperparameters and self.n_evaluations is not None and self.n_evaluations < 1:
            raise UsageError(f"--n-evaluations {self.n_evaluations}: the score of a trial needs one evaluation at least")
        # Kept in steps, because the RL Zoo converts save_freq to calls
        self._steps_between = self.save_freq if self.save_freq > 0 else None
        if self.optimize_hyperparameters and self.trained_agent:
            raise UsageError(f"-i {self.trained_agent} and --optimize exclude each other: the trials of a search begin anew")
        self._checkpoint = checkpoint_of(self.trained_agent)
        begun_by = ALGOS[algo].__name__ if self._checkpoint is None else self._checkpoint.manifest["algorithm"]
        if begun_by != ALGOS[algo].__name__:
            raise UsageError(
                f"-i {self.trained_agent}: that is a checkpoint of {begun_by}, and not of {algo}: write --algo "
                f"{begun_by.lower()}"
            )
        self._entry = None if self._checkpoint is None else entry_of(self._checkpoint, self.env_name)
        if self._checkpoint is not None:
            self.seed = args.seed = self._checkpoint.manifest["seed"]
        if self._entry is not None and (self.custom_hyperparams or kwargs.get("config") or self.trial_id is not None):
            raise UsageError(
                f"-i {self.trained_agent}: a run goes on with the hyperparameters that it began with. Leave out -params, "
                "--conf-file and --trial-id, or go on with a model that is in no checkpoint (rl_model_..._steps.zip)"
            )
        # A run that the RL Zoo did not start: -params may set its environments, but not the model
        ignored = sorted(_ARGUMENTS & (self.custom_hyperparams or {}).keys()) if self._checkpoint is not None else []
        if ignored:
            raise UsageError(
                f"-i {self.trained_agent}: a run goes on with the hyperparameters that it began with. Leave out "
                f"-params {' '.join(ignored)}"
            )
        self._has_own_entry = True
        self._interrupted = False
        self._reasons: Counter[str] = Counter()
        # With several jobs, each has its own thread
        self._trial = threading.local()

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        :return: the hyperparameters as written in the entry, twice: one copy is processed further, the other is saved
        """
        if self.trial_id is not None:
            if not (self.storage and self.study_name):
                raise UsageError(f"--trial-id {self.trial_id} needs the study it belongs to: --storage and --study-name")
            try:
                of_trial = self.load_trial(self.storage, self.study_name, self.trial_id)
            except (IndexError, KeyError) as error:
                raise UsageError(
                    f"No trial {self.trial_id} of study {self.study_name!r} in {self.storage} that can be used for {self.algo}"
                ) from error
            except (FileNotFoundError, SQLAlchemyError) as error:
                raise UsageError(f"--storage {self.storage}: {error}") from error
            # Not left to the RL Zoo, which ignores trial 0
            self.custom_hyperparams = of_trial | (self.custom_hyperparams or {})
            self.trial_id = None
        if self.n_timesteps > 0:
            # Otherwise the saved configuration, and benchmark's table made from it, would show the value in the file
            self.custom_hyperparams = (self.custom_hyperparams or {}) | {"n_timesteps": self.n_timesteps}
        if "preset" in (custom := self.custom_hyperparams or {}):
            # It replaces the preset of the entry, if any
            self.custom_hyperparams = {**self._with_preset(custom), "preset": None}
        if self._entry is None:
            self._check_configuration()
            hyperparams, saved = (self._with_preset(each) for each in super().read_hyperparameters())
        else:
            hyperparams, saved = ({**self._entry, **(self.custom_hyperparams or {})} for _ in range(2))
        for name in ("n_timesteps", "policy"):
            if name not in hyperparams:
                raise UsageError(f"The entry of {self.algo} for {self.env_name.gym_id} in {self.config} has no {name}")
        try:
            # YAML reads 1e5 as a string
            Number(1).check("n_timesteps", hyperparams["n_timesteps"])
            Whole().check("n_envs", hyperparams.get("n_envs", 1))
            KEYWORDS.check("env_kwargs", hyperparams.get("env_kwargs"))
        except ValueError as error:
            raise UsageError(f"The entry of {self.algo} for {self.env_name.gym_id}: {error}") from error
        env_kwargs = {**(hyperparams.get("env_kwargs") or self.env_kwargs)}
        if self._is_atari and "AtariWrapper" in str(hyperparams.get("env_wrapper")):
            # The wrapper skips frames, and ALE/*-v5 does too: together, 16 frames per action
            env_kwargs = {"frameskip": 1, **env_kwargs}
        if env_kwargs:
            hyperparams["env_kwargs"] = saved["env_kwargs"] = env_kwargs
            # The only place where record_video looks
            self.args.env_kwargs = env_kwargs
        return hyperparams, saved

    def _check_configuration(self) -> None:
        """
        :raises UsageError: if the file is YAML whose entries cannot be read
        """
        if not self.config.endswith((".yml", ".yaml")):
            return
        try:
            entries = yaml.safe_load(Path(self.config).read_text("utf-8"))
        except UnicodeDecodeError as error:
            raise UsageError(f"--conf-file {self.config}: {error}") from error
        names = (self.env_name.gym_id, "atari", "default")
        self._has_own_entry = isinstance(entries, dict) and names[0] in entries
        if not isinstance(entries, dict) or not all(isinstance(entries[name], dict) for name in names if name in entries):
            raise UsageError(f"--conf-file {self.config}: hyperparameters are written ENVIRONMENT: {{name: value}}")

    def _with_preset(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """
        :param hyperparams: hyperparameters as written in an entry
        :return: the same hyperparameters, with ``preset`` replaced by the settings of that preset
        """
        own = {key: value for key, value in hyperparams.items() if key != "preset"}
        if hyperparams.get("preset") is None:
            return own
        if not issubclass(ALGOS[self.algo], OnGroupAlgorithm):
            raise UsageError(f"preset: these are settings of grpo and dapo, not of {self.algo}")
        try:
            return {**presets.preset(hyperparams["preset"]), **own}
        except ValueError as error:
            raise UsageError(str(error)) from error

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        for name in _SCHEDULES:
            value = hyperparams.get(name)
            if isinstance(value, str) and not _is_schedule(value):
                raise UsageError(f"{name}: {value!r} is no schedule; write lin_0.001 for one that falls from 0.001 to 0")
        high = hyperparams.get("clip_range_high")
        if isinstance(high, str):
            hyperparams["clip_range_high"] = linear_schedule(high.removeprefix("lin_"))
        return ExperimentManager._preprocess_schedules(hyperparams)

    def create_callbacks(self) -> None:
        """Create the callbacks that the options ask for."""
        super().create_callbacks()
        for i, callback in enumerate(self.callbacks):
            if isinstance(callback, EvalCallback):
                self.callbacks[i] = WithinBudget(callback, self.n_timesteps)
            elif isinstance(callback, ProgressBarCallback):
                self.callbacks[i] = ClampedProgressBarCallback()

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> tuple[dict[str, Any], Any, list[BaseCallback], Any]:
        try:
            # Parse the strings first, so that the RL Zoo has nothing to eval()
            hyperparams = read_entry(hyperparams)
        except ValueError as error:
            raise UsageError(f"The entry of {self.algo} for {self.env_name.gym_id}: {error}") from error
        hyperparams, env_wrapper, callbacks, vec_env_wrapper = super()._preprocess_hyperparams(hyperparams)
        if not self._eval_env_kwargs_args:
            # Include those of the configuration file: evaluation must use the same task
            self.eval_env_kwargs = self.env_kwargs
        if issubclass(ALGOS[self.algo], OnGroupAlgorithm):
            env_wrapper = functools.partial(_with_start_queue, env_wrapper=env_wrapper)
        return hyperparams, env_wrapper, callbacks, vec_env_wrapper

    def _preprocess_action_noise(
        self, hyperparams: dict[str, Any], saved_hyperparams: dict[str, Any], env: VecEnv
    ) -> dict[str, Any]:
        # The first place where the observations are known
        policy = str(hyperparams.get("policy"))
        if policy.startswith("Mlp") and not self._has_own_entry and "policy" not in (self.custom_hyperparams or {}):
            kind = policy_for(env.observation_space).removesuffix("Policy")
            hyperparams["policy"] = saved_hyperparams["policy"] = policy.replace("Mlp", kind, 1)
        return super()._preprocess_action_noise(hyperparams, saved_hyperparams, env)

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        if self._checkpoint is None:
            return super()._load_pretrained_agent(hyperparams, env)
        algorithm: Any = ALGOS[self.algo]
        model = algorithm.resume(self._checkpoint.path, env, device=self.device)
        model.verbose, model.tensorboard_log = self.verbose, self.tensorboard_log
        best = best_model_of(self._checkpoint)
        if self._entry is not None and best.is_file():
            # Keep it until there is a better one: the best score is restored as well
            shutil.copy(best, self.save_path)
        print(f"Resuming after {model.num_timesteps} steps, from {self._checkpoint.path}")
        return model

    def learn(self, model: BaseAlgorithm) -> None:
        """
        :param model: the model
        """
        if isinstance(model, OnGroupAlgorithm):
            also = callback_states(self.callbacks)
            self.callbacks.append(TrainingCheckpoint(self._checkpoints, self._steps_between, also=also))
        learner: Any = _Learner(model)
        super().learn(learner)
        self._interrupted = learner.interrupted

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """
        :param model: the trained model
        """
        super().save_trained_model(model)
        if isinstance(model, OnGroupAlgorithm):
            if self._interrupted:
                folder = shlex.quote(str(self._checkpoints))
                say(f"To resume: run the same command with -i {folder}, without -params and --conf-file")
            else:
                shutil.rmtree(self._checkpoints, ignore_errors=True)
        if self.leaves_clip and not self._interrupted:
            said = leave_clip(model, self.drawn_env, CLIP_SEED, Path(self.save_path), type(model).__name__)
            say(f"Clip: {said}")

    @property
    def _checkpoints(self) -> Path:
        return Path(self.save_path, CHECKPOINTS)

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        :param n_envs: number of copies
        :param eval_env: whether the environment is for evaluation
        :param no_log: whether to disable logging
        :return: the vectorized environment, with its wrappers
        """
        env = super().create_envs(n_envs, eval_env, no_log)
        if hasattr(self._trial, "envs"):
            self._trial.envs.append(env)
        return env

    def drawn_env(self, render_mode: str | None) -> VecEnv:
        """
        :param render_mode: the render mode, ``None`` for no rendering
        :return: a single copy for evaluation, in this process
        """
        before = self.vec_env_class, self.eval_env_kwargs
        self.vec_env_class = DummyVecEnv
        if render_mode is not None:
            self.eval_env_kwargs = {**(self.eval_env_kwargs or {}), "render_mode": render_mode}
        try:
            return self.create_envs(1, eval_env=True, no_log=True)
        finally:
            self.vec_env_class, self.eval_env_kwargs = before

    def objective(self, trial: optuna.Trial) -> float:
        """
        :param trial: the trial
        :return: its score
        :raises optuna.TrialPruned: if the trial is not worth continuing or cannot run at all
        """
        # For the search space
        trial.set_user_attr("policy", str(self._hyperparams.get("policy")))
        trial.set_user_attr("whole_groups", needs_whole_groups(self._hyperparams))
        self._trial.envs = []
        try:
            return super().objective(trial)
        except optuna.TrialPruned as pruned:
            if pruned.__cause__ is not None:
                self._note_reason(trial, pruned.__cause__)
            raise
        except _IMPOSSIBLE as error:
            for env in self._trial.envs:
                env.close()
            self._note_reason(trial, error)
            raise optuna.TrialPruned(str(error)) from error

    def _note_reason(self, trial: optuna.Trial, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._reasons[reason] += 1
        trial.set_user_attr("pruned_because", reason)
        say(f"Trial {trial.number} was pruned. {reason}")

    def hyperparameters_optimization(self) -> None:
        """Search for good hyperparameters and write a report."""
        stop = {f"{__name__}.StopAtBudget": {"n_timesteps": self.n_timesteps}}
        self.specified_callbacks = [*_as_list(self.specified_callbacks), stop]
        try:
            if self.storage is not None and not self.storage.endswith(".log"):
                make_tables(self.storage)
            super().hyperparameters_optimization()
        except ImportError as error:
            # For example optunahub is missing
            raise UsageError(f"--storage {self.storage}, --sampler {self.sampler}: {error}") from error
        except ValueError as error:
            # Raised by study.best_trial
            if "No trials are completed yet" not in str(error):
                raise
            reasons = "; ".join(f"{count} x {reason}" for reason, count in self._reasons.most_common(3))
            raise UsageError(f"No trial was completed, so there is no best one. {reasons}") from error


def _with_start_queue(env: gym.Env, env_wrapper: Callable[[gym.Env], gym.Env] | None) -> gym.Env:
    # Outside the other wrappers. A model can only add it itself if the copies are in its own process
    env = env if env_wrapper is None else env_wrapper(env)
    return env if isinstance(env, StartQueue) else StartQueue(env)


def _is_schedule(text: str) -> bool:
    kind, _, initial = text.partition("_")
    try:
        return bool(kind) and float(initial) >= 0.0
    except ValueError:
        return False


def _is_configuration(name: str) -> bool:
    if name.endswith((".yml", ".yaml", ".py")):
        return Path(name).is_file()
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
