"""
What PPO has on pictures that GRPO has not, one exchange at a time: ``python -m benchmarks.atari_exchange.run``.

Each run is a process with one torch thread; its row is appended to ``benchmarks/results/atari_exchange.jsonl`` when it ends.
What has a row is not run again. ``--speed 3000`` prints steps per CPU second instead, and writes nothing.

Variants of SB3's PPO, all with the entry for Atari games in ``zoo_configs/ppo.yml``:

- ``ppo``: the entry.
- ``ppo_constant``: learning rate and clip range stay as they are in the beginning.
- ``ppo_separate``: actor and critic have convolutions of their own (``share_features_extractor=False``).
- ``ppo_detached``: the critic reads the actor's convolutions, but its loss does not train them.

Variants of GRPO and DAPO:

- ``grpo``, ``dapo``: updates in steps with the numbers of PPO's entry; the upper clip range of DAPO is 1.4 times the lower.
- ``grpo_constant``: as ``ppo_constant``.
- ``grpo_entry``: the entry in ``zoo_configs/grpo.yml``, with updates of a whole group.
- ``..._aux``: with an auxiliary value loss that trains the convolutions, ``policy_kwargs=dict(aux_vf_coef=0.5)``.
- ``..._aux_weak``: with 0.05, as the value loss of PPO begins at about 0.06 and that of standardised returns at 1.
- ``..._lives``: a lost life ends an episode, as for PPO, so the members of a group do not share a start.

=======================  ==================================  ================================  ==========================
..                       ppo                                 grpo                              grpo_entry
=======================  ==================================  ================================  ==========================
copies, steps            8 x 128                             8 x 128, groups of 4              4, until all games have ended
episode                  a life; FIRE is pressed after it    a game; only at its beginning     a game
values                   linear in the convolutions,         linear in 21 x 21 averages of     the same, of the update
                         by gradient steps                   the frames, in closed form, of    that they judge, with the
                                                             the updates before                time
advantages               GAE                                 GAE, less the mean of the group   the same
divided by the std of    the minibatch, less its mean        the update                        the update
target of the value      GAE + value, clipped rewards        known rewards + value at the end, known rewards,
loss (``_aux``)                                              standardised over the update      standardised
weight in the loss       each step                           each step                         each game
discount                 0.99                                0.99                              0.95
learning rate, clip      2.5e-4, 0.1, to 0                   2.5e-4, 0.1, to 0                 5e-4, 0.2, to 0
the same for all         4 epochs, minibatches of 256, entropy bonus 0.01, GAE's lambda 0.95, gradient norm 0.5, Adam with
                         epsilon 1e-5, NatureCNN with orthogonal weights, rewards clipped to their sign
=======================  ==================================  ================================  ==========================

All are evaluated on whole games with sampled actions and the game's own score. ``explained`` is the mean since the last
evaluation of what PPO calls explained variance (of GAE + value) and GRPO ``regression_r2`` (of the targets of the regression).
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import ale_py  # noqa: F401  registers the games
import numpy as np
import torch as th
from rich.progress import Progress
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from benchmarks import common
from benchmarks.timing import in_process
from benchmarks.unseen.run import origin
from sb3_grpo import make_atari_group_env

RESULTS = common.RESULTS / "atari_exchange.jsonl"
PPOS = ("ppo", "ppo_constant", "ppo_separate", "ppo_detached")
OURS = (
    *("grpo", "grpo_constant", "grpo_aux", "grpo_aux_weak", "grpo_lives", "grpo_aux_lives"),
    *("grpo_entry", "grpo_aux_entry", "dapo", "dapo_aux"),
)
N_ENVS, N_EPISODES, N_FINAL_EPISODES, EVALUATION_FREQ = 8, 10, 20, 50_000
# Evaluations have their own seeds
EVALUATION_SEED = 10_000
EXPLAINED = ("train/explained_variance", "train/regression_r2")
OF_THE_ENVIRONMENT = ("env_wrapper", "frame_stack", "n_envs", "policy", "n_timesteps")


class DetachedCriticPolicy(ActorCriticCnnPolicy):
    """The value loss trains the value head, but not the convolutions."""

    def evaluate_actions(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        latent_pi, latent_vf = self.mlp_extractor(self.extract_features(obs))
        distribution = self._get_action_dist_from_latent(latent_pi)
        return self.value_net(latent_vf.detach()), distribution.log_prob(actions), distribution.entropy()


def entry(algo: str) -> dict[str, Any]:
    """
    :param algo: "ppo" or "grpo"
    :return: The arguments of the algorithm in its entry for Atari games
    """
    return {key: value for key, value in common.hyperparameters(algo, "atari").items() if key not in OF_THE_ENVIRONMENT}


def make_model(env_id: str, variant: str, seed: int) -> Any:
    """
    :param env_id: Id of an Atari game
    :param variant: One of ``PPOS`` or ``OURS``
    :param seed: Random seed
    :return: The algorithm with its environment copies
    """
    algo, *changes = variant.split("_")
    kwargs = entry("grpo" if "entry" in changes else "ppo")
    if "constant" in changes:
        kwargs |= {name: kwargs[name](1.0) for name in ("learning_rate", "clip_range")}
    kwargs |= {"seed": seed, "device": "cpu"}
    if algo == "ppo":
        policy_kwargs = {"share_features_extractor": "separate" not in changes}
        policy = DetachedCriticPolicy if "detached" in changes else "CnnPolicy"
        return PPO(policy, VecFrameStack(make_atari_env(env_id, N_ENVS, seed), 4), policy_kwargs=policy_kwargs, **kwargs)
    kwargs.pop("vf_coef", None)
    if "aux" in changes:
        kwargs["policy_kwargs"] = {"aux_vf_coef": 0.05 if "weak" in changes else 0.5}
    if algo == "dapo":
        clip_range = kwargs["clip_range"]
        kwargs["clip_range_high"] = lambda progress: 1.4 * clip_range(progress)
    if "lives" in changes:
        env = VecFrameStack(make_atari_env(env_id, N_ENVS, seed), 4)
    else:
        env = make_atari_group_env(env_id, 4 if "entry" in changes else N_ENVS, seed)
    return common.algorithm(algo)("CnnPolicy", env, unrelated_starts="lives" in changes, **kwargs)


class Evaluate(BaseCallback):
    """
    Evaluates regularly, and counts the CPU seconds in between.

    :param env: Environment for evaluations
    :param until: Number of steps of the training
    """

    def __init__(self, env: VecEnv, until: int):
        super().__init__()
        self.env = env
        self.at = [*range(EVALUATION_FREQ, until, EVALUATION_FREQ)]
        self.row: dict[str, list[Any]] = {"steps": [], "seconds": [], "returns": [], "explained": [], "value_loss": []}
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
        returns, _ = evaluate_policy(
            self.model, self.env, n_episodes, deterministic=False, return_episode_rewards=True, warn=False
        )
        new = {"steps": self.num_timesteps, "seconds": round(now - self.begun - self.spent, 2), "returns": returns}
        for key, values in self.logged.items():
            new[key] = round(float(np.mean(values)), 4) if values else None
            values.clear()
        for key, value in new.items():
            self.row[key].append(value)
        self.spent += time.process_time() - now


def learn(env_id: str, variant: str, seed: int, timesteps: int, n_final_episodes: int) -> dict[str, Any]:
    """
    :param env_id: Id of an Atari game
    :param variant: One of ``PPOS`` or ``OURS``
    :param seed: Random seed
    :param timesteps: Number of steps
    :param n_final_episodes: Number of games to play at the end
    :return: The curve
    """
    th.set_num_threads(1)
    model = make_model(env_id, variant, seed)
    whole_games = {"terminal_on_life_loss": False, "clip_reward": False}
    eval_env = VecFrameStack(make_atari_env(env_id, N_EPISODES, EVALUATION_SEED + seed, wrapper_kwargs=whole_games), 4)
    evaluate = Evaluate(eval_env, timesteps)
    model.learn(timesteps, callback=evaluate)
    evaluate.note(n_final_episodes)
    return evaluate.row


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="BreakoutNoFrameskip-v4")
    parser.add_argument("--variants", nargs="+", choices=(*PPOS, *OURS), default=[*PPOS, *OURS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101, 102])
    parser.add_argument("--timesteps", type=int, default=250_000)
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

    made = origin()
    done = {(row["env"], row["variant"], row["seed"], row["timesteps"]) for row in common.rows(RESULTS)}
    options = ("--final-episodes", args.final_episodes)
    jobs = [(args.env, variant, seed, args.timesteps) for seed in args.seeds for variant in args.variants]
    lock = Lock()

    def run(job: tuple[str, str, int, int]) -> None:
        env_id, variant, seed, timesteps = job
        try:
            curve = in_process(module, *options, "--env", env_id, "--timesteps", timesteps, "--one", variant, seed)
        except RuntimeError as error:
            progress.print(f"{job}: {str(error).strip().splitlines()[-1]}")
        else:
            with lock, RESULTS.open("a") as file:
                file.write(
                    json.dumps(dict(zip(("env", "variant", "seed", "timesteps"), job, strict=True)) | curve | made) + "\n"
                )
        progress.advance(bar)

    jobs = [job for job in jobs if job not in done]
    with Progress() as progress, ThreadPoolExecutor(args.processes) as pool:
        bar = progress.add_task("runs", total=len(jobs))
        list(pool.map(run, jobs))


if __name__ == "__main__":
    main()
