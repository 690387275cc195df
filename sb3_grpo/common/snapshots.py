"""
Put an environment exactly into a start, and capture the exact state of an environment.

Here an environment is a Gymnasium environment with any stack of wrappers. The state of the stack is the state of
the base environment (see ``base_states``) and the Python attributes of every wrapper. Randomness that no layer
holds as an attribute (NumPy's and Python's global generators, the clock) is out of reach.
"""

import copy
import functools
import io
import logging
import pickle
import random
import time
import types
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from sb3_grpo.common.base_states import BaseState, base_state, explain_unsupported, has_own_protocol, reseed_generator
from sb3_grpo.common.starts import (
    OrdinaryReset,
    Replay,
    SeedStart,
    SnapshotStart,
    Start,
    StartMismatchError,
    StartNotSupportedError,
)

# What connects or describes the layers is never part of the state.
_SKIPPED = frozenset(
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

# Records of past episodes and clocks belong to the copy of the environment, not to the present episode.
_SKIPPED_IN_CLASS = {
    "stable_baselines3.common.monitor.Monitor": frozenset(
        {"results_writer", "t_start", "total_steps", "episode_returns", "episode_lengths", "episode_times"}
    ),
    "gymnasium.wrappers.common.RecordEpisodeStatistics": frozenset(
        {"episode_count", "episode_start_time", "time_queue", "return_queue", "length_queue"}
    ),
}

# References to other objects rather than state
_SKIPPED_TYPES = (
    gym.Env,
    gym.Space,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    logging.Logger,
    io.IOBase,
)


# A tuple, because isinstance() is several times slower with a union, and asks for each attribute of each layer at each reset
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def begin(env: gym.Env, start: Start, noise_seed: int | None = None) -> tuple[Any, dict[str, Any]]:
    """
    Put an environment exactly into a start, whatever happened in it before.

    :param env: the environment with its wrappers
    :param start: where to begin
    :param noise_seed: None keeps the randomness after the start as the start fixes it: all who begin from this
        start and act alike see the same episode. An int (not negative) makes it independent of the start: NumPy's
        and Python's generators in the attributes of any layer and the emulator's generator (sticky actions) are
        reseeded.
    :return: the first observation and the info
    """
    info: dict[str, Any] = {}
    if isinstance(start, SnapshotStart):
        observation = restore(env, start)
    elif isinstance(start, SeedStart):
        observation, info = _begin_from_seed(env, start)
    else:
        raise TypeError(f"Expected a SeedStart or a SnapshotStart, not {type(start).__name__}")
    if noise_seed is not None:
        _renew_noise(env, noise_seed)
    return observation, info


def capture(env: gym.Env, observation: Any, replay: Replay | None = None) -> SnapshotStart:
    """
    Capture the exact state of an environment, without changing it.

    :param env: the environment with its wrappers, in an episode that has not ended
    :param observation: the last observation it returned
    :param replay: how the episode came here, only needed where ``needs_replay(env)``
    :return: the state
    """
    base = env.unwrapped
    state = base_state(base)
    if state is None:
        raise explain_unsupported(base)
    if state.replayed and replay is None:
        raise StartNotSupportedError(
            f"{type(base).__name__} is captured by replaying its actions, so they have to be recorded from the start "
            "of the episode: wrap the environment in StartQueue and use its capture_start()."
        )
    return SnapshotStart(
        observation=copy.deepcopy(observation),
        identity=_identity(env),
        layers=_capture_layers(env, state),
        native=replay if state.replayed else state.capture(base),
        # Of TimeLimit, or of what the RL Zoo has in its place
        elapsed=max(vars(layer).get("_elapsed_steps") or 0 for layer in _layers(env)),
    )


def restore(env: gym.Env, snapshot: SnapshotStart) -> Any:
    """
    Put an environment into a captured state.

    :param env: an environment with the same wrappers as the captured one
    :param snapshot: the state
    :return: the observation in this state
    """
    base = env.unwrapped
    state = base_state(base)
    identity = _identity(env)
    if state is None or identity != snapshot.identity:
        raise StartMismatchError(
            "The snapshot was taken in another environment or wrapper stack.\n"
            f"Snapshot:    {' > '.join(snapshot.identity)}\nEnvironment: {' > '.join(identity)}"
        )
    if isinstance(snapshot.native, Replay):
        _replay(env, snapshot.native, snapshot.observation)
    else:
        state.restore(base, snapshot.native)
    _restore_layers(env, state, snapshot.layers)
    return copy.deepcopy(snapshot.observation)


def needs_replay(env: gym.Env) -> bool:
    """
    :param env: the environment with its wrappers
    :return: whether its state can only be captured by recording the actions of the episode
    """
    state = base_state(env.unwrapped)
    return state is not None and state.replayed


def prepare_ordinary_reset(env: gym.Env, seed: int | None, options: dict[str, Any] | None) -> OrdinaryReset:
    """
    Before an ordinary reset of an environment that needs replay: record what the reset depends on.

    :param env: the environment with its wrappers
    :param seed: the seed that ``reset`` is going to get
    :param options: the options that ``reset`` is going to get
    :return: the record, as an origin for ``Replay``
    """
    state = base_state(env.unwrapped)
    if state is None:
        raise explain_unsupported(env.unwrapped)
    state.before_reset(env.unwrapped)
    return OrdinaryReset(seed, copy.deepcopy(options), _capture_layers(env, state))


def reset_arguments(seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """
    :param seed: seed for ``reset``
    :param options: options for ``reset``
    :return: keyword arguments for ``reset``; without options that are None, which not every ``reset`` takes
    """
    return {"seed": seed} if options is None else {"seed": seed, "options": options}


def _begin_from_seed(env: gym.Env, start: SeedStart) -> tuple[Any, dict[str, Any]]:
    state = base_state(env.unwrapped)
    for layer in _layers(env):
        attributes = vars(layer)
        if "was_real_done" in attributes:
            # EpisodicLifeEnv: without this, reset goes on with the present game
            attributes["was_real_done"] = True
        if attributes.get("_update_running_mean"):
            raise StartNotSupportedError(
                f"{type(layer).__name__} changes with everything it has seen, so the same seed gives different episodes "
                "in different copies of the environment. Use VecNormalize around the VecEnv instead."
            )
    # Generators of wrappers that reset(seed) does not reach
    _reseed(env, start.seed)
    _seed_spaces(env.unwrapped, start.seed)
    if state is not None:
        state.before_reset(env.unwrapped)
    return env.reset(**reset_arguments(start.seed, copy.deepcopy(start.options)))


def _seed_spaces(base: gym.Env, seed: int) -> None:
    """Many environments sample from their spaces, whose generators reset(seed) does not reach. Gymnasium's own do not."""
    if not type(base).__module__.startswith(("gymnasium.envs.", "ale_py.")):
        base.observation_space.seed(seed)
        base.action_space.seed(seed)


def _renew_noise(env: gym.Env, noise_seed: int) -> None:
    _reseed(env, noise_seed)
    _seed_spaces(env.unwrapped, noise_seed)
    state = base_state(env.unwrapped)
    if state is not None:
        state.reseed(env.unwrapped, noise_seed)


def _replay(env: gym.Env, replay: Replay, observation: Any) -> None:
    origin = replay.origin
    if isinstance(origin, OrdinaryReset):
        state = base_state(env.unwrapped)
        if state is None:
            raise explain_unsupported(env.unwrapped)
        _restore_layers(env, state, origin.layers)
        state.before_reset(env.unwrapped)
        reached, _ = env.reset(**reset_arguments(origin.seed, copy.deepcopy(origin.options)))
    else:
        reached, _ = _begin_from_seed(env, origin)
    for noise_seed, actions in replay.pieces:
        if noise_seed is not None:
            _renew_noise(env, noise_seed)
        for action in actions:
            reached = env.step(copy.copy(action))[0]
    if not data_equivalence(reached, observation, exact=True):
        n_actions = sum(len(actions) for _, actions in replay.pieces)
        raise RuntimeError(
            f"Replaying {n_actions} actions in {env.unwrapped} did not lead to the captured observation. "
            "Something in the environment depends on more than its start, its actions and its random generators."
        )


def _layers(env: gym.Env) -> list[gym.Env]:
    layers = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(env)
    return layers


def _identity(env: gym.Env) -> tuple[str, ...]:
    names = []
    for layer in _layers(env):
        if isinstance(layer, gym.Wrapper):
            arguments, name = vars(layer).get("_saved_kwargs") or {}, type(layer).__qualname__
        else:
            spec = layer.spec
            arguments = spec.kwargs if spec is not None else {}
            name = f"{type(layer).__module__}.{type(layer).__qualname__}"
            if spec is not None:
                name += f"[{spec.id}]"
        simple = [
            f"{key}={value!r}"
            for key, value in sorted(arguments.items())
            if key != "render_mode" and isinstance(value, bool | int | float | str | None)
        ]
        names.append(f"{name}({', '.join(simple)})" if simple else name)
    return tuple(names)


def _create_np_random(base: gym.Env) -> None:
    # Gymnasium creates it on first use with a seed from the system: too late to be captured or to be reseeded
    if getattr(base, "_np_random", 0) is None:
        _ = base.np_random


def _generators(env: gym.Env) -> Iterator[Any]:
    for layer in _layers(env):
        for value in vars(layer).values():
            if isinstance(value, _GENERATORS):
                yield value


def _reseed(env: gym.Env, seed: int) -> None:
    _create_np_random(env.unwrapped)
    seen: set[int] = set()
    for index, generator in enumerate(_generators(env)):
        if id(generator) not in seen:
            seen.add(id(generator))
            reseed_generator(generator, seed, index)
    base = env.unwrapped
    if "_np_random_seed" in vars(base):
        base._np_random_seed = -1  # Gymnasium's mark for "unknown"


def _capture_layers(env: gym.Env, state: BaseState) -> bytes:
    _create_np_random(env.unwrapped)
    attributes: list[dict[str, Any]] = []
    own: dict[int, Any] = {}
    layers = _layers(env)
    for index, layer in enumerate(layers):
        is_base = layer is layers[-1]
        if state.own_protocol if is_base else has_own_protocol(layer):
            own[index] = layer.get_state()  # type: ignore[attr-defined]
        attributes.append(_state_attributes(layer, state if is_base else None))
    try:
        return _dumps((attributes, own))
    except Exception:
        # Slow, but it knows which layer and which attribute is to blame
        return _dumps((_copyable(layers, attributes), _copyable_own(layers, own)))


def _restore_layers(env: gym.Env, state: BaseState, content: bytes) -> None:
    attributes, own = pickle.loads(content)
    for index, layer in enumerate(_layers(env)):
        vars(layer).update(attributes[index])
        if index in own:
            layer.set_state(own[index])  # type: ignore[attr-defined]
        if "episode_start_time" in vars(layer):
            # RecordEpisodeStatistics: a time of this process, and of this run of the episode
            vars(layer)["episode_start_time"] = time.perf_counter()


def _state_attributes(layer: gym.Env, state: BaseState | None) -> dict[str, Any]:
    """
    :param layer: a wrapper, or the base environment
    :param state: how to handle the base environment, None for a wrapper
    :return: the attributes that are part of the layer's state
    """
    if state is None and (has_own_protocol(layer) or type(layer).__module__ == "gymnasium.wrappers.rendering"):
        return {}
    cls: Any = type(layer)
    skipped = _skipped_in(cls) if state is None else _SKIPPED | state.skipped
    only = None if state is None else state.only
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in skipped
        and (only is None or name in only)
        and not isinstance(value, _SKIPPED_TYPES)
        and not _is_render_object(value)
    }


@functools.cache
def _skipped_in(wrapper_class: type) -> frozenset[str]:
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in wrapper_class.__mro__]
    return _SKIPPED.union(*(_SKIPPED_IN_CLASS.get(name, ()) for name in names))


def _is_render_object(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pygame"


class _RenderObjectFoundError(Exception):
    """There is a render object inside of the attribute."""


class _StatePickler(pickle.Pickler):
    """Refuses what pickles or copies into something else without an exception."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_render_object(obj):
            raise _RenderObjectFoundError
        if isinstance(obj, gym.Env | gym.utils.EzPickle):
            # An EzPickle object is pickled as its constructor arguments: the copy is in its initial state
            raise TypeError(f"it refers to {obj}, of which no true copy can be made")
        return NotImplemented


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _StatePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _copyable(layers: list[gym.Env], attributes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    copyable: list[dict[str, Any]] = []
    for layer, values in zip(layers, attributes, strict=True):
        copyable.append({})
        for name, value in values.items():
            try:
                _dumps(value)
            except _RenderObjectFoundError:
                continue
            except Exception as error:
                raise StartNotSupportedError(
                    f"The attribute {name!r} of {type(layer).__name__} cannot be copied ({error}). Give this class "
                    "the methods get_state(self) and set_state(self, state) to capture it, or begin from SeedStart."
                ) from error
            copyable[-1][name] = value
    return copyable


def _copyable_own(layers: list[gym.Env], own: dict[int, Any]) -> dict[int, Any]:
    for index, value in own.items():
        try:
            _dumps(value)
        except Exception as error:
            raise StartNotSupportedError(
                f"What {type(layers[index]).__name__}.get_state() returns cannot be copied ({error}): it has to be "
                "an object that can be pickled and does not refer to an environment."
            ) from error
    return own
