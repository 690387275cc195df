"""Saving, loading and resuming of an algorithm: models as in Stable-Baselines3 or without pickles, and checkpoints."""

import base64
import functools
import inspect
import io
import json
import pathlib
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import save_to_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback

from sb3_grpo.checkpoint.folder import newest_checkpoint
from sb3_grpo.checkpoint.training import Resumption, Stateful, describe_env, load_training
from sb3_grpo.common.arguments import ARGUMENTS
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.safe_files import ModelFile, opened, read_safe_model, write_safe_model
from sb3_grpo.starts.atari import make_env_of
from sb3_grpo.utils.files import replace_file, save_location
from sb3_grpo.utils.machine import VERSION
from sb3_grpo.utils.parameters import Choice, did_you_mean, short_repr
from sb3_grpo.utils.plugins import MissingPlugIn
from sb3_grpo.utils.random_states import set_process_state
from sb3_grpo.utils.ranks import n_ranks, own_copies, rank

SelfSavedAlgorithm = TypeVar("SelfSavedAlgorithm", bound="SavedAlgorithm")

# Errors raised by the parts of a model when their arguments do not fit
IMPOSSIBLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# To tell which algorithm of Stable-Baselines3 has saved a file: by its policy, and by an attribute
_ALIASES = {alias: name for name, alias in PPO.policy_aliases.items()}
_KEYS = {"clip_range_vf": "PPO", "cg_max_steps": "TRPO"}


class SavedAlgorithm(OnPolicyAlgorithm):
    """:class:`OnPolicyAlgorithm` that can be saved without pickles, resumed, and never leaves incomplete files behind."""

    # Parameters that can be custom functions, which a model does not need to predict
    plugin_parameters: ClassVar[tuple[str, ...]] = ()
    # Id from which the environments can be created again, None if an environment object was given
    env_id: str | None
    # The version of this package that has written the file of the model, None if the file does not say it
    saved_by_version: str | None
    # Until an interrupted training continues
    resumption: Resumption | None

    def save(
        self,
        path: ModelFile,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        format: str = "sb3",
    ) -> None:
        """
        Save all the attributes of the object and the model parameters in a zip-file, see :meth:`BaseAlgorithm.save`.
        An existing file of this name is only replaced once the new one is complete.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        :param format: ``"sb3"``: the format of Stable-Baselines3, with pickles. ``"safe"``: safetensors and JSON, for models
            to be loaded by others. Anything that is not data (custom functions and classes) raises an error; what is excluded
            by default cannot be included
        """
        Choice(("sb3", "safe")).check("format", format)
        if rank() > 0:
            return  # the first one saves
        self.saved_by_version = VERSION
        if format == "safe":
            excluded = {*(exclude or ())} - {*(include or ())} | self._never_in_safe_files(vars(self))
            data = {name: value for name, value in vars(self).items() if name not in excluded}
            params, policies = self.get_parameters(), self.policy_aliases
            write = functools.partial(write_safe_model, data=data, params=params, policies=policies)
        else:
            write = functools.partial(super().save, exclude=exclude, include=include)
        if isinstance(path, (str, pathlib.Path)):
            with replace_file(save_location(path, "zip")) as file:
                write(file)
        else:
            write(path)

    def export_onnx(self, path: str | pathlib.Path) -> None:
        """
        Export the deterministic actions of ``predict`` as an ONNX file, with the normalisation of observations inside. The
        file takes a batch of observations, by their keys or as ``observation``, and returns ``action``. If the model was
        trained with the environments' ``action_masks()``, they are a further input of this name, Boolean. Statistics of
        ``VecNormalize`` are those of the model's environment: a model that was loaded needs ``env=VecNormalize.load(...)``.

        :param path: Path of the file
        """
        from sb3_grpo.common.export import onnx_bytes

        exported = onnx_bytes(self)
        with replace_file(save_location(path, "onnx")) as file:
            file.write(exported)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfSavedAlgorithm],
        path: ModelFile,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfSavedAlgorithm:
        """
        Load the model from a zip-file, see :meth:`BaseAlgorithm.load`. Custom functions that cannot be imported
        (``advantage``, ``start_sampler``, ...) are not needed to predict; to continue training, pass them in
        ``custom_objects``.

        :param path: path to the file (or a file-like) where to load the agent from, in either ``format`` of :meth:`save`
        :param env: the new environment to run the loaded model on
            (can be None if you only need prediction from a trained model) has priority over any saved environment
        :param device: Device on which the code should run.
        :param custom_objects: Dictionary of objects to replace upon loading.
        :param trusted: Whether you trust the author of the file enough to run their code: loading a file with pickles can run
            arbitrary code. ``False``: only load files saved with ``format="safe"``
        :param kwargs: extra arguments of :meth:`BaseAlgorithm.load`, and attributes to change
        :return: new model instance with loaded parameters
        :raises TypeError: if there are unknown arguments
        :raises ValueError: if the file is not trusted but has pickles, or there is no such device
        """
        cls._check_names(kwargs)
        device = ARGUMENTS["device"].check("device", device)
        if "n_steps" in kwargs:
            # A given number is not a default, even if it is the same
            kwargs["default_n_steps"] = None
        saved = read_safe_model(path, cls.policy_aliases)
        file: Any = path
        given = custom_objects or {}
        if saved is not None:
            data, params = saved
            cls._check_safe_attributes(path, data)
            left_out = {name: MissingPlugIn(name, "left out") for name in cls.plugin_parameters if name not in kwargs}
            # tensorboard_log may be a folder on another machine
            given = {**left_out, **data, "tensorboard_log": None, **given}
            # All attributes are passed as custom_objects: SB3 would treat some of the JSON in a file as pickles
            file = io.BytesIO()
            save_to_zip_file(file, data=dict.fromkeys(given), params=params, pytorch_variables={})
            file.seek(0)
        elif trusted:
            given = {**_missing_plugins(path, cls.plugin_parameters), **given}
            if "policy_class" not in given:
                check_algorithm(path, cls.__name__)
        else:
            raise ValueError(
                f'{path} may run any program when it is loaded: it was not saved with format="safe", and has pickles. Ask for '
                "a safe file, or pass trusted=True if you trust its author."
            )
        try:
            model = super().load(file, env, device, given, **kwargs)
        except IMPOSSIBLE as error:
            if saved is None or isinstance(error, ValueError | th.OutOfMemoryError):
                raise
            raise ValueError(f"{path} does not hold a whole model. {type(error).__name__}: {error}") from error
        if env is not None:
            model.env_id = None
        return model

    @classmethod
    def _check_names(cls, kwargs: Iterable[str]) -> None:
        """
        :param kwargs: Names of further arguments of ``load``
        :raises TypeError: if neither ``load`` nor the model has one of them: SB3 would set an attribute that nothing reads
        """
        if "n_envs" in kwargs:
            raise TypeError(f"{cls.__name__}.load has no argument n_envs: give env=make_group_env(..., n_envs=...).")
        known = {*inspect.signature(BaseAlgorithm.load).parameters, *vars(cls._without_parameters())} - {"kwargs"}
        for each in cls.__mro__:
            known |= {*inspect.signature(each).parameters, *inspect.get_annotations(each)} - {"args", "kwargs"}
        for name in sorted({*kwargs} - known):
            meant = did_you_mean(name, known)
            raise TypeError(f"{cls.__name__}.load has no argument {name}, and {cls.__name__} no such attribute: {meant}")

    @classmethod
    def _check_safe_attributes(cls, path: ModelFile, data: dict[str, Any]) -> None:
        """
        :param path: Path to a safe file, or the open file
        :param data: Its attributes
        :raises ValueError: if ``save`` would not have written one of them
        """
        never = cls._without_parameters()._never_in_safe_files(data)
        # Only the user decides which functions are imported by their dotted names
        never |= {name for name in cls.plugin_parameters if isinstance(data.get(name), str) and "." in data[name]}
        for name in sorted(never):
            raise ValueError(f"{path} is not what save has written: {name}={short_repr(data[name])} is in no safe file.")

    @classmethod
    def _without_parameters(cls: type[SelfSavedAlgorithm]) -> SelfSavedAlgorithm:
        """
        :return: An empty model, as SB3 creates it before loading parameters
        """
        return cls(policy=next(iter(cls.policy_aliases)), env=None, device="cpu", _init_setup_model=False)  # type: ignore[call-arg, arg-type]

    def _never_in_safe_files(self, names: Iterable[str]) -> set[str]:
        """
        :param names: Names of attributes
        :return: Names that ``save(format="safe")`` does not write and ``load`` does not set: attributes that are saved in
            another way or not at all (for ``env="module:Name"``, SB3 would import the module), methods and properties
        """
        state_dicts, variables = self._get_torch_save_params()
        never = {*self._excluded_save_params(), *(name.split(".")[0] for name in (*state_dicts, *variables))}
        of_class = {name: getattr(type(self), name, None) for name in names}
        return {
            name
            for name, found in of_class.items()
            if name in never or name.startswith("__") or callable(found) or inspect.isdatadescriptor(found)
        }

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "resumption", "policy_aliases", "plugin_parameters", "_abc_impl"]

    @classmethod
    def resume(
        cls: type[SelfSavedAlgorithm],
        folder: str | pathlib.Path,
        env: GymEnv | str | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
    ) -> SelfSavedAlgorithm:
        """
        Load an interrupted training from a checkpoint of :class:`TrainingCheckpoint`. ``learn`` continues it and ends
        where it would have ended: with the same parameters, to the last bit, as far as the environments can be saved.
        Like ``load``, this runs whatever is pickled in the files: do not load files from people you do not trust.

        :param folder: The folder of the checkpoints (the newest one is loaded), or a single checkpoint
        :param env: An environment created like the one of the training; ``None`` if the model was given the id of one
        :param device: Device on which the code should run.
        :param custom_objects: See ``load``
        :return: The model, with its environment in the episodes that were in progress
        """
        checkpoint = newest_checkpoint(folder)
        manifest = checkpoint.manifest
        name, needed = manifest["algorithm"], manifest["env"]
        if name != cls.__name__:
            raise ValueError(f"{checkpoint.path} is a checkpoint of {name}: write {name}.resume(...).")
        if (n_then := manifest["n_ranks"]) != n_ranks():
            raise ValueError(
                f"{checkpoint.path} holds the episodes of {n_then} processes, and these are {n_ranks()}: resume it with "
                f"torchrun --nproc-per-node {n_then}."
            )
        env_id = env if isinstance(env, str) else manifest["env_id"] if env is None else None
        made: Any = env if env_id is None else make_env_of(env_id, *own_copies(manifest["n_envs"] * n_then, manifest["seed"]))
        if made is None:
            raise ValueError(f"{name}.resume({str(folder)!r}) needs env=..., made like that of the training: {needed}.")
        model = cls.load(checkpoint.path, made, device, custom_objects, force_reset=False)
        assert model.env is not None
        model.env_id = env_id
        if (given := describe_env(model.env)) != needed:
            raise ValueError(
                f"The checkpoint was written with {needed}, and the environment is {given}: give resume() an environment that "
                "is made in the same way."
            )
        load_training(model, checkpoint)
        return model

    def training_parts(self) -> dict[str, Stateful]:
        """
        :return: Parts of the algorithm that a checkpoint stores in addition to what ``save`` does
        """
        return {}

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        for name in self.plugin_parameters:
            if isinstance(plugin := getattr(self, name), MissingPlugIn):
                raise ValueError(plugin.message)
        resumed = self.resumption
        if resumed is not None:
            reset_num_timesteps = False
            total_timesteps -= self.num_timesteps - resumed.begun_at  # SB3 adds num_timesteps
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if resumed is not None:
            self._num_timesteps_at_start = resumed.begun_at
            self.start_time -= resumed.nanoseconds
            for name, values in resumed.logged.items():
                getattr(self.logger, name).update(values)
        return result

    def _resume_random_states(self) -> None:
        """Continue an interrupted training with its random numbers. Must be called last, right before the first step."""
        assert self.resumption is not None
        set_process_state(self.resumption.random_states)
        self.resumption = None


def check_algorithm(path: ModelFile, name: str) -> None:
    """
    :param path: Path to a file in the format of Stable-Baselines3, or the open file
    :param name: Name of the algorithm that loads it
    :raises ValueError: if another one has saved it
    """
    with opened(path) as archive:
        data = json.loads(archive.read("data"))
    try:
        policy = pickle.loads(base64.b64decode(data["policy_class"][":serialized:"]))
    except Exception:  # Stable-Baselines3 says what is missing
        return
    if not isinstance(policy, type) or issubclass(policy, ActorPolicy):
        return
    by, advice = f"an algorithm with the policy {policy.__name__}", ""
    if policy in _ALIASES:
        by = next((algorithm for key, algorithm in _KEYS.items() if key in data), "A2C")
        advice = (
            f' To go on with its actor: model = {name}("{_ALIASES[policy]}", env, policy_kwargs=dict('
            f"normalize_observations=False)), with the net_arch of {by} if it was given one, and then "
            f"model.policy.load_state_dict({by}.load(path).policy.state_dict(), strict=False)."
        )
    raise ValueError(f"{path} was saved by {by}, not by GRPO or DAPO: load it with the class that has saved it.{advice}")


def _missing_plugins(path: ModelFile, parameters: Iterable[str]) -> dict[str, MissingPlugIn]:
    """
    :param path: Path to a file in the format of Stable-Baselines3, or the open file
    :param parameters: Names of parameters that can be functions
    :return: Placeholders for the functions that cannot be imported, by parameter
    """
    with opened(path) as archive:
        data = json.loads(archive.read("data"))
        pickles = {name: base64.b64decode(data[name][":serialized:"]) for name in parameters if type(data.get(name)) is dict}
    missing = {}
    for name, pickled in pickles.items():
        try:
            pickle.loads(pickled)
        except (ImportError, AttributeError) as error:
            missing[name] = MissingPlugIn(name, str(error))
    return missing
