"""The table that contrasts PPO, GRPO and DAPO: what follows from the settings of the runs, and nothing else."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.common.arguments import PER_STEP
from sb3_grpo.console import ALGORITHMS

if TYPE_CHECKING:
    import pandas as pd

Settings = dict[str, str]
_WITH_CRITIC_NETWORK = ("a2c", "ppo", "ppo_lstm", "ppo_mask", "trpo")


def side_by_side(results: Results) -> "pd.DataFrame":
    """
    :param results: results of the experiment
    :return: a row per setting, a column per variant: texts, with the environments where they differ
    """
    rows: dict[str, Callable[[str, Settings], str]] = {
        "Value model": _value_model,
        "Advantage": _advantage,
        "Clipping": _clipping,
        "KL limit of an update": _kl_limit,
        "KL from a reference": _kl_from_reference,
        "Dead groups": _dead_groups,
        "Loss averaged over": _loss_average,
        "Group size": lambda algo, settings: settings.get("group_size", ""),
        "Copies of the environment": lambda algo, settings: settings.get("n_envs", "None").replace("None", "1"),
        "Minibatch (steps)": lambda algo, settings: settings.get("batch_size", "").replace("None", "all"),
        "Epochs": lambda algo, settings: settings.get("n_epochs", ""),
    }
    columns = {}
    for variant in results.experiment["variants"]:
        envs = [env for env in results.envs if len(results.done(env, variant["name"]))]
        if envs:
            settings = {env: results.hyperparams(env, variant["name"]) for env in envs}
            columns[variant["name"]] = [
                _merged({env: row(variant["algo"], settings[env]) for env in envs}) for row in rows.values()
            ]
    frame: pd.DataFrame = import_extra("pandas").DataFrame({"": list(rows), **columns})
    return frame[(frame[list(columns)] != "-").any(axis=1)]


def _merged(by_env: dict[str, str]) -> str:
    """A text for all environments, or one for each."""
    envs_of: dict[str, list[str]] = {}
    for env, text in by_env.items():
        envs_of.setdefault(text or "-", []).append(env)
    if len(envs_of) == 1:
        return next(iter(envs_of))
    return "; ".join(f"{text} ({', '.join(envs)})" for text, envs in envs_of.items())


def _in_steps(settings: Settings) -> bool:
    """Whether updates are a number of steps, rather than of whole groups."""
    if settings.get("n_steps", "None") != "None" or settings.get("n_groups", "None") != "None":
        return settings.get("n_steps", "None") != "None"
    return all(settings.get(name, "None") == str(value) for name, value in PER_STEP.items())


def _value_model(algo: str, settings: Settings) -> str:
    if algo not in ALGORITHMS:
        return "critic network" if algo in _WITH_CRITIC_NETWORK else ""
    if settings.get("advantage") != "gae":
        return "none" if settings.get("advantage") in ("outcome", "return_to_go", "process", "maxrl") else ""
    earlier = "with earlier updates at half weight" if _in_steps(settings) else "of each update alone"
    return f"linear critic in closed form, no critic network; fitted to the steps {earlier}"


def _advantage(algo: str, settings: Settings) -> str:
    lambda_text = f"GAE with λ = {settings.get('gae_lambda')}"
    if algo not in ALGORITHMS:
        normalised = f"; normalised in each {'rollout' if algo == 'trpo' else 'minibatch'}"
        lambda_text += normalised if settings.get("normalize_advantage") == "True" else ""
        return lambda_text if "gae_lambda" in settings else ""
    words = {
        "gae": lambda_text,
        "return_to_go": "return to go",
        "outcome": "whole episode's return",
        "process": "process rewards",
        "maxrl": "whole episode's return",
    }
    kind, scale = settings.get("advantage", ""), settings.get("advantage_scale")
    baseline = "the other members' mean" if settings.get("leave_one_out") == "True" else "the group's mean"
    divided = f"; divided by the {scale}'s standard deviation" if scale in ("group", "batch") else ""
    if kind == "maxrl":
        divided = "; divided by that mean"
    # A function of the user's has a name, and does what it does
    return f"{words[kind]} minus {baseline}{divided}" if kind in words else kind


def _clipping(algo: str, settings: Settings) -> str:
    low, high = settings.get("clip_range", ""), settings.get("clip_range_high", "None")
    if low in ("", "None", "inf"):
        return "none" if low else ""
    # The RL Zoo's notation of linear schedules
    low, high = (re.sub(r"^lin_(.*)", r"\1, falling to 0,", value) for value in (low, high))
    return f"{low} on both sides" if high in ("None", low) else f"low {low}, high {high}"


def _kl_limit(algo: str, settings: Settings) -> str:
    limit = settings.get("target_kl", "")
    if limit in ("", "None"):
        return "none" if limit else ""
    return f"at most {limit}" if algo == "trpo" else f"it ends early beyond {limit}"


def _kl_from_reference(algo: str, settings: Settings) -> str:
    coefficient = settings.get("kl_coef", "")
    if coefficient in ("", "0", "0.0"):
        return "none" if coefficient else ""
    place = "in the reward of each step" if settings.get("kl_estimator") == "k1_in_reward" else "in the loss"
    return f"{place}, coefficient {coefficient}"


def _dead_groups(algo: str, settings: Settings) -> str:
    if algo not in ALGORITHMS:
        return ""
    in_steps, rounds = _in_steps(settings), settings.get("max_sampling_rounds", "None")
    if settings.get("dynamic_sampling", "False") == "False":
        of_groups = "advantage zero" if settings.get("advantage") in ("gae", "outcome") else ""
        return "learned from" if in_steps else of_groups
    if in_steps:
        limit = "" if rounds == "None" else f", to at most {rounds} times its length"
        return "learned from" if rounds == "1" else f"learned from but not counted: the rollout is extended{limit}"
    limit = "" if rounds == "None" else f" in up to {rounds} rounds"
    return "dropped" if rounds == "1" else f"dropped, new ones drawn{limit}"


def _loss_average(algo: str, settings: Settings) -> str:
    average = settings.get("loss_average", "")
    if average.replace(".", "", 1).isdecimal():
        return f"episodes, the sum over each divided by {average}"
    return {"episode": "the steps of each episode first, then the episodes", "step": "all steps"}.get(average, average)
