"""Reads the strings in hyperparameters of RL Zoo's format. They are parsed, not evaluated."""

import ast
import importlib
import re
from typing import Any

import gymnasium as gym
import torch as th
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnvWrapper

_CLASSES = {"HerReplayBuffer": HerReplayBuffer, "RMSpropTFLike": RMSpropTFLike}
_MODULES: dict[str, tuple[Any, type]] = {
    "nn": (th.nn, th.nn.Module),
    "optim": (th.optim, th.optim.Optimizer),
}
# Parameters whose strings the RL Zoo evaluates
_VALUES = ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs", "monitor_kwargs", "normalize")
# Parameters with classes that the RL Zoo imports and calls
_REFERENCES: dict[str, type] = {
    "callback": BaseCallback,
    "env_wrapper": gym.Wrapper,
    "vec_env_wrapper": VecEnvWrapper,
}
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_READABLE = (
    "numbers, strings, True, False, None, [lists], (tuples), {'key': value} or dict(key=value), and PyTorch's classes such as "
    "nn.ReLU or th.optim.Adam"
)


def parse_value(text: str) -> Any:
    """
    Parse a value in Python syntax without evaluating anything.

    :param text: Text such as ``dict(net_arch=[64, 64], activation_fn=nn.ReLU)``
    :return: The value
    :raises ValueError: if the text contains anything other than data and the names of a few classes
    """
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{text[:80]!r} is not a Python value ({type(error).__name__}): only {_READABLE} are allowed."
        ) from error


def _value_of(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as number)):
            if not isinstance(number, bool):
                return -number if isinstance(node.op, ast.USub) else number
        case ast.List(elts=elements):
            return [_value_of(each) for each in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value_of(each) for each in elements)
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {_value_of(key): _value_of(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(each.arg for each in keywords):
            return {each.arg: _value_of(each.value) for each in keywords}
        case ast.Name() | ast.Attribute():
            found = _class_of(ast.unparse(node))
            if found is not None:
                return found
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not a literal: only {_READABLE} are allowed.")


def _class_of(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    if not module:
        return _CLASSES.get(name)
    known = _MODULES.get(re.sub(r"^(th|torch)\.", "", module))
    if known is None:
        return None
    namespace, base = known
    found = getattr(namespace, attribute, None)
    return found if isinstance(found, type) and issubclass(found, base) else None


def read_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """
    Parse the strings of an entry that the RL Zoo would evaluate, and check the classes that it would import and call.

    :param entry: Hyperparameters as written in the file
    :return: The hyperparameters, with objects in place of these strings. Names of classes stay
    :raises ValueError: if a parameter is not data, or does not name a class of the right kind
    """
    entry = dict(entry)
    for name in _VALUES:
        if isinstance(entry.get(name), str):
            try:
                entry[name] = parse_value(entry[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    for name, base in _REFERENCES.items():
        references = entry.get(name)
        for reference in references if isinstance(references, list) else [references]:
            _check_reference(name, reference, base)
    if isinstance(entry.get("policy"), str) and "." in entry["policy"]:
        _check_reference("policy", entry["policy"], BasePolicy)
    return entry


def _check_reference(name: str, reference: Any, base: type) -> None:
    # Entries in Python files have classes and objects, which need no lookup
    if reference is None or isinstance(reference, type | BaseCallback):
        return
    parts = list(reference.items()) if isinstance(reference, dict) else [(reference, {})]
    dotted, kwargs = parts[0] if len(parts) == 1 else (None, None)
    if isinstance(dotted, type):
        return
    if not isinstance(dotted, str) or not _DOTTED.fullmatch(dotted) or not isinstance(kwargs, dict):
        raise ValueError(
            f"{name}: {str(reference)[:80]!r} must be the name of a {base.__name__}, package.module.Class, or "
            "{package.module.Class: {argument: value}}."
        )
    module, _, attribute = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name}: there is no {dotted}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{name}: {dotted} is not a class derived from {base.__module__}.{base.__name__}.")
