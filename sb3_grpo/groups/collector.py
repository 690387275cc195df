"""Collects groups: which episode each environment copy plays, and how far it has got."""

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
    copy_of,
    describe_late,
    ended_processes,
    misshapen_copy,
    not_finite,
)
from sb3_grpo.groups.feeder import make_feeder
from sb3_grpo.groups.group import Group
from sb3_grpo.groups.queue import NO_EPISODE, GroupQueue, GroupSettings
from sb3_grpo.groups.restarting import RestartingSubprocVecEnv
from sb3_grpo.groups.samplers import MAX_EPISODE_LENGTH, VisitedState
from sb3_grpo.groups.step_queue import StepQueue
from sb3_grpo.starts.starts import StartNotSupportedError

# What is saved for itself, or not at all
_PARTS = ("env", "feeder", "queue", "rng", "settings", "watchdog")


class GroupCollector:
    """
    Takes the episodes of a training from their starts to complete groups. It owns the queue of members, the feeder that
    brings them to the environment copies, and for each copy the member it plays (its ticket), its steps and its outcome.

    :param env: The training environment
    :param settings: What groups are drawn
    :param rng: Generator from which starts are drawn
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
        self._n_steps = 0  # of the present rollout
        self._n_update_steps = settings.n_steps or 0  # of each copy
        self.watchdog = Watchdog(env.unwrapped, math.inf)  # until watch()
        self._float_keys = _float_keys(env.observation_space)
        self._staggers = settings.n_steps is not None and self._can_stagger()
        # For messages: a copy that has failed cannot be asked any more
        named = env.has_attr("env_name")
        self._env_names = env.get_attr("env_name") if named else [type(env.unwrapped).__name__] * env.num_envs

    def watch(self, step_timeout: float | None) -> None:
        """
        From now on, until ``watchdog.stop()``, end steps that take too long.

        :param step_timeout: How many seconds a step of the copies may take, see :class:`Watchdog`
        """
        self.watchdog.stop()
        self.watchdog = Watchdog(self.env.unwrapped, step_timeout)
        if isinstance(self.env.unwrapped, RestartingSubprocVecEnv):
            self.env.unwrapped.watchdog = self.watchdog
        self.watchdog.start()

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """
        :param actions: (n_envs, \\*action_shape)
        :return: See ``VecEnv.step``
        """
        with self.watchdog:
            result = self.env.step(actions)
        self.feeder.note_episodes()
        return result

    def fault_of(self, error: BaseException) -> EnvironmentFault | None:
        """
        :param error: What was raised while groups were collected
        :return: Which copy of the environment has failed, and how; ``None`` if none has, or if the error says so itself
        """
        inner = self.env.unwrapped
        if type(error).__module__.startswith("sb3_grpo.envs") or not isinstance(error, Exception):
            return None
        copy = copy_of(error, inner)
        if copy is not None:
            return EnvironmentFault(f"{self.where(copy)}: {type(error).__name__}: {error}")
        if not isinstance(inner, SubprocVecEnv) or inner.closed:
            return None
        copy = misshapen_copy(error, inner)
        if copy is not None:
            return EnvironmentFault(
                f"{self.where(copy)}: the observation is not of the shape that the observation space says "
                f"({inner.observation_space}). Correct the environment."
            )
        ended = ended_processes(inner)
        if not ended:
            return None
        late = {copy: describe_late(inner.processes[copy], self.watchdog) for copy in ended}
        copy, *others = [copy for copy in ended if late[copy]] or [*ended]
        close_processes(inner)
        also = f" The same of copies {', '.join(map(str, others))}." if others else ""
        return EnvironmentFault(f"{self.where(copy)}: {late[copy] or ended[copy]}.{also} {WHAT_IS_LEFT}")

    def where(self, copy: int, n_back: int = 0) -> str:
        """
        :param copy: Of the environment
        :param n_back: How many steps ago
        :return: Where it is, in words
        """
        return f"Environment copy {copy} ({self._env_names[copy]}), step {self.time[copy] - n_back} of its episode"

    def check_observations(self, observations: Any) -> None:
        """
        :param observations: What the policy sees next, (n_envs, \\*obs_shape) or a dict of such
        :raises ValueError: if one of them is not finite
        """
        if self._float_keys:
            observations = own_observations(self.env, observations)
            by_key = observations if isinstance(observations, dict) else {None: observations}
            self._check_finite(by_key, range(self.env.num_envs))

    def _check_finite(self, observations: dict[Any, Any], copies: Sequence[int]) -> None:
        """
        :param observations: (n, \\*obs_shape) by their keys, which is ``None`` for those without one
        :param copies: Of which environment copies
        :raises ValueError: if one of them is not finite
        """
        for key in self._float_keys:
            values = observations[key]
            row = not_finite(values)
            if row is not None:
                name = "the observation" if key is None else f"observation[{key!r}]"
                raise ValueError(f"{self.where(copies[row])}: {name} is not finite: {values[row]}. Correct the environment.")

    def check_rewards(self, rewards: np.ndarray) -> None:
        """
        :param rewards: (n_envs,) of the step that was just counted
        :raises ValueError: if one of them is not finite, or the sum of an episode's
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
        :param settings: What groups are to be drawn
        :return: Whether the episodes under way are still of use
        """
        return env is self.env and settings == self.settings and self.feeder.is_in_sync(self.tickets)

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The groups under way, and how far each copy has got, without the environments
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
        :param state: What ``state_dict`` returned. The environments are in its episodes already
        """
        self.queue.load_state_dict(state["queue"])
        self.feeder.load_state_dict(state["feeder"])
        if self.settings.sampler is not None:
            self.settings.sampler.load_state_dict(state["sampler"])
        vars(self).update(state["attributes"])

    def check_capture(self) -> None:
        """
        :raises StartNotSupportedError: if groups are to begin in mid-episode, and the environment's state cannot be captured
        """
        sampler = self.settings.sampler
        if sampler is None or not sampler.captures_states or not self.env.has_attr("why_not_captured"):
            return
        reason = self.env.env_method("why_not_captured", indices=0)[0]
        if reason is not None:
            raise StartNotSupportedError(
                f"{reason} Without snapshots (horizon=None, vine_share=0, a start_sampler of seeds) it need not be captured."
            )

    def begin_rollout(self, n_steps: int | None) -> None:
        """
        Prepare the groups of the next update. Steps that were made before it are those of an earlier policy.

        :param n_steps: How many steps of each copy it takes, ``None`` for whole groups
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
        :param observations: Of all copies, see ``check_observations``
        """
        lengths = self.time[copies]
        self.time[copies] = 0
        self.outcome[copies] = 0.0
        # Before the first ones of a group are compared: those that are no numbers are no unequal start
        self.check_observations(observations)
        self.tickets[copies] = self.feeder.tickets_of(copies)
        self.feeder.fill()
        if self._staggers:
            self._stagger(np.asarray(copies), lengths)

    def _can_stagger(self) -> bool:
        # Where episodes are continued or branched, copies are at different places anyway. VecMonitor would report the pieces
        sampler = self.settings.sampler
        if (sampler is not None and sampler.captures_states) or unwrap_vec_wrapper(self.env, VecMonitor) is not None:
            return False
        if not self.env.has_attr("cut_after"):
            return False
        return not self.env.has_attr("allow_early_resets") or all(self.env.get_attr("allow_early_resets"))

    def _stagger(self, copies: np.ndarray, lengths: np.ndarray) -> None:
        """
        Where most copies have ended together after equally many steps, they would end together from now on: each update would
        see another part of their episodes, and unlearn what the others have taught. Once, the episodes that they have just
        begun are cut, each after another share of that length. Updates that are longer than an episode see all parts anyway.

        :param copies: That have begun an episode
        :param lengths: (n_copies,) of their episodes before, 0 for none
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
        Count a step of all copies.

        :param observations: After the step, (n_envs, \\*obs_shape) or a dict of such
        :param rewards: (n_envs,) the environment's own
        :param dones: (n_envs,) whose episode or piece has just ended
        :return: How many steps the sampler of starts has made besides
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
        Note the outcomes of episodes that have ended.

        :param ended: Their environment copies
        :param infos: Of all copies
        :raises ValueError: if the value of a last observation is to follow, and the observation is not finite
        """
        figures = (self.tickets[ended].tolist(), self.time[ended].tolist(), self.outcome[ended].tolist())
        for idx, ticket, length, outcome in zip(ended, *figures, strict=True):
            if ticket != NO_EPISODE:
                info = infos[idx]
                truncated = "group_cut_at" not in info and bool(info.get("TimeLimit.truncated", False))
                self.queue.end_episode(ticket, length, outcome, truncated, info)
                last = self.queue.member(ticket)[1].next_observation
                if last is not None:
                    by_key = last if isinstance(last, dict) else {None: last}
                    self._check_finite({key: np.asarray(values)[None] for key, values in by_key.items()}, [idx])

    def whole_episodes(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """
        Which episodes to report where groups begin in mid-episode: none that another one has begun, because the longer an
        episode is the more branches it has. With a horizon, those of the first members, from their beginning, when they end;
        not those of copies without work, of which the longer ones are cut. What Monitor says of all others is dropped. Nowhere
        those that were cut to take copies apart.

        :param dones: (n_envs,) whose episode or piece has just ended
        :param infos: Of all copies
        :return: (n_envs,) which of these are to be reported
        """
        whole = dones.copy()
        if self.settings.sampler is None or not self.settings.sampler.captures_states:
            for idx in dones.nonzero()[0].tolist():
                whole[idx] = "group_cut_at" not in infos[idx]
            return whole
        horizon = self.settings.horizon
        for idx in dones.nonzero()[0].tolist():
            ticket = int(self.tickets[idx])
            if ticket == NO_EPISODE:
                whole[idx] = horizon is None
            else:
                group, episode = self.queue.member(ticket)
                is_branch = isinstance(group.start, VisitedState) or (horizon is not None and episode.member > 0)
                whole[idx] = not is_branch and "group_cut_at" not in infos[idx]
            if not whole[idx]:
                infos[idx].pop("episode", None)
        return whole

    def _check_length(self) -> None:
        """
        :raises ValueError: if an episode does not end
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
        :param observations: What the policy sees next, (n_envs, \\*obs_shape) or a dict of such
        :return: The groups of the update, dead ones included
        """
        if isinstance(self.queue, StepQueue):
            figures = (self.tickets.tolist(), self.time.tolist(), self.outcome.tolist())
            for idx, (ticket, length, outcome) in enumerate(zip(*figures, strict=True)):
                self.queue.note_open_episode(ticket, length, outcome, observation_of(observations, idx))
        return self.queue.take()

    def clear(self) -> None:
        """Take back the starts that are queued: who else resets the environments must not land on them."""
        self.feeder.clear()


def _float_keys(space: spaces.Space) -> list[str | None]:
    """
    :param space: Of observations
    :return: The keys of those that can be infinite, ``None`` for an observation without keys
    """
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else [(None, space)]
    return [key for key, part in parts if isinstance(part, spaces.Box) and part.dtype is not None and part.dtype.kind == "f"]


def own_observations(env: VecEnv, observations: Any) -> Any:
    """
    :param env: Environments, with or without wrappers
    :param observations: Their latest ones, (n_envs, \\*obs_shape) or a dict of such
    :return: The same as the environments gave them, before VecNormalize and VecTransposeImage
    """
    extracted = None
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            observations = env.get_original_obs()
        elif isinstance(env, VecTransposeImage) and not env.skip:
            if isinstance(observations, dict):
                images = {key: np.moveaxis(observations[key], 1, -1) for key in env.image_space_keys}
                observations = {**observations, **images}
            else:
                observations = np.moveaxis(observations, 1, -1)
        elif isinstance(env, VecExtractDictObs):
            extracted = env.key
        env = env.venv
    # VecNormalize inside of it has all keys
    return observations if extracted is None or not isinstance(observations, dict) else observations[extracted]


def observation_of(observations: Any, copy: int) -> Any:
    """
    :param observations: (n_envs, \\*obs_shape) or a dict of such
    :param copy: An environment copy
    :return: Its observation, which later ones do not overwrite
    """
    if isinstance(observations, dict):
        return {key: values[copy].copy() for key, values in observations.items()}
    return observations[copy].copy()
