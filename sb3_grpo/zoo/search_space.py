"""Search spaces of ``--optimize-hyperparameters`` for GRPO and DAPO, and conversion of trials to keyword arguments."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import optuna
from rl_zoo3.exp_manager import ExperimentManager

from sb3_grpo import GRPO
from sb3_grpo.common.arguments import judges_whole_episodes
from sb3_grpo.grpo.policies import POLICIES

_POWERS_OF_TWO = ("group_size", "n_steps", "n_groups")
# Sizes of an update: the default, which grows with the run, or n_steps
_UNITS = ("default", "n_steps")
_NET_ARCH = {"small": [64, 64], "medium": [256, 256]}
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
    "one_minus_gamma": 0.01,
    "ent_coef": 1e-6,
    "net_arch": "small",
    "log_std_init": 0.0,
    "one_minus_gae_lambda": 0.05,
    "unit": "default",
    "n_groups_pow": 2,
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


def first_trial(algo: str, policy: str, n_envs: int) -> dict[str, Any]:
    """
    :param algo: name of the algorithm, as in ``--algo``
    :param policy: name of the policy
    :param n_envs: number of copies, which make 2,048 steps together in an update of PPO
    :return: the first trial of a study as Optuna stores it, the defaults (of policies for images, as far as the space has
        them); empty if it is drawn like the others
    """
    if algo in ("ppo", "ppo_mask"):
        return {**_PPO_DEFAULTS, "n_steps_pow": min(12, max(5, round(math.log2(2048 / n_envs))))}
    if algo not in ("grpo", "dapo") or policy not in POLICIES or policy in _TEXT_POLICIES:
        return {}
    own = POLICIES[policy].default_arguments({})  # type: ignore[attr-defined]
    return {**_GRPO_DEFAULTS, "learning_rate": own["learning_rate"]}


def needs_whole_groups(entry: dict[str, Any]) -> bool:
    """
    :param entry: hyperparameters that are not searched
    :return: whether one of them, such as ``ratio_level``, works only with ``n_groups``
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(GRPO).parameters.items()}
    return judges_whole_episodes(SimpleNamespace(**(defaults | entry | _PER_STEP | {"advantage": "gae"}))) is not None


def _suggest(trial: optuna.Trial, n_actions: int) -> dict[str, Any]:
    """
    Sample the hyperparameters of a trial.

    :param trial: the trial; its user attribute ``policy`` is the name of the policy, ``whole_groups`` whether the entry needs
        updates of whole groups, ``steps_per_copy`` the budget
    :param n_actions: number of continuous actions
    :return: the sampled parameters, as Optuna stores them
    """
    policy = str(trial.user_attrs.get("policy"))
    if policy == _PRETRAINED_POLICY:
        return _suggest_pretrained(trial)
    is_text = policy in _TEXT_POLICIES
    drawn = {
        "group_size_pow": trial.suggest_int("group_size_pow", 1, 6 if is_text else 4),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        "lr_schedule": trial.suggest_categorical("lr_schedule", ["constant", "linear"]),
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.001, 0.05, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-6, 0.1, log=True),
    }
    if is_text:
        # Not "process": it is zero where all rewards are equal
        drawn["advantage"] = trial.suggest_categorical("advantage", ["return_to_go", "outcome"])
    else:
        drawn["net_arch"] = trial.suggest_categorical("net_arch", list(_NET_ARCH))
        if n_actions:
            # On HalfCheetah and Ant, -2 alone ends far above 0, on Pendulum far below it
            drawn["log_std_init"] = trial.suggest_float("log_std_init", -3.0, 0.0)
        drawn["one_minus_gae_lambda"] = trial.suggest_float("one_minus_gae_lambda", 0.005, 0.2, log=True)
    if getattr(POLICIES.get(policy), "is_recurrent", False):
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
    Sample the hyperparameters of a pretrained language model. The others come from the entry.

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
        "kl_coef": trial.suggest_categorical("kl_coef", [0.0, 0.001, 0.01, 0.04]),
    }


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
    if kwargs.pop("unit", None) is not None:
        kwargs |= _PER_STEP
    for name in ("gamma", "gae_lambda"):
        if f"one_minus_{name}" in kwargs:
            kwargs[name] = 1.0 - kwargs.pop(f"one_minus_{name}")
    if "gae_lambda" in kwargs:
        kwargs["advantage"] = "gae"
    if kwargs.pop("lr_schedule") == "linear":
        kwargs["learning_rate"] = f"lin_{kwargs['learning_rate']}"
    if "net_arch" in kwargs:
        kwargs["policy_kwargs"] = {"net_arch": _NET_ARCH[kwargs.pop("net_arch")]}
    for name in ("lstm_hidden_size", "log_std_init"):
        if name in kwargs:
            kwargs["policy_kwargs"][name] = kwargs.pop(name)
    return kwargs


def sample_params(trial: optuna.Trial, n_actions: int, *unused: Any) -> dict[str, Any]:
    """
    :param trial: the trial; what is stored as a logarithm or a difference is also a user attribute, in readable form
    :param n_actions: number of continuous actions
    :param unused: what other algorithms' functions need
    :return: keyword arguments of GRPO or DAPO, which do not accept schedules as strings
    """
    kwargs = convert_params(_suggest(trial, n_actions))
    for name in (*_POWERS_OF_TWO, "gamma", "gae_lambda"):
        if name in kwargs:
            trial.set_user_attr(name, kwargs[name])
    return ExperimentManager._preprocess_schedules(kwargs)
