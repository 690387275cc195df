"""Collects groups: tracks which episode each environment copy plays, and its progress."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import (
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_wrapper,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_grpo.groups.faults import (
    WHAT_IS_LEFT,
    EnvironmentFault,
    Watchdog,
    close_processes,
    ended_processes,
    failed_copy,
    misshapen_copy,
    not_finite,
)
from sb3_grpo.groups.feeder import make_feeder
from sb3_grpo.groups.group import Group
from sb3_grpo.groups.queue import NO_EPISODE, GroupQueue, GroupSettings
from sb3_grpo.groups.samplers import VisitedState
from sb3_grpo.groups.step_queue import StepQueue
from sb3_grpo.starts.starts import StartNotSupportedError

# A longer episode is unlikely to end by itself (an Atari game is cut after 27,000 steps)
MAX_EPISODE_LENGTH = 100_000

# Attributes that are saved separately, or not at all
_PARTS = ("env", "feeder", "queue", "rng", "settings", "watchdog")


class GroupCollector:
    """
    Collects complete groups of episodes during training. It owns the queue of members, the feeder that passes them to the
    environment copies and, for each copy, the ticket of the member it plays, its number of steps and its outcome.

    :param env: The training environment
    :param settings: Settings of the groups
    :param rng: Random generator for the starts
    """

    def __init__(self, env: VecEnv, settings: GroupSettings, rng: np.random.Generator):
        self.env = env
        self.settings = settings
        self.rng = rng
        if settings.sampler is not None:
            settings.sampler.reset()
        queue_class = GroupQueue if settings.n_steps is None else StepQueue
        self.queue = queue_class(settings, env.num_envs, rng)
        self.feeder = make_feeder(env, self.queue)
        self.tickets = np.full(env.num_envs, NO_EPISODE)
        self.time = np.zeros(env.num_envs, dtype=np.int64)
        self.outcome = np.zeros(env.num_envs)
        self._n_steps = 0  # of the current rollout
        self._n_update_steps = settings.n_steps or 0  # of each copy
        self.watchdog = Watchdog(env.unwrapped, math.inf)  # until watch()
        self._float_keys = _float_keys(env.observation_space)
        self._staggers = settings.n_steps is not None and self._can_stagger()
        # For error messages: a copy that has failed can no longer be asked
        named = env.has_attr("env_name")
        self._env_names = env.get_attr("env_name") if named else [type(env.unwrapped).__name__] * env.num_envs

    def watch(self, step_timeout: float | None) -> None:
        """
        From now on, interrupt steps that take too long.

        :param step_timeout: Maximum duration of a step of the copies in seconds, see :class:`Watchdog`
        """
        self.watchdog = Watchdog(self.env.unwrapped, step_timeout)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """
        Step the environments.

        :param actions: (n_envs, \\*action_shape)
        :return: See ``VecEnv.step``
        :raises EnvironmentFault: if copies in subprocesses have not answered in time, or an observation has the wrong shape
        """
        with self.watchdog:
            try:
                if _overrides_step(self.env):
                    result = self.env.step(actions)
                else:
                    self.env.step_async(actions)
                    late = self.watchdog.late_copies()
                    if late:
                        raise self._end_processes(dict.fromkeys(late, self.watchdog.message))
                    result = self.env.step_wait()
            except (KeyError, ValueError) as error:
                fault = self.fault_of(error) or self._shape_fault()
                if fault is None:
                    raise
                raise fault from error
        self.feeder.note_episodes()
        return result

    def fault_of(self, error: BaseException) -> EnvironmentFault | None:
        """
        :param error: The error that was raised while groups were collected
        :return: An error that says which copy of the environment failed, and how; ``None`` if no copy is known to have
            failed, or if ``error`` says so itself
        """
        inner = self.env.unwrapped
        if type(error).__module__.startswith("sb3_grpo.envs") or not isinstance(error, Exception):
            return None
        if isinstance(inner, SubprocVecEnv):
            ended = {} if inner.closed else ended_processes(inner)
            return self._end_processes(ended) if ended else None
        copy = failed_copy(error, inner)
        return None if copy is None else EnvironmentFault(f"{self.where(copy)}: {type(error).__name__}: {error}")

    def _end_processes(self, failed: dict[int, str]) -> EnvironmentFault:
        """
        End the processes of all copies, because some have failed.

        :param failed: What happened to each copy that has failed
        :return: An error that says so
        """
        assert isinstance(self.env.unwrapped, SubprocVecEnv)
        close_processes(self.env.unwrapped)
        copy, *others = failed
        also = f" The same of copies {', '.join(map(str, others))}." if others else ""
        return EnvironmentFault(f"{self.where(copy)}: {failed[copy]}.{also} {WHAT_IS_LEFT}")

    def _shape_fault(self) -> EnvironmentFault | None:
        """
        :return: An error that says which observation has the wrong shape, ``None`` if all are right
        """
        copy = misshapen_copy(self.env.unwrapped)
        if copy is None:
            return None
        return EnvironmentFault(
            f"{self.where(copy)}: the observation is not of the shape that the observation space says "
            f"({self.env.unwrapped.observation_space}). Correct the environment."
        )

    def where(self, copy: int, n_back: int = 0) -> str:
        """
        :param copy: Index of an environment copy
        :param n_back: How many steps ago
        :return: Description of the copy and its step, for messages
        """
        return f"Environment copy {copy} ({self._env_names[copy]}), step {self.time[copy] - n_back} of its episode"

    def check_observations(self, observations: Any) -> None:
        """
        :param observations: Next observations of the policy, (n_envs, \\*obs_shape) or a dict of such arrays
        :raises ValueError: if an observation is not finite
        """
        if self._float_keys:
            observations = own_observations(self.env, observations)
            by_key = observations if isinstance(observations, dict) else {None: observations}
            self._check_finite(by_key, range(self.env.num_envs))

    def _check_finite(self, observations: dict[Any, Any], copies: Sequence[int]) -> None:
        """
        :param observations: (n, \\*obs_shape) by key, which is ``None`` if the observation is not a dict
        :param copies: The environment copies that they belong to
        :raises ValueError: if an observation is not finite
        """
        for key in self._float_keys:
            values = observations[key]
            row = not_finite(values)
            if row is not None:
                name = "the observation" if key is None else f"observation[{key!r}]"
                raise ValueError(f"{self.where(copies[row])}: {name} is not finite: {values[row]}. Correct the environment.")

    def check_rewards(self, rewards: np.ndarray) -> None:
        """
        :param rewards: (n_envs,) rewards of the step that was just counted
        :raises ValueError: if a reward, or an episode's sum of rewards, is not finite
        """
        copy = not_finite(self.outcome)
        if copy is None:
            return
        what = f"the reward is {rewards[copy]}" if not_finite(rewards[[copy]]) == 0 else "the rewards have too large a sum"
        raise ValueError(
            f"{self.where(copy, n_back=1)}: {what}. It would spoil its group: rewards must be finite. Correct the "
            "environment's reward function."
        )

    def can_go_on(self, env: VecEnv, settings: GroupSettings) -> bool:
        """
        :param env: The training environment
        :param settings: Settings of the groups
        :return: Whether the episodes in progress can be continued
        """
        return env is self.env and settings == self.settings and not self.is_disturbed()

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The open groups and the progress of each copy, without the environments
        """
        sampler = self.settings.sampler
        return {
            "queue": self.queue.state_dict(),
            "feeder": self.feeder.state_dict(),
            "sampler": None if sampler is None else sampler.state_dict(),
            "attributes": {name: value for name, value in vars(self).items() if name not in _PARTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: Result of ``state_dict``. The environments must already be in its episodes
        """
        self.queue.load_state_dict(state["queue"])
        self.feeder.load_state_dict(state["feeder"])
        if self.settings.sampler is not None:
            self.settings.sampler.load_state_dict(state["sampler"])
        vars(self).update(state["attributes"])

    def check_capture(self) -> None:
        """
        :raises StartNotSupportedError: if groups should begin mid-episode, and the environment's state cannot be captured
        """
        sampler = self.settings.sampler
        if sampler is None or not sampler.captures_states or not self.env.has_attr("why_not_captured"):
            return
        reason = self.env.env_method("why_not_captured", indices=0)[0]
        if reason is not None:
            raise StartNotSupportedError(f"{reason} With a start_sampler of seeds, it need not be captured.")

    def begin_rollout(self, n_steps: int | None) -> None:
        """
        Prepare the groups of the next update. Steps taken before it belong to an earlier policy.

        :param n_steps: Number of steps of each copy, ``None`` for whole groups
        """
        time_of = dict(zip(self.tickets.tolist(), self.time.tolist(), strict=True))
        for group in self.queue.groups:
            for episode in group.episodes:
                episode.n_before = time_of.get(episode.ticket, episode.length)
        self._n_steps = 0
        self._n_update_steps = n_steps or 0
        self.queue.begin_rollout(n_steps)
        self.feeder.fill()

    def begin_episodes(self, copies: list[int], observations: Any) -> None:
        """
        Find out which episodes have just begun.

        :param copies: Environment copies that were reset
        :param observations: Observations of all copies, see ``check_observations``
        """
        lengths = self.time[copies]
        self.time[copies] = 0
        self.outcome[copies] = 0.0
        # Before first observations are compared: NaNs would be reported as unequal starts
        self.check_observations(observations)
        self.tickets[copies] = self.feeder.tickets_of(copies)
        self.feeder.fill()
        if self._staggers:
            self._stagger(np.asarray(copies), lengths)

    def _can_stagger(self) -> bool:
        # If episodes are branched, copies are at different steps anyway. VecMonitor would report the pieces
        sampler = self.settings.sampler
        if (sampler is not None and sampler.captures_states) or unwrap_vec_wrapper(self.env, VecMonitor) is not None:
            return False
        if not self.env.has_attr("cut_after"):
            return False
        return not self.env.has_attr("allow_early_resets") or all(self.env.get_attr("allow_early_resets"))

    def _stagger(self, copies: np.ndarray, lengths: np.ndarray) -> None:
        """
        Desynchronize the copies. When most of them end an episode together after the same number of steps, they would go on
        ending together: each update would see a different part of the episodes, and unlearn what other parts have taught.
        Therefore the episodes that have just begun are cut once, each after a different fraction of that length. Updates that
        are longer than an episode see all parts anyway.

        :param copies: Copies that have just begun an episode
        :param lengths: (n_copies,) lengths of their previous episodes, 0 for none
        """
        if 2 * len(copies) <= self.env.num_envs:
            return
        length = np.bincount(lengths).argmax()
        together = copies[lengths == length]
        if length <= self._n_update_steps or 2 * len(together) <= self.env.num_envs:
            return
        self._staggers = False
        for place, copy in enumerate(together[:-1].tolist(), start=1):
            self.env.env_method("cut_after", -(-int(length) * place // len(together)), indices=copy)

    def add_step(self, observations: Any, rewards: np.ndarray, dones: np.ndarray) -> int:
        """
        Record a step of the vectorized environment.

        :param observations: Observations after the step, (n_envs, \\*obs_shape) or a dict of such arrays
        :param rewards: (n_envs,) the environment's own rewards
        :param dones: (n_envs,) whether an episode has just ended
        :return: Number of additional steps that the start sampler has taken
        """
        self.time += 1
        self._n_steps += 1
        if self._n_steps > MAX_EPISODE_LENGTH and self.settings.n_steps is None:
            self._check_length()
        self.outcome += rewards
        self.queue.add_steps(self.env.num_envs)
        if self.settings.sampler is None:
            return 0
        return self.settings.sampler.after_step(self.env, own_observations(self.env, observations), dones, self.rng) or 0

    def end_episodes(self, ended: list[int], infos: list[dict[str, Any]]) -> None:
        """
        Record the outcomes of episodes that have ended.

        :param ended: The environment copies whose episodes have ended
        :param infos: Infos of all copies
        :raises ValueError: if a last observation, whose value is needed for bootstrapping, is not finite
        """
        figures = (self.tickets[ended].tolist(), self.time[ended].tolist(), self.outcome[ended].tolist())
        for idx, ticket, length, outcome in zip(ended, *figures, strict=True):
            if ticket != NO_EPISODE:
                info = infos[idx]
                truncated = "group_cut" not in info and bool(info.get("TimeLimit.truncated", False))
                self.queue.end_episode(ticket, length, outcome, truncated, info)
                last = self.queue.member(ticket)[1].next_observation
                if last is not None:
                    by_key = last if isinstance(last, dict) else {None: last}
                    self._check_finite({key: np.asarray(values)[None] for key, values in by_key.items()}, [idx])

    def whole_episodes(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """
        Select the episodes to report: not those that were cut to desynchronize the copies, and not the branches of earlier
        episodes, because longer episodes have more branches. The branches' info of Monitor is dropped.

        :param dones: (n_envs,) whether an episode has just ended
        :param infos: Infos of all copies
        :return: (n_envs,) whether to report an episode
        """
        whole = dones.copy()
        for idx in dones.nonzero()[0].tolist():
            ticket = int(self.tickets[idx])
            is_branch = ticket != NO_EPISODE and isinstance(self.queue.member(ticket)[0].start, VisitedState)
            whole[idx] = not is_branch and "group_cut" not in infos[idx]
            if is_branch:
                infos[idx].pop("episode", None)
        return whole

    def _check_length(self) -> None:
        """
        :raises ValueError: if an episode is too long
        """
        if self.time.max() > MAX_EPISODE_LENGTH:
            raise ValueError(
                f"An episode has not ended after {MAX_EPISODE_LENGTH} steps. It has to end some time: "
                "wrap the environment in gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)."
            )

    def is_disturbed(self) -> bool:
        """
        :return: Whether the environments were reset outside of the rollout
        """
        return self.feeder.is_disturbed(self.tickets)

    def take(self, observations: Any) -> list[Group]:
        """
        :param observations: Next observations of the policy, (n_envs, \\*obs_shape) or a dict of such arrays
        :return: The groups of the update, including dead ones
        """
        if isinstance(self.queue, StepQueue):
            figures = (self.tickets.tolist(), self.time.tolist(), self.outcome.tolist())
            for idx, (ticket, length, outcome) in enumerate(zip(*figures, strict=True)):
                self.queue.note_open_episode(ticket, length, outcome, observation_of(observations, idx))
        return self.queue.take()

    def clear(self) -> None:
        """Remove all queued starts, so that a reset by other code does not use them."""
        self.feeder.clear()


def _overrides_step(env: VecEnv) -> bool:
    """
    :param env: The vectorized environment, with or without wrappers
    :return: Whether a layer has a ``step`` of its own, which then has no time limit in subprocesses
    """
    while type(env).step is VecEnv.step:
        if not isinstance(env, VecEnvWrapper):
            return False
        env = env.venv
    return True


def _float_keys(space: spaces.Space) -> list[str | None]:
    """
    :param space: Observation space
    :return: The keys of floating point observations, which may be non-finite; ``None`` for an observation that is not a dict
    """
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else [(None, space)]
    return [key for key, part in parts if isinstance(part, spaces.Box) and part.dtype is not None and part.dtype.kind == "f"]


def own_observations(env: VecEnv, observations: Any) -> Any:
    """
    :param env: The vectorized environment, with or without wrappers
    :param observations: Its latest observations, (n_envs, \\*obs_shape) or a dict of such arrays
    :return: The observations as the environments returned them, before VecNormalize and VecTransposeImage
    """
    extracted = None
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            observations = env.get_original_obs()
        elif isinstance(env, VecTransposeImage) and not env.skip:
            if isinstance(observations, dict):
                images = {key: np.moveaxis(observations[key], 1, -1) for key in env.image_space_keys}
                observations = {**observations, **images}
            elif extracted is None or extracted in env.image_space_keys:
                observations = np.moveaxis(observations, 1, -1)
        elif isinstance(env, VecExtractDictObs):
            extracted = env.key
        env = env.venv
    # A VecNormalize inside of VecExtractDictObs returns all keys
    return observations if extracted is None or not isinstance(observations, dict) else observations[extracted]


def observation_of(observations: Any, copy: int) -> Any:
    """
    :param observations: (n_envs, \\*obs_shape) or a dict of such arrays
    :param copy: Index of an environment copy
    :return: A copy of its observation, which later steps do not overwrite
    """
    if isinstance(observations, dict):
        return {key: values[copy].copy() for key, values in observations.items()}
    return observations[copy].copy()
