"""Groups that begin where the policy has been: the vine method."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.groups.queue import StartSampler
from sb3_grpo.starts.starts import SnapshotStart, Start

# States that are kept, the newest ones, and the share of all steps after which one is captured.
# A tenth of it was too little on Acrobot: docs/design.md
N_STATES = 64
CAPTURE_RATE = 0.05


@dataclass(frozen=True, eq=False)
class VisitedState(SnapshotStart):
    """A state that the policy has been in, unlike snapshots of the user's own."""


class VisitedStates:
    """
    A start sampler that takes some starts from the states that the policy has visited lately (the vine method of TRPO, section
    5.2, https://arxiv.org/abs/1502.05477): the members of such a group are branches of an episode that somebody has played.

    :param share: How many of the starts, as soon as there are states
    :param otherwise: Draws the others
    """

    def __init__(self, share: float, otherwise: StartSampler):
        self.share = share
        self.otherwise = otherwise
        self.states: deque[VisitedState] = deque(maxlen=N_STATES)

    def __call__(self, rng: np.random.Generator) -> Start:
        """
        :param rng: Generator to draw from
        :return: A start
        """
        if self.states and rng.random() < self.share:
            return self.states[rng.integers(len(self.states))]
        return self.otherwise(rng)

    def visit(self, env: VecEnv, dones: np.ndarray, rng: np.random.Generator) -> None:
        """
        Capture the states of a few copies, all alike likely, after a step of all of them.

        :param env: The training environment
        :param dones: (n_envs,) whose episode has just ended, and which are at the beginning of another one
        :param rng: Generator to draw from
        """
        n_captured = rng.binomial(env.num_envs, CAPTURE_RATE)
        if n_captured:
            chosen = rng.choice(env.num_envs, n_captured, replace=False)
            for idx in chosen[~dones[chosen]].tolist():
                (state,) = env.env_method("capture_start", indices=idx)
                self.states.append(VisitedState(**vars(state)))
