import random
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from broken_envs import NestedGenerator, SystemGenerator
from toy_envs import same

from sb3_grpo.starts.differences import first_difference
from sb3_grpo.starts.seeding import find_rngs
from sb3_grpo.starts.snapshots import begin, capture, restore
from sb3_grpo.starts.starts import SeedStart, StartNotSupportedError


def roll(env: gym.Env, n_steps: int = 5) -> list[Any]:
    return [env.step(0)[0] for _ in range(n_steps)]


class Holder(NestedGenerator):
    """Draws from whatever it is given."""

    def __init__(self, make: Any):
        self.make = make

    def make_weather(self, seed: int) -> Any:
        return self.make(np.random.default_rng(seed))

    def draw(self) -> list[float]:
        rng = self.find(self.weather)
        return [float(rng() if callable(rng) else rng.random()) for _ in range(4)]


KINDS: dict[str, Any] = {
    "new": lambda seed: np.random.default_rng(seed),
    "old": lambda seed: np.random.RandomState(seed),
    "Python's": lambda seed: random.Random(seed),
    "PyTorch's": lambda seed: th.Generator().manual_seed(seed),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True])
def test_generators_in_attributes_are_found(kind: str, inside: bool) -> None:
    def make(rng: np.random.Generator) -> Any:
        made = KINDS[kind](int(rng.integers(9)))
        return SimpleNamespace(rng=made) if inside else made

    def draw(held: Any) -> Any:
        rng = held.rng if inside else held
        return (lambda: th.rand(1, generator=rng).item()) if kind == "PyTorch's" else rng.random

    Holder.find = staticmethod(draw)  # type: ignore[attr-defined]
    env = gym.wrappers.TimeLimit(Holder(make), 100)
    env.reset(seed=1)
    assert [*find_rngs(env)] == [(1, "_np_random"), (1, "weather.rng" if inside else "weather")]
    episodes = []
    for noise_seed in (1, 2, 1):
        begin(env, SeedStart(3), noise_seed)
        # The generator is made by reset(), and was not there before
        episodes.append(roll(env))
    assert same(episodes[0], episodes[2]) and not same(episodes[0], episodes[1])


def test_modules_classes_and_deeper_objects_are_left_alone() -> None:
    env: Any = NestedGenerator()
    env.random, env.cls, env.deep = random, type("C", (), {"rng": random.Random(1)}), [random.Random(2)]
    assert [*find_rngs(env)] == [(0, "_np_random")]


def test_each_of_them_has_numbers_of_its_own() -> None:
    env = NestedGenerator()
    draws = []
    for noise_seed in (1, 2, 1):
        begin(env, SeedStart(3), noise_seed)
        draws.append(np.array(roll(env)))
    assert np.array_equal(draws[0], draws[2]) and not np.any(draws[0] == draws[1])


def test_two_generators_of_an_environment_have_different_noise() -> None:
    env = Holder(lambda rng: SimpleNamespace(one=rng, two=np.random.default_rng(7)))
    env.find = lambda held: SimpleNamespace(random=lambda: held.one.random() - held.two.random())  # type: ignore[assignment]
    begin(env, SeedStart(3), 4)
    assert 0.0 not in np.array(roll(env))


def test_noise_does_not_depend_on_what_is_around_the_environment() -> None:
    episodes = []
    for env in (NestedGenerator(), gym.wrappers.OrderEnforcing(gym.wrappers.TimeLimit(NestedGenerator(), 50))):
        begin(env, SeedStart(3), 4)
        episodes.append(roll(env))
    assert same(*episodes)


class Alias(NestedGenerator):
    """Its helper draws from the environment's own generator."""

    def make_weather(self, seed: int) -> Any:
        return SimpleNamespace(rng=self.np_random)

    def draw(self) -> list[float]:
        return [self.weather.rng.random(), float(self.np_random.random()), 0.0, 0.0]


class ResettingState(NestedGenerator):
    """Its ``set_state`` begins with a reset."""

    def set_state(self, state: int) -> None:
        self.reset()
        self.t = state


@pytest.mark.parametrize("cls", [NestedGenerator, Alias, ResettingState])
def test_generators_belong_to_the_state(cls: type[gym.Env]) -> None:
    env, other = cls(), cls()
    env.reset(seed=1)
    roll(env, 3)
    snapshot = capture(env, np.zeros(4))
    expected = roll(env)
    other.reset(seed=2)
    for copy in (env, other, other):
        restore(copy, snapshot)
        assert same(roll(copy), expected)


def test_what_cannot_be_seeded_is_named() -> None:
    env = gym.wrappers.TimeLimit(SystemGenerator(), 5)
    env.reset(seed=0)
    expected = r"^SystemGenerator: the random generator env\.unwrapped\.weather \(random\.SystemRandom\) cannot be seeded"
    with pytest.raises(StartNotSupportedError, match=expected):
        begin(env, SeedStart(1), noise_seed=2)


class Fleeting:
    """Its state exists only while somebody asks for it."""

    def __init__(self, x: int):
        self.x = x

    def __reduce__(self) -> Any:
        return Fleeting, ([[self.x]],)


def test_differences_between_objects_that_exist_for_a_moment() -> None:
    one, other = ([Fleeting(x) for x in numbers] for numbers in ([0] * 50, [0] * 49 + [1]))
    assert first_difference(one, other, "it") is not None


class Point:
    def __init__(self, x: float):
        self.x, self.me = x, self


def test_differences() -> None:
    equal: list[Any] = [1, 2.5, float("nan"), "a", None, {1, 2}, np.array([1.0, np.nan]), {"a": [Point(1)]}, random.Random(1)]
    assert first_difference(equal, [*equal[:-2], {"a": [Point(1)]}, random.Random(1)], "it") is None
    for one, other, expected in [
        (1, 3.5, "it is 1 in one and 3.5 in the other (by 2.5)"),
        (True, False, "it is True in one and False in the other"),
        ([1, [2, 3]], [1, [2, 5]], "it[1][1] is 3 in one and 5 in the other (by 2)"),
        ([1], [1, 2], "it[1] is only there in the other"),
        ({"a": 1}, {"b": 1}, "it['a'] is only there in one"),
        (np.zeros((2, 2)), np.eye(2), "it[0, 0] is 0 in one and 1 in the other (by 1); 2 of 4 numbers differ"),
        (np.zeros(2), np.zeros(3), "the shape of it is (2,) in one and (3,) in the other"),
        (Point(1), Point(2), "it.x is 1 in one and 2 in the other (by 1)"),
        ("a", b"a", "it is 'a' in one and b'a' in the other"),
        (float("nan"), 1.0, "it is nan in one and 1 in the other"),
        (1.0, float("nan"), "it is 1 in one and nan in the other"),
    ]:
        assert first_difference(one, other, "it") == expected
    assert first_difference(np.array(1.0), 1.0, "it") is None, "the same number of another type"
    difference = first_difference(random.Random(1), random.Random(2), "it")
    assert difference is not None and difference.startswith("the state of it[1][")
