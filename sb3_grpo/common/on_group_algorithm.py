"""Base class of algorithms that learn from groups of episodes with a common start."""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.arguments import (
    ARGUMENTS,
    LEARN_ARGUMENTS,
    MAX_STEPS_PER_UPDATE,
    SHARE_PER_UPDATE,
    STEPS_PER_UPDATE,
    check_arguments,
    check_env,
    check_policy,
    check_together,
    refuse_arguments,
    resolve,
)
from sb3_grpo.common.batch import GroupBatch
from sb3_grpo.common.buffers import Acted, GroupRolloutBuffer
from sb3_grpo.common.callbacks import ClampedProgressBarCallback
from sb3_grpo.common.distributed import SharedRollout, begin_training, of_this_rank
from sb3_grpo.common.optimizers import fuse_adam
from sb3_grpo.common.policies import (
    ActorPolicy,
    has_own_extractor,
    why_not_for_images,
)
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.common.saved_algorithm import IMPOSSIBLE, SavedAlgorithm
from sb3_grpo.groups.collector import MIN_STEPS_PER_COPY, GroupCollector
from sb3_grpo.groups.group import Group, LiveFunction, live_groups, outcomes, start_share, summary
from sb3_grpo.groups.queue import GroupSettings
from sb3_grpo.groups.samplers import StartSampler, VisitedState, VisitedStates, make_sampler
from sb3_grpo.starts.atari import make_env_of, maker_of, why_not_learnable
from sb3_grpo.starts.gymnasium_vec_env import GymnasiumVecEnv
from sb3_grpo.starts.starts import Start
from sb3_grpo.utils.devices import suitable_threads
from sb3_grpo.utils.parameters import Number, Whole, short_repr
from sb3_grpo.utils.ranks import RolloutStopped, choose_gpu, gather, n_ranks, own_copies, rank, share
from sb3_grpo.utils.spaces import SUPPORTED, SpaceError, check_spaces
from sb3_grpo.utils.user_warnings import warn_user
from sb3_grpo.utils.vec_envs import copied

SelfOnGroupAlgorithm = TypeVar("SelfOnGroupAlgorithm", bound="OnGroupAlgorithm")

# Maximum size of what is kept to compute the log probabilities of a rollout. Beyond it, they are computed during the rollout
MAX_DIST_INPUTS_BYTES = 2**22
# With max_sampling_rounds=None: give up after this many steps of a rollout without a live group
MAX_DEAD_STEPS = 1_000_000
# Default of learn()
TOTAL_TIMESTEPS = 100_000
# Default for an environment that is given by its id
DEFAULT_N_ENVS = 16
# Arguments of OnPolicyAlgorithm that it does not get as they are
_NOT_AS_IN_SB3 = {"policy", "env", "n_steps", "gae_lambda"}


def _make_copies(env_id: str, n_envs: int, seed: int | None) -> VecEnv:
    try:
        return make_env_of(env_id, *own_copies(n_envs, seed))
    except gym.error.DependencyNotInstalled:
        raise
    except gym.error.Error as error:
        raise ValueError(f"env={env_id!r} cannot be made: {error}") from error


class OnGroupAlgorithm(SavedAlgorithm):
    """
    The base for on-policy algorithms that compare the episodes of a group (ex: GRPO/DAPO):
    an :class:`OnPolicyAlgorithm` whose episodes come in groups of ``group_size`` members with exactly the same start,
    on any number of environment copies. A rollout is ``n_steps`` of every copy, or ``n_groups`` whole groups.

    See :class:`GRPO` for the parameters.
    """

    plugin_parameters: ClassVar[tuple[str, ...]] = ("dynamic_sampling", "start_sampler")
    group_size: int
    n_steps: int | None  # type: ignore[assignment]
    n_groups: int | None
    batch_size: int | None
    dynamic_sampling: bool | LiveFunction
    max_sampling_rounds: int | None
    unrelated_starts: bool
    normalize_reward_parts: bool
    use_masking: bool
    start_sampler: StartSampler | Callable[[np.random.Generator], Start] | None
    policy: ActorPolicy
    policy_class: type[ActorPolicy]
    rollout_buffer: GroupRolloutBuffer  # type: ignore[assignment]
    batch: GroupBatch | None

    def __init__(
        self, policy: str | type[ActorPolicy], env: GymEnv | str, arguments: Mapping[str, Any], _init_setup_model: bool = True
    ):
        """
        :param policy: See :class:`GRPO`
        :param env: See :class:`GRPO`
        :param arguments: Its other arguments, by name
        :param _init_setup_model: See :class:`GRPO`
        """
        check_policy(policy, self.policy_aliases)
        choose_gpu()
        if rank() > 0:
            arguments = {**arguments, "verbose": 0, "tensorboard_log": None}
        n_envs = ARGUMENTS["n_envs"].check("n_envs", arguments["n_envs"])
        if _init_setup_model:
            check_env(env, n_envs)
        of_sb3 = inspect.signature(OnPolicyAlgorithm).parameters.keys() - _NOT_AS_IN_SB3
        as_in_sb3 = check_arguments({name: value for name, value in arguments.items() if name in of_sb3})
        # Used by resume() to create the environments again
        self.env_id = env if isinstance(env, str) else None
        if isinstance(env, str):
            env = _make_copies(env, n_envs or DEFAULT_N_ENVS, as_in_sb3["seed"])
        if env is not None:
            check_spaces(env.observation_space, env.action_space)
        super().__init__(
            policy,
            env,
            n_steps=0,  # chosen below
            gae_lambda=1.0,
            _init_setup_model=False,
            supported_action_spaces=SUPPORTED,
            **as_in_sb3,
        )
        # Chosen in addition to policy_kwargs. Saved, because a model has to be loaded with what was chosen at its creation
        self.default_policy_kwargs: dict[str, Any] = {}
        self.default_n_steps: int | None = None  # set if n_steps was not given
        others = arguments.keys() - as_in_sb3 - {"n_envs"}
        vars(self).update({name: arguments[name] for name in others})
        self._start_seed = self.seed
        self._start_rng = np.random.default_rng(self.seed)
        self._collector: GroupCollector | None = None
        self.has_masks = False  # saved for the policy
        self.is_normalized_outside = False  # saved: whether its policy needs the statistics of a VecNormalize
        self._sampler: tuple[Any, StartSampler] | None = None  # with the start_sampler it was made from
        self.resumption = self.saved_by_version = None
        self._sampling_rounds = 0
        self._outcome_range = (0.0, 0.0)
        # Averaged over the latest updates, as those of a single one are noise
        self._start_shares: dict[str, float] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The arguments in use: those that were given, and what was chosen where none were."""
        values = {name: getattr(self, name) for name in ARGUMENTS if hasattr(self, name)}
        for name, value in values.items():
            if isinstance(value, FloatSchedule) and isinstance(value.value_schedule, ConstantSchedule):
                values[name] = value.value_schedule.val
        return MappingProxyType({**values, "policy_kwargs": {**self.default_policy_kwargs, **self.policy_kwargs}})

    def _setup_model(self) -> None:
        resolve(self)
        check_together(self)
        self._setup_lr_schedule()
        drawn_so_far = self._start_rng.bit_generator.state
        seed = self.seed
        if seed is not None and self.num_timesteps > 0:
            # A loaded model that continues training: derive different random numbers from the same seed
            seed = int(np.random.SeedSequence([seed, self.num_timesteps]).generate_state(1)[0])
        self.set_random_seed(seed)
        if self.seed == self._start_seed:
            self._start_rng.bit_generator.state = drawn_so_far  # a loaded model continues where it stopped
        self._start_seed = self.seed
        make_buffer = self.policy_class.rollout_buffer_class
        self.rollout_buffer = make_buffer(self.observation_space, self.action_space, self.device, self.n_envs)
        self.batch = None
        self._collector = None
        self.policy = self._make_policy()
        if rank() > 0 and seed is not None:
            # All ranks begin with the same policy, and act with different random numbers
            set_random_seed(int(np.random.SeedSequence([seed, rank()]).generate_state(1)[0]), self.device.type == "cuda")
        self._maybe_recommend_cpu(ActorPolicy.__name__)

    def _create(self) -> None:
        """Choose the defaults of a new model, which a loaded one keeps. Warn if it cannot learn from images as they are."""
        self.policy_kwargs = self.policy_class.portable_kwargs(self.policy_kwargs)
        chosen = resolve(self)
        if self.verbose >= 1:
            print(f"Defaults: {', '.join(f'{name}={value!r}' for name, value in chosen.items())}")
        self.default_policy_kwargs = self._default_policy_kwargs()
        self._setup_model()
        if not self.policy.observation_norm.keys:
            # Only images or discrete observations: nothing was normalised
            self.default_policy_kwargs.pop("normalize_observations", None)
        net_arch = self.policy_kwargs.get("net_arch")
        if isinstance(net_arch, dict) and any(layers for key, layers in net_arch.items() if key != "pi"):
            warn_user(
                f"Only the layers pi of net_arch={net_arch} are used, as there is no critic network: write "
                "net_arch=dict(pi=[...])."
            )
        images = None if self.policy.reads_texts else why_not_for_images(self.policy)
        for problem in (None if self.env is None else why_not_learnable(self.env), images):
            if problem is not None:
                warn_user(problem)

    def _default_policy_kwargs(self) -> dict[str, Any]:
        """
        :return: ``policy_kwargs`` of a new model, unless the user gives others
        """
        # With many copies, statistics of the first moments of an episode would spoil the first updates
        normalizes = isinstance(self.action_space, spaces.Box) and not (self._vec_normalize_observes or self._has_many_copies)
        # Custom policies and features extractors may rely on the original values
        is_own = not self.policy_class.__module__.startswith("sb3_grpo.") or has_own_extractor(self.policy_kwargs)
        kwargs = {"normalize_observations": True} if normalizes and not is_own else {}
        return kwargs | ({"aux_value_head": True} if self.vf_coef > 0.0 else {})

    @property
    def n_copies(self) -> int:
        """Number of environment copies, with those of the other ranks of ``torchrun``."""
        return self.n_envs * n_ranks()

    @property
    def _has_many_copies(self) -> bool:
        """Whether an update of the default size is a moment of the episode, if the copies are in lockstep."""
        return self.n_copies > STEPS_PER_UPDATE // MIN_STEPS_PER_COPY

    @property
    def _vec_normalize_observes(self) -> bool:
        """Whether a VecNormalize around the environments normalises the observations."""
        return self._vec_normalize_env is not None and self._vec_normalize_env.norm_obs

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        # Also called by load and set_env
        if isinstance(env, str):
            raise ValueError(
                f"env={env!r} is the id of an environment, and an environment is needed here: write "
                f"env={maker_of(env).__name__}({env!r}, n_envs=...)."
            )
        check_env(env)
        if isinstance(env, VectorEnv):
            env = GymnasiumVecEnv(env)
        return SavedAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        # Otherwise, a training resumed without an environment would be given a different one
        self.env_id = None

    def _make_policy(self) -> ActorPolicy:
        policy_kwargs = {**self.default_policy_kwargs, **self.policy_kwargs}
        try:
            policy = self.policy_class(
                self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **policy_kwargs
            )
        except IMPOSSIBLE as error:
            # SB3's assertions and errors of spaces say themselves what is wrong
            says_it = isinstance(error, SpaceError) or (isinstance(error, AssertionError) and str(error))
            if not self.policy_kwargs or says_it or isinstance(error, th.OutOfMemoryError):
                raise
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"policy_kwargs={short_repr(self.policy_kwargs)} are impossible. {said}") from error
        if self.policy_kwargs and not all(bool(each.isfinite().all()) for each in policy.parameters()):
            raise ValueError(f"policy_kwargs={short_repr(self.policy_kwargs)} give the policy parameters that are not finite.")
        policy.has_masks = self.has_masks
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
            if rank() > 0 and self.env is not None:
                self.env.seed(seed + rank() * self.n_envs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "batch", "_collector", "_sampler"]

    def _update_learning_rate(self, optimizers: Any) -> None:
        super()._update_learning_rate(optimizers)
        learning_rate = optimizers.param_groups[0]["lr"]
        if not math.isfinite(learning_rate):
            raise ValueError(
                f"learning_rate is {learning_rate} after {self.num_timesteps} steps: its schedule must be finite."
            )

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # Whole episodes overshoot total_timesteps: schedules must never see a negative progress
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if progress_bar:
            if not isinstance(callback, list):
                callback = [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)]
            callback = [*callback, ClampedProgressBarCallback()]
        return super()._init_callback(callback)

    @property
    def collector(self) -> GroupCollector:
        """The groups in progress, and which of their episodes each environment copy plays."""
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
        resolve(self)
        check_together(self)
        if self.env is None:
            name = type(self).__name__
            raise ValueError(
                f"There is no environment to learn from. Give one: {name}.load(path, env=...), or model.set_env(...)."
            )
        self.is_normalized_outside = self._vec_normalize_observes
        if self._vec_normalize_observes and "normalize_observations" in self.default_policy_kwargs.keys() - self.policy_kwargs:
            warn_user(
                "The observations are normalised twice: by VecNormalize, and by the policy, because it was made without. "
                "Make the model with this environment, or take VecNormalize(env, norm_obs=False)."
            )
        begin_training(self)
        goes_on = self._last_obs is not None and self._collector is not None
        if self.resumption is None:
            goes_on = goes_on and not reset_num_timesteps and self.collector.can_go_on(self.env, self._group_settings)
        if not goes_on:
            self._last_obs = None  # makes SB3 reset the environments
            self.begin_groups()
        self.collector.dispatcher.fill()
        fresh = self._last_obs is None
        former_logger = getattr(self, "_logger", None)
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if former_logger is not None and former_logger is not self._logger:
            former_logger.close()  # otherwise each call of learn leaves a thread of TensorBoard's writer behind
        if fresh:
            self.collector.check_capture()
            self.collector.begin_episodes([*range(self.n_envs)], self._last_obs, row=0)
        return result

    @property
    def _group_settings(self) -> GroupSettings:
        return GroupSettings(
            group_size=self.group_size,
            n_groups=share(self.n_groups or 0),
            max_sampling_rounds=self.max_sampling_rounds if self.dynamic_sampling else 1,
            sampler=None if self.unrelated_starts else self._choose_sampler(),
            n_steps=self.n_steps,
            is_live=self.dynamic_sampling if callable(self.dynamic_sampling) else live_groups,
            only_live=bool(self.dynamic_sampling) and self.n_steps is None,
            normalize_parts=self.normalize_reward_parts,
            use_masking=self.use_masking,
        )

    def _choose_sampler(self) -> StartSampler:
        """
        :return: The sampler that draws the starts: the same object as long as ``start_sampler`` does not change
        """
        if self._sampler is None or self._sampler[0] is not self.start_sampler:
            self._sampler = self.start_sampler, make_sampler(self.start_sampler)
        return self._sampler[1]

    def begin_groups(self) -> None:
        """Drop the groups in progress, if any, and prepare the start queues of the environments."""
        assert self.env is not None
        if self._collector is not None and self._collector.env is self.env:
            self._collector.clear()
        self._collector = GroupCollector(
            self.env, self._group_settings, self._start_rng, self.policy.first_states(self.n_envs)
        )
        self.has_masks = self.policy.has_masks = self._collector.has_masks
        if self.has_masks:
            self._check_masks()
        self.rollout_buffer.reset()
        if self.unrelated_starts and self.verbose >= 1:
            print("The members of a group have unrelated starts (unrelated_starts=True)")

    def _check_masks(self) -> None:
        """
        :raises ValueError: if the policy does not take action masks, and the environments have some
        """
        name = f"{type(self.policy).__name__}.get_distribution"
        if self.policy.reads_texts:
            raise ValueError("Policies for texts have no action masks, and the environments do: write use_masking=False.")
        parameters = inspect.signature(self.policy.get_distribution).parameters.values()
        if not any(each.name == "action_masks" or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
            raise ValueError(
                f"The environments have action masks (action_masks()), and {name} does not take any: give it an argument "
                "action_masks=None (and the function that action_sampler returns, if you override it), or ignore the masks "
                "with use_masking=False."
            )
        if self.verbose >= 1:
            print("Using the action masks of the environments")

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: GroupRolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """
        Collect the steps of one update into ``self.batch``: whole groups, or ``n_steps`` of each copy (if it was left at its
        default, the number grows during training).

        :param env: The training environment
        :param callback: Callback that will be called at each step
            (and at the beginning and end of the rollout)
        :param rollout_buffer: Buffer to fill with rollouts
        :param n_rollout_steps: ``n_steps``. ``None``: the rollout ends with the last episode of its groups
        :return: True if the rollout is complete, False if callback terminated rollout prematurely.
        """
        assert self._last_obs is not None, "No previous observation was provided"
        rollout = SharedRollout(self)
        # Switch to eval mode (this affects batch norm / dropout)
        self.policy.set_training_mode(False)
        self._begin_rollout()

        callback.on_rollout_start()
        if self.resumption is not None:
            self._resume_random_states()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)

        act = self.policy.action_sampler()
        n_steps = 0
        is_ready = self.collector.queue.ready()
        while not is_ready:
            if self.collector.is_disturbed() and not self._begin_again():
                return self._stop()
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                self.policy.reset_noise(env.num_envs)

            # A copy: the environments may reuse their arrays
            obs = copied(self._last_obs)
            given = self.collector.given()
            with th.inference_mode():
                acted = Acted(*act(obs, **given))
            actions, self.collector.states = acted.actions, acted.states
            rollout_buffer.add(obs, acted, self.collector.in_groups, given)
            new_obs, rewards, dones, infos = self.collector.step(self.policy.env_actions(actions))
            # Those of all ranks, as far as they are known
            self.num_timesteps += self.n_copies
            rollout.n_steps += env.num_envs
            n_steps += 1
            has_ended = self._add_step(rollout_buffer, obs, new_obs, rewards, dones, infos)
            self._last_obs = new_obs  # type: ignore[assignment]

            if has_ended or self.collector.queue.takes_steps:
                is_ready = self._is_ready()
            if not is_ready and n_steps * env.num_envs >= MAX_DEAD_STEPS:
                self._check_live(n_steps * env.num_envs)
            if rollout_buffer.dist_inputs_bytes > MAX_DIST_INPUTS_BYTES:
                self._finish_steps()

            # Give access to local variables
            callback.update_locals(locals())
            if not callback.on_step():
                return self._stop()

        self._finish_steps()
        self._take_groups(rollout)

        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _stop(self) -> bool:
        """
        End a rollout that is not complete, on all ranks.

        :return: False
        """
        self._finish_steps()
        gather(self.num_timesteps, stop=True)
        return False

    def _begin_rollout(self) -> None:
        """Free the groups of the last update, but keep what the copies have already begun for the next one."""
        self.batch = None
        self._drop_used_steps()
        # Only between updates: a rollout and its update must use the same function of the observations
        self.policy.observation_norm.sync()
        self.collector.begin_rollout(self._n_rollout_steps())

    def _is_ready(self) -> bool:
        """
        :return: Whether the rollout is complete. The steps of groups that are replaced are dropped
        """
        queue = self.collector.queue
        n_rounds = queue.n_sampling_rounds
        is_ready = queue.ready()
        if queue.n_sampling_rounds > n_rounds and not queue.takes_steps:
            self._drop_used_steps()
        return is_ready

    def _n_rollout_steps(self) -> int | None:
        """
        :return: Number of steps of each copy in the next update, ``None`` for whole groups. By default, it grows during
            training: late in training, updates of the initial size are too noisy
        """
        if self.n_steps is None or self.n_steps != self.default_n_steps:
            return self.n_steps
        grown = int(SHARE_PER_UPDATE * self.num_timesteps / self.n_copies)
        return max(self.n_steps, min(grown, MAX_STEPS_PER_UPDATE // self.n_copies))

    def _check_live(self, n_steps: int) -> None:
        """
        :param n_steps: Steps of this rollout
        :raises ValueError: if groups are drawn without a limit and none of them was live
        """
        if self.max_sampling_rounds is not None or not self.dynamic_sampling or self.collector.queue.has_live_group():
            return
        raise ValueError(
            f"{n_steps:,} steps have brought no live group: in each group all members had the same outcome. The task is "
            "solved, or no member ever succeeds, and max_sampling_rounds=None draws groups until enough are live. With a "
            "number of rounds, such as max_sampling_rounds=4, the update is skipped instead."
        )

    def _finish_steps(self) -> None:
        """Compute the log probabilities of the actions sampled so far. Must be called before the policy may change."""
        self.rollout_buffer.finish_steps(self.policy)

    def _drop_used_steps(self) -> None:
        """Drop the steps that no open group needs, after the policy has updated its statistics with all of them."""
        self._finish_steps()
        self.rollout_buffer.keep(self.collector.queue.unused_episodes())

    def _begin_again(self) -> bool:
        """
        Drop the groups in progress, because the environments were reset outside of the rollout.

        :return: False if no steps are left for new ones
        """
        assert self.env is not None
        if n_ranks() > 1:
            raise ValueError(
                "The training environment was reset in the middle of a rollout (by a callback that evaluates on it?), which "
                "several processes cannot make up for: use a separate environment in callbacks."
            )
        warn_user(
            "The training environment was reset in the middle of a rollout (by a callback that evaluates "
            "on it?). Unfinished groups are discarded: use a separate environment in callbacks."
        )
        self._finish_steps()
        self.begin_groups()
        self.collector.begin_rollout(self._n_rollout_steps())
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self.collector.begin_episodes([*range(self.n_envs)], self._last_obs, row=0)
        if self.use_sde:
            self.policy.reset_noise(self.n_envs)
        return self.num_timesteps < self._total_timesteps

    def _take_groups(self, rollout: SharedRollout) -> None:
        """
        Turn the groups of the rollout into the batch of the update.

        :param rollout: The rollout
        """
        self._sampling_rounds = self.collector.queue.n_sampling_rounds
        groups = self.collector.take(self._last_obs)
        kept = self.collector.queue.learned(groups)
        batch = self.rollout_buffer.batch(kept) if kept else None
        self.batch, judged = rollout.join(batch, [group for group in groups if group.can_be_judged])
        self._log_groups(judged)

    def _log_groups(self, groups: list[Group]) -> None:
        """
        :param groups: All groups of the update that are complete and can be judged, dead ones included
        """
        self.logger.record("group/sampling_rounds", self._sampling_rounds)
        if not groups:
            return
        raw_outcomes = outcomes(groups)
        self._outcome_range = (raw_outcomes.min().item(), raw_outcomes.max().item())
        queue = self.collector.queue
        found = {**summary(groups, queue.live(groups)), **queue.summary(groups)}
        for name, value in found.items():
            self.logger.record(f"group/{name}", value)
        self._note_start_share("start_share", raw_outcomes)
        if self.unrelated_starts:
            self.logger.record("group/unrelated_starts", 1)
        if isinstance(self.start_sampler, VisitedStates):
            visited = [isinstance(group.start, VisitedState) for group in groups]
            self.logger.record("group/vine_fraction", float(np.mean(visited)))

    def _note_start_share(self, name: str, outcomes: th.Tensor) -> None:
        """
        :param name: What it is called in the log
        :param outcomes: (B, G) what the episodes of the groups of an update differ by
        """
        if len(outcomes) > 1 and math.isfinite(share := start_share(outcomes)):
            self.logger.record(f"group/{name}", share)
            self._start_shares[name] = 0.9 * self._start_shares.get(name, share) + 0.1 * share

    @refuse_arguments(LEARN_ARGUMENTS)
    def learn(
        self: SelfOnGroupAlgorithm,
        total_timesteps: int | None = None,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfOnGroupAlgorithm:
        log_interval = Whole(none="no output").check("log_interval", log_interval)
        if total_timesteps is None:
            total_timesteps = TOTAL_TIMESTEPS if self.resumption is None else self.resumption.total_timesteps
        total_timesteps = Number(low=0, limit=True).check("total_timesteps", total_timesteps)
        has_resumed_episodes = self.resumption is not None and self._last_obs is not None
        try:
            name = tb_log_name or type(self).__name__
            n_rows = self.batch_size or max(STEPS_PER_UPDATE, (self.n_steps or 0) * self.n_envs)
            with unchecked_distributions(), suitable_threads(self.policy, n_rows):
                callback, progress_bar = of_this_rank(callback), progress_bar and rank() == 0
                super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
        except RolloutStopped as stopped:
            # By a callback of the first rank
            self._finish_steps()
            self.num_timesteps = stopped.value
        except BaseException as error:
            if has_resumed_episodes and self.resumption is not None:
                raise  # before the first step: the next learn() resumes the training
            # The error may have come in the middle of a step: the next learn() begins with new episodes
            self._last_obs = None
            fault = None if self._collector is None else self._collector.guarded.fault_of(error, self._collector.time)
            # Ctrl-C also ends the processes of a SubprocVecEnv
            with suppress(OSError, EOFError):
                if self._collector is not None:
                    self._collector.clear()
            if fault is not None:
                raise fault from error
            raise
        self.resumption = None
        self.collector.clear()
        n_more = self.num_timesteps - self._total_timesteps
        if n_more > 0 and self.verbose >= 1:
            print(f"learn() took {n_more:,.0f} steps more than asked for: rollouts are completed.")
        if self.verbose >= 1:
            for name, share in self._start_shares.items():
                of_what = "returns" if name == "start_share" else "what values leave over"
                print(f"group/{name}: {max(share, 0.0):.0%} of the variance of {of_what} lies between starts.")
        return self

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Get the policy action from an observation (and optional action masks).

        :param observation: the input observation
        :param state: the last hidden states, for recurrent policies
        :param episode_start: whether the observations are the first of their episodes, for recurrent policies
        :param deterministic: whether to return deterministic actions
        :param action_masks: the actions that are allowed, as returned by ``get_action_masks`` of SB3-Contrib
        :return: the model's action and the next hidden state
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks)

    def _add_step(
        self,
        rollout_buffer: GroupRolloutBuffer,
        obs: Any,
        new_obs: Any,
        rewards: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> bool:
        """
        Store what a step of all copies has led to. If episodes have ended, record their outcomes and which ones come next.

        :return: Whether an episode has ended
        """
        # VecNormalize's scale changes from step to step, but members of a group are compared with each other. If it does not
        # scale rewards, they may come from a wrapper outside of it
        if self._vec_normalize_env is not None and self._vec_normalize_env.norm_reward:
            rewards = self._vec_normalize_env.get_original_reward()
        collector = self.collector
        rollout_buffer.add_rewards(rewards)
        self.num_timesteps += collector.add_step(new_obs, rewards, dones)
        ended = dones.nonzero()[0].tolist()
        if any(infos):
            # Even if no episode ends: a wrapper outside of Monitor may continue with the next one
            self._update_info_buffer(infos, collector.whole_episodes(dones, infos) if ended else dones)
        if ended:
            collector.terminal_observations.check(ended, obs, new_obs, infos)
            rollout_buffer.on_episode_ends(ended, collector.end_episodes(ended, infos), obs)
            collector.begin_episodes(ended, new_obs, row=rollout_buffer.pos)
            if self.use_sde:
                # With the noise of the previous episode, group members played by the same copy would all be identical
                self.policy.reset_noise_of(ended, self.n_envs)
        else:
            # Check before the policy acts on them
            collector.check_observations(new_obs)
        return bool(ended)
