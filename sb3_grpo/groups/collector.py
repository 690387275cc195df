"""Collects groups: which episode each environment copy plays, and how far it is."""

import copy
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, is_vecenv_wrapped
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_grpo.groups.dispatcher import StartDispatcher
from sb3_grpo.groups.faults import GuardedEnv, TerminalObservations
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.groups.queue import GroupQueue, GroupSettings, StepQueue, WholeGroupQueue
from sb3_grpo.groups.samplers import StartSampler, VisitedState
from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.starts.starts import NextLife, StartNotSupportedError
from sb3_grpo.utils.action_masks import METHOD, ask_for_masks, forbidding_copy, offers_masks
from sb3_grpo.utils.spaces import parts_of
from sb3_grpo.utils.user_warnings import warn_user
from sb3_grpo.utils.vec_envs import ask, ask_all, call, copied, innermost, offers, own_observations

# A longer episode is unlikely to end by itself (an Atari game is cut after 27,000 steps)
MAX_EPISODE_LENGTH = 100_000

# Steps of each copy, up to which an update of copies that are in lockstep sees a moment of the episode only, and unlearns what
# other moments have taught
MIN_STEPS_PER_COPY = 16

# What a checkpoint stores of it, besides its parts
_STATE = ("episodes", "in_groups", "time", "outcome", "states", "_n_update_steps", "_staggers")


class GroupCollector:
    """
    Plays the episodes of groups on the environment copies.

    :param env: The training environment
    :param settings: Settings of the groups
    :param rng: Random generator for the starts
    :param states: (n_envs, \\*state_shape) state of the policy's memory where an episode begins, ``None`` if it has no memory
    """

    def __init__(self, env: VecEnv, settings: GroupSettings, rng: np.random.Generator, states: np.ndarray | None = None):
        self.env = env
        self._copies = innermost(env)
        self.settings = settings
        self.rng = rng
        if settings.sampler is not None:
            settings.sampler.reset()
        make_queue = WholeGroupQueue if settings.n_steps is None else StepQueue
        self.queue: GroupQueue = make_queue(settings, env.num_envs, rng)
        self.dispatcher = StartDispatcher(env, self.queue)
        self.guarded = GuardedEnv(env)
        self.terminal_observations = TerminalObservations(env)
        # The episode of each copy, None for one outside of any group, its number of steps so far and its sum of rewards
        self.episodes: list[Episode | None] = [None] * env.num_envs
        self.in_groups = np.zeros(env.num_envs, dtype=bool)
        self.time = np.zeros(env.num_envs, dtype=np.int64)
        self.outcome = np.zeros(env.num_envs)
        self.states = states
        self._n_update_steps = settings.n_steps or 0  # of each copy
        # Observations that may be non-finite
        self._float_keys = [
            key
            for key, part in parts_of(env.observation_space).items()
            if isinstance(part, spaces.Box) and np.issubdtype(part.dtype, np.floating)
        ]
        # If episodes are branched, copies are at different steps anyway
        branches = settings.sampler is not None and settings.sampler.captures_states
        self._staggers = self.queue.takes_steps and not branches
        self.has_masks = settings.use_masking and offers_masks(env)
        # For each copy, an object that is replaced by a reset
        self._reset_infos: list[Any] = []

    def can_go_on(self, env: VecEnv, settings: GroupSettings) -> bool:
        """
        :param env: The training environment
        :param settings: Settings of the groups
        :return: Whether the episodes in progress can be continued
        """
        return env is self.env and settings == self.settings and not self.is_disturbed()

    def is_disturbed(self) -> bool:
        """
        :return: Whether the copies were reset elsewhere since the last step, e.g. by an evaluation on the training environment
        """
        return not all(map(operator.is_, self._latest_resets(), self._reset_infos))

    def _latest_resets(self) -> list[Any]:
        return [*ask((), getattr, self._copies, "reset_infos")]  # not every VecEnv calls super().__init__()

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The open groups and the progress of each copy, without the environments
        """
        sampler = self.settings.sampler
        return {
            "queue": self.queue.state_dict(),
            "dispatcher": self.dispatcher.state_dict(),
            "sampler": None if sampler is None else sampler.state_dict(),
            **{name: getattr(self, name) for name in _STATE},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: Result of ``state_dict``. The environments must already be in its episodes
        """
        self.queue.load_state_dict(state["queue"])
        self.dispatcher.load_state_dict(state["dispatcher"])
        if self.settings.sampler is not None:
            self.settings.sampler.load_state_dict(state["sampler"])
        for name in _STATE:
            setattr(self, name, state[name])
        self._reset_infos = self._latest_resets()

    def check_capture(self) -> None:
        """
        :raises StartNotSupportedError: if groups should begin mid-episode, and the environment's state cannot be captured
        """
        sampler = self.settings.sampler
        if sampler is None or not sampler.captures_states:
            return
        if isinstance(self._copies, GymnasiumVecEnv):
            raise StartNotSupportedError("The states of a vector environment are not captured: use make_group_env(...).")
        if not offers(self._copies, "why_not_captured"):
            return
        reason = call(self._copies, "why_not_captured", indices=0)[0]
        if reason is not None:
            raise StartNotSupportedError(f"{reason} With a start_sampler of seeds, it need not be captured.")

    def begin_rollout(self, n_steps: int | None) -> None:
        """
        Prepare the groups of the next update. Steps taken before it belong to an earlier policy.

        :param n_steps: Number of steps of each copy, ``None`` for whole groups
        """
        self._note_progress()
        self._n_update_steps = n_steps or 0
        self.queue.begin_rollout(n_steps)
        self.dispatcher.fill()

    def _note_progress(self) -> None:
        for episode, length, outcome in zip(self.episodes, self.time.tolist(), self.outcome.tolist(), strict=True):
            if episode is not None:
                episode.length, episode.outcome = length, outcome

    def begin_episodes(self, indices: list[int], observations: Any, row: int) -> None:
        """
        Find out which episodes have just begun.

        :param indices: Environment copies that were reset
        :param observations: First observations of the policy, (n_envs, \\*obs_shape) or a dict of such arrays
        :param row: Row of the rollout buffer for their first step
        """
        lengths = self.time[indices]
        self.time[indices] = 0
        self.outcome[indices] = 0.0
        if self.states is not None:
            self.states[indices] = 0.0
        # Before first observations are compared: NaNs would be reported as unequal starts
        self.check_observations(observations)
        for idx, episode in zip(indices, self.dispatcher.begun(indices), strict=True):
            self.episodes[idx] = episode
            self.in_groups[idx] = episode is not None
            if episode is not None:
                episode.first_row = row
        self._reset_infos = self._latest_resets()
        self.dispatcher.fill()
        if self._staggers:
            self._stagger(np.asarray(indices), lengths)

    def given(self) -> dict[str, np.ndarray]:
        """
        :return: What the policy is given besides the observations of its next step: ``action_masks`` (n_envs, A), the actions
            that the copies allow; ``states`` (n_envs, \\*state_shape), what it remembers
        :raises ValueError: if a copy allows no action
        """
        given = {} if self.states is None else {"states": self.states}
        if not self.has_masks:
            return given
        masks = ask_for_masks(self.env)
        if (idx := forbidding_copy(masks, self.env.action_space)) is not None:
            raise ValueError(
                f"{self.guarded.where(idx, self.time[idx])}: {METHOD}() allows no action. Where nothing can be done, end the "
                "episode, or allow an action that does nothing."
            )
        return {**given, "action_masks": masks}

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """
        Step the environments.

        :param actions: (n_envs, \\*action_shape)
        :return: See ``VecEnv.step``
        :raises EnvironmentFault: see :class:`GuardedEnv`
        """
        # A copy: an environment may change the array that it is given
        observations, rewards, dones, infos = self.guarded.step(actions.copy(), self.time)
        self._reset_infos = self._latest_resets()
        dones = np.asarray(dones, dtype=bool)
        return observations, rewards, dones, self._named(dones, infos)

    def _named(self, dones: np.ndarray, infos: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """
        :param dones: (n_envs,) whether an episode has just ended
        :param infos: Infos of all copies
        :return: The infos. Where an episode of a group has ended, with the numbers of its group and of the member, as in
            ``reset_infos``
        """
        named = [*infos]
        for idx in dones.nonzero()[0].tolist():
            # Copies, which the environment does not change later
            named[idx] = {key: copy.copy(value) if key == "episode" else value for key, value in infos[idx].items()}
            episode = self.episodes[idx]
            if episode is not None:
                named[idx] |= {"group": episode.group.number, "group_member": episode.member}
        return named

    def add_step(self, observations: Any, rewards: np.ndarray, dones: np.ndarray) -> int:
        """
        Record a step of the vectorized environment.

        :param observations: Observations after the step, (n_envs, \\*obs_shape) or a dict of such arrays
        :param rewards: (n_envs,) the environment's own rewards
        :param dones: (n_envs,) whether an episode has just ended
        :return: Number of additional steps that the start sampler has taken
        :raises ValueError: if an episode is too long, or a reward is not finite
        """
        self.time += 1
        # An update of whole groups waits for all of their episodes
        if not self.queue.takes_steps and self.time.max(where=self.in_groups, initial=0) > MAX_EPISODE_LENGTH:
            raise ValueError(
                f"An episode has not ended after {MAX_EPISODE_LENGTH} steps. It has to end some time: "
                "wrap the environment in gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)."
            )
        self.outcome += rewards
        self.queue.add_step()
        n_more, sampler = None, self.settings.sampler
        if sampler is not None and type(sampler).after_step is not StartSampler.after_step:
            own = own_observations(self.env, observations)
            n_more = sampler.after_step(self.env, own, dones, self.rng)
        self._check_rewards(rewards)
        return n_more or 0

    def end_episodes(self, indices: list[int], infos: list[dict[str, Any]]) -> list[Episode]:
        """
        Record how episodes have ended.

        :param indices: The environment copies whose episodes have ended
        :param infos: Infos of all copies
        :return: The episodes
        :raises ValueError: if a last observation, whose value is needed for bootstrapping, is not finite
        """
        self._note_progress()
        ended = [(idx, episode) for idx in indices if (episode := self.episodes[idx]) is not None]
        for idx, episode in ended:
            self.queue.end_episode(episode, infos[idx])
            last = episode.next_observation
            if last is not None:
                by_key = last if isinstance(last, dict) else {"": last}
                self._check_finite({key: np.asarray(values)[None] for key, values in by_key.items()}, [idx])
                episode.next_state = None if self.states is None else self.states[idx].copy()
        return [episode for _, episode in ended]

    def whole_episodes(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """
        Select the episodes to report: not those that were cut to desynchronize the copies, and not the branches of earlier
        episodes, because longer episodes have more branches. Nor the later lives of all members but the first, whose earlier
        lives another copy played. The branches' info of Monitor is dropped.

        :param dones: (n_envs,) whether an episode has just ended
        :param infos: Infos of all copies
        :return: (n_envs,) whether to report an episode
        """
        whole = dones.copy()
        for idx in dones.nonzero()[0].tolist():
            episode = self.episodes[idx]
            is_branch = episode is not None and (
                isinstance(episode.group.start, VisitedState)
                or (isinstance(episode.group.start, NextLife) and episode.member > 0)
            )
            whole[idx] = not is_branch and "group_cut" not in infos[idx]
            if is_branch:
                infos[idx].pop("episode", None)
        return whole

    def take(self, observations: Any) -> list[Group]:
        """
        :param observations: Next observations of the policy, (n_envs, \\*obs_shape) or a dict of such arrays
        :return: The groups of the update, including dead ones
        """
        if self.queue.takes_steps:
            self._note_progress()
            for idx, episode in enumerate(self.episodes):
                if episode is not None:
                    episode.next_observation = copied(observations, idx)
                    episode.next_state = None if self.states is None else self.states[idx].copy()
        return self.queue.take()

    def clear(self) -> None:
        """Remove all queued starts, so that a reset by other code does not use them."""
        if vars(self._copies).get("waiting"):
            self._copies.step_wait()  # a step was interrupted: its answers are still in the pipes of a SubprocVecEnv
        self.dispatcher.clear()

    def check_observations(self, observations: Any) -> None:
        """
        :param observations: Next observations of the policy, (n_envs, \\*obs_shape) or a dict of such arrays
        :raises ValueError: if an observation is not finite
        """
        if self._float_keys:
            observations = own_observations(self.env, observations)
            by_key = observations if isinstance(observations, dict) else {"": observations}
            self._check_finite(by_key, range(self.env.num_envs))

    def _check_finite(self, observations: dict[Any, Any], indices: Sequence[int]) -> None:
        """
        :param observations: (n, \\*obs_shape) by key, which is ``""`` if the observation is not a dict
        :param indices: The environment copies that they belong to
        :raises ValueError: if an observation is not finite
        """
        for key in self._float_keys:
            values = observations[key]
            row = _not_finite(values)
            if row is not None:
                where = self.guarded.where(indices[row], self.time[indices[row]])
                name = f"observation[{key!r}]" if key else "the observation"
                raise ValueError(f"{where}: {name} is not finite: {values[row]}. Correct the environment.")

    def _check_rewards(self, rewards: np.ndarray) -> None:
        idx = _not_finite(self.outcome)
        if idx is None:
            return
        is_one = _not_finite(rewards[[idx]]) == 0
        what = f"the reward is {rewards[idx]}" if is_one else "the rewards have too large a sum"
        raise ValueError(
            f"{self.guarded.where(idx, self.time[idx] - 1)}: {what}. It would spoil its group: rewards must be finite. "
            "Correct the environment's reward function."
        )

    def _why_in_lockstep(self) -> str:
        """
        :return: Why the copies cannot be staggered and what to do about it, empty if they can
        """
        if is_vecenv_wrapped(self.env, VecMonitor):
            return "VecMonitor would report the pieces: use Monitor in each copy, as make_group_env does"
        if not offers(self._copies, "cut_after"):
            return "use make_group_env, or let their first episodes begin at different steps"
        can_end = all(ask_all(self._copies, "allow_early_resets", True))
        return "" if can_end else "allow_early_resets=False forbids it: leave it out"

    def _stagger(self, indices: np.ndarray, lengths: np.ndarray) -> None:
        """
        Desynchronize the copies. When most of them end an episode together after the same number of steps, they would go on
        ending together: each update would see a different part of the episodes, and unlearn what other parts have taught.
        Therefore the episodes that have just begun are cut once, each after a different fraction of that length. Updates that
        are longer than an episode see all parts anyway.

        :param indices: Copies that have just begun an episode
        :param lengths: (n,) lengths of their previous episodes, 0 for none
        """
        if 2 * len(indices) <= self.env.num_envs:
            return
        length = np.bincount(lengths).argmax()
        together = indices[lengths == length]
        if length <= self._n_update_steps or 2 * len(together) <= self.env.num_envs:
            return
        self._staggers = False
        if why := self._why_in_lockstep():
            if self._n_update_steps < MIN_STEPS_PER_COPY:
                warn_user(
                    f"The copies end their episodes together, after {length} steps, and an update sees {self._n_update_steps} "
                    f"of them: it unlearns what others have taught. Take n_steps={MIN_STEPS_PER_COPY} or more, or let them be "
                    f"staggered: {why}."
                )
            return
        for place, idx in enumerate(together[:-1].tolist(), start=1):
            call(self._copies, "cut_after", -(-int(length) * place // len(together)), indices=idx)


def _not_finite(values: Any) -> int | None:
    """
    :param values: (n_envs, \\*shape)
    :return: The first copy with a non-finite value, ``None`` if there is none
    """
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argwhere(~finite)[0, 0])
