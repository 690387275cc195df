"""The base of algorithms that learn from groups of episodes with a common start."""

import io
import pathlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.buffers import GroupBatch, GroupRolloutBuffer
from sb3_grpo.common.callbacks import ClampedProgressBarCallback
from sb3_grpo.common.optimizers import fuse_adam
from sb3_grpo.common.policies import (
    ActorCnnPolicy,
    ActorMultiInputPolicy,
    ActorPolicy,
    default_policy_kwargs,
)
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.groups.collector import GroupCollector
from sb3_grpo.groups.group import Group, live_groups, metrics, outcomes
from sb3_grpo.groups.queue import RETURN, GroupSettings
from sb3_grpo.groups.samplers import StartSampler, VisitedState, make_sampler
from sb3_grpo.starts.start_queue import make_group_env, refuse_frame_stack
from sb3_grpo.starts.starts import Start
from sb3_grpo.utils.files import replace_file, save_location
from sb3_grpo.utils.parameters import check_number, number_parameters
from sb3_grpo.utils.plugins import MissingPlugIn, missing_plugins
from sb3_grpo.utils.user_warnings import warn_user

SelfOnGroupAlgorithm = TypeVar("SelfOnGroupAlgorithm", bound="OnGroupAlgorithm")

# What is kept for the log probabilities of a rollout. Beyond, they are computed in the middle of it.
MAX_FORWARDED_BYTES = 2**22
# With max_sampling_rounds=None: after this many steps of a rollout without a live group, it will not come
MAX_DEAD_STEPS = 1_000_000


class OnGroupAlgorithm(OnPolicyAlgorithm):
    """
    The base for on-policy algorithms that compare the episodes of a group (ex: GRPO/DAPO):
    :class:`OnPolicyAlgorithm` whose episodes come in groups of ``group_size``, the members of a group from exactly the same
    start, on any number of environment copies. A rollout is ``n_steps`` of every copy, or ``n_groups`` whole groups.

    The parameters are explained at :class:`GRPO`.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorPolicy,
        "CnnPolicy": ActorCnnPolicy,
        "MultiInputPolicy": ActorMultiInputPolicy,
    }
    # Those that can be functions of the user's own, without which a model can still predict
    plugin_parameters: ClassVar[tuple[str, ...]] = ("start_sampler",)
    n_steps: int | None  # type: ignore[assignment]
    policy: ActorPolicy
    policy_class: type[ActorPolicy]
    rollout_buffer: GroupRolloutBuffer  # type: ignore[assignment]
    batch: GroupBatch | None

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule,
        n_envs: int,
        group_size: int,
        n_steps: int | None,
        n_groups: int | None,
        batch_size: int | None,
        gamma: float,
        ent_coef: float,
        max_grad_norm: float,
        dynamic_sampling: bool,
        max_sampling_rounds: int | None,
        group_metric: str,
        common_noise: bool,
        unrelated_starts: bool,
        start_sampler: StartSampler | Callable[[np.random.Generator], Start] | None,
        vine_share: float,
        horizon: int | None,
        step_timeout: float | None,
        use_sde: bool,
        sde_sample_freq: int,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
    ):
        # What is needed before all others are checked
        n_envs, seed = check_number(type(self), "n_envs", n_envs), check_number(type(self), "seed", seed)
        if n_steps == 0:
            raise ValueError("n_steps must be at least 1, got 0.")  # a model of 0.1 has it, and means whole groups
        if isinstance(env, str):
            env = make_group_env(env, n_envs=n_envs, seed=seed)
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=0,  # chosen below
            gamma=gamma,
            gae_lambda=1.0,
            ent_coef=ent_coef,
            vf_coef=0.0,
            max_grad_norm=max_grad_norm,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            stats_window_size=check_number(type(self), "stats_window_size", stats_window_size),
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=False,
            supported_action_spaces=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
        )
        # What policy_kwargs do not say. Saved, because a model has to be loaded with what was chosen when it was made
        self.default_policy_kwargs: dict[str, Any] = {}
        self.group_size = group_size
        self.n_steps = n_steps
        self.n_groups = n_groups
        self.batch_size = batch_size
        self.dynamic_sampling = dynamic_sampling
        self.max_sampling_rounds = max_sampling_rounds
        self.group_metric = group_metric
        self.common_noise = common_noise
        self.unrelated_starts = unrelated_starts
        self.start_sampler = start_sampler
        self.vine_share = vine_share
        self.horizon = horizon
        self.step_timeout = step_timeout
        self._start_seed = seed
        self._start_rng = np.random.default_rng(seed)
        self._collector: GroupCollector | None = None
        self._sampler: tuple[tuple[Any, ...], StartSampler] | None = None  # and what it was made of
        self._sampling_rounds = 0
        self._outcome_range = (0.0, 0.0)

    def _check_parameters(self) -> None:
        """
        :raises ValueError: if a parameter is impossible
        :raises StartNotSupportedError: if groups are to begin in mid-episode, and frames are stacked outside of the copies
        """
        if not issubclass(self.policy_class, ActorPolicy):
            raise ValueError(
                f"{self.policy_class.__name__} is not a critic-free policy: use one of the names "
                f"{', '.join(self.policy_aliases)}, or a subclass of sb3_grpo.common.policies.ActorPolicy."
            )
        for name in number_parameters(type(self)):
            if hasattr(self, name):
                setattr(self, name, check_number(type(self), name, getattr(self, name)))
        if self.start_sampler is not None and not callable(self.start_sampler):
            raise ValueError(
                "start_sampler must be a function of a numpy.random.Generator that returns a start, "
                f"got {self.start_sampler!r:.80}."
            )
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2, got {self.group_size}: an episode is compared with "
                "the others of its group, and a group of one gives no signal."
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be between 0 and 1, got {self.gamma}.")
        if not 0.0 <= self.vine_share <= 1.0:
            raise ValueError(f"vine_share must be between 0 and 1, got {self.vine_share}.")
        if self.vine_share > 0.0 and self.unrelated_starts:
            raise ValueError("vine_share needs environments that can be put into a state: leave unrelated_starts=False.")
        if self.horizon is not None:
            self._check_horizon()
        captures_states = isinstance(self.start_sampler, StartSampler) and self.start_sampler.captures_states
        if captures_states:
            self._check_captures_states()
        if self.env is not None and (self.vine_share > 0.0 or self.horizon is not None or captures_states):
            refuse_frame_stack(self.env)
        self._check_sizes()

    def _check_sizes(self) -> None:
        """
        :raises ValueError: if a size is none, or if an update has no size, or two, or a single step
        """
        for name in ("max_grad_norm", "step_timeout"):
            if getattr(self, name) is not None and getattr(self, name) <= 0.0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        for name in ("n_groups", "batch_size", "max_sampling_rounds", "n_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.n_steps is not None and self.n_groups is not None:
            raise ValueError(
                f"Give n_steps={self.n_steps} or n_groups={self.n_groups}, and not both: an update is sized in steps of "
                "each copy, or in whole groups. Write None for the other, also in load(): a model keeps its own."
            )
        if self.n_steps is None and self.n_groups is None:
            raise ValueError("n_steps and n_groups are both None: set one of them, n_groups=4 for example.")
        if self.env is not None and self.n_steps == self.n_envs == 1:
            raise ValueError(
                "n_steps * n_envs must be greater than 1, got n_steps=1 and n_envs=1: a single step has no other to be "
                "compared with."
            )

    def _check_horizon(self) -> None:
        """
        :raises ValueError: if it is impossible, or with other parameters
        """
        assert self.horizon is not None
        if self.horizon < 1:
            raise ValueError(f"horizon must be a whole number of steps, or None for whole episodes, got {self.horizon}.")
        if self.unrelated_starts:
            raise ValueError("horizon needs environments that can be put into a state: leave unrelated_starts=False.")
        if self.group_metric != RETURN:
            raise ValueError(f"group_metric={self.group_metric!r} is of whole episodes, and a horizon cuts them into pieces.")
        if self.vine_share > 0.0:
            raise ValueError("With a horizon, groups begin in mid-episode already: leave vine_share=0.")

    def _check_captures_states(self) -> None:
        """
        :raises ValueError: if the sampler of starts captures states, and other parameters are against it
        """
        name = type(self.start_sampler).__name__
        if self.unrelated_starts:
            raise ValueError(f"{name} needs environments that can be put into a state: leave unrelated_starts=False.")
        if self.vine_share > 0.0 or self.horizon is not None:
            raise ValueError(
                f"{name} begins groups in mid-episode already: leave vine_share=0 and horizon=None, got "
                f"vine_share={self.vine_share} and horizon={self.horizon}."
            )

    def _setup_model(self) -> None:
        self._check_parameters()
        self._setup_lr_schedule()
        drawn_so_far = self._start_rng.bit_generator.state
        self.set_random_seed(self.seed)
        if self.seed == self._start_seed:
            self._start_rng.bit_generator.state = drawn_so_far  # a loaded model goes on where it was
        self._start_seed = self.seed
        self.rollout_buffer = self.policy_class.rollout_buffer_class(self.observation_space, self.action_space, self.device)
        self.batch = None
        self._collector = None
        self.policy = self._make_policy()
        self._maybe_recommend_cpu(ActorPolicy.__name__)

    def _choose_default_policy_kwargs(self) -> dict[str, Any]:
        """
        :return: What the policy gets beyond ``policy_kwargs``
        """
        return default_policy_kwargs(self.policy_class, self.action_space, self.policy_kwargs, self._vec_normalize_observes)

    @property
    def _vec_normalize_observes(self) -> bool:
        """Whether a VecNormalize around the environments normalises the observations."""
        return self._vec_normalize_env is not None and self._vec_normalize_env.norm_obs

    def _make_policy(self) -> ActorPolicy:
        policy_kwargs = {**self.default_policy_kwargs, **self.policy_kwargs}
        policy = self.policy_class(
            self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **policy_kwargs
        )
        policy = policy.to(self.device)
        fuse_adam(policy.optimizer)
        return policy

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Set the seed of the pseudo-random generators
        (python, numpy, pytorch, gym, action_space, starts of groups)

        :param seed:
        """
        super().set_random_seed(seed)
        if seed is not None:
            # In place: the collector draws from it
            self._start_rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save all the attributes of the object and the model parameters in a zip-file, see :meth:`BaseAlgorithm.save`.
        An older file of this name is replaced when the new one is complete.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        """
        if isinstance(path, (str, pathlib.Path)):
            with replace_file(save_location(path, "zip")) as file:
                super().save(file, exclude, include)
        else:
            super().save(path, exclude, include)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfOnGroupAlgorithm],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> SelfOnGroupAlgorithm:
        """
        Load the model from a zip-file, see :meth:`BaseAlgorithm.load`. Functions of the user's own that cannot be imported
        (``advantage``, ``start_sampler``, ...) are not needed to predict; to go on learning give them by ``custom_objects``.

        :param path: path to the file (or a file-like) where to load the agent from
        :param env: the new environment to run the loaded model on
            (can be None if you only need prediction from a trained model) has priority over any saved environment
        :param device: Device on which the code should run.
        :param custom_objects: Dictionary of objects to replace upon loading.
        :param kwargs: extra arguments of :meth:`BaseAlgorithm.load`
        :return: new model instance with loaded parameters
        """
        custom_objects = {**missing_plugins(path, cls.plugin_parameters), **(custom_objects or {})}
        return super().load(path, env, device, custom_objects, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "batch", "_collector", "_sampler"]

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # Whole episodes overshoot: schedules must never see a negative progress
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if progress_bar:
            if not isinstance(callback, list):
                callback = [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)]
            callback = [*callback, ClampedProgressBarCallback()]
        return super()._init_callback(callback)

    @property
    def collector(self) -> GroupCollector:
        """The groups under way, and which of their episodes each environment copy plays."""
        assert self._collector is not None, "Groups are collected in learn()"
        return self._collector

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        self._check_parameters()
        for name in self.plugin_parameters:
            if isinstance(plugin := getattr(self, name), MissingPlugIn):
                raise ValueError(plugin.message)
        if self.env is None:
            name = type(self).__name__
            raise ValueError(
                f"There is no environment to learn from. Give one: {name}.load(path, env=...), or model.set_env(...)."
            )
        if self._vec_normalize_observes and self.default_policy_kwargs.keys() - self.policy_kwargs.keys():
            warn_user(
                "The observations are normalised twice: by VecNormalize, and by the policy, because it was made without. "
                "Make the model with this environment, or take VecNormalize(env, norm_obs=False)."
            )
        if (
            self._last_obs is None
            or reset_num_timesteps
            or self._collector is None
            or not self._collector.can_go_on(self.env, self._group_settings)
        ):
            self._last_obs = None  # makes SB3 reset the environments
            self._begin_groups()
        self.collector.feeder.fill()
        fresh = self._last_obs is None
        with self.collector.watchdog:
            result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if fresh:
            self.collector.check_capture()
            self.collector.begin_episodes([*range(self.n_envs)])
            self.collector.check_observations(self._last_obs)
        return result

    @property
    def _group_settings(self) -> GroupSettings:
        return GroupSettings(
            group_size=self.group_size,
            n_groups=self.n_groups or 0,
            max_sampling_rounds=self.max_sampling_rounds if self.dynamic_sampling else 1,
            sampler=None if self.unrelated_starts else self._choose_sampler(),
            common_noise=self.common_noise,
            horizon=self.horizon,
            n_steps=self.n_steps,
            metric=self.group_metric,
        )

    def _choose_sampler(self) -> StartSampler:
        """
        :return: What draws the starts, the same object for as long as the parameters are the same
        """
        parameters = (self.start_sampler, self.vine_share, self.horizon)
        if self._sampler is None or self._sampler[0] != parameters:
            self._sampler = parameters, make_sampler(*parameters)
        return self._sampler[1]

    def _begin_groups(self) -> None:
        """Forget the groups under way, if any, and prepare the environments' start queues."""
        assert self.env is not None
        if self._collector is not None and self._collector.env is self.env:
            self._collector.clear()
        self._collector = GroupCollector(self.env, self._group_settings, self._start_rng, self.step_timeout)
        self.rollout_buffer.reset()
        if self.unrelated_starts and self.verbose >= 1:
            print("The members of a group have unrelated starts (unrelated_starts=True)")

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: GroupRolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """
        Collect the steps of one update into ``self.batch``: whole groups, or ``n_steps`` of each copy.

        :param env: The training environment
        :param callback: Callback that will be called at each step
            (and at the beginning and end of the rollout)
        :param rollout_buffer: Buffer to fill with rollouts
        :param n_rollout_steps: ``n_steps``. ``None``: a rollout ends with the last episode of its groups
        :return: True if the rollout is complete, False if callback terminated rollout prematurely.
        """
        assert self._last_obs is not None, "No previous observation was provided"
        # Switch to eval mode (this affects batch norm / dropout)
        self.policy.set_training_mode(False)
        # Free the groups of the last update; what the copies have begun of the next one stays
        self.batch = None
        self._keep_open_groups()
        # Between two updates: a rollout and its update are of one and the same function of the observations
        self.policy.observation_norm.renew()
        self.collector.begin_rollout()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)

        callback.on_rollout_start()

        sample_actions = self.policy.action_sampler()
        n_steps = 0
        ready = self.collector.queue.ready()
        while not ready:
            if self.collector.is_disturbed() and not self._begin_again():
                return False
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                self.policy.reset_noise(env.num_envs)

            obs = self._last_obs
            with th.inference_mode():
                actions, forwarded = sample_actions(obs)

            new_obs, rewards, dones, infos = self.collector.step(self._env_actions(actions))
            self.num_timesteps += env.num_envs
            n_steps += 1
            is_end = self._add_step(rollout_buffer, obs, actions, forwarded, new_obs, rewards, dones, infos)
            if is_end or n_rollout_steps is not None:
                queue = self.collector.queue
                n_rounds = queue.n_sampling_rounds
                ready = queue.ready()
                if queue.n_sampling_rounds > n_rounds:
                    # Of the dead groups only the outcomes are needed any more
                    self._keep_open_groups()
            if not ready and n_steps * env.num_envs >= MAX_DEAD_STEPS:
                self._check_live(n_steps * env.num_envs)
            if rollout_buffer.forwarded_bytes > MAX_FORWARDED_BYTES:
                self._evaluate_log_probs()
            self._last_obs = new_obs  # type: ignore[assignment]
            self._last_episode_starts = dones

            # Give access to local variables
            callback.update_locals(locals())
            if not callback.on_step():
                self._evaluate_log_probs()
                return False

        self._evaluate_log_probs()
        self._take_groups()

        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _check_live(self, n_steps: int) -> None:
        """
        :param n_steps: Steps of this rollout
        :raises ValueError: if groups are drawn without a limit, and none of them was live
        """
        if self.max_sampling_rounds is not None or not self.dynamic_sampling or self.collector.queue.has_live_group():
            return
        same = "outcome" if self.group_metric == RETURN else f"{self.group_metric!r} (group_metric)"
        raise ValueError(
            f"{n_steps:,} steps have brought no live group: in each group all members had the same {same}. The task is "
            "solved, or no member ever succeeds, and max_sampling_rounds=None draws groups until enough are live. With a "
            "number of rounds, such as max_sampling_rounds=4, the update is skipped instead."
        )

    def _evaluate_log_probs(self) -> None:
        """Make the log probabilities of the actions sampled so far. To be called before the policy may change."""
        with unchecked_distributions():
            self.rollout_buffer.evaluate_log_probs(self.policy)

    def _keep_open_groups(self) -> None:
        """Drop the steps of all other groups from the buffer, once the policy has seen them for its statistics."""
        self._evaluate_log_probs()
        self.rollout_buffer.keep(self.collector.queue.open_tickets())

    def _begin_again(self) -> bool:
        """
        Drop the groups under way, because the environments were reset outside of the rollout.

        :return: False if no steps are left for new ones
        """
        assert self.env is not None
        warn_user(
            "The training environment was reset in the middle of a rollout (by a callback that evaluates "
            "on it?). The groups under way are dropped: give callbacks an environment of their own."
        )
        self._evaluate_log_probs()
        self._begin_groups()
        self.collector.feeder.fill()
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self.collector.begin_episodes([*range(self.n_envs)])
        return self.num_timesteps < self._total_timesteps

    def _take_groups(self) -> None:
        """
        Turn the groups of the rollout into the batch of the update. With dynamic sampling only the live ones; with ``n_steps``
        all, as each step is judged for itself.
        """
        self._sampling_rounds = self.collector.queue.n_sampling_rounds
        groups = self.collector.take(self._last_obs)
        kept = groups
        if self.dynamic_sampling and self.n_steps is None:
            kept = [group for group, is_live in zip(groups, live_groups(metrics(groups)).tolist(), strict=True) if is_live]
        self.batch = self.rollout_buffer.batch(kept) if kept else None
        normalizer = self._vec_normalize_env
        if self.batch is not None and normalizer is not None and normalizer.norm_reward:
            # One scale for all, in double precision, which normalize_reward() would round: equal returns stay equal
            scale = float(normalizer.ret_rms.var + normalizer.epsilon) ** -0.5
            self.batch.rewards = (scale * self.batch.rewards).clamp(-normalizer.clip_reward, normalizer.clip_reward)
        self._log_groups([group for group in groups if group.complete])

    def _log_groups(self, groups: list[Group]) -> None:
        """
        :param groups: All complete groups of the update, dead ones included
        """
        self.logger.record("group/sampling_rounds", self._sampling_rounds)
        if not groups:
            return
        episodes = [episode for group in groups for episode in group.episodes]
        raw_outcomes = outcomes(groups)
        self._outcome_range = (raw_outcomes.min().item(), raw_outcomes.max().item())
        self.logger.record("group/return_std", raw_outcomes.std(dim=1).mean().item())
        self.logger.record("group/dead_fraction", 1.0 - live_groups(metrics(groups)).double().mean().item())
        if self.n_steps is None:
            n_stale = sum(episode.n_before for episode in episodes)
            self.logger.record("group/stale_fraction", n_stale / sum(episode.length for episode in episodes))
        self.logger.record("group/overlong_fraction", float(np.mean([episode.truncated for episode in episodes])))
        if self.unrelated_starts:
            self.logger.record("group/unrelated_starts", 1)
        if self.vine_share > 0.0:
            visited = [isinstance(group.start, VisitedState) for group in groups]
            self.logger.record("group/vine_fraction", float(np.mean(visited)))

    def learn(
        self: SelfOnGroupAlgorithm,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "OnGroupAlgorithm",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfOnGroupAlgorithm:
        try:
            super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        except BaseException as error:
            # Perhaps in the middle of a step: the next learn() begins with new episodes
            self._last_obs = None
            fault = None if self._collector is None else self._collector.fault_of(error)
            # Ctrl-C also ends the processes of a SubprocVecEnv
            with suppress(OSError, EOFError):
                if self._collector is not None:
                    self._collector.clear()
            if fault is not None:
                raise fault from error
            raise
        finally:
            if self._collector is not None:
                self._collector.watchdog.stop()
        self.collector.clear()
        return self

    def _env_actions(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: As the policy sampled them
        :return: Within the bounds of the action space
        """
        if not isinstance(self.action_space, spaces.Box):
            return actions
        if self.policy.squash_output:
            return self.policy.unscale_action(actions)
        # Avoid out of bound error as we are sampling from an unbounded Gaussian distribution
        return np.clip(actions, self.action_space.low, self.action_space.high)

    def _add_step(
        self,
        rollout_buffer: GroupRolloutBuffer,
        obs: Any,
        actions: np.ndarray,
        forwarded: th.Tensor,
        new_obs: Any,
        rewards: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> bool:
        """
        Store one step of all copies; where an episode has ended, note its outcome and which one began.

        :return: Whether an episode has ended
        """
        # The scale of VecNormalize changes from step to step, and members of a group are compared with each other
        if self._vec_normalize_env is not None:
            rewards = self._vec_normalize_env.get_original_reward()
        collector = self.collector
        rollout_buffer.add(obs, actions, forwarded, rewards, collector.tickets, collector.time)
        self.num_timesteps += collector.add_step(new_obs, rewards, dones)
        collector.check_rewards(rewards)
        ended = dones.nonzero()[0].tolist()
        if ended:
            self._update_info_buffer(infos, collector.whole_episodes(dones, infos))
            collector.end_episodes(ended, infos)
            collector.begin_episodes(ended)
            if self.use_sde:
                # With that of the episode before, the members of a group that one copy plays would all be the same
                self.policy.reset_noise_of(ended, self.n_envs)
        # Before the policy acts on them
        collector.check_observations(new_obs)
        return bool(ended)
