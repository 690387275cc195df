"""Search spaces of ``--optimize-hyperparameters`` for GRPO and DAPO, and conversion of trials to keyword arguments."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import optuna
from rl_zoo3 import linear_schedule
from torch import nn

from sb3_grpo import GRPO
from sb3_grpo.common.arguments import judges_whole_episodes
from sb3_grpo.grpo.policies import POLICIES

_POWERS_OF_TWO = ("group_size", "n_steps", "n_groups", "batch_size")
# Sizes of an update: the default, which grows with the run, or n_steps
_UNITS = ("default", "n_steps")
_NET_ARCH = {"small": [64, 64], "medium": [256, 256]}
_ACTIVATION_FN = {"tanh": nn.Tanh, "relu": nn.ReLU}
_LSTM_HIDDEN_SIZES = [16, 32, 64, 128, 256, 512]
# Policies with their own network
_PRETRAINED_POLICY = "CausalLMPolicy"
_TEXT_POLICIES = ("TokenPolicy", _PRETRAINED_POLICY)
# Required by updates of n_steps; overrides the entry
_PER_STEP = {"loss_average": "step", "overlong_filter": False}

# Defaults as Optuna stores them. The smallest entropy bonus is as good as none
_GRPO_DEFAULTS = {
    "group_size_pow": 2,
    "lr_schedule": "constant",
    "batch_size_pow": 8,
    "clip_range": 0.2,
    "clip_range_higher_by": 0.0,
    "one_minus_gamma": 0.01,
    "advantage_scale": "batch",
    "ent_coef": 1e-8,
    "policy_loss": "clip",
    "net_arch": "small",
    "activation_fn": "tanh",
    "log_std_init": 0.0,
    "one_minus_gae_lambda": 0.05,
    "unit": "default",
    "n_groups_pow": 2,
    "loss_average": "episode",
    "overlong_filter": False,
    "lstm_hidden_size": 256,
}
_PPO_DEFAULTS = {
    "batch_size_pow": 6,
    "one_minus_gamma": 0.01,
    "one_minus_gae_lambda": 0.05,
    "learning_rate": 3e-4,
    "ent_coef": 1e-8,
    "clip_range": 0.2,
    "n_epochs": 10,
    "max_grad_norm": 0.5,
    "net_arch": "small",
    "activation_fn": "tanh",
}
_FIRST_TRIALS = {
    "ppo": _PPO_DEFAULTS,
    "ppo_mask": _PPO_DEFAULTS,
    "grpo": _GRPO_DEFAULTS,
    "dapo": {**_GRPO_DEFAULTS, "clip_range_higher_by": 0.08, "max_sampling_rounds": 4},
}


def first_trial(algo: str, policy: str, n_envs: int, normalizes: bool) -> dict[str, Any]:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :param policy: name of the policy
    :param n_envs: number of copies, which make 2,048 steps together in an update of PPO
    :param normalizes: whether GRPO and DAPO normalise observations by default
    :return: the first trial of a study as Optuna stores it, the defaults (of policies for images, as far as the space has
        them); empty if it is drawn like the others
    """
    if algo not in _FIRST_TRIALS or policy in _TEXT_POLICIES:
        return {}
    if algo in ("ppo", "ppo_mask"):
        return {**_PPO_DEFAULTS, "n_steps_pow": min(12, max(5, round(math.log2(2048 / n_envs))))}
    own = POLICIES[policy].default_arguments({}) if policy in POLICIES else {}  # type: ignore[attr-defined]
    found = {**_FIRST_TRIALS[algo], "normalize_observations": normalizes}
    return {**found, **{name: own[name] for name in ("learning_rate", "n_epochs") if name in own}}


def needs_whole_groups(entry: dict[str, Any]) -> bool:
    """
    :param entry: hyperparameters that are not searched
    :return: whether one of them, such as ``ratio_level``, works only with ``n_groups``
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(GRPO).parameters.items()}
    return judges_whole_episodes(SimpleNamespace(**(defaults | entry | _PER_STEP | {"advantage": "gae"}))) is not None


def _suggest(trial: optuna.Trial) -> dict[str, Any]:
    """
    Sample the hyperparameters that both algorithms share.

    :param trial: the trial; its user attribute ``policy`` is the name of the policy, ``is_continuous`` whether actions are
        continuous, ``whole_groups`` whether the entry needs updates of whole groups, ``steps_per_copy`` the budget
    :return: the sampled parameters, as Optuna stores them
    """
    if trial.user_attrs.get("policy") == _PRETRAINED_POLICY:
        return _suggest_pretrained(trial)
    is_text = trial.user_attrs.get("policy") in _TEXT_POLICIES
    drawn = {
        "group_size_pow": trial.suggest_int("group_size_pow", 1, 6 if is_text else 4),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True),
        "lr_schedule": trial.suggest_categorical("lr_schedule", ["constant", "linear"]),
        "n_epochs": trial.suggest_categorical("n_epochs", [4, 10, 20]),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 6, 10),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3]),
        # Above clip_range, so that "clip higher" never becomes "clip lower"
        "clip_range_higher_by": trial.suggest_categorical("clip_range_higher_by", [0.0, 0.08, 0.16]),
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.001, 0.05, log=True),
        "advantage_scale": trial.suggest_categorical("advantage_scale", ["batch", "group"]),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
        "policy_loss": trial.suggest_categorical("policy_loss", ["clip", "sapo", "cispo"]),
    }
    if is_text:
        # Not "process": it is zero where all rewards are equal
        drawn["advantage"] = trial.suggest_categorical("advantage", ["return_to_go", "outcome"])
    else:
        drawn["net_arch"] = trial.suggest_categorical("net_arch", list(_NET_ARCH))
        drawn["activation_fn"] = trial.suggest_categorical("activation_fn", list(_ACTIVATION_FN))
        drawn["normalize_observations"] = trial.suggest_categorical("normalize_observations", [False, True])
        if trial.user_attrs.get("is_continuous"):
            # On HalfCheetah and Ant, -2 alone ends far above 0, on Pendulum far below it
            drawn["log_std_init"] = trial.suggest_float("log_std_init", -3.0, 0.0)
        drawn["one_minus_gae_lambda"] = trial.suggest_float("one_minus_gae_lambda", 0.005, 0.2, log=True)
    if getattr(POLICIES.get(str(trial.user_attrs.get("policy"))), "is_recurrent", False):
        drawn["lstm_hidden_size"] = trial.suggest_categorical("lstm_hidden_size", _LSTM_HIDDEN_SIZES)
    if is_text or trial.user_attrs.get("whole_groups"):
        drawn["n_groups_pow"] = trial.suggest_int("n_groups_pow", 0, 5)
    else:
        drawn["unit"] = trial.suggest_categorical("unit", _UNITS)
    if drawn.get("unit") == "n_steps":
        # At least four updates
        largest = int(math.log2(max(32, trial.user_attrs.get("steps_per_copy", 8192) / 4)))
        drawn["n_steps_pow"] = trial.suggest_int("n_steps_pow", 5, min(9, largest))
    return drawn


def _suggest_pretrained(trial: optuna.Trial) -> dict[str, Any]:
    """
    Sample the hyperparameters of a pretrained language model. The others (no discount, outcome advantages) are its defaults.

    :param trial: the trial
    :return: the sampled parameters, as Optuna stores them
    """
    return {
        "group_size_pow": trial.suggest_int("group_size_pow", 2, 5),
        "n_groups_pow": trial.suggest_int("n_groups_pow", 1, 6),
        # Small ones for all weights, large ones for LoRA
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-3, log=True),
        "lr_schedule": trial.suggest_categorical("lr_schedule", ["constant", "linear"]),
        "n_epochs": trial.suggest_categorical("n_epochs", [1, 2, 4]),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 5, 11),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3]),
        "clip_range_higher_by": trial.suggest_categorical("clip_range_higher_by", [0.0, 0.04, 0.08, 0.16]),
        "advantage_scale": trial.suggest_categorical("advantage_scale", ["batch", "group", "none"]),
        "kl_coef": trial.suggest_categorical("kl_coef", [0.0, 0.001, 0.01, 0.04]),
    }


def _takes_steps(drawn: dict[str, Any]) -> bool:
    """
    :param drawn: the parameters of a trial
    :return: whether its updates are sized in steps and do not wait for episodes to end
    """
    return drawn.get("unit") in ("default", "n_steps")


def convert_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled_params: the parameters of an Optuna trial of GRPO or DAPO
    :return: hyperparameters as written in a configuration file
    """
    kwargs = sampled_params.copy()
    for name in _POWERS_OF_TWO:
        # None overrides the value of an entry that uses the other unit
        power = kwargs.pop(f"{name}_pow", None)
        kwargs[name] = None if power is None else 2**power
    if _takes_steps(sampled_params):
        kwargs |= _PER_STEP
    kwargs.pop("unit", None)
    for name in ("gamma", "gae_lambda"):
        if f"one_minus_{name}" in kwargs:
            kwargs[name] = 1.0 - kwargs.pop(f"one_minus_{name}")
    if "gae_lambda" in kwargs:
        kwargs["advantage"] = "gae"
    kwargs["clip_range_high"] = kwargs["clip_range"] + kwargs.pop("clip_range_higher_by")
    if kwargs.pop("lr_schedule") == "linear":
        kwargs["learning_rate"] = f"lin_{kwargs['learning_rate']}"
    if "net_arch" in kwargs:
        kwargs["policy_kwargs"] = {
            "net_arch": _NET_ARCH[kwargs.pop("net_arch")],
            "activation_fn": _ACTIVATION_FN[kwargs.pop("activation_fn")],
            "normalize_observations": kwargs.pop("normalize_observations"),
        }
    for name in ("lstm_hidden_size", "log_std_init"):
        if name in kwargs:
            kwargs["policy_kwargs"][name] = kwargs.pop(name)
    return kwargs


def _with_schedule(trial: optuna.Trial, kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    :param trial: the trial; the values are also stored in its user attributes, in readable form
    :param kwargs: hyperparameters as written in a configuration file
    :return: keyword arguments for the constructor, which does not accept schedules as strings
    """
    for name in (*_POWERS_OF_TWO, "gamma", "gae_lambda", "clip_range_high"):
        if name in kwargs:
            trial.set_user_attr(name, kwargs[name])
    if isinstance(kwargs["learning_rate"], str):
        kwargs["learning_rate"] = linear_schedule(kwargs["learning_rate"].removeprefix("lin_"))
    return kwargs


def sample_grpo_params(trial: optuna.Trial, *unused: Any) -> dict[str, Any]:
    """
    :param trial: the trial
    :param unused: what other algorithms' functions need
    :return: keyword arguments of GRPO
    """
    # DAPO's mean over all steps helps GRPO where episodes differ much in length
    drawn = _suggest(trial)
    if not _takes_steps(drawn):
        drawn["loss_average"] = trial.suggest_categorical("loss_average", ["episode", "step"])
    return _with_schedule(trial, convert_params(drawn))


def sample_dapo_params(trial: optuna.Trial, *unused: Any) -> dict[str, Any]:
    """
    :param trial: the trial
    :param unused: what other algorithms' functions need
    :return: keyword arguments of DAPO
    """
    drawn = _suggest(trial) | {"max_sampling_rounds": trial.suggest_categorical("max_sampling_rounds", [1, 2, 4])}
    # Updates of n_steps use pieces of episodes, which no time limit truncates
    if not _takes_steps(drawn):
        drawn["overlong_filter"] = trial.suggest_categorical("overlong_filter", [False, True])
    return _with_schedule(trial, convert_params(drawn))
