"""
Model files with data only: a zip file of JSON and safetensors. Only a few known classes are created again, by their
constructors; beyond these, nothing named in a file is imported or called.
"""

import importlib
import inspect
import io
import json
import pathlib
import re
import zipfile
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import safetensors.torch
import torch as th
from stable_baselines3.common.save_util import open_path

from sb3_grpo.utils.parameters import short_repr

ModelFile = str | pathlib.Path | io.BufferedIOBase

_DATA, _TENSORS = "data.json", "tensors.safetensors"
_FORMAT = "sb3-grpo safe model 1"
# Names that SB3 does not treat as parameters: it would set their content anywhere in the model
_NO_PARAMETERS = {"pytorch_variables", "tensors"}

# Attributes of the classes that are created again. Those that the constructor does not take are set afterwards.
# By their dotted names: this package must not import those above it
_KNOWN = {
    "gymnasium.spaces.box.Box": ("low", "high", "dtype"),
    "gymnasium.spaces.dict.Dict": ("spaces",),
    "gymnasium.spaces.discrete.Discrete": ("n", "start", "dtype"),
    "gymnasium.spaces.multi_binary.MultiBinary": ("n",),
    "gymnasium.spaces.multi_discrete.MultiDiscrete": ("nvec", "dtype"),
    "rl_zoo3.utils.SimpleLinearSchedule": ("initial_value",),
    "stable_baselines3.common.utils.ConstantSchedule": ("val",),
    "stable_baselines3.common.utils.FloatSchedule": ("value_schedule",),
    "stable_baselines3.common.utils.LinearSchedule": ("start", "end", "end_fraction"),
    "sb3_grpo.envs.text.hard_prompts.HardPrompts": ("n_items", "floor", "rate", "success_rates"),
    "sb3_grpo.envs.text.tokenizers.CharTokenizer": ("alphabet",),
    "sb3_grpo.text.tokens.TokenSpace": ("length", "tokenizer", "stop"),
}
# Packages whose classes are allowed in policy_kwargs
_CLASSES = ("torch.nn.", "torch.optim.", "stable_baselines3.common.torch_layers.", "sb3_grpo.common.optimizers.Adam")


def write_safe_model(
    file: io.BufferedIOBase, data: dict[str, Any], params: dict[str, Any], policies: Mapping[str, type]
) -> None:
    """
    :param file: file to write to
    :param data: attributes of the model
    :param params: state dicts by name
    :param policies: policy classes by name
    :raises ValueError: if something is not data; the message says what to do
    """
    tensors: dict[str, th.Tensor] = {}
    encode = _Json(policies, tensors).encode
    content = {
        "format": _FORMAT,
        "attributes": {name: encode(name, value) for name, value in data.items()},
        "parameters": {
            name: {key: encode(f"{name}.{key}", value) for key, value in values.items()} for name, values in params.items()
        },
    }
    # Not compressed, so a small file needs little memory
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_DATA, json.dumps(content))
        archive.writestr(_TENSORS, safetensors.torch.save(tensors))


def read_safe_model(path: ModelFile, policies: Mapping[str, type]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """
    :param path: path to the file, or the open file
    :param policies: policy classes by name
    :return: attributes of the model, and state dicts by name; ``None`` for a file in the format of Stable-Baselines3
    :raises ValueError: if the file is not what ``write_safe_model`` has written
    """
    with opened(path) as archive:
        if _DATA not in archive.namelist():
            return None
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("its members are compressed")
        content = json.loads(archive.read(_DATA))
        if content["format"] != _FORMAT:
            raise ValueError("this version of the package does not know its format")
        decode = _Json(policies, safetensors.torch.load(archive.read(_TENSORS))).decode
        data = {name: decode(value) for name, value in content["attributes"].items()}
        params = {
            name: {key: decode(value) for key, value in values.items()} for name, values in content["parameters"].items()
        }
        if strange := _NO_PARAMETERS & params.keys():
            raise ValueError(f"there are no parameters by the name of {strange}")
        return data, params


@contextmanager
def opened(path: ModelFile) -> Iterator[zipfile.ZipFile]:
    """
    Open the file of a model.

    :param path: path to the file, or the open file
    :return: the zip file, for a ``with`` block that reads it
    :raises ValueError: if anything goes wrong in the block
    """
    try:
        file = open_path(path, "r", verbose=0, suffix="zip")
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder: load(file) takes a model, and resume(folder) the last checkpoint.") from error
    position = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except Exception as error:  # deliberately damaged files can raise anything
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not what save has written, or damaged: {said}") from error
    finally:
        if file is path:
            file.seek(position)
        else:
            file.close()


class _Json:
    """
    Objects as JSON and tensors, and back.

    :param policies: policy classes by name
    :param tensors: what is too large for JSON, by name; ``encode`` adds to it
    """

    def __init__(self, policies: Mapping[str, type], tensors: dict[str, th.Tensor]):
        self._policies = policies
        self._aliases = {policy: name for name, policy in policies.items()}
        self._tensors = tensors

    def encode(self, where: str, value: Any) -> Any:
        """
        :param where: where the value was found
        :param value: any object
        :return: the value for JSON
        :raises ValueError: if the value is not data
        """
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
            return value.item()
        if kind is list:
            return [self.encode(f"{where}[{index}]", each) for index, each in enumerate(value)]
        if kind in (tuple, th.Size):
            return {"$tuple": self.encode(where, [*value])}
        if kind is deque:
            return {"$deque": self.encode(where, [*value]), "maxlen": value.maxlen}
        if kind in (dict, OrderedDict):
            entries = [(key, self.encode(f"{where}[{key!r}]", each)) for key, each in value.items()]
            if all(type(key) is str and not key.startswith("$") for key in value):
                return dict(entries)
            return {"$dict": [[self.encode(where, key), each] for key, each in entries]}
        if isinstance(value, th.Tensor):
            # Copied, because the same storage must not be saved twice
            self._tensors[where] = value.detach().cpu().clone().contiguous()
            return {"$tensor": where}
        if kind is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.itemsize <= 8:
            self._tensors[where] = th.from_numpy(value.copy())
            return {"$array": where}
        if isinstance(value, np.dtype) and value.kind in "biuf":
            return {"$dtype": str(value)}
        if kind is np.random.Generator and isinstance(value.bit_generator, np.random.PCG64):
            return {"$generator": value.bit_generator.state}
        if isinstance(value, type) and self._class_of(name := self._aliases.get(value, _dotted(value))) is value:
            return {"$class": name}
        if (name := _dotted(kind)) in _KNOWN:
            return {
                "$object": name,
                "with": {each: self.encode(f"{where}.{each}", getattr(value, each)) for each in _KNOWN[name]},
            }
        attribute = re.split(r"[.\[]", where)[0]
        raise ValueError(
            f'{where} is {short_repr(value)}, which is no data and can only be pickled: format="safe" has no pickles. '
            "Write it as data (LinearSchedule in place of a function, the name of an advantage), leave it out with "
            f'exclude=["{attribute}"] and pass it again with load(path, custom_objects=dict({attribute}=...)), or save with '
            'format="sb3".'
        )

    def decode(self, value: Any) -> Any:
        """
        :param value: value read from JSON
        :return: the object. Anything that ``encode`` does not write raises an error
        """
        if isinstance(value, list):
            return [self.decode(each) for each in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not tag.startswith("$"):
            return {key: self.decode(each) for key, each in value.items()}
        content = value[tag]
        match tag:
            case "$tuple":
                return tuple(self.decode(content))
            case "$deque":
                return deque(self.decode(content), maxlen=value["maxlen"])
            case "$dict":
                return {self.decode(key): self.decode(each) for key, each in content}
            case "$tensor":
                return self._tensors[content]
            case "$array":
                return self._tensors[content].numpy()
            case "$dtype" if np.dtype(content).kind in "biuf":
                return np.dtype(content)
            case "$generator":
                generator = np.random.Generator(np.random.PCG64())
                generator.bit_generator.state = content
                return generator
            case "$class" if (found := self._class_of(content)) is not None:
                return found
            case "$object":
                return self._make(content, value["with"])
        raise ValueError(f"{tag} {short_repr(content)} is unknown")

    def _class_of(self, name: str) -> type | None:
        """
        :param name: alias of a policy, or dotted name of a class
        :return: the class if it is an allowed policy, module or optimizer, otherwise None
        """
        if name in self._policies:
            return self._policies[name]
        if not name.startswith(_CLASSES):
            return None
        module, _, name = name.rpartition(".")
        found = getattr(importlib.import_module(module), name, None)
        return found if isinstance(found, type) and issubclass(found, th.nn.Module | th.optim.Optimizer) else None

    def _make(self, dotted: str, attributes: dict[str, Any]) -> Any:
        given = {name: self.decode(attributes[name]) for name in _KNOWN[dotted]}
        # Dict sorts the keys of any other dict, and features extractors depend on their order
        given = {name: OrderedDict(each) if isinstance(each, dict) else each for name, each in given.items()}
        module, _, name = dotted.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        arguments = given.keys() & inspect.signature(cls).parameters.keys()
        made = cls(**{name: given[name] for name in arguments})
        for name in given.keys() - arguments:
            setattr(made, name, given[name])
        return made


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
