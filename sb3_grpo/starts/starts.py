"""What an episode can begin from: a seed, or an exact state of an environment."""

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

# The end of messages about starts that are not exact
SEE_CHECK_STARTS = " sb3_grpo.check_starts(...) shows what is exact."


class StartNotSupportedError(TypeError):
    """The environment (or one of its wrappers) cannot be captured or put into this kind of start."""


class StartMismatchError(ValueError):
    """The start belongs to another kind of environment, or to another wrapper stack."""


class UnequalStartError(ValueError):
    """Two episodes that begin from one start do not begin alike, or do not go on alike."""


@dataclass(frozen=True)
class SeedStart:
    """
    The state that ``reset(seed=seed, options=options)`` leads to in an environment without a past.

    :param seed: seed given to ``reset``
    :param options: options given to ``reset``
    :raises ValueError: if the seed is impossible
    """

    seed: int
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral) or self.seed < 0:
            raise ValueError(f"The seed of a SeedStart must be a whole number that is not negative, got {self.seed!r}.")
        # Gymnasium does not take NumPy's
        object.__setattr__(self, "seed", int(self.seed))


@dataclass(frozen=True, eq=False)
class SnapshotStart:
    """
    The exact state of one environment with all its wrappers, taken at any point of an episode.

    Objects of this class come from ``capture`` (or ``StartQueue.capture_start``) and can be pickled.
    They are independent of the environment they come from: it may go on, be reset or be closed.

    :param observation: the observation in this state, as the outermost captured wrapper returned it
    :param identity: description of every layer, the outermost wrapper first; a snapshot is only
        restored into an environment with the same description
    :param layers: the pickled Python attributes of every layer
    :param native: the part of the state that does not live in Python attributes (simulator, emulator),
        None where there is none
    :param elapsed: steps that the episode's time limit has counted, 0 where there is no limit
    """

    observation: Any = field(repr=False)
    identity: tuple[str, ...]
    layers: bytes = field(repr=False)
    native: Any = field(default=None, repr=False)
    elapsed: int = 0


Start: TypeAlias = SeedStart | SnapshotStart


@dataclass(frozen=True, eq=False)
class OrdinaryReset:
    """
    What an ordinary ``reset`` depended on, so that the episode it began can be replayed.

    :param seed: seed that was given to ``reset``
    :param options: options that were given to ``reset``
    :param layers: the pickled attributes of every layer before the reset, random generators included
    """

    seed: int | None
    options: dict[str, Any] | None
    layers: bytes = field(repr=False)


class ReplayPiece(NamedTuple):
    """
    The actions of a piece of an episode.

    :param noise_seed: what the piece began with, see ``begin``
    :param actions: those taken in it
    """

    noise_seed: int | None
    actions: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Replay:
    """
    A state reached by sequences of actions, for simulators whose state cannot be copied.

    :param origin: what the first piece began from
    :param pieces: one after the other
    """

    origin: SeedStart | OrdinaryReset
    pieces: tuple[ReplayPiece, ...] = field(repr=False)
