"""
Tasks in which each start is another problem, or whose randomness no action changes: the seed of an episode decides both, so
members of a group that share their start share it, too.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map
from gymnasium.wrappers import TimeLimit

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Tour(gym.Env):
    """A tour of 20 cities, each seed another map: the next city is one of the five nearest that are left; minus the way."""

    n_cities, n_near = 20, 5
    observation_space = spaces.Box(-np.inf, np.inf, (3 * n_near + 5,), np.float32)
    action_space = spaces.Discrete(n_near)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.cities = self.np_random.random((self.n_cities, 2))
        self.left, self.at = [*range(1, self.n_cities)], 0
        return self.observe(), {}

    def distance(self, one: int, others: Any) -> Any:
        return np.hypot(*np.moveaxis(self.cities[others] - self.cities[one], -1, 0))

    def observe(self) -> np.ndarray:
        seen = np.zeros(3 * self.n_near + 5, np.float32)
        if not self.left:
            return seen
        ways = self.distance(self.at, self.left)
        self.near = [self.left[place] for place in np.argsort(ways)[: self.n_near]]
        for place, city in enumerate(self.near):
            # Lonely cities are expensive later
            others = np.sort(self.distance(city, self.left))
            loneliness = others[1] if len(others) > 1 else 0.0
            seen[3 * place : 3 * place + 3] = self.distance(self.at, city), loneliness, self.distance(0, city)
        rest = (self.cities[self.left] - self.cities[self.at]).mean(0)
        seen[-5:] = *rest, self.distance(self.at, 0), len(self.left) / self.n_cities, ways.mean()
        return seen

    def action_masks(self) -> np.ndarray:
        return np.arange(self.n_near) < len(self.left)

    def step(self, action: Any) -> Step:
        city = self.near[min(int(action), len(self.near) - 1)]
        way, self.at = float(self.distance(self.at, city)), city
        self.left.remove(city)
        if not self.left:
            way += float(self.distance(city, 0))
        return self.observe(), -way, not self.left, False, {}


class Reversal(gym.Env):
    """A row of bits, to be written backwards; the only reward is 1 at the end, if all are right (arXiv:2604.06159, 3.6)."""

    n_bits = 6
    observation_space = spaces.Box(-1.0, 1.0, (2 * n_bits,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.bits = self.np_random.choice([-1.0, 1.0], self.n_bits)
        self.written: list[float] = []
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        # 0: not written yet
        rest = [0.0] * (self.n_bits - len(self.written))
        return np.array([*self.bits, *self.written, *rest], np.float32)

    def step(self, action: Any) -> Step:
        self.written.append(2.0 * int(action) - 1.0)
        ended = len(self.written) == self.n_bits
        right = ended and self.written == self.bits[::-1].tolist()
        return self.observe(), float(right), ended, False, {}


class Lake(gym.Env):
    """FrozenLake on another map of four by four for each seed, which is seen as a whole; the ice is slippery."""

    def __init__(self) -> None:
        self.size = 4
        self.observation_space = spaces.Box(0.0, 1.0, (3 * self.size**2,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        chart = generate_random_map(self.size, p=0.8, seed=int(self.np_random.integers(2**31)))
        self.lake = FrozenLakeEnv(desc=chart, is_slippery=True)
        self.lake.reset(seed=int(self.np_random.integers(2**31)))
        self.chart = np.array([[field == "H" for field in row] for row in chart], np.float32).ravel()
        self.time = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        here = np.eye(self.size**2, dtype=np.float32)[self.lake.s]
        goal = np.eye(self.size**2, dtype=np.float32)[-1]
        return np.concatenate([self.chart, here, goal])

    def step(self, action: Any) -> Step:
        _, reward, terminated, _, _ = self.lake.step(int(action))
        self.time += 1
        return self.observe(), float(reward), terminated, self.time >= 50, {"is_success": reward > 0}


class Inventory(gym.Env):
    """Stock with a lead time of four. How much is demanded differs from episode to episode, and within them."""

    n_steps, lead = 100, 4
    observation_space = spaces.Box(-np.inf, np.inf, (lead + 2,), np.float32)
    action_space = spaces.Discrete(11)
    # Spread of the level of demand between episodes, and of its course within them
    between, within = 0.7, 0.3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        level, course = float(np.exp(self.np_random.normal(1.6, self.between))), 0.0
        self.demand = np.zeros(self.n_steps)
        for time in range(self.n_steps):
            course = 0.9 * course + self.np_random.normal(0.0, self.within)
            self.demand[time] = self.np_random.poisson(min(level * np.exp(course), 60.0))
        self.stock, self.on_the_way, self.time, self.last = 10.0, [5.0] * self.lead, 0, 5.0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.stock, *self.on_the_way, self.last], np.float32) / 10

    def step(self, action: Any) -> Step:
        self.stock += self.on_the_way.pop(0)
        self.on_the_way.append(2.0 * int(action))
        self.last = self.demand[self.time]
        sold = min(self.stock, self.last)
        self.stock -= sold
        self.time += 1
        return self.observe(), -(self.stock + 4.0 * (self.last - sold)) / 50, False, self.time == self.n_steps, {}


class CalmInventory(Inventory):
    """The same with a demand that hardly differs between episodes."""

    between, within = 0.05, 0.05


class LoadBalance(gym.Env):
    """200 jobs of very different sizes arrive at random; each is sent to one of six servers. Minus the time they wait."""

    n_servers, n_jobs = 6, 200
    rates = np.linspace(0.15, 1.05, n_servers)
    observation_space = spaces.Box(-np.inf, np.inf, (n_servers + 1,), np.float32)
    action_space = spaces.Discrete(n_servers)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.sizes = np.minimum(100 * (1 + self.np_random.pareto(1.5, self.n_jobs + 1)), 10_000)
        # A load of about 0.8, as the mean size is 300
        self.gaps = self.np_random.exponential(300 / (0.8 * self.rates.sum()), self.n_jobs)
        self.queues: list[list[float]] = [[] for _ in range(self.n_servers)]
        self.time = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        waiting = [sum(queue) for queue in self.queues]
        return np.log1p(np.array([*waiting, self.sizes[self.time]]) / 100).astype(np.float32)

    def step(self, action: Any) -> Step:
        self.queues[int(action)].append(self.sizes[self.time])
        cost = 0.0
        for queue, rate in zip(self.queues, self.rates, strict=True):
            left = self.gaps[self.time]
            while queue and left > 0:
                spent = min(queue[0] / rate, left)
                cost += spent * len(queue)
                left -= spent
                queue[0] -= spent * rate
                if queue[0] <= 1e-9:
                    queue.pop(0)
        self.time += 1
        return self.observe(), -cost / 5000, False, self.time == self.n_jobs, {}


class HiddenPendulum(gym.Env):
    """Pendulum whose mass, length and wind are drawn at each start and never shown."""

    def __init__(self) -> None:
        self.pendulum = PendulumEnv()
        self.observation_space, self.action_space = self.pendulum.observation_space, self.pendulum.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        rng = self.np_random
        self.pendulum.m, self.pendulum.l = float(rng.uniform(0.5, 1.6)), float(rng.uniform(0.6, 1.5))
        self.wind = np.cumsum(rng.normal(0.0, 0.25, 200))
        self.pendulum.state = np.array([rng.uniform(-np.pi, np.pi), rng.uniform(-1.0, 1.0)])
        self.pendulum.last_u, self.time = None, 0
        return self.pendulum._get_obs(), {}

    def step(self, action: Any) -> Step:
        assert self.pendulum.state is not None
        self.pendulum.state[1] += 0.05 * self.wind[self.time]
        observation, reward, *_ = self.pendulum.step(np.clip(action, -2.0, 2.0))
        self.time += 1
        return observation, float(reward) / 10, False, self.time == 200, {}


class Knapsack(gym.Env):
    """Thirty things pass one after the other, each seed others: take them or leave them, as long as they fit."""

    n_things, room = 30, 5.0
    observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        # How rich the things are differs from problem to problem
        self.values = self.np_random.random(self.n_things) * self.np_random.uniform(0.2, 1.8)
        self.weights = self.np_random.random(self.n_things)
        self.left, self.time, self.got = self.room, 0, 0.0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        if self.time == self.n_things:
            return np.zeros(6, np.float32)
        value, weight = self.values[self.time], self.weights[self.time]
        seen = self.values[: self.time].mean() if self.time else 0.5
        rest = 1 - self.time / self.n_things
        return np.array([value, weight, value / (weight + 0.1), self.left / self.room, rest, seen], np.float32)

    def action_masks(self) -> np.ndarray:
        return np.array([True, self.time < self.n_things and self.weights[self.time] <= self.left])

    def step(self, action: Any) -> Step:
        takes = int(action) == 1 and self.weights[self.time] <= self.left
        reward = float(self.values[self.time]) if takes else 0.0
        self.left -= self.weights[self.time] if takes else 0.0
        self.time += 1
        return self.observe(), reward, self.time == self.n_things, False, {}


def registered(env_id: str) -> Callable[[], gym.Env]:
    """
    :param env_id: Id of an environment of Gymnasium
    :return: Makes it
    """
    return lambda: gym.make(env_id)


# Name, what makes it, steps of a training
TASKS: dict[str, tuple[Callable[[], gym.Env], int]] = {
    "tour": (Tour, 80_000),
    "lake": (Lake, 80_000),
    "inventory": (Inventory, 80_000),
    "calm inventory": (CalmInventory, 80_000),
    "load balance": (LoadBalance, 80_000),
    "hidden pendulum": (HiddenPendulum, 120_000),
    "knapsack": (Knapsack, 80_000),
    "CartPole": (registered("CartPole-v1"), 40_000),
    "LunarLander": (registered("LunarLander-v3"), 120_000),
    "Acrobot": (registered("Acrobot-v1"), 80_000),
    "Pendulum": (registered("Pendulum-v1"), 80_000),
    "Reacher": (lambda: TimeLimit(gym.make("Reacher-v5"), 50), 120_000),
}
