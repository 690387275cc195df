"""
What is known about environments and their wrappers: which of their attributes are state, and how the rest of the state of a
base environment (below all wrappers) is captured, restored and reseeded.

Simulators keep their state outside of Python, each in its own way. Optional packages are recognised by
the names of an environment's base classes, so that none of them has to be installed.
"""

import copy
import functools
import re
import sys
import zlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor

from sb3_grpo.starts.starts import StartMismatchError, StartNotSupportedError
from sb3_grpo.utils.vec_envs import spec_of

# Attributes that connect or describe an environment and its wrappers
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
_RECORDS: dict[type[gym.Wrapper], frozenset[str]] = {
    Monitor: frozenset({"results_writer", "t_start", "total_steps", "episode_returns", "episode_lengths", "episode_times"}),
    RecordEpisodeStatistics: frozenset({"episode_count", "episode_start_time", "time_queue", "return_queue", "length_queue"}),
}

# Attributes in which Gymnasium's environments keep rendering objects
_RENDERING = frozenset({"screen", "surf", "clock", "isopen", "window", "window_surface"})

# Packages for which it is known what their environments and wrappers hold
_KNOWN_PACKAGES = ("gymnasium", "stable_baselines3", "ale_py", "sb3_grpo")


def wrapper_stack(env: gym.Env) -> list[gym.Env]:
    """
    :param env: an environment with its wrappers
    :return: each of them, the outermost wrapper first and the base environment last, which need not be ``env.unwrapped``: that
        of an adapter may be the game of another library
    """
    stack = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        stack.append(env)
    return stack


def env_name(env: gym.Env) -> str:
    """
    :param env: an environment with its wrappers
    :return: its id, or its class if it has none
    """
    base = wrapper_stack(env)[-1]
    spec = spec_of(base)
    return type(base).__qualname__ if spec is None else spec.id


def package_of(cls: type) -> str:
    """
    :param cls: a class
    :return: the package that it comes with
    """
    return cls.__module__.partition(".")[0]


def is_known(each: gym.Env) -> bool:
    """
    :param each: a wrapper or a base environment
    :return: whether it belongs to a package for which it is known what its environments and wrappers hold
    """
    return package_of(type(each)) in _KNOWN_PACKAGES


def records_of(wrapper: gym.Env) -> frozenset[str]:
    """
    :param wrapper: a wrapper
    :return: its attributes that belong to the copy of the environment rather than to the current episode
    """
    return next((names for cls, names in _RECORDS.items() if isinstance(wrapper, cls)), frozenset())


def only_renders(wrapper: gym.Env) -> bool:
    """
    :param wrapper: a wrapper
    :return: whether it has no part in what happens in an episode
    """
    return type(wrapper).__module__ == "gymnasium.wrappers.rendering"


class BaseState:
    """
    A base environment whose whole state is in its Python attributes (Gymnasium's classic control and toy text).

    Transition tables never change and can be large, so they are not copied.
    """

    only: frozenset[str] | None = None  # if set, the only attributes to copy
    skipped = _RENDERING | {"P", "initial_state_distrib", "desc"}
    replayed = False  # whether the state cannot be copied and is reached again by replaying the actions

    def capture(self, base: gym.Env) -> Any:
        """
        :param base: the base environment
        :return: the part of its state that is not in Python attributes
        """
        return None

    def not_captured(self, base: gym.Env) -> str | None:
        """
        :param base: the base environment
        :return: description of what the current episode depends on but ``capture`` leaves out; None if there is nothing
        """
        return None

    def restore(self, base: gym.Env, captured: Any) -> None:
        """
        :param base: the base environment
        :param captured: the result of ``capture``, in this or another process
        """

    def before_reset(self, base: gym.Env) -> None:
        """
        Remove everything from earlier episodes that would survive ``reset``.

        :param base: the base environment
        """

    def reseed(self, base: gym.Env, seed: int) -> None:
        """
        Reseed the generators that are not in Python attributes.

        :param base: the base environment
        :param seed: the new seed
        """


class UnknownState(BaseState):
    """A base environment that nothing is known about, which can only begin from seeds."""

    skipped = frozenset()

    def capture(self, base: gym.Env) -> Any:
        raise StartNotSupportedError(
            f"The state of {type(base).__module__}.{type(base).__qualname__} cannot be captured. Add the methods "
            "get_state(self) -> state and set_state(self, state) to it, where the state can be pickled and holds "
            "everything that later steps depend on, or begin episodes from seeds (SeedStart)."
        )


class MujocoState(BaseState):
    """
    Gymnasium's MuJoCo environments: a full copy of ``MjData``.

    MuJoCo's state vectors (``mj_getState``) leave out values that some environments read from ``MjData``,
    for example the contact forces in Ant and Humanoid.
    """

    skipped = frozenset({"model", "data", "mujoco_renderer"})

    def capture(self, base: Any) -> Any:
        if not hasattr(sys.modules["mujoco"], "mj_copyData"):
            raise StartNotSupportedError("Snapshots need MuJoCo 3.5 or later: pip install -U mujoco, or use SeedStart.")
        return copy.copy(base.data), _model_checksum(base.model)

    def restore(self, base: Any, captured: Any) -> None:
        data, checksum = captured
        if _model_checksum(base.model) != checksum:
            raise StartMismatchError(
                f"The MuJoCo model of this {type(base).__name__} is not the one that the snapshot was taken with "
                "(domain randomization?). Give the environment get_state() and set_state(state), or use SeedStart."
            )
        sys.modules["mujoco"].mj_copyData(base.data, base.model, data)


class AtariState(BaseState):
    """
    ALE: the emulator's own state with its random generators.

    Two things are missing from the states that the emulator returns. One is a flag of the graphics chip, without which some
    games (Qbert, Tetris, Yars' Revenge) continue differently: it is set by the first frame of a game. The other is the last
    action, which sticky actions repeat: it is NOOP after restoring. All episodes from one snapshot are exactly equal, but with
    sticky actions, the captured episode may have continued with another action.
    The screen is not part of the state either, and does not change until the next step.
    """

    skipped = frozenset({"ale", "_action_set"})

    def capture(self, base: Any) -> Any:
        return base.clone_state(include_rng=True)

    def not_captured(self, base: Any) -> str | None:
        if not _has_sticky_actions(base):
            return None
        return "The last action, which sticky actions repeat, is in no state of the emulator."

    def restore(self, base: Any, captured: Any) -> None:
        base.ale.reset_game()
        if captured.getEpisodeFrameNumber() > 0:
            base.ale.act(0)
        base.restore_state(captured)

    def reseed(self, base: Any, seed: int) -> None:
        if not _has_sticky_actions(base):
            return
        base.restore_state(_replace_emulator_rngs(base.clone_state(include_rng=True), seed))


class Box2dState(BaseState):
    """
    Box2D environments: the actions are replayed, because worlds cannot be copied.

    A world keeps internal state (such as the order of contacts) even when all of its bodies are destroyed and created
    again. BipedalWalker and CarRacing do this in ``reset``, so the same seed leads to another trajectory.
    """

    only = frozenset({"_np_random", "_np_random_seed"})
    replayed = True

    def before_reset(self, base: Any) -> None:
        base._destroy()
        base.world = type(base.world)(gravity=base.world.gravity)


_BY_MODULE: dict[str, BaseState] = {
    "gymnasium.envs.classic_control": BaseState(),
    "gymnasium.envs.toy_text": BaseState(),
    "gymnasium.envs.mujoco": MujocoState(),
    "gymnasium.envs.box2d": Box2dState(),
    "ale_py": AtariState(),
    "minigrid": BaseState(),
}


def has_own_state(each: gym.Env) -> bool:
    """
    :param each: a wrapper or a base environment
    :return: whether its state is captured and restored with its own ``get_state()`` and ``set_state(state)``
    """
    cls: type = type(each)
    has_both = callable(getattr(cls, "get_state", None)) and callable(getattr(cls, "set_state", None))
    # MujocoEnv.set_state(qpos, qvel) is a different method that does not set the whole state
    return has_both and not isinstance(_known_state(cls), MujocoState)


def base_state(base: gym.Env) -> BaseState:
    """
    :param base: a base environment
    :return: how to handle the part of its state that its own ``get_state`` and its attributes leave out
    """
    cls: type = type(base)
    return BaseState() if has_own_state(base) else _known_state(cls)


@functools.cache
def _known_state(cls: type) -> BaseState:
    for ancestor in cls.__mro__:
        parts = ancestor.__module__.split(".")
        for length in (1, 3):
            state = _BY_MODULE.get(".".join(parts[:length]))
            if state is not None:
                return state
    return UnknownState()


def _model_checksum(model: Any) -> int:
    mujoco = sys.modules["mujoco"]
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return zlib.crc32(buffer.data)


def _has_sticky_actions(base: Any) -> bool:
    return base.ale.getFloat("repeat_action_probability") > 0


# A Mersenne Twister as written by C++: 624 words. What follows the last one depends on the library.
_EMULATOR_RNG = re.compile(rb"(?:\d{1,10} ){623}")


def _replace_emulator_rngs(state: Any, seed: int) -> Any:
    """
    Put fresh random generators into a state of the emulator.

    There is no method for this, and seeding the emulator requires loading the ROM again. But the state contains its
    generators as text. Every number keeps its width, because the state also contains the lengths of its parts.

    :param state: a state cloned with its generators
    :param seed: seed of the new generators
    :return: a modified copy
    :raises StartNotSupportedError: if the format of the state is unknown
    """
    source = np.random.default_rng(np.random.SeedSequence(seed))

    def fresh(match: re.Match[bytes]) -> bytes:
        widths = [len(number) for number in match[0].split()]
        words = source.integers(2**32, size=len(widths)).tolist()
        return b"".join(b"%0*d " % (width, word % 10**width) for width, word in zip(widths, words, strict=True))

    content = state.__getstate__()
    content, found = _EMULATOR_RNG.subn(fresh, content) if isinstance(content, bytes) else (content, 0)
    if not found:
        raise StartNotSupportedError("No random generator was found in the state of this version of ale-py.")
    cls: Any = type(state)
    changed = cls.__new__(cls)
    changed.__setstate__(content)
    return changed
