"""``sb3-grpo train``: train on any Gymnasium environment."""

import argparse
import functools
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo import GRPO, presets
from sb3_grpo.classroom.clips import leave_clip
from sb3_grpo.cli.runs import Run, add_run_options, curve_figure, positive, run_arguments
from sb3_grpo.cli.settings import describe_settings, parse_settings
from sb3_grpo.common.acting import Actor
from sb3_grpo.common.callbacks import Curve
from sb3_grpo.console import ALGORITHMS, UsageError, find_env, missing_env_extra, policy_for
from sb3_grpo.starts.atari import is_atari_id, make_env_of
from sb3_grpo.text.tokens import TokenSpace
from sb3_grpo.utils.ranks import own_copies, rank


class EpisodeReturns(Curve):
    """Record the return of every training episode, as measured by Monitor."""

    def _on_step(self) -> bool:
        for idx in np.flatnonzero(self.locals["dones"]):
            # With Atari's life loss, an episode can end for the agent but not for Monitor
            episode = self.locals["infos"][idx].get("episode")
            if episode is not None:
                self.points.append((self.num_timesteps, float(episode["r"])))
        return True


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "train",
        help="train an agent, evaluate it, and save it with its learning curve",
        description="Train an agent, evaluate it on seeds it has not seen, and save it with its learning curve.\n"
        "Ctrl-C and SIGTERM stop training early and save the model; --resume continues it.",
        epilog=describe_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--algo", choices=ALGORITHMS, help="the algorithm")
    parser.add_argument("--env", help="id of a Gymnasium environment; package.module:Name-v0 imports package.module first")
    parser.add_argument(
        "--timesteps", type=positive, default=100_000, help="number of environment steps to train for (default: %(default)s)"
    )
    parser.add_argument("--n-envs", type=positive, default=16, help="number of environment copies (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: cuda if available (default: %(default)s)")
    parser.add_argument(
        "--eval-episodes", type=positive, default=100, help="episodes of the final evaluation (default: %(default)s)"
    )
    parser.add_argument(
        "--no-clip", action="store_true", help="make no animation of the trained agent next to the untrained one"
    )
    add_run_options(parser, "ENV")
    parser.set_defaults(run=_train, command="train")


def _make_env(env_id: str, n_envs: int, seed: int | None) -> VecEnv:
    """
    :param env_id: id of the environment, as given on the command line
    :param n_envs: number of copies
    :param seed: seed of the first copy
    :return: the vectorized environment, with the usual preprocessing if it is an Atari game
    """
    try:
        return make_env_of(env_id, n_envs, seed)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise missing_env_extra(env_id, error) or UsageError(f"{env_id}: {error}") from error


def _train(args: argparse.Namespace) -> int:
    args = run_arguments(args)
    missing = [f"--{name}" for name in ("algo", "env") if getattr(args, name) is None]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be given, or the run that is to go on, with --resume FOLDER")
    if args.device.startswith("cuda") and not th.cuda.is_available():
        # SB3 would silently fall back to the CPU
        raise UsageError(f"--device {args.device}: PyTorch finds no GPU that it can use. Leave it out, or write --device cpu")
    spec = find_env(args.env)
    env = _make_env(args.env, *own_copies(args.n_envs, args.seed))
    if isinstance(env.observation_space, TokenSpace):
        raise UsageError(
            "train is not for environments of text, which take other policies and settings: use sb3-grpo text, "
            'python -m sb3_grpo.zoo train, or DAPO("TokenPolicy", env) in a script'
        )
    policy = policy_for(env.observation_space)
    returns = EpisodeReturns()
    run = Run(args, args.env, returns)
    if args.resume is None:
        settings = (presets.preset(args.preset) if args.preset else {}) | parse_settings(ALGORITHMS[args.algo], args.set)
        model = run.make_model(policy, env, re.sub(r"[^\w.-]+", "-", args.env), settings)
    else:
        model = run.resumed_model(env)
    run.learn(model, policy)
    env.close()
    if rank() > 0:
        return run.end()
    # Saved before the evaluation: a later Ctrl-C loses only that
    run.save(model, episodes=len(returns.points))
    _save_curve(args.output / "curve.png", run.title, returns.points, spec.reward_threshold)
    rows = []
    if run.is_complete:
        evaluation = _evaluate(model, args)
        run.write_config(evaluation=evaluation)
        rows = _summary(evaluation, spec.reward_threshold)
        if not args.no_clip:
            make_env = functools.partial(make_env_of, args.env, 1, None)
            # Same seed as the evaluation
            rows.append(("Clip", leave_clip(model, make_env, evaluation["seed"], args.output, type(model).__name__)))
    return run.finish(rows)


def _evaluate(model: GRPO, args: argparse.Namespace) -> dict[str, Any]:
    # As the zoo does: with its most likely actions, an agent may get stuck in a deterministic game
    deterministic = not is_atari_id(args.env)
    # Far from the training seeds, which are args.seed, args.seed + 1, ... and the random seeds of the groups
    seed = int(np.random.SeedSequence([args.seed, 1]).generate_state(1)[0])
    env = _make_env(args.env, min(args.n_envs, args.eval_episodes), seed)
    try:
        acting: Any = Actor(model, env)
        returns, lengths = evaluate_policy(acting, env, args.eval_episodes, deterministic, return_episode_rewards=True)
    finally:
        env.close()
    return {
        "episodes": args.eval_episodes,
        "mean_return": float(np.mean(returns)),
        "std_return": float(np.std(returns)),
        "mean_length": float(np.mean(lengths)),
        "deterministic": deterministic,
        "seed": seed,
    }


def _save_curve(path: Path, title: str, curve: list[tuple[int, float]], threshold: float | None) -> None:
    if not curve:
        return
    steps, returns = np.array(curve).T
    window = max(1, min(100, len(returns) // 10))
    means = np.convolve(returns, np.ones(window) / window, "valid")
    with curve_figure(path, title, "environment steps", "return") as axes:
        axes.plot(steps, returns, ".", markersize=3, alpha=0.3, label="training episode")
        axes.plot(steps[window - 1 :], means, label=f"mean of the last {window}")
        if threshold is not None:
            axes.axhline(threshold, color="gray", linestyle="--", label=f"solved: {threshold:g}")


def _summary(evaluation: dict[str, Any], threshold: float | None) -> list[tuple[str, str]]:
    mean, std = evaluation["mean_return"], evaluation["std_return"]
    summary = f"mean return {mean:.2f}, standard deviation {std:.2f}, {evaluation['episodes']} episodes"
    rows = [("Evaluation", f"{'deterministic' if evaluation['deterministic'] else 'sampled'} actions: {summary}")]
    if threshold is not None:
        verdict = "yes" if mean >= threshold else "no"
        rows.append(("Solved", f"{verdict} (threshold: mean return of {threshold:g})"))
    return rows
