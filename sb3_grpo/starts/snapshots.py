"""
Put an environment exactly into a start, and capture the exact state of an environment.

Here, an environment is a Gymnasium environment with any stack of wrappers. The state of the stack consists of the state of
the base environment (see ``base_states``) and the Python attributes of every wrapper. Sources of randomness outside of it
(NumPy's and Python's global generators, the clock) are not captured.
"""

import copy
import functools
import io
import logging
import pickle
import time
import types
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence

from sb3_grpo.starts.base_states import BaseState, base_state, has_own_protocol, supported_state
from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.generators import (
    HOW_TO_DRAW,
    depth_of,
    find_generators,
    generator_state,
    reseed_generators,
    set_generator_state,
)
from sb3_grpo.starts.layers import DESCRIPTIVE, env_name, is_known, layers_of, package_of, records_of
from sb3_grpo.starts.starts import (
    SEE_CHECK_STARTS,
    OrdinaryReset,
    Replay,
    SeedStart,
    SnapshotStart,
    Start,
    StartMismatchError,
    StartNotSupportedError,
    UnequalStartError,
)

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


def begin(env: gym.Env, start: Start, noise_seed: int | None = None) -> tuple[Any, dict[str, Any]]:
    """
    Put an environment exactly into a start, regardless of what happened in it before.

    :param env: the environment with its wrappers
    :param start: where to begin
    :param noise_seed: None: the start determines the randomness after it, so equal actions from this start lead to equal
        episodes. A non-negative int makes the randomness independent of the start: all generators that the environment
        holds (see ``find_generators``) and the emulator's generator (sticky actions) are reseeded.
    :return: the first observation and the info dict
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
    Capture the exact state of an environment without changing it.

    :param env: the environment with its wrappers, in an episode that has not ended
    :param observation: the last observation it returned
    :param replay: how the episode reached this state, only needed if ``needs_replay(env)``
    :return: the state
    """
    base = env.unwrapped
    state = supported_state(base)
    if state.replayed and replay is None:
        raise StartNotSupportedError(
            f"{type(base).__name__} is captured by replaying its actions, so they have to be recorded from the start "
            "of the episode: wrap the environment in StartQueue and use its capture_start()."
        )
    return SnapshotStart(
        observation=copy.deepcopy(observation),
        identity=identity(env),
        layers=_capture_layers(env, state),
        native=replay if state.replayed else state.capture(base),
        # From TimeLimit, or from the class that replaces it in the RL Zoo
        elapsed=max(vars(layer).get("_elapsed_steps") or 0 for layer in layers_of(env)),
    )


def restore(env: gym.Env, snapshot: SnapshotStart) -> Any:
    """
    Put an environment into a captured state.

    If restoring can go wrong because an environment or a wrapper uses its own ``set_state``, the state is captured again
    and compared.

    :param env: an environment with the same wrappers as the captured one
    :param snapshot: the state
    :return: the observation in this state
    :raises UnequalStartError: if the restored state differs from the captured one
    """
    base = env.unwrapped
    check_identity(env, snapshot.identity)
    state = supported_state(base)
    if isinstance(snapshot.native, Replay):
        play_replay(env, snapshot.native, snapshot.observation)
    else:
        state.restore(base, snapshot.native)
    if _restore_layers(env, state, snapshot.layers):
        _compare_restored(env, state, snapshot)
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
    Record what an ordinary reset depends on. Call this before the reset of an environment that needs replay.

    :param env: the environment with its wrappers
    :param seed: the seed that will be passed to ``reset``
    :param options: the options that will be passed to ``reset``
    :return: the record, as an origin for ``Replay``
    """
    state = supported_state(env.unwrapped)
    state.before_reset(env.unwrapped)
    return OrdinaryReset(seed, copy.deepcopy(options), _capture_layers(env, state))


def reset_arguments(seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """
    :param seed: seed for ``reset``
    :param options: options for ``reset``
    :return: keyword arguments for ``reset``, without ``options`` if None, because not every ``reset`` accepts them
    """
    return {"seed": seed} if options is None else {"seed": seed, "options": options}


def _begin_from_seed(env: gym.Env, start: SeedStart) -> tuple[Any, dict[str, Any]]:
    state = base_state(env.unwrapped)
    for layer in layers_of(env):
        attributes = vars(layer)
        if "was_real_done" in attributes:
            # EpisodicLifeEnv: without this, reset continues the current game
            attributes["was_real_done"] = True
        if attributes.get("_update_running_mean"):
            raise StartNotSupportedError(
                f"{type(layer).__name__} changes with everything it has seen, so the same seed gives different episodes "
                "in different copies of the environment. Use VecNormalize around the VecEnv instead."
            )
    # Reach the generators of wrappers that reset(seed) does not
    _reseed(env, start.seed)
    _seed_spaces(env, start.seed)
    if state is not None:
        state.before_reset(env.unwrapped)
    return env.reset(**reset_arguments(start.seed, copy.deepcopy(start.options)))


def _seed_spaces(env: gym.Env, seed: int) -> None:
    """Seed spaces: many environments and wrappers (not Gymnasium's) sample from them, and reset(seed) does not reach them."""
    samples_from_spaces = package_of(type(env.unwrapped)) == "stable_baselines3"  # SB3's environments for tests
    if samples_from_spaces or not all(is_known(layer) for layer in layers_of(env)):
        # Wrappers may have different spaces from the base environment, and sample from them
        spaces = (space for layer in layers_of(env) for space in (layer.observation_space, layer.action_space))
        for space in {id(space): space for space in spaces}.values():
            space.seed(seed)


def _renew_noise(env: gym.Env, noise_seed: int) -> None:
    _reseed(env, noise_seed)
    _seed_spaces(env, noise_seed)
    state = base_state(env.unwrapped)
    if state is not None:
        state.reseed(env.unwrapped, noise_seed)


def play_replay(env: gym.Env, replay: Replay, observation: Any) -> None:
    """
    Replay an episode up to the captured state.

    :param env: the environment with its wrappers
    :param replay: the episode
    :param observation: the captured last observation
    :raises UnequalStartError: if the replay leads to a different observation
    """
    origin = replay.origin
    if isinstance(origin, OrdinaryReset):
        state = supported_state(env.unwrapped)
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
        raise UnequalStartError(
            f"{env_name(env)}: replaying {n_actions} actions did not lead to the captured observation. Something in the "
            f"environment depends on more than its start, its actions and its random generators. {HOW_TO_DRAW}"
        )


def identity(env: gym.Env) -> tuple[str, ...]:
    """
    :param env: an environment with its wrappers
    :return: a description of each of them, the outermost first, including simple constructor arguments
    """
    names = []
    for layer in layers_of(env):
        if isinstance(layer, gym.Wrapper):
            arguments, name = vars(layer).get("_saved_kwargs") or {}, _wrapper_name(type(layer))
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


def check_identity(env: gym.Env, expected: tuple[str, ...]) -> None:
    """
    :param env: an environment with its wrappers
    :param expected: the ``identity`` of the environment that a start was taken in
    :raises StartMismatchError: if the environment is another one
    """
    layers = identity(env)
    if layers != expected:
        raise StartMismatchError(
            "The snapshot was taken in another environment or wrapper stack.\n"
            f"Snapshot:    {' > '.join(expected)}\nEnvironment: {' > '.join(layers)}"
        )


def _wrapper_name(wrapper: type[gym.Wrapper]) -> str:
    # Once imported, rl_zoo3 replaces TimeLimit by a subclass: a snapshot fits with and without it
    ancestors = ((each.__module__.partition(".")[0], each.__qualname__) for each in wrapper.__mro__)
    return "TimeLimit" if ("gymnasium", "TimeLimit") in ancestors else wrapper.__qualname__


def _create_np_random(base: gym.Env) -> None:
    # Gymnasium creates it on first use with a seed from the system: too late to be captured or reseeded
    if getattr(base, "_np_random", 0) is None:
        _ = base.np_random


def _reseed(env: gym.Env, seed: int) -> None:
    base = env.unwrapped
    _create_np_random(base)
    reseed_generators(layers_of(env), seed, skipped_of(base))
    if "_np_random_seed" in vars(base):
        base._np_random_seed = -1  # Gymnasium's mark for "unknown"


def skipped_of(base: gym.Env) -> frozenset[str]:
    """
    :param base: a base environment
    :return: its attributes that belong to the simulator or to rendering and are not searched for state
    """
    state = base_state(base)
    return frozenset() if state is None else state.skipped


def _capture_layers(env: gym.Env, state: BaseState) -> bytes:
    layers = layers_of(env)
    own, generators = _capture_own(layers, state)
    attributes = [_state_attributes(layer, state if layer is layers[-1] else None) for layer in layers]
    try:
        return _dumps((attributes, own, generators))
    except Exception:
        # Slow, but finds out which layer and which attribute are to blame
        return _dumps((_copyable(layers, attributes, own), own, generators))


def _capture_own(layers: list[gym.Env], state: BaseState) -> tuple[dict[int, Any], dict[str, Any]]:
    """
    :param layers: the environment with its wrappers
    :param state: how to handle the base environment
    :return: results of ``get_state`` of the layers that have it, and the states of the generators that these layers hold
    """
    _create_np_random(layers[-1])
    has_own = [has_own_protocol(layer) for layer in layers[:-1]] + [state.own_protocol]
    own = {depth: layers[depth].get_state() for depth, it_has in enumerate(has_own) if it_has}  # type: ignore[attr-defined]
    if not own:
        return {}, {}
    generators = find_generators(layers, state.skipped)
    return own, {place: generator_state(each) for place, each in generators.items() if depth_of(place) in own}


def _restore_layers(env: gym.Env, state: BaseState, content: bytes) -> bool:
    """
    :return: whether a layer has restored itself with its own ``set_state``
    """
    attributes, own, generators = pickle.loads(content)
    layers = layers_of(env)
    if own:
        _create_np_random(layers[-1])
    # First, because some set_state() begin with a reset(), which draws from the generators and affects the inner wrappers
    for depth, saved in own.items():
        layers[depth].set_state(saved)
    for layer, values in zip(layers, attributes, strict=True):
        vars(layer).update(values)
        if "episode_start_time" in vars(layer):
            # RecordEpisodeStatistics: a time that is only valid in this process and this run of the episode
            vars(layer)["episode_start_time"] = time.perf_counter()
    if generators:
        present = find_generators(layers, state.skipped)
        for place in generators.keys() & present.keys():
            # In place, because objects of the environment may draw from the same one
            set_generator_state(present[place], generators[place])
    return bool(own)


def _compare_restored(env: gym.Env, state: BaseState, snapshot: SnapshotStart) -> None:
    """
    :raises UnequalStartError: if the environment is not in the captured state
    """
    sides = ("when it was captured", "once it is restored")
    difference = _compare_layers(env, snapshot.layers, _capture_layers(env, state), sides)
    if difference is not None:
        raise UnequalStartError(
            f"{env_name(env)}: the state is not restored: {difference}. set_state(state) has to restore everything that "
            "get_state() returns, and a state has to be a value, not a time or the number under which a simulator keeps it."
            + SEE_CHECK_STARTS
        )


def _compare_layers(env: gym.Env, expected: bytes, observed: bytes, sides: tuple[str, str]) -> str | None:
    if expected == observed:
        return None
    # Equal objects can differ in their pickled bytes
    (attributes, own, generators), (attributes_now, own_now, generators_now) = map(pickle.loads, (expected, observed))
    for depth, layer in enumerate(layers_of(env)):
        name = type(layer).__name__
        differences = [first_difference(attributes[depth], attributes_now[depth], f"vars({name})", sides)]
        if depth in own:
            differences.insert(0, first_difference(own[depth], own_now[depth], f"{name}.get_state()", sides))
        for difference in filter(None, differences):
            return difference
    return first_difference(generators, generators_now, "generators", sides)


def _state_attributes(layer: gym.Env, state: BaseState | None) -> dict[str, Any]:
    """
    :param layer: a wrapper, or the base environment
    :param state: how to handle the base environment, None for a wrapper
    :return: the attributes that are part of the layer's state
    """
    if state is None and (has_own_protocol(layer) or type(layer).__module__ == "gymnasium.wrappers.rendering"):
        return {}
    skipped = records_of(layer) if state is None else state.skipped
    only = None if state is None else state.only
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in DESCRIPTIVE
        and name not in skipped
        and (only is None or name in only)
        and not isinstance(value, _SKIPPED_TYPES)
        and not _is_render_object(value)
    }


def _is_render_object(value: Any) -> bool:
    return package_of(type(value)) == "pygame"


class _RenderObjectFoundError(Exception):
    """The attribute contains a render object."""


class _StatePickler(pickle.Pickler):
    """Refuse objects that would be pickled or copied into something different without an exception."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_render_object(obj):
            raise _RenderObjectFoundError
        if isinstance(obj, gym.Env | gym.utils.EzPickle):
            # An EzPickle object is pickled as its constructor arguments: the copy would be in its initial state
            raise TypeError(f"it refers to {obj}, of which no true copy can be made")
        return NotImplemented


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _StatePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _copyable(layers: list[gym.Env], attributes: list[dict[str, Any]], own: dict[int, Any]) -> list[dict[str, Any]]:
    """
    :return: the attributes that can be copied, without render objects
    :raises StartNotSupportedError: if another one, or a result of ``get_state``, cannot be copied
    """
    for depth, value in own.items():
        what = f"What {type(layers[depth]).__name__}.get_state() returns"
        if not _is_copyable(value, what, "It has to be an object that can be pickled and does not refer to an environment."):
            raise StartNotSupportedError(f"{what} cannot be copied: it holds an object of pygame.")
    how = "Give this class the methods get_state(self) and set_state(self, state) to capture it, or begin from SeedStart."
    return [
        {
            name: value
            for name, value in values.items()
            if _is_copyable(value, f"The attribute {name!r} of {type(layer).__name__}", how)
        }
        for layer, values in zip(layers, attributes, strict=True)
    ]


def _is_copyable(value: Any, what: str, how: str) -> bool:
    """Whether it holds no render objects; an error that says what it is, and how to capture it, if it cannot be copied."""
    try:
        _dumps(value)
    except _RenderObjectFoundError:
        return False
    except Exception as error:
        raise StartNotSupportedError(f"{what} cannot be copied ({error}). {how}") from error
    return True
