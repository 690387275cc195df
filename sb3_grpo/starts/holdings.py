"""
What an environment holds: the objects that are reached from its attributes, through containers and other objects.

Classes, modules, compiled objects, neural networks and objects of Python's standard library (threads, queues, files) are not
searched. Objects bound by methods, partial functions and closures are.
"""

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import torch as th

# Attributes that connect or describe the layers of an environment
DESCRIPTIVE = frozenset(
    {
        "env",
        "spec",
        "metadata",
        "render_mode",
        "action_space",
        "observation_space",
        "_action_space",
        "_observation_space",
        "_metadata",
        "_cached_spec",
        "_saved_kwargs",
        "_ezpickle_args",
        "_ezpickle_kwargs",
    }
)

# Attributes with records of past episodes and clocks
_RECORDS = {
    "stable_baselines3.common.monitor.Monitor": frozenset(
        {"results_writer", "t_start", "total_steps", "episode_returns", "episode_lengths", "episode_times"}
    ),
    "gymnasium.wrappers.common.RecordEpisodeStatistics": frozenset(
        {"episode_count", "episode_start_time", "time_queue", "return_queue", "length_queue"}
    ),
}

_T = TypeVar("_T")

# How an object is reached, in reverse: its name in the object that holds it, and the path to that object
Path: TypeAlias = tuple[str, "Path | None"]


class _Kind(Enum):
    LEAF = auto()
    MAPPING = auto()
    SEQUENCE = auto()
    SET = auto()
    ARRAY = auto()
    TENSOR = auto()
    METHOD = auto()
    FUNCTION = auto()
    PARTIAL = auto()
    OBJECT = auto()


_LEAVES = (bool, int, float, complex, str, bytes, bytearray, range, slice, np.generic, np.dtype, th.nn.Module)
_WEAK = (weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType)
_OPAQUE = (type, types.ModuleType, gym.Space)


def walk(roots: Iterable[tuple[str, Any]], known: Iterable[Any] = ()) -> Iterator[tuple[Any, Path]]:
    """
    :param roots: names and objects to start from
    :param known: objects to leave out
    :return: each object once with its path, in the order of attributes and entries; numbers and the like are left out
    """
    seen = {id(item) for item in known}
    stack: list[tuple[Any, Path]] = [(value, (name, None)) for name, value in roots]
    stack.reverse()
    while stack:
        item, path = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item, path
        begin = len(stack)
        for name, value in _entries(item):
            if not is_leaf(type(value)):
                stack.append((value, (name, path)))
        # The last item of the stack is popped first
        stack[begin:] = stack[begin:][::-1]


def path_name(path: Path | None) -> str:
    """
    :param path: path at which ``walk`` found an object
    :return: the path in Python notation, such as ``env.weather.rng``
    """
    names = []
    while path is not None:
        name, path = path
        names.append(name)
    return "".join(reversed(names))


def attributes(item: Any) -> dict[str, Any]:
    """
    :param item: an object
    :return: its attributes, including those in slots, except those that only describe an environment
    """
    found = getattr(item, "__dict__", None)
    found = found if type(found) is dict else {}
    slots = slots_of(type(item))
    if slots:
        found = found | {name: getattr(item, name) for name in slots if hasattr(item, name)}
    if not isinstance(item, gym.Env):
        return found
    return {name: value for name, value in found.items() if name not in DESCRIPTIVE}


def cache_by_class(function: Callable[[type], _T]) -> Callable[[type], _T]:
    """
    :param function: a function that takes a class
    :return: the same function, called only once for each class
    """
    # mypy does not consider every class hashable
    return functools.cache(function)


@cache_by_class
def records_of(wrapper_class: type) -> frozenset[str]:
    """
    :param wrapper_class: class of a wrapper
    :return: its attributes that belong to the environment copy rather than to the current episode
    """
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in wrapper_class.__mro__]
    return frozenset().union(*(_RECORDS.get(name, ()) for name in names))


@cache_by_class
def is_leaf(cls: type) -> bool:
    """
    :param cls: a class
    :return: whether its objects are numbers or the like, which hold no other objects
    """
    return _kind(cls) is _Kind.LEAF


@cache_by_class
def is_container(cls: type) -> bool:
    """
    :param cls: a class
    :return: whether its objects hold others as entries
    """
    return _kind(cls) in (_Kind.MAPPING, _Kind.SEQUENCE, _Kind.SET, _Kind.ARRAY, _Kind.TENSOR)


def layers_of(env: gym.Env) -> list[gym.Env]:
    """
    :param env: an environment with its wrappers
    :return: each of them, the outermost first and the base environment last
    """
    layers = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(env)
    return layers


def env_name(env: gym.Env) -> str:
    """
    :param env: an environment with its wrappers
    :return: its id, or its class if it has none
    """
    base = env.unwrapped
    return type(base).__qualname__ if base.spec is None else base.spec.id


@cache_by_class
def _kind(cls: type) -> _Kind:
    kinds: tuple[tuple[_Kind, Any], ...] = (
        (_Kind.LEAF, (*_LEAVES, *_OPAQUE, *_WEAK, type(None))),
        (_Kind.MAPPING, dict),
        (_Kind.SEQUENCE, (list, tuple, deque)),
        (_Kind.SET, (set, frozenset)),
        (_Kind.ARRAY, np.ndarray),
        (_Kind.TENSOR, th.Tensor),
        (_Kind.METHOD, (types.MethodType, types.BuiltinMethodType)),
        (_Kind.FUNCTION, types.FunctionType),
        (_Kind.PARTIAL, functools.partial),
    )
    return next((kind for kind, classes in kinds if issubclass(cls, classes)), _Kind.OBJECT)


def _entries(item: Any) -> Iterable[tuple[str, Any]]:
    """The objects that an object holds, each with its name in Python notation."""
    cls = type(item)
    match _kind(cls):
        case _Kind.OBJECT:
            return [] if is_of_library(cls) else [(f".{name}", value) for name, value in attributes(item).items()]
        case _Kind.MAPPING:
            # Copied at once, because another thread may modify it
            inside = [(f"[{key!r}]", value) for key, value in [*item.items()] if not is_leaf(type(value))]
        case _Kind.SEQUENCE | _Kind.SET:
            inside = [(f"[{index}]", value) for index, value in enumerate([*item]) if not is_leaf(type(value))]
        case _Kind.ARRAY:
            inside = [(f".flat[{index}]", value) for index, value in enumerate(item.flat)] if item.dtype.hasobject else []
        case _Kind.METHOD:
            return [(".__self__", item.__self__)]
        case _Kind.PARTIAL:
            return [(".func", item.func), (".args", item.args), (".keywords", item.keywords)]
        case _Kind.FUNCTION:
            return _closure(item)
        case _:
            return []
    # User classes may derive from containers
    return inside if is_of_library(cls) else [*inside, *((f".{name}", value) for name, value in attributes(item).items())]


def _closure(function: types.FunctionType) -> list[tuple[str, Any]]:
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found.append((f".<{name}>", cell.cell_contents))
        except ValueError:
            continue  # still empty
    return found


def is_compiled(item: Any) -> bool:
    """
    :param item: an object found by ``walk``
    :return: whether it represents something outside of Python, such as a body in a simulator
    """
    cls = type(item)
    if _kind(cls) is not _Kind.OBJECT or hasattr(item, "__dict__") or slots_of(cls):
        return False
    return not is_of_library(cls) and package_of(cls) not in ("numpy", "torch", "pygame")


@cache_by_class
def is_of_library(cls: type) -> bool:
    """
    :param cls: a class
    :return: whether it comes with Python: its objects are not searched
    """
    return package_of(cls) in sys.stdlib_module_names and cls is not types.SimpleNamespace


def package_of(cls: type) -> str:
    """
    :param cls: a class
    :return: the package that it comes with
    """
    # Some compiled classes have no __module__
    return str(getattr(cls, "__module__", "")).partition(".")[0]


@cache_by_class
def slots_of(cls: type) -> tuple[str, ...]:
    """
    :param cls: a class
    :return: the names of its slots, including those of its base classes
    """
    names: list[str] = []
    for ancestor in cls.__mro__:
        slots = vars(ancestor).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{ancestor.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if not name.startswith("__"))
