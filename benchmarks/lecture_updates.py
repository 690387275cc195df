"""
Real updates for the lecture to step through: ``python -m benchmarks.lecture_updates`` writes
``sb3_grpo/classroom/lecture/data/update_*.json``.

The settings are small so that an update can be read: few episodes and two epochs. Learning rates are larger than usual, and
seeds are chosen, so that something is clipped within these epochs and one of the sums has a dead group.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.lecture_data import short, write
from sb3_grpo import GRPO, make_group_env, presets
from sb3_grpo.common.batch import GroupBatch, Minibatch
from sb3_grpo.common.judged import JudgedBatch
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import cut_off
from sb3_grpo.envs import ArithmeticTask, VerifierTextVecEnv

SEED, PPO_SEED = 1, 13
PAPER: dict[str, Any] = presets.GRPO_PAPER | {"n_epochs": 2}
# What a page shows or a test recomputes
SETTINGS = "gamma gae_lambda n_epochs learning_rate normalize_advantage advantage advantage_scale leave_one_out".split()


class RecordUpdate(BaseCallback):
    """
    Records the last update of a training of PPO, or of GRPO with whole groups: what was played, and the effect of each
    optimizer step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.record: dict[str, Any] = {}
        # Steps of the minibatches for which the optimizer has not yet taken a step
        self.coming: deque[th.Tensor] = deque()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        if self.num_timesteps < model._total_timesteps:
            return
        is_ppo = isinstance(model, PPO)
        source, method = (model.rollout_buffer, "_get_samples") if is_ppo else (model, "_step")
        self.original = getattr(source, method)
        # On the object: the class stays as it is
        vars(source)[method] = self._hear_ppo if is_ppo else self._hear_grpo
        model.policy.optimizer.register_step_pre_hook(self._before_step)
        model.policy.optimizer.register_step_post_hook(self._after_step)

    def _hear_ppo(self, indices: np.ndarray, *args: Any) -> Any:
        # The buffer flattens the steps of the copies before it draws the first minibatch
        if not self.record:
            self._begin(ppo_rollout(self.model, self.original, self.locals))
        self.coming.append(th.as_tensor(indices.copy()))
        return self.original(indices, *args)

    def _hear_grpo(self, judged: JudgedBatch, parts: list[Minibatch]) -> Any:
        if not self.record:
            self._begin(grpo_rollout(self.model, judged.batch, judged.advantages))
        self.coming.extend(part.steps for part in parts)
        return self.original(judged, parts)

    def _begin(self, rollout: dict[str, Any]) -> None:
        model: Any = self.model
        self.observations, self.actions = rollout.pop("tensors")
        clip_range = model.clip_range(1.0)
        settings = {name: getattr(model, name) for name in SETTINGS if hasattr(model, name)}
        self.record = {
            "algorithm": type(model).__name__,
            **rollout,
            "settings": settings | {"clip_low": clip_range, "clip_high": clip_range},
            "optimizer_steps": [],
        }
        self.old_log_prob = self.latest = th.tensor(rollout["steps"]["log_prob"])
        self.advantages = th.tensor(rollout["steps"]["advantage"])

    def _before_step(self, *_: Any) -> None:
        steps, settings = self.coming.popleft(), self.record["settings"]
        advantages = self.advantages[steps]
        if settings.get("normalize_advantage"):
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (self.latest[steps] - self.old_log_prob[steps]).exp()
        below, above = cut_off(ratio, advantages, settings["clip_low"], settings["clip_high"])
        before = self.record["optimizer_steps"]
        epoch = 1 + sum(len(step["steps"]) for step in before) // len(self.advantages)
        step = {
            "epoch": epoch,
            "minibatch": 1 + sum(step["epoch"] == epoch for step in before),
            "steps": steps.tolist(),
            "below": steps[below].tolist(),
            "above": steps[above].tolist(),
            "approx_kl": kl_estimate(self.old_log_prob[steps], self.latest[steps], "k3").mean().item(),
        }
        before.append(step | ({"advantage": advantages.tolist()} if isinstance(self.model, PPO) else {}))

    def _after_step(self, *_: Any) -> None:
        policy: Any = self.model.policy
        with th.no_grad():
            self.latest = policy.get_distribution(self.observations).log_prob(self.actions)
        self.record["optimizer_steps"][-1]["log_prob"] = self.latest.tolist()


def ppo_rollout(model: Any, get_samples: Callable[..., Any], rollout: dict[str, Any]) -> dict[str, Any]:
    """
    :param model: The model
    :param get_samples: Method of its buffer that returns steps
    :param rollout: Local variables of the method that collected the rollout
    :return: Episodes and steps, one copy of the environment after the other
    """
    buffer, n_envs = model.rollout_buffer, model.n_envs
    n_steps = buffer.buffer_size
    samples = get_samples(np.arange(n_envs * n_steps))
    actions = samples.actions.long().flatten()
    # The buffer keeps these two as (n_steps, n_envs)
    starts, rewards = buffer.episode_starts.T.astype(bool), buffer.rewards.T.flatten()
    episodes = []
    for env in range(n_envs):
        begins = sorted({0, *np.flatnonzero(starts[env]).tolist()})
        for begin, end in zip(begins, [*begins[1:], n_steps], strict=True):
            first, ended = env * n_steps + begin, end < n_steps or bool(rollout["dones"][env])
            episode = {"env": env, "first": first, "n_steps": end - begin, "ended": ended}
            episode |= {} if ended else {"next_value": rollout["values"].flatten()[env].item()}
            episodes.append(episode | {"reward": float(rewards[first : first + end - begin].sum())})
    steps = {
        "observation": samples.observations.tolist(),
        "action": actions.tolist(),
        "reward": rewards.tolist(),
        "value": samples.old_values.tolist(),
        "advantage": samples.advantages.tolist(),
        "log_prob": samples.old_log_prob.tolist(),
    }
    return {"groups": [], "episodes": episodes, "steps": steps, "tensors": (samples.observations, actions)}


def grpo_rollout(model: GRPO, batch: GroupBatch, advantages: th.Tensor) -> dict[str, Any]:
    """
    :param model: The model
    :param batch: Its groups
    :param advantages: (N,) advantages of the steps
    :return: Groups, episodes and steps
    """
    lengths = batch.lengths.flatten().tolist()
    observations: Any = batch.observations_at(Minibatch(th.arange(len(advantages)), np.arange(len(lengths)), 1))
    actions, rewards = batch.actions[batch.rows], batch.flatten(batch.rewards)
    steps = {
        "action": actions.tolist(),
        "reward": rewards.tolist(),
        "advantage": advantages.tolist(),
        "log_prob": batch.old_log_prob[batch.rows].tolist(),
    }
    episodes = []
    for index, (first, length) in enumerate(zip((np.cumsum(lengths) - lengths).tolist(), lengths, strict=True)):
        reward = rewards[first : first + length].sum().item()
        episodes.append({"group": index // model.group_size, "first": first, "n_steps": length, "reward": reward})
    if isinstance(observations, th.Tensor):
        steps["observation"] = observations.tolist()
    else:
        tokenizer = model.observation_space.tokenizer  # type: ignore[attr-defined]
        steps["token"] = [tokenizer.decode([token]) for token in steps["action"]]
        for episode in episodes:
            row = observations.texts[observations.text[episode["first"]]]
            episode["prompt"] = tokenizer.decode(row[: observations.last[episode["first"]] + 1].tolist())
    returns, live = batch.rewards.sum(-1), batch.pad(advantages).any(2).any(1)
    groups = [
        {"returns": each.tolist(), "mean": each.mean().item(), "std": each.std().item(), "dead": not is_live}
        for each, is_live in zip(returns, live.tolist(), strict=True)
    ]
    return {"groups": groups, "episodes": episodes, "steps": steps, "tensors": (observations, actions)}


def models() -> Iterator[tuple[str, BaseAlgorithm, int]]:
    """
    :return: Name of each record, what is trained, and the number of steps, whose last update is recorded
    """
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}
    yield "update_ppo", PPO("MlpPolicy", env, learning_rate=0.01, gamma=0.98, seed=PPO_SEED, device="cpu", **sizes), 4 * 64
    # Two groups of four episodes
    sizes = {"group_size": 4, "n_groups": 2, "batch_size": 100, "learning_rate": 0.01}
    groups = make_group_env("CartPole-v1", 4, seed=SEED)
    yield "update_grpo", GRPO("MlpPolicy", groups, seed=SEED, device="cpu", **PAPER | sizes), 1
    # Six answers to each of four one-digit sums, after a warm start on worked examples
    task = ArithmeticTask(digits=1)
    sizes = {"group_size": 6, "n_groups": 4, "batch_size": 30, "learning_rate": 3e-4}
    network = {"n_layers": 2, "width": 64, "n_heads": 4}
    texts = VerifierTextVecEnv(24, seed=SEED, task=task)
    model = GRPO("TokenPolicy", texts, seed=SEED, device="cpu", policy_kwargs=network, **PAPER | sizes)
    policy: Any = model.policy
    policy.pretrain(task.worked_examples(100, seed=0), n_epochs=60, batch_size=50)
    yield "update_sums", model, 1


if __name__ == "__main__":
    for name, model, timesteps in models():
        callback = RecordUpdate()
        model.learn(timesteps, callback=callback)
        write(name, short(callback.record, digits=6))
