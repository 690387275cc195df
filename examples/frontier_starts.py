"""
A start sampler for tasks whose reward is too far away for random actions: "first return, then explore" (Go-Explore,
https://arxiv.org/abs/2004.12919), and a curriculum from the states it finds back to the beginning
(https://arxiv.org/abs/1707.05300).

``python examples/frontier_starts.py`` trains on MountainCar, with ordinary starts and with :class:`FrontierStarts`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo import DAPO, SeedStart, SnapshotStart, StartSampler, make_group_env

# Share of the groups that start in the archive while ordinary starts show no progress, and share of these that start on the
# way to a live cell
SHARE = 0.5
SHARE_BEHIND = 0.5
# Scouting steps (random actions) per step of the policy, and their number per scouting run. A swing of MountainCar takes 40
SCOUT_SHARE = 0.25
SCOUT_STEPS = 32
# Random actions are repeated for a duration drawn from a zeta distribution, which is scale-free (arXiv:2006.01782). With a new
# action at each step, reaching the goal of MountainCar takes 100 times as long
ZETA = 1.5
# Weight of the latest group in the running average over ordinary groups
PACE = 0.05

# Observations that are not integers have up to N_BINS bins per dimension and about N_BINNED_CELLS cells in all
N_BINS = 12
N_BINNED_CELLS = 1500


@dataclass(eq=False)
class Cell:
    """
    A set of similar observations.

    :param state: The state in this cell that took the fewest steps to reach, as far as is known
    :param n_steps: Number of steps from the beginning of an episode to ``state``
    :param parent: The cell visited before this one, ``None`` if the episode began here
    :param n_visits: Number of times the cell was entered or scouted from
    :param is_live: Whether the last group that started in this cell was live (its members ended differently)
    """

    state: SnapshotStart
    n_steps: int
    parent: "Cell | None"
    n_visits: int = 0
    is_live: bool = False


class Archive:
    """The cells reached so far."""

    def __init__(self) -> None:
        self.cells: dict[bytes, Cell] = {}
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None

    def keys(self, observations: np.ndarray) -> list[bytes]:
        """
        :param observations: (n, \\*obs_shape)
        :return: The keys of their cells, valid until a value outside the range seen so far is observed
        """
        rows = observations.reshape(len(observations), -1)
        if np.issubdtype(rows.dtype, np.integer):
            return [row.tobytes() for row in rows.astype(np.int64)]
        rows = rows.astype(np.float32)  # an environment may return more digits than a vectorized one
        low, high = rows.min(0), rows.max(0)
        if self._low is None or self._high is None:
            self._low, self._high = low, high
        elif (low < self._low).any() or (high > self._high).any():
            # With a margin, so that this rarely happens
            margin = 0.1 * (np.maximum(high, self._high) - np.minimum(low, self._low))
            self._low = np.where(low < self._low, low - margin, self._low)
            self._high = np.where(high > self._high, high + margin, self._high)
            self._sort_anew()
        n_bins = max(2, min(N_BINS, round(N_BINNED_CELLS ** (1 / rows.shape[1]))))
        places = (rows - self._low) / np.maximum(self._high - self._low, 1e-12)
        return [row.tobytes() for row in (places * n_bins).clip(0, n_bins - 1).astype(np.int8)]

    def _sort_anew(self) -> None:
        """Recompute all keys for the current range. Of cells with the same key, the one reached first is kept."""
        cells, self.cells = sorted(self.cells.values(), key=lambda cell: cell.n_steps), {}
        for cell in cells:
            kept = self.cells.setdefault(self.key_of(cell.state), cell)
            if kept is not cell:
                kept.n_visits += cell.n_visits
                kept.is_live |= cell.is_live

    def key_of(self, state: SnapshotStart) -> bytes:
        """
        :param state: A state
        :return: The key of its cell
        """
        return self.keys(np.asarray(state.observation)[None])[0]

    def reach(self, key: bytes, n_steps: int, parent: Cell | None, capture: Callable[[], list[SnapshotStart]]) -> Cell:
        """
        Add a cell to the archive, or update it if it was never reached in so few steps.

        :param key: Key of the cell
        :param n_steps: Number of steps in which it was reached
        :param parent: The cell visited before it
        :param capture: Function that captures the state that was reached
        :return: The cell
        """
        cell = self.cells.get(key)
        if cell is None:
            (state,) = capture()
            cell = self.cells[key] = Cell(state, n_steps, parent)
        elif n_steps < cell.n_steps:
            (cell.state,) = capture()
            cell.n_steps = n_steps
            if parent is not cell:
                cell.parent = parent
        cell.n_visits += cell is not parent
        return cell

    def rare_cell(self, rng: np.random.Generator) -> Cell:
        """
        :param rng: Random generator
        :return: A cell, drawn with a probability inversely proportional to its number of visits
        """
        cells = [*self.cells.values()]
        weights = 1.0 / np.array([cell.n_visits for cell in cells])
        return cells[rng.choice(len(cells), p=weights / weights.sum())]

    def cell_behind(self, rng: np.random.Generator) -> Cell | None:
        """
        :param rng: Random generator
        :return: A cell on the path from the beginning of an episode to a live cell, ``None`` if no cell is live
        """
        live = [cell for cell in self.cells.values() if cell.is_live]
        if not live:
            return None
        way = [live[rng.integers(len(live))]]
        # Terminates, as parents were reached in fewer steps
        while (parent := way[-1].parent) is not None:
            way.append(parent)
        return way[rng.integers(len(way))]


class FrontierStarts(StartSampler):
    """
    An archive keeps one state per cell of the observation space. It grows with the states that the policy reaches, and with
    scouting: short runs of random actions, each repeated for a while, from rarely visited cells, in an environment of its own.
    The steps of scouts count towards ``num_timesteps`` but are not learned from; callbacks that count calls, such as
    ``EvalCallback``, do not count them.

    Half of the groups start in the archive: in rarely visited cells and, once there are cells from which the members of a
    group end differently, also on the path to these. The more ordinary groups have a member that does better than the worst
    outcome so far, the fewer groups start in the archive. Their episodes are part of ``rollout/ep_rew_mean``.

    The environment's state must be one that can be captured. Its observations are integers, which are used as cells directly,
    or an array of a few numbers, which is binned; images need another idea of a cell. The archive is not saved, neither with
    the model nor in a checkpoint: training continues with an empty one.

    :param env_id: The environment's id, class, or a function that makes it, as passed to ``make_group_env``
    :param kwargs: Other arguments of ``make_group_env`` that change the environment (``env_kwargs``, ``wrapper_class``, ...)
    """

    captures_states = True

    def __init__(self, env_id: str | Callable[..., gym.Env], **kwargs: Any):
        self._made_of: tuple[Any, dict[str, Any]] = (env_id, kwargs)
        self.scout_env = make_group_env(env_id, n_envs=1, **kwargs)
        if isinstance(self.scout_env.observation_space, gym.spaces.Dict):
            raise ValueError("FrontierStarts needs an array: wrap the environment in gymnasium.wrappers.FlattenObservation.")
        self.reset()

    def reset(self) -> None:
        self.archive = Archive()
        self._cells: list[Cell | None] = []  # current cell of each copy
        self._n_steps: list[int] = []  # of each copy, since the beginning of its episode
        self._worst = np.inf
        self._hope = 0.0  # running share of ordinary groups that beat the worst outcome

    # Saved as it was created
    def __reduce__(self) -> tuple[Any, ...]:
        env_id, kwargs = self._made_of
        return functools.partial(type(self), env_id, **kwargs), ()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def __call__(self, rng: np.random.Generator) -> SeedStart | SnapshotStart:
        if not self.archive.cells or rng.random() >= SHARE * (1.0 - self._hope):
            return SeedStart(int(rng.integers(2**31)))
        cell = self.archive.cell_behind(rng) if rng.random() < SHARE_BEHIND else None
        return (cell or self.archive.rare_cell(rng)).state

    def after_step(self, env: VecEnv, observations: Any, dones: np.ndarray, rng: np.random.Generator) -> int:
        self._visit(env, observations, dones)
        n_runs = rng.poisson(env.num_envs * SCOUT_SHARE / SCOUT_STEPS * (1.0 - self._hope))
        return sum(self._scout(rng) for _ in range(n_runs))

    def _visit(self, env: VecEnv, observations: np.ndarray, dones: np.ndarray) -> None:
        if not self._cells:
            self._cells, self._n_steps = [None] * env.num_envs, [0] * env.num_envs
        for idx, key in enumerate(self.archive.keys(observations)):
            before = self._cells[idx]
            if dones[idx]:
                # The next episode has begun. If its first cell is known, take the step count from there, which is about right
                before, known = None, self.archive.cells.get(key)
                self._n_steps[idx] = 0 if known is None else known.n_steps
            else:
                self._n_steps[idx] += 1
            capture = functools.partial(env.env_method, "capture_start", indices=idx)
            self._cells[idx] = self.archive.reach(key, self._n_steps[idx], before, capture)

    def _scout(self, rng: np.random.Generator) -> int:
        """
        Explore from a rarely visited cell with random actions.

        :param rng: Random generator
        :return: Number of steps taken
        """
        env, cell = self.scout_env, self.archive.rare_cell(rng)
        capture = functools.partial(env.env_method, "capture_start")
        first_step = cell.n_steps + 1
        cell.n_visits += 1
        env.action_space.seed(int(rng.integers(2**31)))
        # The next reset leads to this state. The number that identifies the episode is not used
        env.env_method("queue_start", 0, cell.state, noise_seed=int(rng.integers(2**31)))
        env.reset()
        n_repeats = 0
        for step in range(SCOUT_STEPS):
            if n_repeats == 0:
                action, n_repeats = env.action_space.sample(), int(rng.zipf(ZETA))
            n_repeats -= 1
            observations, _, dones, _ = env.step(np.array([action]))
            if dones[0]:
                return step + 1
            (key,) = self.archive.keys(np.asarray(observations))
            cell = self.archive.reach(key, first_step + step, cell, capture)
        return SCOUT_STEPS

    def after_episode(self, group: Any, episode: Any, info: dict[str, Any]) -> None:
        if not group.complete:
            return
        outcomes = [member.outcome for member in group.episodes]
        if isinstance(group.start, SeedStart):
            self._worst = min(self._worst, *outcomes)
            self._hope += PACE * ((max(outcomes) > self._worst) - self._hope)
        else:
            cell = self.archive.cells.get(self.archive.key_of(group.start))
            if cell is not None:
                cell.is_live = max(outcomes) > min(outcomes)


def main() -> None:
    env_id, seed = "MountainCar-v0", 100
    for name, sampler in {"ordinary starts": None, "FrontierStarts": FrontierStarts(env_id)}.items():
        model = DAPO(
            "MlpPolicy",
            make_group_env(env_id, n_envs=16, seed=seed),
            start_sampler=sampler,
            policy_kwargs={"normalize_observations": True},  # velocities are 0.07 at the most
            seed=seed,
            device="cpu",
        )
        model.learn(100_000, progress_bar=True)
        mean, std = evaluate_policy(model, make_group_env(env_id, n_envs=10, seed=1000), n_eval_episodes=50)
        print(f"{env_id}, {name}: return {mean:.0f} +/- {std:.0f}")


if __name__ == "__main__":
    main()
