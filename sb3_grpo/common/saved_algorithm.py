"""Saving and loading of an algorithm: as Stable-Baselines3 does, or without pickles."""

import functools
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
from sb3_grpo.utils.files import save_location, write_or_rescue
from sb3_grpo.utils.parameters import Choice, short_repr
from sb3_grpo.utils.plugins import MissingPlugIn, missing_plugins

SelfSavedAlgorithm = TypeVar("SelfSavedAlgorithm", bound="SavedAlgorithm")

# What the parts of a model raise where they do not fit what they are given
IMPOSSIBLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class SavedAlgorithm(OnPolicyAlgorithm):
    """:class:`OnPolicyAlgorithm` whose files can be without pickles, and are whole or not there."""

    # Those that can be functions of the user's own, without which a model can still predict
    plugin_parameters: ClassVar[tuple[str, ...]] = ()
    # From which the environments can be made again, None if they were given
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
        An older file of this name is replaced when the new one is complete. If the disk is full, the file is written into
        another folder, and the error says where.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        :param format: ``"sb3"``: as Stable-Baselines3 does, with pickles. ``"safe"``: safetensors and JSON, each member with
            its hash, for models that others are to load. What is no data (functions and classes of your own) is an error
        """
        Choice(("sb3", "safe")).check("format", format)
        if isinstance(path, (str, pathlib.Path)):
            write = functools.partial(self._write, exclude=exclude, include=include, format=format)
            write_or_rescue(save_location(path, "zip"), write)
        else:
            self._write(path, exclude, include, format)

    def _write(
        self, file: io.BufferedIOBase, exclude: Iterable[str] | None, include: Iterable[str] | None, format: str
    ) -> None:
        """
        The parameters are explained at ``save``.
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
        Load the model from a zip-file, see :meth:`BaseAlgorithm.load`. Functions of the user's own that cannot be imported
        (``advantage``, ``start_sampler``, ...) are not needed to predict; to go on learning give them by ``custom_objects``.

        :param path: path to the file (or a file-like) where to load the agent from, of either ``format`` of :meth:`save`
        :param env: the new environment to run the loaded model on
            (can be None if you only need prediction from a trained model) has priority over any saved environment
        :param device: Device on which the code should run.
        :param custom_objects: Dictionary of objects to replace upon loading.
        :param trusted: Whether the file comes from a person whose programs you would run: with pickles, loading a file runs
            whatever it says. ``False``: only files of ``format="safe"``
        :param kwargs: extra arguments of :meth:`BaseAlgorithm.load`, and attributes to change
        :return: new model instance with loaded parameters
        :raises TypeError: if there are other arguments
        :raises ValueError: if it is not trusted and has pickles
        """
        check_load(cls._without_parameters(), kwargs)
        if "n_steps" in kwargs:
            # A number that is given is no default, also where it is the same
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
            # A function would have been refused by save: only the user says what to import
            if isinstance(plugin := data.get(name), str) and "." in plugin:
                raise ValueError(f"{path} is not what save has written: {name}={plugin!r:.80} is the name of a function.")
        for name in cls._without_parameters()._never_in_safe_files(data):
            raise ValueError(f"{path} is not what save has written: {name}={short_repr(data[name])} is in no safe file.")
        given = custom_objects or {}
        left_out = {name: MissingPlugIn(name) for name in cls.plugin_parameters if name not in kwargs}
        # tensorboard_log: a folder of another machine
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
        :return: A model as SB3 makes one to load another into it
        """
        return cls(policy=next(iter(cls.policy_aliases)), env=None, device="cpu", _init_setup_model=False)  # type: ignore[call-arg, arg-type]

    def _never_in_safe_files(self, names: Iterable[str]) -> list[str]:
        """
        :param names: Names of attributes
        :return: Those that ``save(format="safe")`` does not write and ``load`` does not set: what is saved in another way or
            not at all (of ``env="module:Name"`` SB3 would import the module), methods and properties
        """
        state_dicts, variables = self._get_torch_save_params()
        never = {*self._excluded_save_params(), *(name.split(".")[0] for name in (*state_dicts, *variables))}
        of_class = {name: getattr(type(self), name, None) for name in names}
        return [
            name
            for name, found in of_class.items()
            if name in never or name.startswith("__") or callable(found) or inspect.isdatadescriptor(found)
        ]
