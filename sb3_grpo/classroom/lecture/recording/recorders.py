"""Recorders of an update of PPO, GRPO and DAPO."""

from typing import Any

import numpy as np
import torch as th
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_grpo.classroom.lecture.recording.recording import (
    Evaluation,
    UpdateRecorder,
    consecutive,
    described,
    judged,
    numbers,
    place,
    prompt_of,
    with_rewards,
)
from sb3_grpo.common.advantages import discounted_returns_to_go
from sb3_grpo.common.buffers import GroupBatch, Minibatch
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate, episode_log_ratio
from sb3_grpo.grpo.grpo import GRPO


class PPORecorder(UpdateRecorder):
    """
    Records an update of Stable-Baselines3's PPO.

    :param model: The model, at the end of a rollout
    :param dones: (n_envs,) whether the last step ended an episode
    :param last_values: (n_envs,) values of the states after the last step
    """

    def __init__(self, model: Any, dones: np.ndarray, last_values: th.Tensor):
        self.dones, self.last_values = np.array(dones), last_values.detach().cpu().flatten()
        super().__init__(model, model.rollout_buffer, "_get_samples")

    def hear(self, *args: Any) -> None:
        # The buffer only flattens the steps of the copies when it draws the first minibatch
        if self.latest is None:
            self.everything = self._samples(np.arange(self.n_steps))
        self.coming.append(np.array(args[0]))

    @property
    def n_steps(self) -> int:
        return self.model.rollout_buffer.buffer_size * self.model.n_envs

    def _samples(self, indices: np.ndarray) -> Any:
        samples = self._original(indices)
        if isinstance(self.model.action_space, spaces.Discrete):
            samples = samples._replace(actions=samples.actions.long().flatten())
        return samples

    def evaluate(self) -> Evaluation:
        parts = []
        for begin in range(0, self.n_steps, self.model.batch_size):
            samples = self._samples(np.arange(begin, min(begin + self.model.batch_size, self.n_steps)))
            parts.append(self.model.policy.evaluate_actions(samples.observations, samples.actions))
        values, log_prob, entropy = zip(*parts, strict=True)
        return Evaluation(th.cat(log_prob), None if entropy[0] is None else th.cat(entropy), th.cat(values).flatten())

    def clip_range(self) -> tuple[float, float]:
        clip = float(self.model.clip_range(self.model._current_progress_remaining))
        return clip, clip

    def describe(self, coming: Any) -> dict[str, Any]:
        # As in PPO.train, with the parameters before the step
        model, latest = self.model, self.latest
        assert latest is not None and latest.values is not None
        steps = th.as_tensor(coming, device=latest.log_prob.device)
        advantages = self.everything.advantages[steps]
        if model.normalize_advantage and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_prob, old_log_prob = latest.log_prob[steps], self.everything.old_log_prob[steps]
        low, high = self.clip_range()
        policy_loss = clipped_surrogate(log_prob - old_log_prob, advantages, low, high).mean()
        old_values = self.everything.old_values[steps]
        values = latest.values[steps]
        if model.clip_range_vf is not None:
            reach = model.clip_range_vf(model._current_progress_remaining)
            values = old_values + (values - old_values).clamp(-reach, reach)
        value_loss = F.mse_loss(self.everything.returns[steps], values)
        entropy = -log_prob if latest.entropy is None else latest.entropy[steps]
        per_epoch = -(-self.n_steps // model.batch_size)
        n_before = len(self.optimizer_steps)
        return {
            **place(n_before // per_epoch, n_before % per_epoch, steps),
            **judged(steps, advantages, (log_prob - old_log_prob).exp(), low, high),
            "loss": (policy_loss - model.ent_coef * entropy.mean() + model.vf_coef * value_loss).item(),
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "approx_kl": kl_estimate(old_log_prob, log_prob, "k3").mean().item(),
        }

    def rollout(self) -> dict[str, Any]:
        buffer, everything = self.model.rollout_buffer, self.everything
        n_envs, n_steps = self.model.n_envs, buffer.buffer_size
        # The buffer keeps these two as (n_steps, n_envs)
        starts, rewards = buffer.episode_starts.T.astype(bool), buffer.rewards.T.flatten()
        observations = everything.observations
        episodes = []
        for env in range(n_envs):
            begins = sorted({0, *np.flatnonzero(starts[env]).tolist()})
            for begin, end in zip(begins, [*begins[1:], n_steps], strict=True):
                first = env * n_steps + begin
                ended = end < n_steps or bool(self.dones[env])
                episodes.append(
                    {"group": None, "env": env, "first": first, "n_steps": end - begin, "ended": ended}
                    | ({} if ended else {"next_value": self.last_values[env].item()})
                    | prompt_of(self.model.observation_space, observations, first)
                )
        return {
            "groups": [],
            "episodes": with_rewards(episodes, rewards),
            "steps": {
                "observation": described(self.model.observation_space, observations, self.n_steps),
                **self.actions(everything.actions.cpu().numpy()),
                "reward": rewards.tolist(),
                "value": numbers(everything.old_values),
                "return": numbers(everything.returns),
                "advantage": numbers(everything.advantages),
                "log_prob": numbers(everything.old_log_prob),
            },
        }


class GroupRecorder(UpdateRecorder):
    """
    Records an update of GRPO or DAPO.

    :param model: The model, at the end of a rollout
    """

    def __init__(self, model: Any):
        self.batch: GroupBatch = model.batch
        self.n_epochs = 0
        super().__init__(model, model, "_train_epoch")
        self._refuse_step = model._refuse_step
        vars(model)["_refuse_step"] = self._refused

    def close(self) -> None:
        super().close()
        vars(self.model).pop("_refuse_step", None)

    def _refused(self, *args: Any) -> None:
        # The optimizer skips this step
        if not self._is_over() and self.coming:
            self.coming.popleft()
        self._refuse_step(*args)

    def hear(self, *args: Any) -> None:
        _, parts, self.advantages, self.weights, self.clip_low, self.clip_high = args
        together = self.model.gradient_accumulation_steps
        for number, begin in enumerate(range(0, len(parts), together)):
            self.coming.append((self.n_epochs, number, parts[begin : begin + together]))
        self.n_epochs += 1

    def clip_range(self) -> tuple[float, float]:
        return self.clip_low, self.clip_high

    def evaluate(self) -> Evaluation:
        batch, log_probs = self.batch, []
        lengths = batch.lengths.flatten().tolist()
        steps = th.arange(len(batch.rows), device=batch.rows.device).split(lengths)
        for episodes in consecutive(lengths, self.model.batch_size):
            minibatch = Minibatch(th.cat([steps[index] for index in episodes]), np.array(episodes), 1)
            actions = batch.actions[batch.rows[minibatch.steps]]
            log_probs.append(self.model.policy.evaluate_actions(batch.observations_at(minibatch), actions)[1])
        return Evaluation(th.cat(log_probs))

    def describe(self, coming: Any) -> dict[str, Any]:
        epoch, number, parts = coming
        latest, batch = self.latest, self.batch
        assert latest is not None
        steps = th.cat([part.steps for part in parts])
        log_ratio = latest.log_prob[steps] - batch.old_log_prob[batch.rows[steps]]
        if self.model.ratio_level == "episode":
            log_ratio = episode_log_ratio(log_ratio, batch.episode[steps], batch.lengths.numel())
        losses = []
        for part in parts:
            scaled = part.n_minibatches * self.weights[part.steps]
            losses.append(self.model._loss(batch, part, self.advantages[part.steps], scaled, self.clip_low, self.clip_high)[1])
        means = {key: float(np.mean([stats[key].item() for stats in losses])) for key in losses[0]}
        return {
            **place(epoch, number, steps),
            **judged(steps, self.advantages[steps], log_ratio.exp(), self.clip_low, self.clip_high),
            "loss": means["loss"],
            "policy_loss": means["policy_gradient_loss"],
            "approx_kl": means["approx_kl"],
            **({"kl_ref": means["kl_ref"]} if "kl_ref" in means else {}),
        }

    def rollout(self) -> dict[str, Any]:
        batch, model = self.batch, self.model
        rewards = batch.flatten(batch.rewards).cpu().numpy()
        lengths = batch.lengths.flatten().tolist()
        firsts = (np.cumsum(lengths) - lengths).tolist()
        going_on = {*batch.going_on.tolist()}
        observations = batch.observations_at(
            Minibatch(th.arange(len(rewards), device=batch.rows.device), np.arange(len(lengths)), 1)
        )
        episodes = [
            {"group": index // model.group_size, "first": first, "n_steps": length, "ended": index not in going_on}
            | prompt_of(model.observation_space, observations, first)
            for index, (first, length) in enumerate(zip(firsts, lengths, strict=True))
            if length
        ]
        return {
            "groups": self._groups(),
            "episodes": with_rewards(episodes, rewards),
            "steps": {
                "observation": described(model.observation_space, observations, len(rewards)),
                **self.actions(batch.actions[batch.rows].cpu().numpy()),
                "reward": rewards.tolist(),
                "advantage": numbers(self.advantages),
                "weight": numbers(self.weights),
                "log_prob": numbers(batch.old_log_prob[batch.rows]),
            },
        }

    def _groups(self) -> list[dict[str, Any]]:
        """
        :return: For each group, the returns of its members, their mean and standard deviation, and whether it is dead
        """
        batch = self.batch
        returns = discounted_returns_to_go(batch.rewards, batch.mask, self.model.gamma)[..., 0]
        means, stds = returns.mean(1), returns.std(1)
        live = batch.pad(self.advantages).any(2).any(1)
        return [
            {"returns": of_group.tolist(), "mean": mean.item(), "std": std.item(), "dead": not is_live}
            for of_group, mean, std, is_live in zip(returns, means, stds, live.tolist(), strict=True)
        ]


def recorder_of(model: BaseAlgorithm, rollout: dict[str, Any]) -> UpdateRecorder | None:
    """
    :param model: A model at the end of a rollout
    :param rollout: The local variables of the method that collected the rollout
    :return: Recorder of the next update, ``None`` if there is nothing to learn from
    """
    if isinstance(model, PPO):
        return PPORecorder(model, rollout["dones"], rollout["values"])
    return None if getattr(model, "batch", None) is None else GroupRecorder(model)


def check_recordable(model: BaseAlgorithm) -> None:
    """
    :param model: Any model
    :raises ValueError: if its updates cannot be recorded
    """
    if not isinstance(model, (PPO, GRPO)):
        raise ValueError(f"Updates of PPO, GRPO and DAPO can be recorded, not of {type(model).__name__}.")
