from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule

from sb3_grpo.checkpoint.training import Stateful
from sb3_grpo.common.advantages import AdvantageFunction, discounted_returns_to_go, group_advantages
from sb3_grpo.common.arguments import (
    ARGUMENTS,
    REFUSED_ARGUMENTS,
    refuse_arguments,
)
from sb3_grpo.common.batch import GroupBatch, Minibatch, minibatches
from sb3_grpo.common.diagnostics import MAX_REFUSED_STEPS, dead_groups_message, refused_step_message
from sb3_grpo.common.judged import JudgedBatch, averaged
from sb3_grpo.common.kl import kl_estimate, kl_loss
from sb3_grpo.common.losses import (
    PER_STEP_LOSSES,
    LossInputs,
    PolicyLoss,
    WeightFunction,
    episode_log_ratio,
    policy_losses,
    step_weights,
    weighted_fractions,
)
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.common.optimizers import draw_head
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.reference import KLFunction, Reference, with_reference
from sb3_grpo.common.rewards import kl_penalised_rewards, soft_overlong_penalty
from sb3_grpo.common.safe_files import read_safe_model
from sb3_grpo.common.saved_algorithm import check_algorithm
from sb3_grpo.common.values import (
    MEMORY,
    MEMORY_OF_IMAGES,
    RunningRegression,
    StepValues,
    UpdateRegression,
    ValueRegression,
    r_squared,
)
from sb3_grpo.groups.group import LiveFunction
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.grpo.policies import POLICIES
from sb3_grpo.starts.starts import Start
from sb3_grpo.utils.ranks import n_ranks, rank, same_random_numbers, shares_steps, sum_gradients
from sb3_grpo.utils.user_warnings import warn_user


class GRPO(OnGroupAlgorithm):
    """
    Group Relative Policy Optimization (GRPO)

    Paper: https://arxiv.org/abs/2402.03300 (DeepSeekMath)

    PPO's clipped objective without a critic network: the ``group_size`` episodes of a group start in exactly the same state,
    and whatever does better than the group mean is reinforced. By default, chosen for control tasks, a linear critic that is
    fitted in closed form judges each step, and an update takes ``n_steps`` steps of each copy. The paper's algorithm has no
    critic at all and updates of whole groups: ``GRPO(policy, env, **sb3_grpo.presets.GRPO_PAPER)``.

    **The update**

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MlpLstmPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str: copies are made with
        :func:`make_group_env` or, if it is an Atari game, with :func:`make_atari_group_env`)
    :param learning_rate: The learning rate, it can be a function
        of the current progress remaining (from 1 to 0).
        ``None``: 1e-3; for ``CnnPolicy`` 5e-4; for ``CausalLMPolicy`` 1e-5, or 2e-4 with LoRA
    :param batch_size: Minibatch size, in steps. ``None``: one minibatch with all steps of the update
    :param gradient_accumulation_steps: Number of minibatches whose gradients are averaged for each optimizer step, for
        when larger minibatches do not fit into memory
    :param n_epochs: Number of epochs when optimizing the surrogate loss. ``None``: 10; for ``CnnPolicy`` 4;
        for ``CausalLMPolicy`` 1
    :param ent_coef: Entropy coefficient for the loss calculation
    :param vf_coef: Coefficient of an auxiliary value loss: a linear head predicts returns, standardised over the update, from
        the features. It only trains the features extractor, as the critic of PPO does: no advantage depends on it. ``None``:
        for ``CnnPolicy`` 0.5, if ``advantage`` is ``"gae"`` and the features extractor is no custom one; otherwise 0, no head
    :param max_grad_norm: The maximum value for the gradient clipping
    :param target_kl: Limit the KL divergence between updates: stop after an epoch whose mean KL divergence from the policy
        that sampled the actions exceeds 1.5 times this value. By default, there is no limit on the kl div.

    **Groups**

    :param n_envs: Number of environment copies to make if ``env`` is an id, 16 by default
    :param group_size: Number of episodes that share a start (G in the papers)
    :param n_steps: The number of steps to run for each environment copy per update, as in PPO: episodes that have not ended
        continue under the next policy. Requires settings that judge each step on its own, as the defaults do. Copies whose
        episodes end together after the same number of steps, as at a time limit, are staggered by cutting one episode of
        each short
    :param n_groups: Number of whole groups per update, as in the papers, instead of ``n_steps``.
        If neither is given: ``n_steps`` is chosen so that all copies together run 2048 steps, or 2% of all steps so far once
        that is more, up to 8192, but at least 16 steps of each copy. If whole episodes are judged (an ``advantage`` other
        than ``"gae"``, a ``loss_average`` or ``ratio_level`` other than ``"step"``, ``overlong_filter``,
        ``overlong_range``), ``n_groups`` is 4
    :param dynamic_sampling: Drop groups whose raw outcomes are all equal, and draw new ones in their place (DAPO eq. 11). Or
        a function of the outcomes (B, G) that says which groups are live instead, (B,) booleans, as :func:`live_groups` does.
        It is called with any number of groups: with those of a round, or one by one with ``n_steps``.
        With ``n_steps``, the steps of such groups are still trained on but do not count: the rollout is extended, as far as
        ``max_sampling_rounds`` allows
    :param max_sampling_rounds: With ``dynamic_sampling``, the maximum number of times that groups are drawn for an update.
        After that, the update uses the live groups collected so far; if there are none, it is skipped. With ``n_steps``, the
        rollout is at most this many times as long. ``None``: no limit (as in the paper), but an error is raised after a
        million steps without a live group

    **Advantages**

    :param gamma: Discount factor. ``None``: 0.99; for ``CausalLMPolicy`` 1
    :param advantage: What is compared within a group. ``"return_to_go"``: the discounted return from each step on, compared
        with the members still alive at the same step. ``"outcome"``: the discounted return of the whole episode.
        ``"process"``: the sum of the normalised rewards from each step on, see :func:`group_advantages`.
        ``"maxrl"``: the outcome, divided by the group's mean (MaxRL), for rewards that are not negative.
        ``"gae"``: generalized advantage estimates, with values from a regression on the states (in closed form, no network:
        see :class:`ValueRegression`), compared with their mean over all steps of the group.
        ``"auto"``: ``"gae"``; for ``TokenPolicy`` ``"return_to_go"``, for ``CausalLMPolicy`` ``"outcome"``.
        Or a function of rewards and mask, both (B, G, T), called like :func:`outcome_advantages`
    :param gae_lambda: With ``advantage="gae"``, factor for trade-off of bias vs variance for Generalized Advantage Estimator.
        1: the return to go minus the value of the state
    :param leave_one_out: Whether to exclude a member from the mean that it is compared with
    :param advantage_scale: Divide advantages by the sample standard deviation of the ``"group"``, of the ``"batch"``,
        or not at all (``"none"``, Dr. GRPO)
    :param normalize_reward_parts: Where the environment says what parts the last reward of an episode has
        (``info["reward_parts"]``), normalise each of them in its group before they are added (GDPO, with
        ``advantage_scale="batch"``). ``False``: add them first

    **Loss**

    :param policy_loss: A name in ``sb3_grpo.common.losses.POLICY_LOSSES``, such as ``"clip"``, PPO's clipped surrogate. Or a
        function of :class:`LossInputs` that returns the loss of each step
    :param clip_range: Clipping parameter, it can be a function of the current progress remaining (from 1 to 0):
        the ratio may fall to ``1 - clip_range``.
    :param clip_range_high: The ratio may rise to ``1 + clip_range_high`` ("clip higher", DAPO eq. 8). It can be a function
        of the current progress remaining (from 1 to 0). ``None``: the same as ``clip_range``.
    :param loss_average: Average the loss over the steps of an ``"episode"`` and then over episodes (GRPO), over all
        steps (``"step"``, DAPO), or divide the sum over an episode by a number of steps and average over episodes
        (``3000.0``, Dr. GRPO).
        ``"auto"``: ``"step"`` if each step is judged on its own (``advantage="gae"`` and ``ratio_level="step"``),
        otherwise ``"episode"``. Or a function of ``episode``, ``n_episodes`` and ``kept`` that returns
        the weight of each step, see :func:`step_weights`
    :param ratio_level: Importance ratio of each ``"step"``, or of the whole ``"episode"`` (GSPO). The latter needs
        much smaller clip ranges (3e-4 in the paper).

    **KL divergence from a reference policy**

    :param kl_coef: Coefficient of the KL divergence from the reference policy, which is the initial policy.
        0: no reference policy.
    :param kl_estimator: How that divergence is estimated: ``"exact"``, ``"k1"``, ``"k2"``, ``"k3"``, ``"k3_plain"``,
        ``"k1_in_reward"``, or a function of the (M,) log probabilities under the policy and under the reference.
        The first four have the gradient of the KL divergence, see :func:`kl_loss`; ``"exact"`` is ``"k3"`` for
        distributions without a closed form. ``"k3_plain"``: k3 as written in the paper, with its own gradient.
        ``"k1_in_reward"``: subtracted from the reward of each step instead of added to the loss (PPO for language models,
        RLOO), see :func:`kl_penalised_rewards`
    :param ref_update_interval: Replace the reference by the current policy every this many updates (ProRL, but without
        resetting the optimizer). ``None``: never

    **Overlong episodes**

    :param overlong_filter: Exclude episodes truncated by a time limit from the loss (DAPO). For tasks where a truncated
        episode is uninformative, not for those where lasting until the limit is success.
    :param overlong_range: Lengths in steps between which DAPO's soft punishment (eq. 13, ``(L_max - L_cache, L_max)``) falls
        linearly from 0 to -1. It is added to the last reward of long episodes, in units of the reward, after ``VecNormalize``
        if it is used: where another size is wanted, scale the rewards with a wrapper. ``None``: no punishment

    **Starts**

    :param unrelated_starts: Opt in to groups whose members do not share a start,
        for environments that cannot start twice in the same state, or if sharing shows an update too little of the task
    :param start_sampler: Draws the start of a group: a function of a ``numpy.random.Generator`` that returns a
        :class:`SeedStart` or a :class:`SnapshotStart`, or a :class:`StartSampler`, which also sees steps and outcomes, such
        as :class:`VisitedStates`. By default, each group starts from a fresh seed.

    **As in SB3-Contrib**

    :param use_masking: Use the action masks of environments that have some: a method ``action_masks()``, as for
        ``MaskablePPO``. ``False``: ignore them

    **As in Stable-Baselines3**

    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE)
        instead of action noise exploration (default: False)
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE
        Default: -1 (only sample at the beginning of the rollout and of each episode)
    :param stats_window_size: Window size for the rollout logging, specifying the number of episodes to average
        the reported success rate, mean episode length, and mean reward over
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation. For continuous actions,
        ``normalize_observations=True`` is the default, unless ``VecNormalize`` normalises them, there are more than 128
        copies, or you use a custom policy or features extractor
    :param verbose: Verbosity level: 0 for no output, 1 for info messages (such as device or wrappers used), 2 for
        debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run.
        Setting it to auto, the code will be run on the GPU if possible.
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    policy_aliases = POLICIES  # type: ignore[assignment]
    n_epochs: int
    gradient_accumulation_steps: int
    clip_range: float | Schedule
    clip_range_high: float | Schedule | None
    advantage: str | AdvantageFunction
    leave_one_out: bool
    advantage_scale: str
    normalize_reward_parts: bool
    loss_average: str | float | WeightFunction
    ratio_level: str
    policy_loss: str | PolicyLoss
    target_kl: float | None
    kl_coef: float
    kl_estimator: str | KLFunction
    ref_update_interval: int | None
    overlong_filter: bool
    overlong_range: tuple[int, int] | None
    plugin_parameters = (*OnGroupAlgorithm.plugin_parameters, "advantage", "policy_loss", "loss_average", "kl_estimator")

    @refuse_arguments(REFUSED_ARGUMENTS)
    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule | None = None,
        *,
        n_envs: int | None = None,
        group_size: int = 4,
        n_steps: int | None = None,
        n_groups: int | None = None,
        batch_size: int | None = 256,
        gradient_accumulation_steps: int = 1,
        n_epochs: int | None = None,
        gamma: float | None = None,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | Schedule | None = None,
        advantage: str | AdvantageFunction = "auto",
        gae_lambda: float = 0.95,
        leave_one_out: bool = False,
        advantage_scale: str = "batch",
        normalize_reward_parts: bool = False,
        loss_average: str | float | WeightFunction = "auto",
        ratio_level: str = "step",
        policy_loss: str | PolicyLoss = "clip",
        ent_coef: float = 0.0,
        vf_coef: float | None = None,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        kl_coef: float = 0.0,
        kl_estimator: str | KLFunction = "exact",
        ref_update_interval: int | None = None,
        dynamic_sampling: bool | LiveFunction = False,
        max_sampling_rounds: int | None = 4,
        overlong_filter: bool = False,
        overlong_range: tuple[int, int] | None = None,
        unrelated_starts: bool = False,
        start_sampler: StartSampler | Callable[[np.random.Generator], Start] | None = None,
        use_masking: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ):
        # Those that are described above
        arguments = {name: value for name, value in locals().items() if name in ARGUMENTS}
        super().__init__(policy, env, arguments, _init_setup_model)
        self.reference: Reference | None = None
        self._n_reference_updates = 0
        self._warned_skip = self._warned_refused = False
        self._n_refused_steps = 0  # in a row

        # Not in _setup_model, which load() calls as well: a model keeps the settings it was created with
        if _init_setup_model:
            self._create()

    def _setup_model(self) -> None:
        super()._setup_model()
        self.clip_range = FloatSchedule(self.clip_range)
        if self.clip_range_high is not None:
            self.clip_range_high = FloatSchedule(self.clip_range_high)
        self.value_regression = self._make_regression()
        self.reference = self._make_reference() if self.kl_coef > 0.0 else None

    def _make_regression(self) -> ValueRegression:
        memory = MEMORY_OF_IMAGES if self.policy.reads_images else MEMORY
        return UpdateRegression() if self.n_steps is None else RunningRegression(memory, self._has_many_copies)

    def _make_reference(self) -> Reference:
        return Reference(self.policy, self._make_policy, self.kl_estimator)

    @property
    def ref_policy(self) -> ActorPolicy | None:
        """The reference policy, ``None`` if ``kl_coef=0``."""
        return None if self.reference is None else self.reference.policy

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        result = super()._setup_learn(*args, **kwargs)
        if isinstance(self.value_regression, UpdateRegression) != (self.n_steps is None):
            # n_steps or n_groups was set after the model was created
            self.value_regression = self._make_regression()
        if self.reference is None and self.kl_coef > 0.0:
            # Set after the model was created
            self.reference = self._make_reference()
        if self.reference is not None:
            self.reference.estimator = self.kl_estimator
        return result

    def _begin_rollout(self) -> None:
        super()._begin_rollout()
        if self.reference is not None:
            # Not at the beginning of learn(): a callback may pretrain the policy after that
            self.reference.begin_rollout(self.policy, self._n_updates)

    @same_random_numbers
    def train(self) -> None:
        """
        Update policy using the groups of the last rollout.
        """
        # Update optimizer learning rate
        self._update_learning_rate(self.policy.optimizer)
        judged = self._judged_batch()
        if judged is None:
            return

        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        whole_episodes = self.ratio_level == "episode" or judged.batch.has_sequences
        n_together = judged.batch.n_together
        n_accumulated = self.gradient_accumulation_steps
        stats: list[dict[str, th.Tensor]] = []  # one entry per epoch
        # Train for n_epochs epochs
        for _ in range(self.n_epochs):
            # Do a complete pass on the batch, in a new order each time
            parts = list(minibatches(judged.batch.episode, judged.kept, self.batch_size, whole_episodes, n_together))
            steps = [self._step(judged, parts[i : i + n_accumulated]) for i in range(0, len(parts), n_accumulated)]
            of_epoch = [each for step in steps for each in step]
            if not of_epoch:
                continue
            stats.append(averaged(of_epoch))
            self._n_updates += 1
            # Once per epoch: the mean over all minibatches is less noisy than a single one
            if self.target_kl is not None and stats[-1]["approx_kl"].item() > 1.5 * self.target_kl:
                break

        if stats:
            self._log_update(stats, judged)
            self._update_reference()

    def _judged_batch(self) -> JudgedBatch | None:
        """
        Judge the steps of the last rollout, once for the whole batch: it does not matter how it is split into minibatches.

        :return: The judged batch; ``None``, with a warning the first time, if nothing can be learned from it
        """
        judged = None
        if self.batch is not None:
            batch = replace(self.batch, rewards=self._rewards(self.batch))
            values = self._fit_values(batch) if self.advantage == "gae" else None
            judged = self._judge(batch, values)
        reason = self._why_no_update(judged)
        if reason is None:
            return judged
        self._skip_update(reason)
        if self.n_steps is not None:
            # While nothing is known, one random policy after the other: some get further than others
            draw_head(self.policy.action_net)
        return None

    def _rewards(self, batch: GroupBatch) -> th.Tensor:
        """
        :param batch: The groups of the update, with the environment's own rewards
        :return: (B, G, T) the rewards r_{i,t} to learn from
        """
        rewards, normalizer = batch.rewards, self._vec_normalize_env
        last = batch.lengths[..., None] - 1
        if self.normalize_reward_parts:
            normalized = batch.normalized_outcomes
            if normalized is None or (normalized.isnan() & ~batch.truncated).any():
                raise ValueError(
                    "normalize_reward_parts=True, and the environment does not say what parts its rewards have: the info of "
                    "the last step needs reward_parts, a dictionary of numbers, as with reward functions."
                )
            # GDPO: each part has the same spread. Unfinished answers may have no parts
            rewards = rewards.scatter_add(-1, last, (normalized - batch.outcomes).nan_to_num()[..., None])
        if normalizer is not None and normalizer.norm_reward:
            # One scale for all rewards, in double precision (normalize_reward() would round): equal returns stay equal
            scale = float(normalizer.ret_rms.var + normalizer.epsilon) ** -0.5
            rewards = (scale * rewards).clamp(-normalizer.clip_reward, normalizer.clip_reward)
        if self.reference is not None and self.kl_estimator == "k1_in_reward":
            # PPO for language models: r_{i,t} - beta (log pi - log ref), and no KL divergence in the loss
            old_log_prob, ref_log_prob = batch.old_log_prob[batch.rows], self.reference.log_probs(batch, self.batch_size)
            rewards = kl_penalised_rewards(rewards, batch.pad(old_log_prob), batch.pad(ref_log_prob), self.kl_coef)
            self.logger.record("train/kl_ref", kl_estimate(old_log_prob, ref_log_prob, "k1").mean().item())
        if self.overlong_range is not None:
            # DAPO eq. 13 lowers the last reward of long episodes
            penalty = soft_overlong_penalty(batch.lengths, *self.overlong_range)
            rewards = rewards.scatter_add(-1, last, penalty[..., None].double())
        return rewards

    def _fit_values(self, batch: GroupBatch) -> StepValues | None:
        """
        Fit the regression that stands in for a critic network to the steps of an update.

        :param batch: The groups of the update
        :return: The values of their states; ``None`` if the rewards say nothing
        """
        values = self.value_regression.update(self.policy.state_features, batch, self.gamma)
        if values is not None:
            self.logger.record("train/regression_r2", r_squared(values.of_steps, values.targets))
            # What is left to be explained by the start, from the first step on that the update has of each episode
            left = discounted_returns_to_go(values.residuals(batch, self.gamma), batch.mask, self.gamma * self.gae_lambda)
            self._note_start_share("start_share_left", left[batch.mask[..., 0].all(1), :, 0])
        return values

    def _judge(self, batch: GroupBatch, values: StepValues | None = None) -> JudgedBatch:
        """
        Judge the steps of an update. This changes nothing: another call returns the same.

        :param batch: The groups of the update, with the rewards to learn from
        :param values: The values of their states, for ``advantage="gae"``
        :return: The batch, with what the loss needs to know of each of its steps
        """
        rewards, gamma, returns = batch.rewards, self.gamma, None
        if self.advantage == "gae":
            # GAE eq. 10 and 16: sums of delta_t = r_t + gamma V(s_{t+1}) - V(s_t), discounted by gamma * lambda
            rewards = th.zeros_like(rewards) if values is None else values.residuals(batch, gamma)
            gamma *= self.gae_lambda
            returns = None if values is None else values.targets
        elif self.vf_coef > 0.0:
            returns = batch.flatten(discounted_returns_to_go(rewards, batch.mask, gamma))
        # GRPO sec. 4.1.2: A_i = (R_i - mean(R)) / std(R), with R and the scale as configured
        advantages = group_advantages(
            rewards,
            batch.mask,
            kind=self.advantage,
            gamma=gamma,
            leave_one_out=self.leave_one_out,
            scale=self.advantage_scale,
        )
        value_targets = None
        if self.vf_coef > 0.0 and returns is not None:
            # In any unit of the reward, the loss weighs the same beside that of the policy
            value_targets = ((returns - returns.mean()) / (returns.std(correction=0) + 1e-8)).float()
        kept = th.ones_like(batch.episode, dtype=th.bool)
        if self.overlong_filter:
            kept = ~batch.truncated.flatten()[batch.episode]
        progress = self._current_progress_remaining
        # They may have been set to numbers after the model was created
        clip_low = FloatSchedule(self.clip_range)(progress)
        clip_high = clip_low if self.clip_range_high is None else FloatSchedule(self.clip_range_high)(progress)
        return JudgedBatch(
            batch=batch,
            advantages=batch.flatten(advantages).float(),
            weights=step_weights(batch.episode, batch.lengths.numel(), self.loss_average, kept),
            kept=kept.nonzero().squeeze(1),
            value_targets=value_targets,
            clip_low=clip_low,
            clip_high=clip_high,
        )

    def _why_no_update(self, judged: JudgedBatch | None) -> str | None:
        """
        :param judged: The judged batch, ``None`` if there is none
        :return: Why nothing can be learned from it, ``None`` if something can
        """
        if judged is None:
            return dead_groups_message(self)
        if len(judged.kept) == 0:
            if self.overlong_filter:
                return "a time limit cut off all episodes, and overlong_filter=True leaves those out of the loss."
            return "no step takes part in the loss."
        if self.n_steps is None or self.ent_coef != 0.0 or self.reference is not None or judged.advantages.any():
            return None
        # Optimizer steps would still follow the momentum
        return dead_groups_message(self)

    def _step(self, judged: JudgedBatch, parts: list[Minibatch]) -> list[dict[str, th.Tensor]]:
        """
        A step of the optimizer.

        :param judged: The judged batch
        :param parts: The minibatches whose gradients are averaged
        :return: Statistics of each of them; none if the step was refused, as something is not finite
        """
        self.policy.optimizer.zero_grad()
        stats = []
        shares = n_ranks() > 1 and shares_steps(self.policy) and self.policy_loss in PER_STEP_LOSSES
        for minibatch in parts:
            if shares:
                minibatch = minibatch.share(rank(), n_ranks(), judged.batch.episode)
            loss, of_loss = self._loss(judged, minibatch)
            (loss / len(parts)).backward()
            stats.append({**of_loss, "loss": loss.detach()})
        if shares:
            # The weights of all steps sum to one, and so do the gradients of the shares
            stats = sum_gradients(self.policy, stats)
        # Clip grad norm
        grad_norm = th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        # Waits for the device at each step: non-finite values must never reach the policy
        if not th.isfinite(grad_norm + sum(each["loss"] for each in stats)):
            self._refuse_step(judged.advantages, stats)
            return []
        self._n_refused_steps = 0
        # Optimization step
        self.policy.optimizer.step()
        return stats

    def _refuse_step(self, advantages: th.Tensor, stats: list[dict[str, th.Tensor]]) -> None:
        """
        Keep the policy unchanged when a gradient is not finite.

        :param advantages: (N,) advantages of the update
        :param stats: Statistics of the minibatches of this optimizer step
        :raises ValueError: if too many steps in a row were refused
        """
        self._n_refused_steps += 1
        how = refused_step_message(advantages, stats, self.policy, self.num_timesteps)
        if self._n_refused_steps >= MAX_REFUSED_STEPS:
            raise ValueError(f"{self._n_refused_steps} steps of the optimizer in a row were refused, the last {how}")
        if not self._warned_refused:
            self._warned_refused = True
            warn_user(f"A step of the optimizer was refused {how} Further ones are refused without a warning.")

    def _loss(self, judged: JudgedBatch, minibatch: Minibatch) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        Compute the loss of a minibatch and its statistics, all still on the device.

        :param judged: The judged batch
        :param minibatch: M of its steps
        :return: The weighted sum of the losses of the steps, and statistics to log: ``approx_kl`` is needed for ``target_kl``
        """
        # GRPO eq. 3 and DAPO eq. 8, for the steps of a minibatch:
        #     J = sum_{i,t} w_{i,t} [ min(r_{i,t} A_{i,t}, clip(r_{i,t}, 1 - eps_low, 1 + eps_high) A_{i,t}) - beta KL_{i,t} ]
        # The weights w make it a mean over steps (DAPO), or a mean over episodes of the episode means (GRPO).
        batch, advantages = judged.batch, judged.advantages[minibatch.steps]
        # The mean over minibatches equals the loss of the whole batch
        weights = minibatch.n_minibatches * judged.weights[minibatch.steps]
        rows = batch.rows[minibatch.steps]
        inputs, actions, old_log_prob = batch.inputs_at(minibatch), batch.actions[rows], batch.old_log_prob[rows]
        distribution, values = self.policy.distribution_and_values(*inputs)
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()

        # Ratio r between the current policy and the one that acted. It should be one at the first minibatch,
        # except for steps that were collected before the last update.
        log_ratio = log_prob - old_log_prob
        episode = batch.episode[minibatch.steps]
        if self.ratio_level == "episode":
            # GSPO-token (arXiv:2507.18071, sec. 4.3): the value is the episode's ratio, the gradient that of each step
            shared = episode_log_ratio(log_ratio.detach(), episode, batch.lengths.numel())
            log_ratio = shared + log_prob - log_prob.detach()
        group, outcomes = episode // batch.lengths.shape[1], batch.outcomes.flatten()[episode]
        low, high = judged.clip_low, judged.clip_high
        steps = LossInputs(log_ratio, log_prob, old_log_prob, advantages, low, high, entropy, episode, group, outcomes)
        # Clipped surrogate, negated because it is minimised
        policy_loss, marked = policy_losses(self.policy_loss, steps)

        # Entropy loss favors exploration
        if entropy is None:
            # No analytical form: the negative entropy is the mean log probability, i.e. the KL from a constant density
            entropy_loss = kl_loss(log_prob, old_log_prob, th.zeros_like(log_prob), "k1")
        else:
            entropy_loss = -entropy
        step_loss = policy_loss + self.ent_coef * entropy_loss

        stats: dict[str, th.Tensor] = {}
        # beta KL(pi || ref): in the loss (GRPO sec. 4.1.1), or in the reward as in PPO for language models
        if self.reference is not None and self.kl_estimator != "k1_in_reward":
            step_kl_loss, kl_ref = self.reference.kl(distribution, inputs, actions, log_prob, old_log_prob)
            step_loss = step_loss + self.kl_coef * step_kl_loss
            stats |= {"kl_ref": minibatch.mean(kl_ref), "kl_loss": (weights * step_kl_loss).sum()}
        if judged.value_targets is not None and values is not None:
            squared_errors = (values - judged.value_targets[minibatch.steps]).square()
            step_loss = step_loss + self.vf_coef * squared_errors
            stats["value_loss"] = (weights * squared_errors).sum()
        loss = (weights * step_loss).sum()

        with th.no_grad():
            stats |= weighted_fractions(marked, weights, judged.weights)
            stats |= {
                # The parts of the loss are weighted like the loss, the other statistics are means over the steps
                "loss": loss,
                "policy_gradient_loss": (weights * policy_loss).sum(),
                "entropy_loss": (weights * entropy_loss).sum(),
                "entropy": -minibatch.mean(entropy_loss),
                "approx_kl": minibatch.mean(kl_estimate(old_log_prob, log_prob, "k3")),
                "ratio_max": log_ratio.exp().max(),
            }
        return loss, {key: value.detach() for key, value in stats.items()}

    def _update_reference(self) -> None:
        """After an update, reset the reference when it is due (ProRL, arXiv:2505.24864)."""
        if self.reference is None:
            return
        self._n_reference_updates += 1
        if self.ref_update_interval is not None and self._n_reference_updates % self.ref_update_interval == 0:
            self.reference.renew(self.policy)

    def _log_update(self, stats: list[dict[str, th.Tensor]], judged: JudgedBatch) -> None:
        """
        :param stats: Statistics of all epochs of the update
        :param judged: The judged batch
        """
        means = {key: value.item() for key, value in averaged(stats).items()}
        if sides := [value for key, value in means.items() if key.startswith("clip_fraction_")]:
            means["clip_fraction"] = sum(sides)
        for key, value in means.items():
            self.logger.record(f"train/{key}", value)
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", judged.clip_low)
        self.logger.record("train/clip_range_high", judged.clip_high)
        self.logger.record("train/n_live_steps", int(th.count_nonzero(judged.weights * judged.advantages)))

    def _skip_update(self, reason: str) -> None:
        """
        Warn, only once, that an update had nothing to learn from.

        :param reason: The reason
        """
        self.logger.record("train/n_live_steps", 0)
        if not self._warned_skip:
            self._warned_skip = True
            warn_user(f"No update at {self.num_timesteps} steps: {reason}")

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        Load parameters from a given zip-file or a nested dictionary, see :meth:`BaseAlgorithm.set_parameters`.
        If the saved model has no reference policy, its policy is used as the reference; a saved reference policy
        that this model does not need is ignored.

        :param load_path_or_dict: Location of the saved data (path or file-like, see ``save``), or a nested
            dictionary containing nn.Module parameters used by the policy.
        :param exact_match: If True, the given parameters should include parameters for each
            module and each of their parameters, otherwise raises an Exception.
        :param device: Device on which the code should run.
        """
        params: Any = load_path_or_dict
        if not isinstance(params, dict):
            if (saved := read_safe_model(params, self.policy_aliases)) is not None:
                params = saved[1]
            else:
                check_algorithm(params, type(self).__name__)
                params = load_from_zip_file(params, device=device, load_data=False)[1]
        params = with_reference(params, self.policy, self.reference is not None)
        super().set_parameters(params, exact_match, device)
        if self.reference is not None:
            self.reference.note_loaded(self.policy)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "ref_policy"] if self.reference is not None else state_dicts, variables

    def training_parts(self) -> dict[str, Stateful]:
        return {**super().training_parts(), "value_regression": self.value_regression}

    def _excluded_save_params(self) -> list[str]:
        # The next fit, the first after loading, makes up for the missing ones
        return [*super()._excluded_save_params(), "reference", "value_regression"]
