from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from broken_envs import (
    BROKEN,
    UNSEEN,
    ClassGenerator,
    GlobalGenerator,
    LeftOver,
    NestedGenerator,
    PassedOver,
    RandomActions,
    SampledNoise,
    SystemGenerator,
    WindyWalk,
)
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import ToyEnv, UnseededEnv
from whole_envs import ALL, STICKY_PONG, make

from sb3_grpo import DAPO, GRPO, SeedStart, VisitedStates, check_starts, make_group_env
from sb3_grpo.starts.check_starts import StartCheck
from sb3_grpo.starts.known_envs import base_state

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ALL)
def test_starts_are_exact(name: str) -> None:
    n_starts, n_steps = {"CarRacing-v3": (1, 10), "BipedalWalker-v3": (4, 60)}.get(name, (2, 60))
    report = check_starts(lambda: make(name), n_starts, n_steps, verbose=0)
    assert report.is_exact(), str(report)
    captured = next(check for check in report.checks if check.what == "as the captured episode went on")
    # With sticky actions the last one before the snapshot is unknown, and taken to be NOOP
    assert captured.exact or name == STICKY_PONG


@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_sticky_actions_are_in_no_state_of_a_game(probability: float) -> None:
    pytest.importorskip("ale_py")
    env = gym.make("ALE/Pong-v5", repeat_action_probability=probability).unwrapped
    reason = base_state(env).not_captured(env)
    assert (reason is None) == (probability == 0.0), reason


def test_starts_of_minigrid_are_exact() -> None:
    pytest.importorskip("minigrid")
    report = check_starts(lambda: gym.make("MiniGrid-DoorKey-8x8-v0"), 2, 60, verbose=0)
    assert report.is_exact(), str(report)


def inexact(env: Callable[[], gym.Env]) -> dict[str, list[StartCheck]]:
    report = check_starts(env, verbose=0)
    return {
        starts: [check for check in report.checks if check.starts == starts and check.needed and not check.exact]
        for starts in ("seeds", "snapshots")
    }


@pytest.mark.parametrize("env", BROKEN)
def test_broken_set_state_is_found(env: type[gym.Env]) -> None:
    found = inexact(env)
    assert not found["seeds"] and found["snapshots"]


@pytest.mark.parametrize("env", [WindyWalk, NestedGenerator, SampledNoise, RandomActions])
def test_environments_that_are_right(env: type[gym.Env]) -> None:
    assert inexact(env) == {"seeds": [], "snapshots": []}


@pytest.mark.parametrize("env", UNSEEN)
def test_generators_that_are_not_restored_are_noticed(env: type[gym.Env]) -> None:
    report = check_starts(env, verbose=0)
    # Those made by reset(seed=...) begin alike from seeds
    assert report.is_exact("seeds") == (env not in (GlobalGenerator, ClassGenerator))
    assert not report.is_exact("snapshots")
    (note,) = [check.note for check in report.checks if check.what == "the same copy, after other episodes"][-1:]
    assert note.startswith("it went on differently: after 1 equal action, observation[0] is ")
    assert "Draw random numbers from self.np_random, or from a generator that is an attribute" in " ".join(str(report).split())


def test_generators_that_nobody_can_seed() -> None:
    found = inexact(SystemGenerator)
    assert found["seeds"] and "env.unwrapped.weather (random.SystemRandom) cannot be seeded" in found["seeds"][0].note


class SeedsGlobal(GlobalGenerator):
    """``reset`` seeds NumPy's global generator, which is wrong only as soon as there are two copies."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        np.random.seed(seed)
        return super().reset(seed=seed)


def test_two_copies_that_draw_from_the_same_generator() -> None:
    assert [check.what for check in inexact(SeedsGlobal)["seeds"]] == ["two copies in turn, one in mid-episode"]


def test_what_episodes_leave_over() -> None:
    # It is forgotten in the copy itself, too
    assert [check.what for check in inexact(LeftOver)["seeds"]] == [
        "the same copy, after other episodes",
        "two copies in turn, one in mid-episode",
    ]


def test_seeds_that_determine_nothing() -> None:
    report = check_starts(UnseededEnv, verbose=0)
    assert not report.is_exact("seeds") and report.env == "UnseededEnv"
    assert report.checks[1].note.startswith("the first observation[0] is ")


class Game:
    """Of another library, such as PettingZoo."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class Seat(WindyWalk):
    """A game of another library as an environment, whose ``unwrapped`` is the game."""

    def __init__(self) -> None:
        self.game = Game()

    @property
    def unwrapped(self) -> Any:
        return self.game

    @property
    def spec(self) -> Any:  # type: ignore[override]
        raise RecursionError


def test_adapters_whose_unwrapped_is_no_environment() -> None:
    report = check_starts(Seat, 1, 5, verbose=0)
    assert report.is_exact() and report.env == "Seat"
    assert DAPO("MlpPolicy", make_group_env(Seat, 2), n_steps=16, start_sampler=VisitedStates(0.5)).learn(64)
    with pytest.raises(TypeError, match="cannot make another environment like"):
        check_starts(Seat())


class ZeroIsNone(WindyWalk):
    """Takes seed 0 for no seed, without which it has no generator of its own before the second reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed or None)


class FirstIsUnseeded(WindyWalk):
    """The first reset ignores its seed."""

    n_resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.n_resets += 1
        return super().reset(seed=None if self.n_resets == 1 else seed)


def test_seeds_that_are_taken_for_none() -> None:
    assert check_starts(ZeroIsNone, verbose=0).is_exact()
    note = inexact(FirstIsUnseeded)["seeds"][0].note
    assert "it went on differently" in note and note.endswith("(from seed 1)")


def test_states_that_cannot_be_captured() -> None:
    report = check_starts(ToyEnv, verbose=0)
    assert report.is_exact("seeds") and not report.is_exact("snapshots")
    (refused,) = [check for check in report.checks if check.starts == "snapshots"]
    assert "get_state(self)" in refused.note


class OneWay(gym.Wrapper):
    """Nobody knows how it was made."""


def test_environments_that_cannot_be_made_again() -> None:
    for env in (OneWay(gym.make("CartPole-v1")), WindyWalk(), DummyVecEnv([lambda: gym.make("CartPole-v1")]), 3):
        with pytest.raises(
            TypeError, match=r"cannot make another environment like .* give the id of the environment, or a fun"
        ):
            check_starts(env, verbose=0)  # type: ignore[arg-type]
    # From its specification another one can be made
    for env in (gym.make("CartPole-v1"), "CartPole-v1"):
        assert check_starts(env, verbose=0).is_exact()


def test_what_can_be_asked_for() -> None:
    report = check_starts("CartPole-v1", n_starts=1, n_steps=5, verbose=0)
    assert report.is_exact("seeds") and report.is_exact() and "needed)" in str(report)
    with pytest.raises(ValueError, match="Unknown starts 'snapshot', must be among seeds, snapshots"):
        report.is_exact("snapshot")
    report.checks.clear()
    assert not report.is_exact() and not report.is_exact("seeds")
    for name, value in (("n_starts", 0), ("n_steps", -1), ("n_steps", 2.5), ("n_starts", "3"), ("seed", -1)):
        with pytest.raises(ValueError, match=f"^{name} must be "):
            check_starts("CartPole-v1", **{name: value})  # type: ignore[arg-type]
    one = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="the same one twice"):
        check_starts(lambda: one)


def test_seeds_of_starts() -> None:
    assert type(SeedStart(np.int64(3)).seed) is int  # type: ignore[arg-type]
    for seed in (-3, 2.5, True, "1"):
        with pytest.raises(ValueError, match="seed of a SeedStart must be a whole number"):
            SeedStart(seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_sampler must be a function"):
        GRPO("MlpPolicy", "CartPole-v1", start_sampler=[SeedStart(1)])  # type: ignore[arg-type]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = check_starts(PassedOver)
    printed = capsys.readouterr().out
    assert printed.strip() == str(report).strip()
    assert "PassedOver" in printed and "env.unwrapped._np_random" in printed
    assert " yes " in printed and " no " in printed and "once it is restored" in printed
