"""Saving and loading of an algorithm, as in Stable-Baselines3 or without pickles."""

import inspect
import io
import pathlib
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv

from sb3_grpo.common.arguments import check_load
from sb3_grpo.common.safe_files import as_sb3_file, is_safe_model, pickles_in, read_safe_model, write_safe_model
from sb3_grpo.utils.files import replace_file, save_location
from sb3_grpo.utils.parameters import Choice, short_repr
from sb3_grpo.utils.plugins import MissingPlugIn, missing_plugins

SelfSavedAlgorithm = TypeVar("SelfSavedAlgorithm", bound="SavedAlgorithm")

# Errors raised by the parts of a model when their arguments do not fit
IMPOSSIBLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class SavedAlgorithm(OnPolicyAlgorithm):
    """:class:`OnPolicyAlgorithm` that can be saved without pickles, and never leaves incomplete files behind."""

    # Parameters that can be custom functions, which a model does not need to predict
    plugin_parameters: ClassVar[tuple[str, ...]] = ()
    # Id from which the environments can be created again, None if an environment object was given
    env_id: str | None

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        format: str = "sb3",
    ) -> None:
        """
        Save all the attributes of the object and the model parameters in a zip-file, see :meth:`BaseAlgorithm.save`.
        An existing file of this name is only replaced once the new one is complete: on a full disk, it stays as it was.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        :param format: ``"sb3"``: the format of Stable-Baselines3, with pickles. ``"safe"``: safetensors and JSON, each member
            with its hash, for models to be loaded by others. Anything that is not data (custom functions and classes) raises
            an error
        """
        Choice(("sb3", "safe")).check("format", format)
        if isinstance(path, (str, pathlib.Path)):
            with replace_file(save_location(path, "zip")) as file:
                self._write(file, exclude, include, format)
        else:
            self._write(path, exclude, include, format)

    def _write(
        self, file: io.BufferedIOBase, exclude: Iterable[str] | None, include: Iterable[str] | None, format: str
    ) -> None:
        """
        See ``save`` for the parameters.
        """
        if format == "safe":
            excluded = {*(exclude or ()), *self._excluded_save_params()} - {*(include or ())}
            excluded |= {name.split(".")[0] for names in self._get_torch_save_params() for name in names}
            data = {name: value for name, value in self.__dict__.items() if name not in excluded}
            for name in self._never_in_safe_files(data):
                raise ValueError(
                    f'{name} of this model is not for format="safe": take it out of include=, leave it out with '
                    f'exclude=["{name}"], or save with format="sb3".'
                )
            write_safe_model(file, data, self.get_parameters(), self.policy_aliases)
        else:
            super().save(file, exclude, include)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfSavedAlgorithm],
        path: str | pathlib.Path | io.BufferedIOBase,
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
        :raises ValueError: if the file is not trusted but has pickles
        """
        check_load(cls._without_parameters(), kwargs)
        if "n_steps" in kwargs:
            # A given number is not a default, even if it is the same
            kwargs["default_n_steps"] = None
        if is_safe_model(path):
            model = cls._load_safe(path, env, device, custom_objects, **kwargs)
        elif trusted:
            custom_objects = {**missing_plugins(path, cls.plugin_parameters), **(custom_objects or {})}
            model = super().load(path, env, device, custom_objects, **kwargs)
        else:
            raise ValueError(
                f'{path} may run any program when it is loaded: it was not saved with format="safe", and has pickles of '
                f"{'; '.join(pickles_in(path))}. Ask for a file that was, or write trusted=True if you would run a program of "
                "its author."
            )
        if env is not None:
            model.env_id = None
        return model

    @classmethod
    def _load_safe(
        cls: type[SelfSavedAlgorithm],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None,
        device: th.device | str,
        custom_objects: dict[str, Any] | None,
        **kwargs: Any,
    ) -> SelfSavedAlgorithm:
        data, params = read_safe_model(path, cls.policy_aliases)
        for name in cls.plugin_parameters:
            # save would have refused a function: only the user decides what is imported
            if isinstance(plugin := data.get(name), str) and "." in plugin:
                raise ValueError(f"{path} is not what save has written: {name}={plugin!r:.80} is the name of a function.")
        for name in cls._without_parameters()._never_in_safe_files(data):
            raise ValueError(f"{path} is not what save has written: {name}={short_repr(data[name])} is in no safe file.")
        given = custom_objects or {}
        left_out = {name: MissingPlugIn(name) for name in cls.plugin_parameters if name not in kwargs}
        # tensorboard_log may be a folder on another machine
        data = {**left_out, **data, "tensorboard_log": None, **given}
        file: Any = as_sb3_file(data, params)
        try:
            return super().load(file, env, device, data, **kwargs)
        except IMPOSSIBLE as error:
            if isinstance(error, ValueError | th.OutOfMemoryError):
                raise
            raise ValueError(f"{path} does not hold a whole model. {type(error).__name__}: {error}") from error

    @classmethod
    def _without_parameters(cls: type[SelfSavedAlgorithm]) -> SelfSavedAlgorithm:
        """
        :return: An empty model, as SB3 creates it before loading parameters
        """
        return cls(policy=next(iter(cls.policy_aliases)), env=None, device="cpu", _init_setup_model=False)  # type: ignore[call-arg, arg-type]

    def _never_in_safe_files(self, names: Iterable[str]) -> list[str]:
        """
        :param names: Names of attributes
        :return: Names that ``save(format="safe")`` does not write and ``load`` does not set: attributes that are saved in
            another way or not at all (for ``env="module:Name"``, SB3 would import the module), methods and properties
        """
        state_dicts, variables = self._get_torch_save_params()
        never = {*self._excluded_save_params(), *(name.split(".")[0] for name in (*state_dicts, *variables))}
        of_class = {name: getattr(type(self), name, None) for name in names}
        return [
            name
            for name, found in of_class.items()
            if name in never or name.startswith("__") or callable(found) or inspect.isdatadescriptor(found)
        ]
