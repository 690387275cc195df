"""Environments whose starts are not what they seem, and one that is right."""

import random
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces


class WindyWalk(gym.Env):
    """A walk with wind towards a goal, both drawn at each reset. All of it is captured and restored."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)
    names: tuple[str, ...] = ("x", "wind", "goal", "t")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = 0.0, 0
        self.wind = int(self.np_random.integers(-5, 6))
        self.goal = int(self.np_random.integers(-50, 50))
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.x], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += 2 * int(action) - 1 + self.wind
        self.t += 1
        return self.observe(), -abs(self.x - self.goal) / 10, False, self.t == 30, {}

    def get_state(self) -> Any:
        return {name: getattr(self, name) for name in self.names}

    def set_state(self, state: Any) -> None:
        vars(self).update(state)


class ForgottenField(WindyWalk):
    """``set_state`` leaves the wind as it is."""

    def set_state(self, state: Any) -> None:
        vars(self).update({**state, "wind": self.wind})


class RandomPosition(WindyWalk):
    """``set_state`` goes anywhere."""

    def set_state(self, state: Any) -> None:
        vars(self).update({**state, "x": float(random.randint(-100, 100))})


class PassedOver(WindyWalk):
    """``set_state`` does nothing."""

    def set_state(self, state: Any) -> None:
        pass


class ForgottenGoal(WindyWalk):
    """Neither of the two methods knows of the goal, on which only rewards depend."""

    names = ("x", "wind", "t")


class OwnStrength(WindyWalk):
    """Each copy is a little different from the others, from the beginning."""

    def __init__(self) -> None:
        self.strength = random.random()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += self.strength
        return super().step(action)


class Ticking(WindyWalk):
    """Each ``period``-th step brings a bonus, and only ``reset`` sets the counter of the steps, or nothing does."""

    period, is_reset = 2, True
    n_ticks = 0

    def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        if self.is_reset:
            self.n_ticks = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_ticks += 1
        observation, reward, *rest = super().step(action)
        return observation, reward + (self.n_ticks % self.period == 0), *rest  # type: ignore[return-value]


class LeftOver(WindyWalk):
    """``reset`` leaves something of the episode before."""

    heat = 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.heat += 1
        observation, reward, *rest = super().step(action)
        return observation, reward - self.heat, *rest  # type: ignore[return-value]


class Weather:
    """Random generators of four kinds."""

    def __init__(self, seed: int):
        self.rng, self.old = np.random.default_rng(seed), np.random.RandomState(seed)
        self.plain, self.torch = random.Random(seed), th.Generator().manual_seed(seed)

    def draw(self) -> list[float]:
        return [self.rng.normal(), self.old.normal(), self.plain.random(), th.rand(1, generator=self.torch).item()]


class NestedGenerator(gym.Env):
    """Noise comes from an object that the environment holds, made anew at each reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.weather = self.make_weather(int(self.np_random.integers(2**31)))
        return np.zeros(4, np.float32), {}

    def make_weather(self, seed: int) -> Any:
        return Weather(seed)

    def draw(self) -> list[float]:
        return self.weather.draw()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        noise = np.array(self.draw(), np.float32)
        return noise, float(noise.sum()) + int(action), False, self.t == 20, {}

    def get_state(self) -> int:
        return self.t

    def set_state(self, state: int) -> None:
        self.t = state


class DeepGenerator(NestedGenerator):
    """The noise comes from an object in a list."""

    def make_weather(self, seed: int) -> list[Weather]:
        return [Weather(seed)]

    def draw(self) -> list[float]:
        return self.weather[0].draw()


class SuspendedGenerator(NestedGenerator):
    """The noise comes from a suspended function."""

    def make_weather(self, seed: int) -> Iterator[list[float]]:
        rng = np.random.default_rng(seed)
        while True:
            yield rng.normal(size=4).tolist()

    def draw(self) -> list[float]:
        return next(self.weather)


class GlobalGenerator(NestedGenerator):
    """The noise comes from NumPy's global generator."""

    def draw(self) -> list[float]:
        return np.random.normal(size=4).tolist()


class ClassGenerator(NestedGenerator):
    """All copies draw from the same generator."""

    rng = np.random.default_rng(0)

    def draw(self) -> list[float]:
        return self.rng.normal(size=4).tolist()


class SystemGenerator(NestedGenerator):
    """The noise comes from the system."""

    def make_weather(self, seed: int) -> random.SystemRandom:
        return random.SystemRandom()

    def draw(self) -> list[float]:
        return [self.weather.random()] * 4


class SampledNoise(NestedGenerator):
    """The noise is sampled from a space that belongs to the class."""

    def draw(self) -> list[float]:
        return [float(self.action_space.sample())] * 4


class RandomActions(gym.ActionWrapper):
    """Some actions are sampled from a space that belongs to a wrapper."""

    def __init__(self) -> None:
        super().__init__(gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(-1), np.float32(1)))

    def action(self, action: Any) -> Any:
        return action if self.np_random.random() < 0.5 else self.action_space.sample()


# Their noise comes from where no generator is restored
UNSEEN = [DeepGenerator, SuspendedGenerator, GlobalGenerator, ClassGenerator]
BROKEN = [ForgottenField, RandomPosition, PassedOver, ForgottenGoal]
