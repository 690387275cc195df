"""Models on the Hugging Face Hub: files with data only, and a card that says what they reach."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from rich.progress import Progress
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_grpo import GRPO, __version__
from sb3_grpo.common.acting import Actor
from sb3_grpo.console import ALGORITHMS
from sb3_grpo.starts.atari import is_atari_id, make_env_of
from sb3_grpo.utils.vec_envs import ask_all, names_of

try:
    import huggingface_hub as hub
except ImportError as error:
    raise ImportError('The Hugging Face Hub needs huggingface_hub: pip install "sb3-grpo[hub]"') from error

# In a repository
MODEL, ABOUT, CLIP = "model.zip", "config.json", "clip.webp"

_CARD = """---
{metadata}
---

# {algorithm} on {env}

Mean return **{mean:.2f}** (95% interval {low:.2f} to {high:.2f}, standard deviation {std:.2f}) in {episodes} episodes, seed
{evaluation_seed}, {actions} actions. Trained for {steps:,} steps, seed {seed}:

    {command}

{clip}

```python
from sb3_grpo.hub import load_from_hub

model = load_from_hub("{repo_id}")
```

The model is a file of sb3-grpo {version} that holds only data: loading it runs no code of its author.
"""


def push_to_hub(
    model: GRPO,
    repo_id: str,
    env: VecEnv | gym.Env | str | None = None,
    n_eval_episodes: int = 100,
    deterministic: bool | None = None,
    command: str = "(unknown)",
    clip: str | Path | None = None,
    private: bool | None = None,
) -> str:
    """
    Evaluate a model, and upload it without pickles, with a card that says how it was evaluated. A repository that does not
    exist is created.

    :param model: A model of GRPO or DAPO
    :param repo_id: Name of the repository: ``"user/name"``
    :param env: Environment to evaluate it in, other than that of its training, or an id. ``None``: the id with which the model
        was made
    :param n_eval_episodes: Number of episodes of the evaluation
    :param deterministic: Whether it takes its most likely actions. ``None``: except in Atari games, where it might get stuck
    :param command: How the model was made, for the card
    :param clip: An animation for the card, such as ``clip.webp`` of a run of ``sb3-grpo train``
    :param private: Whether a new repository is private. ``None``: as the organization's default says
    :return: The address of the repository
    :raises ValueError: if there is nothing to evaluate the model in, or it has parts that are no data
    """
    if n_eval_episodes < 2:
        raise ValueError(f"n_eval_episodes={n_eval_episodes}: an interval needs at least two episodes.")
    env = model.env_id if env is None else env
    if env is None:
        raise ValueError("push_to_hub evaluates the model, and does not know where: give env=..., or the id of one.")
    # Far from the seeds of its training
    seed = int(np.random.SeedSequence([model.seed or 0, 1]).generate_state(1)[0])
    played = make_env_of(env, min(16, n_eval_episodes), seed) if isinstance(env, str) else model._wrap_env(env)
    normalizer = unwrap_vec_normalize(played)
    if model.is_normalized_outside or model._vec_normalize_observes or (normalizer is not None and normalizer.norm_obs):
        raise ValueError(
            "The statistics of VecNormalize are not in the file of a model, and their own file is a pickle. Train with "
            "policy_kwargs=dict(normalize_observations=True) in place of VecNormalize(norm_obs=True): then they are."
        )
    if normalizer is not None:
        normalizer.training = normalizer.norm_reward = False
    played.seed(seed)
    name = getattr(ask_all(played, "spec", None)[0], "id", names_of(played)[0])
    deterministic = not is_atari_id(name) if deterministic is None else deterministic
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Whatever can go wrong does so before the evaluation
        model.save(folder / MODEL, format="safe")
        if clip is not None:
            shutil.copy(clip, folder / CLIP)
        api = hub.HfApi()
        api.whoami()
        with th.random.fork_rng():
            th.manual_seed(seed)
            returns = _returns(model, played, n_eval_episodes, deterministic)
        about = {"env": name, "command": command, "evaluation_seed": seed, **_about(model, returns, deterministic)}
        (folder / ABOUT).write_text(json.dumps(about, indent=2))
        shown = f"![The agent untrained, and trained]({CLIP})" if clip is not None else ""
        indented = command.replace("\n", "\n    ")
        card = _CARD.format(**about | {"command": indented}, metadata=_metadata(about), repo_id=repo_id, clip=shown)
        (folder / "README.md").write_text(card, encoding="utf-8")
        address = api.create_repo(repo_id, exist_ok=True, private=private)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=f"{about['algorithm']} on {name}")
    return str(address)


def load_from_hub(repo_id: str, env: Any = None, revision: str | None = None, **kwargs: Any) -> GRPO:
    """
    Load a model that :func:`push_to_hub` has uploaded. A file with pickles, which could run code, is refused.

    :param repo_id: Name of the repository: ``"user/name"``
    :param env: Environment to go on training in, not needed to predict
    :param revision: Branch, tag or commit. ``None``: the newest version
    :param kwargs: Further arguments of ``load``
    :return: The model
    :raises ValueError: if the repository has no such model
    """
    # Both of the same commit
    folder = Path(hub.snapshot_download(repo_id, revision=revision, allow_patterns=[MODEL, ABOUT]))
    try:
        algorithm = ALGORITHMS[json.loads((folder / ABOUT).read_text())["algorithm"].lower()]
        path = (folder / MODEL).resolve(strict=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{repo_id} has no model that push_to_hub has uploaded. {type(error).__name__}: {error}") from error
    model = algorithm.load(path, env, trusted=False, **kwargs)
    if ":" in (model.env_id or ""):
        model.env_id = None  # it would import a module that the author has named
    return model


def _returns(model: GRPO, env: VecEnv, n_episodes: int, deterministic: bool) -> list[float]:
    with Progress(transient=True) as progress:
        bar = progress.add_task("Evaluation", total=n_episodes)

        def advance(variables: dict[str, Any], _: dict[str, Any]) -> None:
            progress.advance(bar, float(variables["done"]))

        actor: Any = Actor(model, env)
        found: Any = evaluate_policy(actor, env, n_episodes, deterministic, callback=advance, return_episode_rewards=True)
    return found[0]


def _about(model: GRPO, returns: list[float], deterministic: bool) -> dict[str, Any]:
    means = np.random.default_rng(0).choice(returns, (10_000, len(returns))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5]).tolist()
    return {
        "algorithm": type(model).__name__,
        "steps": model.num_timesteps,
        "seed": model.seed,
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "low": low,
        "high": high,
        "episodes": len(returns),
        "actions": "most likely" if deterministic else "sampled",
        "version": __version__,
    }


def _metadata(about: dict[str, Any]) -> str:
    """
    :param about: What is known of a model
    :return: The same for the Hub, in the terms of SB3's own models
    """
    env, reward = about["env"], f"{about['mean']:.2f} +/- {about['std']:.2f}"
    return hub.ModelCardData(
        library_name="sb3-grpo",
        tags=["reinforcement-learning", "deep-reinforcement-learning", "stable-baselines3", env],
        model_name=about["algorithm"],
        eval_results=[hub.EvalResult("reinforcement-learning", env, env, "mean_reward", reward)],
    ).to_yaml()
