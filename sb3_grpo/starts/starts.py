"""What an episode can begin from: a seed, or an exact state of an environment."""

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

# For messages about starts that are not exact
HOW_TO_DRAW = (
    "Draw random numbers from self.np_random, or from a generator that is an attribute of the environment or of an object in "
    "its attributes: generators elsewhere are not restored."
)
SEE_CHECK_STARTS = " sb3_grpo.check_starts(...) shows what is exact."


class StartNotSupportedError(TypeError):
    """The environment (or one of its wrappers) does not support capturing or restoring this kind of start."""


class StartMismatchError(ValueError):
    """The start belongs to a different kind of environment, or to a different wrapper stack."""


class UnequalStartError(ValueError):
    """Two episodes from the same start do not begin or continue in the same way."""


@dataclass(frozen=True)
class SeedStart:
    """
    The state after ``reset(seed=seed, options=options)`` in a fresh environment.

    :param seed: seed passed to ``reset``
    :param options: options passed to ``reset``
    :raises ValueError: if the seed is invalid
    """

    seed: int
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral) or self.seed < 0:
            raise ValueError(f"The seed of a SeedStart must be a whole number that is not negative, got {self.seed!r}.")
        # Gymnasium does not accept NumPy integers
        object.__setattr__(self, "seed", int(self.seed))


@dataclass(frozen=True, eq=False)
class OrdinaryReset:
    """
    Everything an ordinary ``reset`` depended on, so that its episode can be replayed.

    :param seed: seed that was passed to ``reset``
    :param options: options that were passed to ``reset``
    :param wrappers: the pickled states of the wrappers and the base environment before the reset, with random generators
    """

    seed: int | None
    options: dict[str, Any] | None
    wrappers: bytes = field(repr=False)


class ReplayPiece(NamedTuple):
    """
    A piece of an episode and its actions.

    :param noise_seed: noise seed at the beginning of the piece, see ``begin``
    :param actions: the actions of the piece
    """

    noise_seed: int | None
    actions: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Replay:
    """
    A state reached by sequences of actions, for simulators whose state cannot be copied.

    :param origin: start of the first piece
    :param pieces: the pieces in order
    """

    origin: "SeedStart | SnapshotStart | OrdinaryReset"
    pieces: tuple[ReplayPiece, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class SnapshotStart:
    """
    The exact state of an environment with all its wrappers, captured at any point of an episode.

    Objects of this class are returned by ``capture`` (or ``StartQueue.capture_start``) and can be pickled.
    They are independent of the environment they come from, which may continue, be reset or be closed.

    :param observation: the observation in this state, as returned by the outermost captured wrapper
    :param identity: description of every wrapper, the outermost first, and the base environment; a snapshot is only
        restored into an environment with the same description
    :param wrappers: the pickled states of the wrappers and the base environment: attributes, results of ``get_state``
    :param simulator: the state of the simulator or emulator, which is not in Python attributes, or None
    :param replay: how to reach the state of a simulator that cannot be copied, or None
    :param elapsed: steps counted by the episode's time limit, 0 without a limit
    """

    observation: Any = field(repr=False)
    identity: tuple[str, ...]
    wrappers: bytes = field(repr=False)
    simulator: Any = field(default=None, repr=False)
    replay: Replay | None = field(default=None, repr=False)
    elapsed: int = 0


@dataclass(frozen=True, eq=False)
class NextLife(SnapshotStart):
    """The beginning of a life of a game whose lives are episodes, after the first one."""


Start: TypeAlias = SeedStart | SnapshotStart
