"""The tasks. They need ``pip install popgym pettingzoo`` and ``pip install --no-deps JSSEnv``, and what these import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

MASKS, MEMORY, BOTH = "masks", "memory", "both"


class WithoutVelocities(gym.ObservationWrapper):
    """
    Hides parts of the observations.

    :param env: Environment
    :param shown: The parts that are shown
    """

    def __init__(self, env: gym.Env, shown: list[int]):
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.shown = shown
        self.observation_space = gym.spaces.Box(space.low[shown], space.high[shown])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.shown]


class TMaze(gym.Env):
    """
    A corridor with a door on either side of its end. The cue at its beginning says which of them is right.

    :param length: Length of the corridor
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = gym.spaces.Discrete(4)  # forward, back, the left door, the right door

    def __init__(self, length: int = 10):
        self.length = length

    def _observation(self) -> np.ndarray:
        # The cue, whether the end is reached, and a number that means nothing
        cue = float(self.cue) if self.n_steps == 0 else 0.0
        return np.array([cue, self.place == self.length, self.np_random.uniform(-1.0, 1.0)], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.place, self.n_steps = int(self.np_random.choice([-1, 1])), 0, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        at_a_door = self.place == self.length and action >= 2
        if action < 2:
            self.place = int(np.clip(self.place + (1 if action == 0 else -1), 0, self.length))
        reward = float(np.sign(action - 2.5) == self.cue) if at_a_door else -0.01
        return self._observation(), reward, at_a_door, self.n_steps >= 5 * self.length, {}


class ConnectFour(gym.Env):
    """Connect four of PettingZoo against an opponent that moves at random. Who begins is random."""

    observation_space = gym.spaces.Box(0.0, 1.0, (84,))
    action_space = gym.spaces.Discrete(7)

    def __init__(self) -> None:
        from pettingzoo.classic import connect_four_v3

        self.game = connect_four_v3.raw_env()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.reset()
        self.player = self.game.possible_agents[int(self.np_random.integers(2))]
        self._opponent_moves()
        return self._observation(), {}

    def _opponent_moves(self) -> None:
        while self.game.agent_selection != self.player and not any(self.game.terminations.values()):
            self.game.step(int(self.np_random.choice(np.flatnonzero(self.action_masks()))))

    def _observation(self) -> np.ndarray:
        return self.game.observe(self.player)["observation"].ravel().astype(np.float32)

    def action_masks(self) -> np.ndarray:
        return np.array(self.game.board[:7]) == 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.game.step(int(action))
        self._opponent_moves()
        over = any(self.game.terminations.values())
        return self._observation(), float(self.game.rewards[self.player]) if over else 0.0, over, False, {}


class JobShop(gym.Wrapper):
    """Which job's next operation begins, in Taillard's first instance, 15 jobs on 15 machines, of JSSEnv."""

    def __init__(self) -> None:
        import JSSEnv
        from JSSEnv.envs import JssEnv

        instance = Path(JSSEnv.__file__).parent / "envs" / "instances" / "ta01"
        super().__init__(JssEnv({"instance_path": str(instance)}))
        self.observation_space = gym.spaces.Box(0.0, 1.0, (15 * 7,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        # It draws nothing, and takes no seed
        return self._observation(self.env.reset()), {}

    def _observation(self, observation: Any) -> np.ndarray:
        return observation["real_obs"].ravel().astype(np.float32)

    def action_masks(self) -> np.ndarray:
        return np.array(self.unwrapped.legal_actions, dtype=bool)  # type: ignore[attr-defined]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(int(action))
        return self._observation(observation), float(reward), terminated, truncated, {}


class Pairs(gym.Env):
    """
    Cards face down, two of each kind. Two are turned over at a time; if they match, they are taken away. Cards that are away
    or turned over cannot be turned over: the mask says so, and without it a step is lost.

    :param n_kinds: Number of kinds
    """

    def __init__(self, n_kinds: int = 4):
        self.n_kinds = n_kinds
        self.action_space = gym.spaces.Discrete(2 * n_kinds)
        # For each place: the kind if it can be seen, and whether the card is away
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2 * n_kinds * (n_kinds + 1),))

    def _observation(self) -> np.ndarray:
        seen = np.zeros((2 * self.n_kinds, self.n_kinds + 1), np.float32)
        for place in self.shown:
            seen[place, self.cards[place]] = 1.0
        seen[self.away, -1] = 1.0
        return seen.ravel()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cards = self.np_random.permutation(np.repeat(np.arange(self.n_kinds), 2))
        self.away = np.zeros(2 * self.n_kinds, bool)
        # Those that can be seen; the first one of a pair is turned over
        self.shown: list[int] = []
        self.first: int | None = None
        self.n_steps = 0
        return self._observation(), {}

    def action_masks(self) -> np.ndarray:
        allowed = ~self.away
        if self.first is not None:
            allowed[self.first] = False
        return allowed

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        if self.action_masks()[action]:
            if self.first is None:
                self.first, self.shown = int(action), [int(action)]
            else:
                self.shown = [self.first, int(action)]
                if self.cards[self.first] == self.cards[action]:
                    self.away[self.shown] = True
                self.first = None
        return self._observation(), -0.1, bool(self.away.all()), self.n_steps >= 100, {}


def _invalid_actions(kind: str, *args: Any) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        from sb3_contrib.common import envs

        return getattr(envs, f"InvalidActionEnv{kind}")(*args)

    return make


def _repeat_first() -> gym.Env:
    from popgym.envs.repeat_first import RepeatFirstEasy

    return RepeatFirstEasy()


def _minigrid() -> gym.Env:
    import minigrid  # noqa: F401  registers it
    from minigrid.wrappers import ImgObsWrapper

    return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make("MiniGrid-MemoryS7-v0")))


class Task(NamedTuple):
    """
    A task.

    :param needs: Masks, memory, or both
    :param timesteps: Budget
    :param make: Makes the environment
    """

    needs: str
    timesteps: int
    make: Callable[[], gym.Env]


# For each action that is allowed, InvalidActionEnvDiscrete has five that are not
TASKS = {
    "InvalidActionEnvDiscrete": Task(MASKS, 10_000, _invalid_actions("Discrete", 60, 50)),
    "InvalidActionEnvMultiDiscrete": Task(MASKS, 100_000, _invalid_actions("MultiDiscrete", [10, 10], 12)),
    "InvalidActionEnvMultiBinary": Task(MASKS, 100_000, _invalid_actions("MultiBinary", 6, 3)),
    "connect four": Task(MASKS, 100_000, ConnectFour),
    "job shop": Task(MASKS, 50_000, JobShop),
    "CartPole": Task(MEMORY, 50_000, lambda: WithoutVelocities(gym.make("CartPole-v1"), [0, 2])),
    "T-maze": Task(MEMORY, 50_000, TMaze),
    "RepeatFirst": Task(MEMORY, 50_000, _repeat_first),
    "LunarLander": Task(MEMORY, 60_000, lambda: WithoutVelocities(gym.make("LunarLander-v3"), [0, 1, 4, 6, 7])),
    "MiniGrid-MemoryS7": Task(MEMORY, 100_000, _minigrid),
    "pairs": Task(BOTH, 60_000, Pairs),
}
