"""
Convert objects to JSON and tensors, and back. Only a few known classes are created again, by their constructors; beyond
these, nothing named in a file is imported or called.
"""

import importlib
import inspect
import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_grpo.utils.parameters import short_repr


class Known(NamedTuple):
    """
    How a known class is encoded.

    :param arguments: constructor arguments, which are also attributes
    :param state: attributes that are set after construction
    :param optional: arguments that older files do not contain, or older versions of the class do not take
    """

    arguments: tuple[str, ...]
    state: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


# By their dotted names: this package must not import those above it
_KNOWN = {
    "gymnasium.spaces.box.Box": Known(("low", "high", "dtype")),
    "gymnasium.spaces.dict.Dict": Known(("spaces",)),
    "gymnasium.spaces.discrete.Discrete": Known(("n", "start"), optional=("dtype",)),
    "gymnasium.spaces.multi_binary.MultiBinary": Known(("n",)),
    "gymnasium.spaces.multi_discrete.MultiDiscrete": Known(("nvec", "dtype"), optional=("start",)),
    "rl_zoo3.utils.SimpleLinearSchedule": Known(("initial_value",)),
    "stable_baselines3.common.utils.ConstantSchedule": Known(("val",)),
    "stable_baselines3.common.utils.FloatSchedule": Known(("value_schedule",)),
    "stable_baselines3.common.utils.LinearSchedule": Known(("start", "end", "end_fraction")),
    "sb3_grpo.envs.text.hard_prompts.HardPrompts": Known(("n_items", "floor", "rate"), ("success_rates",)),
    "sb3_grpo.envs.text.tokenizers.CharTokenizer": Known(("alphabet",)),
    "sb3_grpo.text.tokens.TokenSpace": Known(("length", "tokenizer")),
}
# Packages whose classes are allowed in policy_kwargs
_CLASSES = ("torch.nn.", "torch.optim.", "stable_baselines3.common.torch_layers.", "sb3_grpo.common.optimizers.")


class NotDataError(ValueError):
    """
    The value can only be pickled.

    :param where: where the value was found
    :param value: the value
    """

    def __init__(self, where: str, value: Any):
        super().__init__(f"{where} is {short_repr(value)}, which is no data and can only be pickled")


def _dotted(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class Encoder:
    """
    Encode objects as JSON and tensors.

    :param policies: policy classes by name
    """

    def __init__(self, policies: Mapping[str, type]):
        self._policies = {cls: name for name, cls in policies.items()}
        self.tensors: dict[str, th.Tensor] = {}

    def encode(self, where: str, value: Any) -> Any:
        """
        :param where: where the value was found, for error messages
        :param value: any object
        :return: the value for JSON. Tensors and arrays are stored in ``tensors``
        :raises NotDataError: if the value is not data
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, np.generic) and kind.__module__ == "numpy" and isinstance(value.item(), bool | int | float):
            return self.encode(where, value.item())
        if kind in (list, tuple, deque, th.Size):
            entries = [self.encode(f"{where}[{index}]", each) for index, each in enumerate(value)]
            if kind is list:
                return entries
            return {"$tuple": entries} if kind is not deque else {"$deque": entries, "maxlen": value.maxlen}
        if kind in (dict, OrderedDict):
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: self.encode(f"{where}[{key!r}]", each) for key, each in value.items()}
            return {
                "$dict": [[self.encode(where, key), self.encode(f"{where}[{key!r}]", each)] for key, each in value.items()]
            }
        return self._encode_object(where, value)

    def _encode_object(self, where: str, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, th.Tensor):
            # Copied, because the same storage must not be saved twice
            self.tensors[where] = value.detach().cpu().clone().contiguous()
            return {"$tensor": where}
        if kind is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.itemsize <= 8:
            self.tensors[where] = th.from_numpy(np.ascontiguousarray(value).reshape(value.shape).copy())
            return {"$array": where, "dtype": str(value.dtype)}
        if isinstance(value, np.dtype) and value.kind in "biuf":
            return {"$dtype": str(value)}
        if kind is np.random.Generator and isinstance(value.bit_generator, np.random.PCG64):
            return {"$generator": value.bit_generator.state}
        if isinstance(value, type):
            if value in self._policies:
                return {"$policy": self._policies[value]}
            if _class_of(_dotted(value)) is value:
                return {"$class": _dotted(value)}
        elif (known := _KNOWN.get(_dotted(kind))) is not None:
            names = (*known.arguments, *known.optional, *known.state)
            parts = {name: self.encode(f"{where}.{name}", getattr(value, name)) for name in names}
            return {"$object": _dotted(kind), "with": parts}
        raise NotDataError(where, value)


class Decoder:
    """
    Decode objects written by :class:`Encoder`.

    :param policies: policy classes by name
    :param tensors: ``tensors`` of the encoder
    """

    def __init__(self, policies: Mapping[str, type], tensors: Mapping[str, th.Tensor]):
        self._policies = policies
        self._tensors = tensors

    def decode(self, value: Any) -> Any:
        """
        :param value: value read from JSON
        :return: the object
        :raises ValueError: if ``Encoder`` does not write such values
        """
        if isinstance(value, list):
            return [self.decode(each) for each in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not tag.startswith("$"):
            return {key: self.decode(each) for key, each in value.items()}
        try:
            return self._decode_tagged(tag, value[tag], value)
        except (AttributeError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"{tag} does not say what it has to ({type(error).__name__}: {error})") from error

    def _decode_tagged(self, tag: str, content: Any, value: dict[str, Any]) -> Any:
        match tag:
            case "$float":
                return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[content]
            case "$tuple":
                return tuple(self.decode(content))
            case "$deque":
                return deque(self.decode(content), maxlen=value["maxlen"])
            case "$dict":
                return {self.decode(key): self.decode(each) for key, each in content}
            case "$tensor":
                return self._tensors[content]
            case "$array":
                return self._tensors[content].numpy().astype(_number_type(value["dtype"]))
            case "$dtype":
                return _number_type(content)
            case "$generator":
                generator = np.random.Generator(np.random.PCG64())
                generator.bit_generator.state = content
                return generator
            case "$policy":
                return self._policies[content]
            case "$class" if (found := _class_of(content)) is not None:
                return found
            case "$object":
                return self._make(content, value["with"])
        raise ValueError(f"{tag} {short_repr(content)} is unknown")

    def _make(self, dotted: str, parts: dict[str, Any]) -> Any:
        known = _KNOWN[dotted]
        module, _, name = dotted.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        optional = parts.keys() & inspect.signature(cls).parameters.keys() & {*known.optional}
        arguments = (*known.arguments, *optional)
        given = {argument: self.decode(parts[argument]) for argument in arguments}
        # Dict sorts the keys of any other dict, and features extractors depend on their order
        made = cls(**{name: OrderedDict(each) if isinstance(each, dict) else each for name, each in given.items()})
        for attribute in known.state:
            setattr(made, attribute, self.decode(parts[attribute]))
        return made


def _number_type(name: str) -> np.dtype[Any]:
    found = np.dtype(name)
    if found.kind not in "biuf":
        raise ValueError(f"{name} is no type of numbers")
    return found


def _class_of(dotted: str) -> type | None:
    """
    :param dotted: dotted name of a class
    :return: the class if it is an allowed module or optimizer, otherwise None
    """
    if not dotted.startswith(_CLASSES):
        return None
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, th.nn.Module | th.optim.Optimizer) else None
