"""The RL Zoo's ``ExperimentManager``, with support for groups of episodes and without some of its pitfalls."""

import copy
import functools
import shlex
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from rl_zoo3 import ALGOS, linear_schedule
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo import TrainingCheckpoint, presets
from sb3_grpo.checkpoint.callback_states import callback_states
from sb3_grpo.checkpoint.folder import is_checkpoint, newest_checkpoint
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.console import UsageError, policy_for, say
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.starts.group_env import with_start_queue
from sb3_grpo.utils.entries import read_entry
from sb3_grpo.zoo.going_on import CHECKPOINTS, entry_of, run_of
from sb3_grpo.zoo.hyperparams import config_path, entry_name
from sb3_grpo.zoo.search_space import first_trial, needs_whole_groups
from sb3_grpo.zoo.trials import DefaultsFirst, StopAtBudget, n_ended, without_interruption

# Options that give hyperparameters: not with a run that goes on
_HYPERPARAMETERS = "--preset, --set, -params, --conf-file and --trial-id"
# Of a study: what its scores are about
_BELONGS_TO = "belongs_to"
# Raised by impossible configurations, in the constructor or later: out of memory, PyTorch raises RuntimeError
_IMPOSSIBLE = (AssertionError, ValueError, MemoryError, RuntimeError)


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
    - ``ALE/*-v5`` games do not skip frames twice, and ``env_kwargs`` of an entry also apply to evaluation;
    - training writes checkpoints, and ``trained_agent`` may be the model of a checkpoint;
    - trial 0 of a study can be loaded;
    - a trial ends at ``n_timesteps``, and is pruned if it cannot run or makes no update.

    :param args: see the RL Zoo
    :param algo: see the RL Zoo
    :param env_id: see the RL Zoo
    :param log_folder: see the RL Zoo
    :param others: see the RL Zoo
    """

    def __init__(self, args: Any, algo: str, env_id: str, log_folder: str, *others: Any, **kwargs: Any):
        super().__init__(args, algo, env_id, log_folder, *others, **kwargs)
        self._algorithm: Any = ALGOS[algo]
        if kwargs.get("config") is None:
            self.config = str(config_path(algo))
        # Kept in steps, because the RL Zoo converts save_freq to calls
        self._steps_between = self.save_freq if self.save_freq > 0 else None
        self._checkpoints = Path(self.save_path, CHECKPOINTS)
        self._is_complete = False
        if self.optimize_hyperparameters and self.trained_agent:
            raise UsageError(f"-i {self.trained_agent} and --optimize exclude each other: the trials of a search begin anew")
        self._resumed = newest_checkpoint(self.trained_agent) if is_checkpoint(Path(self.trained_agent)) else None
        self._entry: dict[str, Any] = {}
        # Of a search: when this process began, trials that had ended before, its own, and why the last one was pruned
        self._begun, self._n_before, self._n_own = 0.0, 0, 0
        self._pruned_because: str | None = None
        self._study: optuna.Study | None = None
        if self._resumed is not None:
            begun_by = self._resumed.manifest["algorithm"]
            if begun_by != self._algorithm.__name__:
                raise UsageError(f"-i {self.trained_agent}: a checkpoint of {begun_by}: write --algo {begun_by.lower()}")
            if self.custom_hyperparams or kwargs.get("config") or self.trial_id is not None:
                raise UsageError(
                    f"-i {self.trained_agent}: a run goes on with the hyperparameters that it began with. Leave out "
                    f"{_HYPERPARAMETERS}, or go on with a model that is in no checkpoint (rl_model_..._steps.zip)"
                )
            self._entry, options = entry_of(self._resumed, self.env_name)
            self.seed = args.seed = self._resumed.manifest["seed"]
            # Results of different numbers of episodes do not fit into one file
            self.n_eval_episodes = args.eval_episodes = options["eval_episodes"]

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        :return: the hyperparameters as written in the entry, twice: one copy is processed further, the other is saved
        """
        custom = {**(self.custom_hyperparams or {})}
        if self.trial_id is not None:
            # Not left to the RL Zoo, which ignores trial 0
            custom = self._trial() | custom
            self.trial_id = None
        if self.n_timesteps > 0:
            # Otherwise the saved configuration would have the value in the file
            custom["n_timesteps"] = self.n_timesteps
        # A preset replaces that of the entry, if any
        self.custom_hyperparams = {**self._with_preset(custom), "preset": None} if "preset" in custom else custom
        if self._entry:
            hyperparams, saved = ({**self._entry, **custom} for _ in range(2))
        else:
            self._entry_name()  # says what there is, if it is not there
            hyperparams, saved = (self._with_preset(each) for each in super().read_hyperparameters())
            self._check_hyperparams(hyperparams)
        env_kwargs = {**(hyperparams.get("env_kwargs") or self.env_kwargs)}
        if self._is_atari and "AtariWrapper" in str(hyperparams.get("env_wrapper")):
            # The wrapper skips frames, and ALE/*-v5 does too: together, 16 frames per action
            env_kwargs = {"frameskip": 1, **env_kwargs}
        if env_kwargs:
            hyperparams["env_kwargs"] = saved["env_kwargs"] = env_kwargs
            # The only place where record_video looks
            self.args.env_kwargs = env_kwargs
        return hyperparams, saved

    def _trial(self) -> dict[str, Any]:
        if not (self.storage and self.study_name):
            raise UsageError(f"--trial-id {self.trial_id} needs the study it belongs to: --storage and --study-name")
        if self.storage.endswith(".log") and not Path(self.storage).is_file():
            raise UsageError(f"--storage {self.storage}: there is no such file")
        try:
            return self.load_trial(self.storage, self.study_name, self.trial_id)
        except (IndexError, KeyError) as error:
            raise UsageError(
                f"No trial {self.trial_id} of study {self.study_name!r} in {self.storage} that can be used for {self.algo}"
            ) from error

    def _with_preset(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """
        :param hyperparams: hyperparameters as written in an entry
        :return: the same hyperparameters, with ``preset`` replaced by the settings of that preset
        """
        own = {**hyperparams}
        name = own.pop("preset", None)
        if name is not None and not issubclass(self._algorithm, OnGroupAlgorithm):
            raise UsageError(f"preset: these are settings of grpo and dapo, not of {self.algo}")
        return own if name is None else presets.preset(name) | own

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        high = hyperparams.get("clip_range_high")
        if isinstance(high, str):
            hyperparams["clip_range_high"] = linear_schedule(high.removeprefix("lin_"))
        return ExperimentManager._preprocess_schedules(hyperparams)

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
        if issubclass(self._algorithm, OnGroupAlgorithm):
            env_wrapper = functools.partial(with_start_queue, wrapper_class=env_wrapper)
        return hyperparams, env_wrapper, callbacks, vec_env_wrapper

    def _preprocess_action_noise(
        self, hyperparams: dict[str, Any], saved_hyperparams: dict[str, Any], env: VecEnv
    ) -> dict[str, Any]:
        # The first place where the observations are known
        policy = str(hyperparams.get("policy"))
        if policy.startswith("Mlp") and "policy" not in (self.custom_hyperparams or {}) and self._entry_name() == "default":
            kind = policy_for(env.observation_space).removesuffix("Policy")
            hyperparams["policy"] = saved_hyperparams["policy"] = policy.replace("Mlp", kind, 1)
        return super()._preprocess_action_noise(hyperparams, saved_hyperparams, env)

    def _entry_name(self) -> str | None:
        """
        :return: name of the entry in a YAML file
        :raises UsageError: if there is none
        """
        if not self.config.endswith((".yml", ".yaml")):
            return None
        with open(self.config, encoding="utf-8") as file:
            entries = yaml.safe_load(file) or {}
        try:
            name = entry_name(entries, self.env_name.gym_id)
        except ValueError as error:
            raise UsageError(f"{self.config}: {error}") from error
        if not entries[name]:
            raise UsageError(f"{self.config}: the entry {name} is empty")
        return name

    def _check_hyperparams(self, hyperparams: dict[str, Any]) -> None:
        """
        :param hyperparams: hyperparameters as written in the entry
        :raises UsageError: if one is missing that the RL Zoo needs
        """
        whose = f"The hyperparameters of {self.algo} for {self.env_name.gym_id}"
        if hyperparams.get("policy") is None:
            raise UsageError(f"{whose} have no policy: write policy: MlpPolicy, for example")
        try:
            int(hyperparams.get("n_timesteps"))  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            wrong = hyperparams.get("n_timesteps")
            raise UsageError(f"{whose}: n_timesteps has to be a number, such as 100000, not {wrong!r}") from error

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        if self._resumed is None:
            return super()._load_pretrained_agent(hyperparams, env)
        model = self._algorithm.resume(self._resumed.path, env, device=self.device)
        model.verbose, model.tensorboard_log = self.verbose, self.tensorboard_log
        best = run_of(self._resumed) / "best_model.zip"
        if best.is_file():
            # Keep it until there is a better one: the best score is restored as well
            shutil.copy(best, self.save_path)
        print(f"Resuming after {model.num_timesteps} steps, from {self._resumed.path}")
        return model

    def learn(self, model: BaseAlgorithm) -> None:
        """
        :param model: the model
        """
        if isinstance(model, OnGroupAlgorithm):
            also = callback_states(self.callbacks)
            self.callbacks.append(TrainingCheckpoint(self._checkpoints, self._steps_between, also=also))

        def learn(*args: Any, **kwargs: Any) -> None:
            model.learn(*args, **kwargs)
            self._is_complete = True

        # The RL Zoo does not say whether it has caught Ctrl-C
        learner: Any = SimpleNamespace(learn=learn, env=model.env, policy=model.policy)
        super().learn(learner)

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """
        :param model: the trained model
        """
        super().save_trained_model(model)
        if self._is_complete:
            shutil.rmtree(self._checkpoints, ignore_errors=True)
        elif isinstance(model, OnGroupAlgorithm):
            folder = shlex.quote(str(self._checkpoints))
            say(f"To resume: run the same command with -i {folder}, without {_HYPERPARAMETERS}")

    def drawn_env(self, render_mode: str | None) -> VecEnv:
        """
        :param render_mode: the render mode, ``None`` for no rendering
        :return: a single copy for evaluation, in this process
        """
        drawing = copy.copy(self)
        drawing.vec_env_class = DummyVecEnv
        if render_mode is not None:
            drawing.eval_env_kwargs = {**(self.eval_env_kwargs or {}), "render_mode": render_mode}
        return drawing.create_envs(1, eval_env=True, no_log=True)

    def _create_sampler(self, sampler_method: str) -> optuna.samplers.BaseSampler:
        defaults = first_trial(self.algo, str(self._hyperparams.get("policy")), self.n_envs)
        if sampler_method != "tpe":
            return super()._create_sampler(sampler_method)
        return DefaultsFirst(defaults, n_startup_trials=self.n_startup_trials, seed=self.seed, multivariate=True)

    def objective(self, trial: optuna.Trial) -> float:
        """
        :param trial: the trial
        :return: its score
        :raises optuna.TrialPruned: if the trial is not worth continuing or cannot run at all
        """
        if not self._begun:
            self._study, self._n_before, self._begun = trial.study, n_ended(trial.study), time.monotonic()
            if _BELONGS_TO not in trial.study.user_attrs:
                trial.study.set_user_attr(_BELONGS_TO, self._searched)
        self._say_time_left(trial.study)
        # For the search space
        trial.set_user_attr("policy", str(self._hyperparams.get("policy")))
        trial.set_user_attr("steps_per_copy", self.n_timesteps // self.n_envs)
        trial.set_user_attr("whole_groups", needs_whole_groups(self._hyperparams))
        reason: BaseException | None = None
        try:
            return super().objective(trial)
        except optuna.TrialPruned as pruned:
            reason = pruned.__cause__
            raise
        except EnvironmentFault:
            # Not the fault of the hyperparameters
            raise
        except _IMPOSSIBLE as error:
            reason = error
            raise optuna.TrialPruned(str(error)) from error
        finally:
            self._n_own += 1
            if reason is not None:
                self._pruned_because = f"{type(reason).__name__}: {reason}"
                trial.set_user_attr("pruned_because", self._pruned_because)

    def _say_time_left(self, study: optuna.Study) -> None:
        """
        :param study: a study, one of whose trials begins; Optuna itself says which one is the best so far
        """
        if self.max_total_trials is None:
            done, wanted, lately = self._n_own, self.n_trials, self._n_own
        else:
            # Those of all workers
            done, wanted = n_ended(study), self.max_total_trials
            lately = done - self._n_before
        if lately == 0:
            return
        minutes = (time.monotonic() - self._begun) / 60 / lately * max(0, wanted - done)
        say(f"{done} of {wanted} trials, about {minutes:.0f} minutes left")

    def _load_study(self) -> optuna.Study | None:
        """
        :return: the study of ``--storage`` and ``--study-name``, if there is one already
        :raises UsageError: if it was begun for something else
        """
        storage: Any = self.storage
        if not (storage and self.study_name) or (storage.endswith(".log") and not Path(storage).is_file()):
            return None
        if storage.endswith(".log"):
            storage = JournalStorage(JournalFileBackend(storage))
        try:
            study = optuna.load_study(study_name=self.study_name, storage=storage)
        except KeyError:
            return None
        begun = study.user_attrs.get(_BELONGS_TO)
        if begun not in (None, self._searched):
            raise UsageError(
                f"--study-name {self.study_name}: this is a study of {begun}, not of {self._searched}. Choose another name"
            )
        return study

    @property
    def _searched(self) -> str:
        kwargs = f" with {self.env_kwargs}" if self.env_kwargs else ""
        return f"{self.algo} on {self.env_name.gym_id}{kwargs}, {self.n_timesteps} steps"

    def hyperparameters_optimization(self) -> None:
        """
        Search for good hyperparameters and write a report.

        :raises UsageError: if no trial was completed, or the study is of something else
        """
        self._study = self._load_study()
        given = self.specified_callbacks or []
        stop = {f"{StopAtBudget.__module__}.StopAtBudget": {"n_timesteps": self.n_timesteps}}
        self.specified_callbacks = [*(given if isinstance(given, list) else [given]), stop]
        optuna.logging.get_logger("optuna.study._optimize").addFilter(without_interruption)
        try:
            super().hyperparameters_optimization()
        except ValueError as error:
            if self._study is None or self._study.get_trials(states=[TrialState.COMPLETE]):
                raise
            why = f": the last one was pruned, {self._pruned_because}" if self._pruned_because else ""
            raise UsageError(f"No trial has come to its end{why}") from error
        if self._study is None or not self.storage:
            return
        # The score of one training is largely luck
        others = (trial for trial in self._study.get_trials(states=[TrialState.COMPLETE]) if trial.number > 0)
        best = sorted(others, key=lambda trial: trial.value, reverse=True)[:3]  # type: ignore[arg-type, return-value]
        if best:
            found = ", ".join(f"{trial.number} ({trial.value:.6g})" for trial in best)
            say(f"Best trials: {found}. Compare them and the first one on other seeds: --trial-id N --seed S")
