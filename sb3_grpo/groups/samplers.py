"""Samplers of group starts: fresh seeds, or states that the policy has visited."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, Start
from sb3_grpo.utils.parameters import Number
from sb3_grpo.utils.vec_envs import call, innermost

# Number of visited states that are kept (the latest ones), and the share of steps after which the state is captured.
# On Acrobot, a tenth of this share was too little
N_STATES = 64
CAPTURE_RATE = 0.05


class StartSampler:
    """
    Draws the starts of groups. A plain function that takes a ``numpy.random.Generator`` and returns a start works as well; a
    subclass can also observe steps and outcomes of episodes, and choose the next starts accordingly.
    It is pickled with the model.
    """

    # Whether it needs environments whose state can be captured
    captures_states: ClassVar[bool] = False

    def __call__(self, rng: np.random.Generator) -> Start:
        """
        Draw the start of a group.

        :param rng: Random generator
        :return: A start
        """
        raise NotImplementedError

    def after_step(self, env: VecEnv, observations: Any, dones: np.ndarray, rng: np.random.Generator) -> int | None:
        """
        Called after each step of the vectorized environment.

        :param env: The training environment
        :param observations: Observations of all copies after the step, (n_envs, \\*obs_shape) or a dict of such arrays, as
            the environment returns them. Where an episode has just ended, it is the first observation of the next one
        :param dones: (n_envs,) which copies have just ended an episode, and are at the beginning of the next one
        :param rng: Random generator
        :return: Number of environment steps that the sampler itself has taken, which then count
        """
        return None

    def after_episode(self, group: Group, episode: Episode, info: dict[str, Any]) -> None:
        """
        Called when the episode of a member ends, except for the episodes that are cut once to desynchronize the copies.

        :param group: The member's group, with its start
        :param episode: The member, with its length and outcome
        :param info: Info of the last step
        """

    def reset(self) -> None:
        """Forget all states, as the environment may be a different one."""

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The state that a checkpoint stores: by default, the state that is pickled
        """
        return {"pickled": self.__getstate__()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The ``state_dict`` of a sampler that was created in the same way
        """
        pickled = state["pickled"]
        if hasattr(self, "__setstate__"):
            self.__setstate__(pickled)
        elif pickled is not None:
            vars(self).update(pickled)


class RandomSeeds(StartSampler):
    """The default: a fresh seed for ``env.reset(seed=...)``."""

    def __call__(self, rng: np.random.Generator) -> Start:
        return SeedStart(int(rng.integers(2**31)))


class FunctionStarts(StartSampler):
    """
    Wraps a function as a sampler.

    :param function: Function that draws the start of a group
    """

    def __init__(self, function: Callable[[np.random.Generator], Start]):
        self.function = function

    def __call__(self, rng: np.random.Generator) -> Start:
        return self.function(rng)

    def state_dict(self) -> dict[str, Any]:
        return {}  # the model is saved with the function

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True, eq=False)
class VisitedState(SnapshotStart):
    """A state that the policy has visited, as opposed to a user's own snapshot."""


class VisitedStates(StartSampler):
    """
    Draws some starts from states that the policy has visited recently (the vine method of TRPO, section 5.2,
    https://arxiv.org/abs/1502.05477): the members of such a group branch off from an earlier episode. For environments whose
    state can be captured. The steps of these groups count and are trained on like all others.

    :param share: Share of the starts that are visited states, once there are any
    :param other: Sampler of the other starts, ``None`` for fresh seeds
    """

    captures_states = True

    def __init__(self, share: float, other: StartSampler | Callable[[np.random.Generator], Start] | None = None):
        self.share = Number(0, 1).check("share", share)
        self.other = make_sampler(other)
        self.states: deque[VisitedState] = deque(maxlen=N_STATES)

    def __call__(self, rng: np.random.Generator) -> Start:
        if self.states and rng.random() < self.share:
            return self.states[rng.integers(len(self.states))]
        return self.other(rng)

    def after_step(self, env: VecEnv, observations: Any, dones: np.ndarray, rng: np.random.Generator) -> int | None:
        """Capture the states of a few copies, each with the same probability."""
        n_steps = self.other.after_step(env, observations, dones, rng)
        n_captured = rng.binomial(env.num_envs, CAPTURE_RATE)
        if n_captured:
            copies = rng.choice(env.num_envs, n_captured, replace=False)
            for idx in copies[~dones[copies]].tolist():
                (state,) = call(innermost(env), "capture_start", indices=idx)
                self.states.append(VisitedState(**vars(state)))
        return n_steps

    def after_episode(self, group: Group, episode: Episode, info: dict[str, Any]) -> None:
        self.other.after_episode(group, episode, info)

    def reset(self) -> None:
        self.other.reset()
        self.states.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"states": self.states, "other": self.other.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.states = state["states"]
        self.other.load_state_dict(state["other"])


def make_sampler(start_sampler: StartSampler | Callable[[np.random.Generator], Start] | None) -> StartSampler:
    """
    :param start_sampler: Sampler of the starts, or a function that draws one; ``None`` for fresh seeds
    :return: The sampler used for training
    """
    if start_sampler is None:
        return RandomSeeds()
    return start_sampler if isinstance(start_sampler, StartSampler) else FunctionStarts(start_sampler)
