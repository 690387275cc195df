"""Starts groups at the frontier of the visited states, and on the way to states where the members' outcomes differ."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.groups.group import Episode, Group, live_groups, metrics
from sb3_grpo.groups.samplers import RandomSeeds, StartSampler, StatesOrOther, VisitedState
from sb3_grpo.starts.starts import SnapshotStart, Start

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

# When the archive is full, the most visited half is dropped
N_CELLS = 10_000
# Integer observations are used as cells directly, unless they have more elements than this
MAX_WHOLE_NUMBERS = 1024
# Other observations are projected onto this many dimensions, with up to N_BINS bins each and about N_BINNED_CELLS cells in all
N_DIMENSIONS = 10
N_BINS = 12
N_BINNED_CELLS = 1500


@dataclass(eq=False)
class Cell:
    """
    A group of similar observations.

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
    """The cells reached so far, each with the state that took the fewest steps to reach."""

    def __init__(self) -> None:
        self.cells: dict[bytes, Cell] = {}
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None

    def keys(self, observations: Any) -> list[bytes]:
        """
        :param observations: (n, \\*obs_shape) or a dict of such arrays
        :return: The keys of their cells, valid until a value outside the range seen so far is observed
        """
        rows = _rows(observations)
        if rows.dtype == np.int64 and rows.shape[1] <= MAX_WHOLE_NUMBERS:
            return [row.tobytes() for row in rows]
        if rows.shape[1] > N_DIMENSIONS:
            rows = rows @ np.random.default_rng(0).standard_normal((rows.shape[1], N_DIMENSIONS))
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
        """Recompute the cells of all states for the current range."""
        cells, self.cells = [*self.cells.values()], {}
        if not cells:
            return
        for key, cell in zip(self.keys(_stack([cell.state.observation for cell in cells])), cells, strict=True):
            other = self.cells.setdefault(key, cell)
            if other is not cell:
                self.reach(key, cell.n_steps, cell.parent, cell.state)
                other.n_visits += cell.n_visits
                other.is_live |= cell.is_live

    def is_new(self, key: bytes, n_steps: int) -> bool:
        """
        :param key: Key of a cell
        :param n_steps: Number of steps in which it was reached
        :return: Whether the cell is new, or was never reached in so few steps
        """
        return key not in self.cells or n_steps < self.cells[key].n_steps

    def reach(self, key: bytes, n_steps: int, parent: Cell | None, state: SnapshotStart | None) -> Cell:
        """
        Add a cell to the archive, or update it if it was reached in fewer steps than before.

        :param key: Key of the cell
        :param n_steps: Number of steps in which it was reached
        :param parent: The cell visited before it
        :param state: The state that was reached, required if ``is_new``
        :return: The cell
        """
        cell = self.cells.get(key)
        if cell is None:
            assert state is not None
            if len(self.cells) >= N_CELLS:
                self._forget_half()
            cell = self.cells[key] = Cell(state, n_steps, parent)
        elif n_steps < cell.n_steps:
            assert state is not None
            cell.state, cell.n_steps = state, n_steps
            if parent is not cell:
                cell.parent = parent
        return cell

    def _forget_half(self) -> None:
        """Drop the most visited half of the cells, and link their children to the closest remaining ancestor."""
        cells = sorted(self.cells.items(), key=lambda item: item[1].n_visits)
        self.cells = dict(cells[: N_CELLS // 2])
        kept = {id(cell) for cell in self.cells.values()}
        for _, cell in cells:
            while cell.parent is not None and id(cell.parent) not in kept:
                cell.parent = cell.parent.parent

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


@dataclass(frozen=True, eq=False)
class FrontierState(VisitedState):
    """A state from the archive."""


class FrontierStarts(StatesOrOther):
    """
    Start sampler for tasks with distant rewards, in environments whose state can be captured: "first return, then explore"
    (Go-Explore, https://arxiv.org/abs/2004.12919), followed by a curriculum from the states it found back to the beginning
    (https://arxiv.org/abs/1707.05300).

    An archive keeps one state per cell of the observation space. It grows with the states that the policy reaches, and with
    short runs of random actions, each repeated for a while, from rarely visited cells. These exploration steps count towards
    ``num_timesteps`` but are not learned from; callbacks that count calls, such as ``EvalCallback``, do not count them.
    Half of the groups start in the archive: in rarely visited cells and, once there are cells from which the members of a
    group end differently, also on the path to these. The more ordinary groups have a member that does better than the worst
    outcome so far, the fewer groups start in the archive. The archive is not saved with the model, and is cleared when
    ``learn`` begins with new episodes. Cannot be combined with ``vine_share`` or ``horizon``.

    :param other: Sampler of the ordinary starts, ``None`` for fresh seeds
    """

    def __init__(self, other: StartSampler | None = None):
        super().__init__(RandomSeeds() if other is None else other)
        self._forget()

    def _forget(self) -> None:
        self.archive = Archive()
        self._cells: list[Cell | None] = []  # current cell of each copy
        self._n_steps: list[int] = []  # of each copy, since the beginning of its episode
        self._worst = np.inf
        self._hope = 0.0  # running share of ordinary groups that beat the worst outcome

    def reset(self) -> None:
        super().reset()
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        # Cells are stored by index: chains of parents are as long as episodes, too deep for pickle's recursion
        cells, numbers = _all_cells([*self.archive.cells.values(), *self._cells])
        parents = [None if cell.parent is None else numbers[id(cell.parent)] for cell in cells]
        return {
            **super().state_dict(),
            "archive": {**vars(self.archive), "cells": {key: numbers[id(cell)] for key, cell in self.archive.cells.items()}},
            "_cells": [None if cell is None else numbers[id(cell)] for cell in self._cells],
            "all_cells": [replace(cell, parent=None) for cell in cells],
            "parents": parents,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cells, parents = state["all_cells"], state["parents"]
        for cell, parent in zip(cells, parents, strict=True):
            cell.parent = None if parent is None else cells[parent]
        archive = Archive()
        vars(archive).update(state["archive"])
        archive.cells = {key: cells[number] for key, number in state["archive"]["cells"].items()}
        of_copies = [None if number is None else cells[number] for number in state["_cells"]]
        others = {name: value for name, value in state.items() if name not in ("all_cells", "parents")}
        super().load_state_dict({**others, "archive": archive, "_cells": of_copies})

    def __getstate__(self) -> dict[str, Any]:
        return {"other": self.other}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.other = state["other"]
        self._forget()

    def __call__(self, rng: np.random.Generator) -> Start:
        if not self.archive.cells or rng.random() >= SHARE * (1.0 - self._hope):
            return self.other(rng)
        cell = self.archive.cell_behind(rng) if rng.random() < SHARE_BEHIND else None
        return FrontierState(**vars((cell or self.archive.rare_cell(rng)).state))

    def after_step(self, env: VecEnv, observations: Any, dones: np.ndarray, rng: np.random.Generator) -> int:
        n_steps = super().after_step(env, observations, dones, rng) or 0
        self._visit(env, observations, dones)
        for _ in range(rng.poisson(env.num_envs * SCOUT_SHARE / SCOUT_STEPS * (1.0 - self._hope))):
            n_steps += self._scout(env, rng)
        return n_steps

    def _visit(self, env: VecEnv, observations: Any, dones: np.ndarray) -> None:
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
            n_steps, state = self._n_steps[idx], None
            if self.archive.is_new(key, n_steps):
                (state,) = env.env_method("capture_start", indices=idx)
            cell = self.archive.reach(key, n_steps, before, state)
            cell.n_visits += cell is not before
            self._cells[idx] = cell

    def _scout(self, env: VecEnv, rng: np.random.Generator) -> int:
        """
        Explore from a rarely visited cell with random actions.

        :param env: The training environment
        :param rng: Random generator
        :return: Number of steps taken
        """
        cell = self.archive.rare_cell(rng)
        cell.n_visits += 1
        space = copy.deepcopy(env.action_space)
        space.seed(int(rng.integers(2**31)))
        actions: list[Any] = []
        while len(actions) < SCOUT_STEPS:
            actions += [space.sample()] * min(int(rng.zipf(ZETA)), SCOUT_STEPS - len(actions))
        idx, noise_seed = int(rng.integers(env.num_envs)), int(rng.integers(2**31))
        states: list[SnapshotStart]
        (states,) = env.env_method("scout", cell.state, actions, noise_seed, indices=idx)
        if states:
            keys = self.archive.keys(_stack([state.observation for state in states]))
            for n_steps, key, state in zip(count(cell.n_steps + 1), keys, states, strict=False):
                before, cell = cell, self.archive.reach(key, n_steps, cell, state)
                cell.n_visits += cell is not before
        return min(len(states) + 1, SCOUT_STEPS)

    def after_episode(self, group: Group, episode: Episode, info: dict[str, Any]) -> None:
        super().after_episode(group, episode, info)
        if not group.complete:
            return
        if isinstance(group.start, FrontierState):
            (key,) = self.archive.keys(_stack([group.start.observation]))
            if key in self.archive.cells:
                self.archive.cells[key].is_live = bool(live_groups(metrics([group]))[0])
        else:
            results = [member.outcome for member in group.episodes]
            self._worst = min(self._worst, *results)
            self._hope += PACE * ((max(results) > self._worst) - self._hope)


def _all_cells(cells: Sequence[Cell | None]) -> tuple[list[Cell], dict[int, int]]:
    """
    :param cells: Some cells
    :return: These cells and all their ancestors, without duplicates; and the index of each, by its ``id``
    """
    found: list[Cell] = []
    numbers: dict[int, int] = {}
    for each in cells:
        cell = each
        while cell is not None and id(cell) not in numbers:
            numbers[id(cell)] = len(found)
            found.append(cell)
            cell = cell.parent
    return found, numbers


def _stack(observations: Sequence[Any]) -> Any:
    """
    :param observations: Observations of single environments
    :return: The same observations, batched
    """
    if isinstance(observations[0], dict):
        return {key: np.stack([observation[key] for observation in observations]) for key in observations[0]}
    return np.stack(observations)


def _rows(observations: Any) -> np.ndarray:
    """
    :param observations: (n, \\*obs_shape) or a dict of such arrays
    :return: (n, d) flattened observations, int64 for integers and float64 otherwise. Dicts are sorted by key, as neither the
        order of keys nor the precision is the same in an environment and in a vectorized one
    """
    parts = [part for _, part in sorted(observations.items())] if isinstance(observations, dict) else [observations]
    rows = np.concatenate([np.asarray(part).reshape(len(part), -1) for part in parts], axis=1)
    return rows.astype(np.int64 if np.issubdtype(rows.dtype, np.integer) else np.float64)
