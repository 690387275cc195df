"""
What PPO has on pictures that GRPO has not, one exchange at a time: ``python -m benchmarks.atari_exchange.run grpo ppo ...``.

A variant is an algorithm and what is exchanged, such as ``grpo_unaided_slow``. Each run is a process with one torch thread;
its row is appended to ``benchmarks/results/atari_exchange.jsonl`` when it ends. What has a row is not run again.

``grpo`` and ``dapo`` have the entry for Atari games in ``zoo_configs``, ``ppo`` that of ``ppo.yml``, with two differences:
learning rate and clip range stay as they are in the beginning, and all have PPO's discount factor, 0.99. With

- ``linear``, the rates fall to 0, as in PPO's entry.
- ``fast`` (PPO), they are those of GRPO's entry. ``slow`` (GRPO and DAPO): those of PPO's.
- ``unaided``, no auxiliary value loss trains the convolutions.
- ``weak``, it does with a tenth of the coefficient, as the value loss of PPO begins at about 0.06, and that of standardised
  returns at 1.
- ``forgetful``, values come from the averages of the frames alone, with the memory of other tasks, 0.5 per update.
- ``own``, values come from the convolutions of the policy, with that memory.
- ``critic``, values come from PPO's critic: a head on the convolutions, whose loss trains both.
- ``shared``, the members of a group play the same life (in the entry, unrelated ones); ``wide``: and there are 16 copies and
  64 steps.
- ``games``, an episode is a whole game, and the members of a group begin theirs alike; ``fire``: and FIRE is pressed when
  a life is lost, as it is where an episode is a life; ``penalty``: and the lost life costs 1.
- ``short``, the discount factor is that of GRPO's entry, 0.95.
- ``separate`` (PPO), actor and critic have convolutions of their own (``share_features_extractor=False``).
- ``detached`` (PPO), the critic reads the actor's convolutions, but its loss does not train them.

All except ``wide`` have 8 copies and 128 steps; all have 4 epochs, minibatches of 256, an entropy bonus of 0.01, GAE's lambda
0.95, gradient norm 0.5, Adam with epsilon 1e-5, NatureCNN with orthogonal weights, rewards clipped to their sign.

Scores are those of whole games with sampled actions: ``training``, the mean of the last hundred of the training;
``returns_fire``, of an evaluation where FIRE is pressed when a life is lost, as RL Zoo does for PPO; ``returns``, where it is
not. ``explained`` is the mean since the last evaluation of what PPO calls explained variance (of GAE + value) and GRPO
``regression_r2`` (of the targets of the regression).
"""

import argparse
import inspect
import json
import os
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

import ale_py  # noqa: F401  registers the games
import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from benchmarks import common
from benchmarks.runs import Job, run_missing
from benchmarks.timing import in_process
from sb3_grpo import GRPO, make_atari_group_env, make_group_env
from sb3_grpo.common.advantages import discounted_returns_to_go, td_residuals
from sb3_grpo.common.batch import GroupBatch, Minibatch
from sb3_grpo.common.judged import JudgedBatch
from sb3_grpo.common.values import MEMORY, StateFeatures, StepValues, image_features

RESULTS = common.RESULTS / "atari_exchange.jsonl"
CHANGES = {
    "ppo": ("linear", "fast", "separate", "detached"),
    "grpo": (
        *("linear", "slow", "unaided", "weak", "forgetful", "own", "critic", "shared", "wide", "games", "fire", "penalty"),
        "short",
    ),
}
CHANGES["dapo"] = CHANGES["grpo"]
N_ENVS, N_EPISODES, N_FINAL_EPISODES, EVALUATION_FREQ = 8, 10, 20, 50_000
# Evaluations have their own seeds
EVALUATION_SEED = 10_000
EXPLAINED = ("train/explained_variance", "train/regression_r2")
# The members of a group begin in the same state
SHARED = {"shared", "wide", "games", "fire", "penalty"}
RATES = {"learning_rate", "clip_range", "clip_range_high"}
OF_THE_ENVIRONMENT = ("env_wrapper", "frame_stack", "n_envs", "policy", "n_timesteps")


class DetachedCriticPolicy(ActorCriticCnnPolicy):
    """The value loss trains the value head, but not the convolutions."""

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        latent_pi, latent_vf = self.mlp_extractor(self.extract_features(obs))
        distribution = self._get_action_dist_from_latent(latent_pi)
        return self.value_net(latent_vf.detach()), distribution.log_prob(actions), distribution.entropy()


class FireAfterLifeLoss(gym.Wrapper):
    """FIRE is pressed when a life is lost, as it is for PPO, whose episodes are lives."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        ale = self.unwrapped.ale  # type: ignore[attr-defined]
        lives = ale.lives()
        obs, reward, terminated, truncated, info = self.env.step(action)
        if 0 < ale.lives() < lives and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(1)
            reward = float(reward) + float(more)
        return obs, reward, terminated, truncated, info


class LifeLossPenalty(gym.Wrapper):
    """A lost life costs 1."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        ale = self.unwrapped.ale  # type: ignore[attr-defined]
        lives = ale.lives()
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) - (ale.lives() < lives), terminated, truncated, info


def averages(obs: th.Tensor) -> StateFeatures:
    """
    :param obs: (N, 4, 84, 84) stacked frames
    :return: Their averages, downscaled, without what tells the direction of a movement
    """
    return StateFeatures(obs.flatten(1)[:, :0].float(), image_features(obs.float().mean(1, keepdim=True)))


class Critic:
    """
    The auxiliary value head of the policy in place of the regression.

    :param model: GRPO with an auxiliary value loss
    """

    def __init__(self, model: GRPO):
        self.model = model

    def update(self, state_features: Any, batch: GroupBatch, gamma: float) -> StepValues:
        """As ``ValueRegression.update``, with the targets of PPO's critic."""
        steps = th.arange(len(batch.episode)).split(512)
        values = th.cat([self.predict(batch.observations_at(Minibatch(part, None, len(steps)))) for part in steps])
        last_values = th.zeros_like(batch.lengths, dtype=th.float64)
        if batch.next_observations is not None:
            last_values.view(-1)[batch.unfinished] = self.predict(batch.next_observations)
        residuals = td_residuals(batch.rewards, batch.pad(values), batch.mask, gamma, last_values)
        gae = discounted_returns_to_go(residuals, batch.mask, gamma * self.model.gae_lambda)
        return StepValues(values, last_values, values + batch.flatten(gae), None)

    @th.no_grad()
    def predict(self, obs: Any) -> th.Tensor:
        """
        :param obs: Observations
        :return: (N,) their values
        """
        return self.model.policy.distribution_and_values(obs)[1].double()


class CriticGRPO(GRPO):
    """GRPO with the critic of PPO: its convolutions are those of the policy, and its loss trains them."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.value_regression = Critic(self)  # type: ignore[assignment]

    def _judge(self, batch: GroupBatch, values: StepValues | None = None) -> JudgedBatch:
        assert values is not None
        # As in PPO, in the units of the reward
        return replace(super()._judge(batch, values), value_targets=values.targets.float())


def entry(algo: str) -> dict[str, Any]:
    """
    :param algo: "ppo", "grpo" or "dapo"
    :return: The arguments of the algorithm in its entry for Atari games, and the clip ranges
    """
    defaults = inspect.signature(common.algorithm(algo)).parameters
    clip_ranges = {name: defaults[name].default for name in ("clip_range", "clip_range_high") if name in defaults}
    said = {key: value for key, value in common.hyperparameters(algo, "atari").items() if key not in OF_THE_ENVIRONMENT}
    return {name: value for name, value in {**clip_ranges, **said}.items() if value is not None}


def make_env(env_id: str, changes: list[str], seed: int) -> VecEnv:
    """
    :param env_id: Id of an Atari game
    :param changes: What is exchanged
    :param seed: Random seed
    :return: The copies for GRPO and DAPO
    """
    if not SHARED.intersection(changes):
        return VecFrameStack(make_atari_env(env_id, N_ENVS, seed), 4)
    if "fire" not in changes and "penalty" not in changes:
        n_envs = 2 * N_ENVS if "wide" in changes else N_ENVS
        return make_atari_group_env(env_id, n_envs, seed, {"terminal_on_life_loss": "games" not in changes})

    def wrapped(env: gym.Env) -> gym.Env:
        env = FireAfterLifeLoss(AtariWrapper(env, terminal_on_life_loss=False))
        return LifeLossPenalty(env) if "penalty" in changes else env

    return VecFrameStack(make_group_env(env_id, N_ENVS, seed, wrapper_class=wrapped, env_kwargs={"frameskip": 1}), 4)


def make_model(env_id: str, variant: str, seed: int) -> Any:
    """
    :param env_id: Id of an Atari game
    :param variant: "ppo", "grpo" or "dapo", and what is exchanged
    :param seed: Random seed
    :return: The algorithm with its environment copies
    :raises ValueError: If there is no such exchange
    """
    algo, *changes = variant.split("_")
    if unknown := {*changes} - {*CHANGES[algo]}:
        raise ValueError(f"{unknown} cannot be exchanged in {algo}, only {CHANGES[algo]}.")
    kwargs = entry(algo)
    if "fast" in changes or "slow" in changes:
        other = entry("grpo" if algo == "ppo" else "ppo")
        kwargs |= {name: other[name] for name in ("learning_rate", "clip_range")}
        if algo == "dapo":
            kwargs["clip_range_high"] = kwargs["clip_range"]
    rates = {name: FloatSchedule(kwargs[name])(1.0) for name in RATES & kwargs.keys()}
    kwargs |= {name: LinearSchedule(rate, 0.0, 1.0) for name, rate in rates.items()} if "linear" in changes else rates
    if "short" not in changes:
        kwargs["gamma"] = 0.99
    kwargs |= {"seed": seed, "device": "cpu"}
    if algo == "ppo":
        policy_kwargs = {"share_features_extractor": "separate" not in changes}
        policy = DetachedCriticPolicy if "detached" in changes else "CnnPolicy"
        return PPO(policy, VecFrameStack(make_atari_env(env_id, N_ENVS, seed), 4), policy_kwargs=policy_kwargs, **kwargs)
    if "unaided" in changes or "weak" in changes:
        kwargs["vf_coef"] = 0.05 if "weak" in changes else 0.0
    if "wide" in changes:
        kwargs["n_steps"] //= 2
    kwargs["unrelated_starts"] = not SHARED.intersection(changes)
    cls = CriticGRPO if "critic" in changes else common.algorithm(algo)
    model = cls("CnnPolicy", make_env(env_id, changes, seed), **kwargs)
    policy = model.policy
    if "own" in changes or "forgetful" in changes:
        model.value_regression.memory = MEMORY
    if "forgetful" in changes:
        policy.state_features = averages
    if "own" in changes:

        def own_features(obs: th.Tensor) -> StateFeatures:
            features = policy.extract_features(obs)
            return StateFeatures(features[:, :0], features)

        policy.state_features = own_features
    return model


class Evaluate(BaseCallback):
    """
    Evaluates regularly, and counts the CPU seconds in between.

    :param envs: Environments for evaluations
    :param until: Number of steps of the training
    """

    def __init__(self, envs: dict[str, VecEnv], until: int):
        super().__init__()
        self.envs = envs
        self.at = [*range(EVALUATION_FREQ, until, EVALUATION_FREQ)]
        self.row: dict[str, list[Any]] = defaultdict(list)
        self.logged: dict[str, list[float]] = {"explained": [], "value_loss": []}
        self.spent, self.begun = 0.0, time.process_time()

    def _on_rollout_start(self) -> None:
        # What the update before it has logged
        values = self.logger.name_to_value
        for key, names in (("explained", EXPLAINED), ("value_loss", ("train/value_loss",))):
            self.logged[key] += [float(values[name]) for name in names if name in values]

    def _on_step(self) -> bool:
        if self.at and self.num_timesteps >= self.at[0]:
            self.at.pop(0)
            self.note(N_EPISODES)
        return True

    def note(self, n_episodes: int) -> None:
        """
        :param n_episodes: Number of games to play
        """
        now = time.process_time()
        new: dict[str, Any] = {"steps": self.num_timesteps, "seconds": round(now - self.begun - self.spent, 2)}
        new["training"] = round(float(np.mean([game["r"] for game in self.model.ep_info_buffer or []])), 3)
        for name, env in self.envs.items():
            new[name], _ = evaluate_policy(
                self.model, env, n_episodes, deterministic=False, return_episode_rewards=True, warn=False
            )
        for key, values in self.logged.items():
            new[key] = round(float(np.mean(values)), 4) if values else None
            values.clear()
        for key, value in new.items():
            self.row[key].append(value)
        self.spent += time.process_time() - now


def learn(env_id: str, variant: str, seed: int, timesteps: int, n_final_episodes: int) -> dict[str, Any]:
    """
    :param env_id: Id of an Atari game
    :param variant: See ``make_model``
    :param seed: Random seed
    :param timesteps: Number of steps
    :param n_final_episodes: Number of games to play at the end
    :return: The curve
    """
    th.set_num_threads(1)
    model = make_model(env_id, variant, seed)
    envs = {
        name: VecFrameStack(
            make_atari_env(env_id, N_EPISODES, EVALUATION_SEED + seed, wrapper_kwargs={"terminal_on_life_loss": fires}),
            4,
        )
        for name, fires in (("returns", False), ("returns_fire", True))
    }
    evaluate = Evaluate(envs, timesteps)
    model.learn(timesteps, callback=evaluate)
    evaluate.note(n_final_episodes)
    return evaluate.row


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=["ppo", "grpo", "dapo"])
    parser.add_argument("--env", default="BreakoutNoFrameskip-v4")
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101, 102])
    parser.add_argument("--timesteps", type=int, default=125_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--speed", type=int, metavar="STEPS", help="print steps per CPU second instead")
    parser.add_argument("--final-episodes", type=int, default=N_FINAL_EPISODES)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        variant, seed = args.one
        print(json.dumps(learn(args.env, variant, int(seed), args.timesteps, args.final_episodes)))
        return
    module = "benchmarks.atari_exchange.run"
    if args.speed:
        for variant in args.variants:
            options = ("--env", args.env, "--timesteps", args.speed, "--final-episodes", 1)
            curve = in_process(module, *options, "--one", variant, args.seeds[0])
            print(f"{variant:16} {curve['steps'][-1] / curve['seconds'][-1]:6.0f} steps per CPU second", flush=True)
        return

    jobs = [
        {"env": args.env, "variant": variant, "seed": seed, "timesteps": args.timesteps}
        for seed in args.seeds
        for variant in args.variants
    ]

    def run(job: Job) -> dict[str, Any]:
        options = ("--env", args.env, "--timesteps", args.timesteps, "--final-episodes", args.final_episodes)
        return in_process(module, *options, "--one", job["variant"], job["seed"])

    run_missing(RESULTS, jobs, run, args.processes)


if __name__ == "__main__":
    main()
