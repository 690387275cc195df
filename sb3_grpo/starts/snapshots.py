"""
Put an environment exactly into a start, and capture the exact state of an environment.

Here, an environment is a Gymnasium environment with any stack of wrappers. Its state consists of the state of the base
environment (see ``known_envs``) and the Python attributes of every wrapper. Sources of randomness outside of it
(NumPy's and Python's global generators, the clock) are not captured.
"""

import copy
import functools
import io
import logging
import pickle
import time
import types
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.known_envs import (
    DESCRIPTIVE,
    base_state,
    env_name,
    has_own_state,
    only_renders,
    package_of,
    records_of,
    wrapper_stack,
)
from sb3_grpo.starts.seeding import (
    begin_from_seed,
    clean_reset,
    create_np_random,
    find_rngs,
    renew_noise,
    rng_state,
    set_rng_state,
)
from sb3_grpo.starts.starts import (
    HOW_TO_DRAW,
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
from sb3_grpo.utils.vec_envs import spec_of

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


class WrapperState(NamedTuple):
    """
    The state of one wrapper, or of the base environment without its simulator.

    :param attributes: its attributes
    :param own: the result of its own ``get_state``, None if it has none
    :param rngs: if it has one, the states of its random generators by their names
    """

    attributes: dict[str, Any]
    own: Any
    rngs: dict[str, Any]


def begin(env: gym.Env, start: Start, noise_seed: int | None = None) -> tuple[Any, dict[str, Any]]:
    """
    Put an environment exactly into a start, regardless of what happened in it before.

    :param env: the environment with its wrappers
    :param start: where to begin
    :param noise_seed: None: the start determines the randomness after it, so equal actions from this start lead to equal
        episodes. A non-negative int makes the randomness independent of the start: all generators that the environment
        holds (see ``find_rngs``) and the emulator's generator (sticky actions) are reseeded.
    :return: the first observation and the info dict
    """
    info: dict[str, Any] = {}
    if isinstance(start, SnapshotStart):
        observation = restore(env, start)
    elif isinstance(start, SeedStart):
        observation, info = begin_from_seed(env, start)
    else:
        raise TypeError(f"Expected a SeedStart or a SnapshotStart, not {type(start).__name__}")
    if noise_seed is not None:
        renew_noise(env, noise_seed)
    return observation, info


def capture(env: gym.Env, observation: Any, replay: Replay | None = None) -> SnapshotStart:
    """
    Capture the exact state of an environment without changing it.

    :param env: the environment with its wrappers, in an episode that has not ended
    :param observation: the last observation it returned
    :param replay: how the episode reached this state, only needed if the state of the simulator cannot be copied
    :return: the state
    """
    base = wrapper_stack(env)[-1]
    state = base_state(base)
    if state.replayed and replay is None:
        raise StartNotSupportedError(
            f"{type(base).__name__} is captured by replaying its actions, so they have to be recorded from the start "
            "of the episode: wrap the environment in StartQueue and use its capture_start()."
        )
    return SnapshotStart(
        observation=copy.deepcopy(observation),
        identity=identity(env),
        simulator=state.capture(base),
        wrappers=capture_wrappers(env),
        replay=replay,
        # From TimeLimit, or from the class that replaces it in the RL Zoo
        elapsed=max(vars(each).get("_elapsed_steps") or 0 for each in wrapper_stack(env)),
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
    check_identity(env, snapshot.identity)
    if snapshot.replay is None:
        base = wrapper_stack(env)[-1]
        base_state(base).restore(base, snapshot.simulator)
    else:
        play_replay(env, snapshot.replay, snapshot.observation)
    _restore_wrappers(env, snapshot.wrappers)
    if any(has_own_state(each) for each in wrapper_stack(env)):
        _compare_restored(env, snapshot)
    return copy.deepcopy(snapshot.observation)


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
        _restore_wrappers(env, origin.wrappers)
        reached, _ = clean_reset(env, origin.seed, copy.deepcopy(origin.options))
    else:
        reached, _ = begin(env, origin)
    for noise_seed, actions in replay.pieces:
        if noise_seed is not None:
            renew_noise(env, noise_seed)
        for action in actions:
            # An environment may change it
            reached = env.step(copy.deepcopy(action))[0]
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
    for each in wrapper_stack(env):
        if isinstance(each, gym.Wrapper):
            arguments, name = vars(each).get("_saved_kwargs") or {}, _wrapper_name(type(each))
        else:
            spec = spec_of(each)
            arguments = spec.kwargs if spec is not None else {}
            name = f"{type(each).__module__}.{type(each).__qualname__}"
            if spec is not None:
                name += f"[{spec.id}]"
        simple = [
            f"{key}={value!r}"
            for key, value in sorted(arguments.items())
            if key != "render_mode" and isinstance(value, bool | int | float | str | None)
        ]
        names.append(f"{name}({', '.join(simple)})" if simple else name)
    return tuple(names)


def _wrapper_name(wrapper: type[gym.Wrapper]) -> str:
    # Once imported, rl_zoo3 replaces TimeLimit by a subclass: a snapshot fits with and without it
    ancestors = ((package_of(each), each.__qualname__) for each in wrapper.__mro__)
    return "TimeLimit" if ("gymnasium", "TimeLimit") in ancestors else wrapper.__qualname__


def check_identity(env: gym.Env, expected: tuple[str, ...]) -> None:
    """
    :param env: an environment with its wrappers
    :param expected: the ``identity`` of the environment that a start was taken in
    :raises StartMismatchError: if the environment is another one
    """
    present = identity(env)
    if present != expected:
        raise StartMismatchError(
            "The snapshot was taken in another environment or wrapper stack.\n"
            f"Snapshot:    {' > '.join(expected)}\nEnvironment: {' > '.join(present)}"
        )


def capture_wrappers(env: gym.Env) -> bytes:
    """
    :param env: an environment with its wrappers
    :return: the pickled state of each of them, the simulator of the base environment left out
    :raises StartNotSupportedError: if something cannot be pickled
    """
    stack, states = wrapper_stack(env), []
    create_np_random(stack[-1])
    for depth, each in enumerate(stack):
        own, rngs = None, {}
        if has_own_state(each):
            own = each.get_state()  # type: ignore[attr-defined]
            rngs = {name: rng_state(rng) for (holder, name), rng in find_rngs(env).items() if holder == depth}
        states.append(WrapperState(_state_attributes(each), own, rngs))
    try:
        return _dumps(states)
    except Exception:
        # Slow, but finds out which attribute is to blame
        return _dumps([_copyable(type(each).__name__, state) for each, state in zip(stack, states, strict=True)])


def _restore_wrappers(env: gym.Env, content: bytes) -> None:
    states: list[WrapperState] = pickle.loads(content)
    stack = wrapper_stack(env)
    create_np_random(stack[-1])
    # First, because some set_state() begin with a reset(), which draws from the generators and affects the inner wrappers
    for each, state in zip(stack, states, strict=True):
        if has_own_state(each):
            each.set_state(state.own)  # type: ignore[attr-defined]
    for each, state in zip(stack, states, strict=True):
        vars(each).update(state.attributes)
        if "episode_start_time" in vars(each):
            # RecordEpisodeStatistics: a time that is only valid in this process and this run of the episode
            vars(each)["episode_start_time"] = time.perf_counter()
    if any(state.rngs for state in states):
        for (depth, name), rng in find_rngs(env).items():
            if name in states[depth].rngs:
                # In place, because objects of the environment may draw from the same one
                set_rng_state(rng, states[depth].rngs[name])


def _compare_restored(env: gym.Env, snapshot: SnapshotStart) -> None:
    """
    :raises UnequalStartError: if the environment is not in the captured state
    """
    restored = capture_wrappers(env)
    if restored == snapshot.wrappers:
        return
    # Equal objects can differ in their pickled bytes
    for each, one, other in zip(wrapper_stack(env), *map(pickle.loads, (snapshot.wrappers, restored)), strict=True):
        name = type(each).__name__
        for part, what in [("own", f"{name}.get_state()"), ("attributes", f"vars({name})"), ("rngs", f"{name}'s generators")]:
            sides = ("when it was captured", "once it is restored")
            difference = first_difference(getattr(one, part), getattr(other, part), what, sides)
            if difference is not None:
                raise UnequalStartError(
                    f"{env_name(env)}: the state is not restored: {difference}. set_state(state) has to restore everything "
                    "that get_state() returns, and a state has to be a value, not a time or the number under which a "
                    f"simulator keeps it.{SEE_CHECK_STARTS}"
                )


def _state_attributes(each: gym.Env) -> dict[str, Any]:
    """
    :param each: a wrapper, or the base environment
    :return: the attributes that are part of its state
    """
    only: frozenset[str] | None = None
    if has_own_state(each) or only_renders(each):
        only, skipped = frozenset({"_np_random_seed"}), frozenset[str]()
    elif isinstance(each, gym.Wrapper):
        skipped = records_of(each)
    else:
        only, skipped = base_state(each).only, base_state(each).skipped
    return {
        name: value
        for name, value in vars(each).items()
        if name not in DESCRIPTIVE
        and name not in skipped
        and (only is None or name in only)
        and not isinstance(value, _SKIPPED_TYPES)
        and package_of(type(value)) != "pygame"
    }


class _RenderObjectError(TypeError):
    """A render object, which is not part of the state."""


class _StatePickler(pickle.Pickler):
    """Refuse objects that would be pickled or copied into something different without an exception."""

    def reducer_override(self, obj: Any) -> Any:
        if package_of(type(obj)) == "pygame":
            raise _RenderObjectError("it holds an object of pygame")
        if isinstance(obj, gym.Env | gym.utils.EzPickle):
            # An EzPickle object is pickled as its constructor arguments: the copy would be in its initial state
            raise TypeError(f"it refers to {obj}, of which no true copy can be made")
        return NotImplemented


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _StatePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _copyable(name: str, state: WrapperState) -> WrapperState:
    """
    :param name: name of a wrapper's class
    :param state: its state, of which something cannot be copied
    :return: the state without attributes that hold render objects
    :raises StartNotSupportedError: if something else cannot be copied
    """
    error = _copy_error(state.own)
    if error is not None:
        raise StartNotSupportedError(
            f"What {name}.get_state() returns cannot be copied ({error}). It has to be an object that can be pickled and does "
            "not refer to an environment."
        ) from error
    errors = {attribute: _copy_error(value) for attribute, value in state.attributes.items()}
    for attribute, error in errors.items():
        if error is not None and not isinstance(error, _RenderObjectError):
            raise StartNotSupportedError(
                f"The attribute {attribute!r} of {name} cannot be copied ({error}). Give this class the methods "
                "get_state(self) and set_state(self, state) to capture it, or begin from SeedStart."
            ) from error
    return state._replace(attributes={key: value for key, value in state.attributes.items() if errors[key] is None})


def _copy_error(value: Any) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:
        return error
    return None
