"""Checks of the arguments of GRPO and DAPO, individually and in combination, and hints for PPO arguments they do not have."""

import difflib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.advantages import KINDS, SCALES
from sb3_grpo.common.losses import LOSS_WEIGHTS, POLICY_LOSSES
from sb3_grpo.common.policies import ActorPolicy, has_own_extractor
from sb3_grpo.common.reference import NAMES as KL_ESTIMATORS
from sb3_grpo.groups.queue import RETURN
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.starts.start_queue import MAX_ENVS, MAX_SEED
from sb3_grpo.utils.parameters import Choice, Flag, Function, Keywords, Kind, Number, Text, Whole, short_repr
from sb3_grpo.utils.plugins import name_of

# Default number of groups per update, if whole groups are needed
GROUPS_PER_UPDATE = 4
# Default of gae_lambda
DEFAULT_GAE_LAMBDA = 0.95


class Device(Kind):
    """A device of PyTorch, or "auto"."""

    def check(self, name: str, value: Any) -> Any:
        try:
            get_device(value)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f'{name} must be "auto", "cpu", "cuda" or another device of PyTorch, got {short_repr(value)}: {error}'
            ) from error
        return value


# Allowed values of each argument
ARGUMENTS: dict[str, Kind] = {
    # The update
    "learning_rate": Number(low=0, schedule=True),
    "batch_size": Whole(none="all steps of the update at once"),
    "gradient_accumulation_steps": Whole(),
    "n_epochs": Whole(),
    "ent_coef": Number(),
    "max_grad_norm": Number(positive=True, limit=True),
    "target_kl": Number(positive=True, limit=True, none="no limit"),
    # Groups
    "n_envs": Whole(high=MAX_ENVS, none="16 copies"),
    "group_size": Whole(2, why="an episode is compared with the others of its group, and a group of one gives no signal"),
    "n_steps": Whole(none="whole groups"),
    "n_groups": Whole(none="n_steps of each copy"),
    "dynamic_sampling": Flag(),
    "max_sampling_rounds": Whole(none="no limit"),
    "group_metric": Text(),
    "upweight_live": Flag(),
    # Advantages
    "gamma": Number(0, 1),
    "advantage": Choice(("auto", *KINDS), call="rewards, mask, *, gamma, leave_one_out, scale, ddof, eps"),
    "gae_lambda": Number(0, 1),
    "leave_one_out": Flag(),
    "advantage_scale": Choice(SCALES),
    "std_ddof": Whole(0, 1, why="0 divides by the number of members (population), 1 by one less (sample)"),
    # Loss
    "policy_loss": Choice(tuple(POLICY_LOSSES), call="log_ratio, advantages, clip_low, clip_high"),
    "clip_range": Number(low=0, limit=True, schedule=True),
    "clip_range_high": Number(low=0, limit=True, schedule=True, none="the same as clip_range"),
    "loss_average": Choice(("auto", *LOSS_WEIGHTS), call="episode, n_episodes, *, kept, constant_length"),
    "constant_length": Number(positive=True, none="other averages"),
    "ratio_level": Choice(("step", "episode")),
    # KL divergence from a reference policy
    "kl_coef": Number(low=0),
    "kl_estimator": Choice(KL_ESTIMATORS, call="log_prob, ref_log_prob"),
    "kl_target": Number(positive=True, none="a kl_coef that stays"),
    "ref_update_interval": Whole(none="never"),
    # Overlong episodes
    "overlong_filter": Flag(),
    "overlong_penalty": Number(low=0),
    "overlong_max_length": Whole(none="no penalty"),
    "overlong_cache_length": Whole(none="no penalty"),
    # Starts
    "common_noise": Flag(),
    "unrelated_starts": Flag(),
    "start_sampler": Function("a function of a numpy.random.Generator that returns a start", call="rng"),
    "vine_share": Number(0, 1),
    "horizon": Whole(none="whole episodes"),
    "step_timeout": Number(0.001, limit=True, none="the limit of the kind of environment", why="a step takes some time"),
    # As in Stable-Baselines3
    "use_sde": Flag(),
    "sde_sample_freq": Whole(low=-1),
    "stats_window_size": Whole(),
    "tensorboard_log": Text(none="no logging", path=True),
    "policy_kwargs": Keywords(),
    "verbose": Whole(low=0, flag=True),
    "seed": Whole(0, MAX_SEED, none="no seed"),
    "device": Device(),
}

# Positional arguments of PPO after policy and env, in order
_OF_PPO = ("learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range")
# Arguments of PPO and A2C that have no meaning here, and what to write instead
_WITHOUT_MEANING = {
    "vf_coef": "there is no critic whose loss could be weighed: leave it out",
    "clip_range_vf": "there is no critic whose values could be clipped: leave it out",
    "normalize_advantage": 'write advantage_scale="batch" for True (the default), advantage_scale="none" for False',
    "rollout_buffer_class": "the policy brings its buffer: set rollout_buffer_class of a subclass of ActorPolicy",
    "rollout_buffer_kwargs": "the policy brings its buffer: set rollout_buffer_class of a subclass of ActorPolicy",
    "use_rms_prop": "write policy_kwargs=dict(optimizer_class=torch.optim.RMSprop)",
    "rms_prop_eps": "write policy_kwargs=dict(optimizer_kwargs=dict(eps=...))",
}


def check_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    Check each argument individually.

    :param values: Arguments by name
    :return: The same arguments, with NumPy numbers converted to Python
    :raises ValueError: if an argument is invalid
    """
    return {name: ARGUMENTS[name].check(name, value) for name, value in values.items()}


def check_call(algorithm: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """
    Tell the user what to write instead of a call with arguments of PPO.

    :param algorithm: The class that is called
    :param args: Its positional arguments
    :param kwargs: Its keyword arguments
    :raises TypeError: if some of them belong to PPO
    """
    parameters = inspect.signature(algorithm.__init__).parameters  # type: ignore[misc]
    for name in kwargs.keys() & _WITHOUT_MEANING.keys() - parameters.keys():
        raise TypeError(f"{algorithm.__name__} has no {name}: {_WITHOUT_MEANING[name]}.")
    n_positional = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values()) - 1  # without self
    has_more = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if len(args) > n_positional and not has_more:
        named = [f"{name}={short_repr(value)}" for name, value in zip(_OF_PPO, args[2:], strict=False)]
        raise TypeError(
            f"{algorithm.__name__} takes policy, env and learning_rate by position, and {len(args)} arguments are given so. "
            f"In the order of PPO, write {algorithm.__name__}(policy, env, {', '.join(named)})."
        )


def check_load(model: Any, kwargs: Mapping[str, Any]) -> None:
    """
    Refuse keyword arguments that SB3 would set as attributes that nothing reads.

    :param model: An empty model, before parameters are loaded
    :param kwargs: Extra keyword arguments of ``load``
    :raises TypeError: if one is neither an argument of SB3's ``load`` or of the constructor, nor an attribute of the model
    """
    algorithm = type(model)
    called = (algorithm.load, BaseAlgorithm.load, *algorithm.__mro__)
    own = {name for each in called for name in inspect.signature(each).parameters} - {"args", "kwargs"}
    # Attributes that are set later, such as observation_space
    annotated = {name for base in algorithm.__mro__ for name in inspect.get_annotations(base)}
    known = own | annotated | vars(model).keys()
    for name in sorted(kwargs.keys() - known):
        close = difflib.get_close_matches(name, sorted(known), n=1)
        raise TypeError(
            f"{algorithm.__name__}.load has no argument {name}, and {algorithm.__name__} no such attribute."
            + (f" Did you mean {close[0]}?" if close else f" To add it to the model, write model.{name} = ... after load.")
        )


def check_policy(policy: Any, known: Mapping[str, type[BasePolicy]]) -> None:
    """
    :param policy: ``policy`` given by the user
    :param known: Policy classes by name
    :raises ValueError: if it is neither one of these names nor a critic-free policy class
    """
    others = f"use one of the names {', '.join(known)}, or a subclass of sb3_grpo.common.policies.ActorPolicy."
    if isinstance(policy, str):
        if policy not in known:
            raise ValueError(f"policy={policy!r:.80} is unknown: {others}")
    elif not isinstance(policy, type):
        raise ValueError(f"policy must be a name or a class, got {short_repr(policy)}: {others}")
    elif not issubclass(policy, ActorPolicy):
        raise ValueError(f"{policy.__name__}, given as policy, is not a critic-free policy: {others}")


def check_env(env: Any, n_envs: int | None) -> None:
    """
    :param env: ``env`` given by the user
    :param n_envs: Number of copies given by the user, or ``None``
    :raises ValueError: if ``env`` is not an environment, or has a different number of copies
    """
    if isinstance(env, str):
        return
    if isinstance(env, type):
        raise ValueError(
            f"env must be an environment, got the class {env.__name__}: write {env.__name__}() for one copy, or "
            f"make_group_env({env.__name__}, n_envs=16)."
        )
    if isinstance(env, VectorEnv):
        raise ValueError(
            f"env must be an environment or a VecEnv of Stable-Baselines3, got {type(env).__name__}, a vector environment of "
            f'Gymnasium: write make_group_env("{env.spec.id if env.spec else "..."}", n_envs={env.num_envs}).'
        )
    if not hasattr(env, "step"):
        raise ValueError(
            f"env must be the id of a registered environment, an environment or a VecEnv, got {short_repr(env)} "
            f"({type(env).__name__})."
        )
    n_there = env.num_envs if isinstance(env, VecEnv) else 1
    if n_envs is not None and n_envs != n_there:
        raise ValueError(
            f"n_envs={n_envs} is how many copies to build where env is an id, and this env has {n_there}: leave n_envs out, "
            f"and build as many as you want, make_group_env(..., n_envs={n_envs})."
        )


def check_use_sde(use_sde: bool, action_space: spaces.Space) -> None:
    """
    :param use_sde: Whether to use gSDE
    :param action_space: Action space of the environment
    :raises ValueError: if gSDE cannot be used with these actions
    """
    if use_sde and not isinstance(action_space, spaces.Box):
        raise ValueError(f"use_sde=True is for continuous actions (Box), and these are {action_space}: leave use_sde=False.")


def check_together(model: Any) -> None:
    """
    :param model: An algorithm whose arguments are individually valid
    :raises ValueError: if they contradict each other
    """
    for topic in (_about_the_update, _about_the_space, _about_starts, _about_the_loss, _about_whole_episodes):
        for conflict in topic(model):
            raise ValueError(conflict)


def judges_whole_episodes(model: Any) -> str | None:
    """
    :param model: The algorithm
    :return: An argument that judges whole episodes, ``None`` if each step is judged on its own
    """
    for name, per_step in {"advantage": "gae", "ratio_level": "step", "loss_average": "step"}.items():
        value = getattr(model, name)
        if value != per_step:
            return f'{name}="{value}"' if isinstance(value, str) else f"{name}={name_of(value)}"
    if not model.upweight_live:
        return "upweight_live=False"
    for name in ("overlong_filter", "overlong_penalty", "horizon"):
        if getattr(model, name):
            return f"{name}={getattr(model, name)}"
    return None


def captures_states(model: Any) -> bool:
    """
    :param model: The algorithm
    :return: Whether it needs environments whose state can be captured
    """
    sampler = model.start_sampler
    return (
        model.vine_share > 0.0 or model.horizon is not None or (isinstance(sampler, StartSampler) and sampler.captures_states)
    )


def without_effect(model: Any) -> Iterator[str]:
    """
    Find arguments that have no effect. They are not errors, because users combine tuned entries and presets with their own
    arguments.

    :param model: An algorithm with valid arguments
    :return: A message for each argument without effect
    """
    if model.advantage != "gae" and model.gae_lambda != DEFAULT_GAE_LAMBDA:
        kind = model.advantage if isinstance(model.advantage, str) else name_of(model.advantage)
        yield (
            f"gae_lambda={model.gae_lambda} has no effect with advantage={kind!r}, which estimates no values: leave it out, "
            'or write advantage="gae".'
        )
    if model.constant_length is not None and model.loss_average != "constant":
        kind = model.loss_average if isinstance(model.loss_average, str) else name_of(model.loss_average)
        yield (
            f"constant_length={model.constant_length} has no effect with loss_average={kind!r}, which does not divide by it: "
            'leave it out, or write loss_average="constant".'
        )
    if model.kl_coef == 0.0 and model.kl_estimator != "exact":
        kind = model.kl_estimator if isinstance(model.kl_estimator, str) else name_of(model.kl_estimator)
        yield (
            f"kl_estimator={kind!r} has no effect with kl_coef=0, without a reference policy: leave it out, or give kl_coef "
            "(e.g. 0.04)."
        )
    if not model.dynamic_sampling and model.max_sampling_rounds not in (1, _default(type(model), "max_sampling_rounds")):
        yield (
            f"max_sampling_rounds={model.max_sampling_rounds} has no effect without dynamic sampling, which draws groups "
            "again: leave it out, or write dynamic_sampling=True."
        )
    asked_for = model.dynamic_sampling and not _default(type(model), "dynamic_sampling")
    if asked_for and model.max_sampling_rounds == 1 and model.n_steps is not None:
        yield (
            "dynamic_sampling=True has no effect with max_sampling_rounds=1 where an update takes n_steps: no rollout is "
            "longer than that. Write max_sampling_rounds=4, or n_groups=4 for whole groups, of which dead ones are dropped."
        )
    if model.overlong_penalty == 0.0:
        for name in ("overlong_max_length", "overlong_cache_length"):
            if getattr(model, name) is not None:
                yield (
                    f"{name}={getattr(model, name)} has no effect with overlong_penalty=0, which it is for: leave it out, or "
                    "give overlong_penalty (e.g. 1.0)."
                )
    for name in ("forward", "evaluate_actions"):
        policy = model.policy_class
        if getattr(policy, name) is not getattr(ActorPolicy, name) and model.policy.distribution_follows_from_latent:
            yield (
                f"{policy.__name__}.{name} has no effect in training, where actions and their probabilities are those of "
                "get_distribution: override that."
            )


def _default(algorithm: type, name: str) -> Any:
    """
    :param algorithm: An algorithm class, possibly a user's subclass
    :param name: Name of an argument
    :return: The default of this argument
    """
    each = (inspect.signature(cls).parameters.get(name) for cls in algorithm.__mro__[:-1])
    return next(parameter.default for parameter in each if parameter is not None)


def _about_the_update(model: Any) -> Iterator[str]:
    if model.n_steps is not None and model.n_groups is not None:
        yield (
            f"Give n_steps={model.n_steps} or n_groups={model.n_groups}, and not both: an update is sized in steps of "
            "each copy, or in whole groups. Write None for the other, also in load(): a model keeps its own."
        )
    if model.n_steps is None and model.n_groups is None:
        yield "n_steps and n_groups are both None: set one of them, n_groups=4 for example."
    if model.env is not None and model.n_steps == model.n_envs == 1:
        yield (
            "n_steps * n_envs must be greater than 1, got n_steps=1 and n_envs=1: a single step has no other to be "
            "compared with."
        )
    if model.batch_size is None and model.gradient_accumulation_steps > 1:
        yield (
            f"gradient_accumulation_steps={model.gradient_accumulation_steps} takes several minibatches together, and with "
            "batch_size=None there is only one: give batch_size the number of steps that fit into memory."
        )
    # A model that was only loaded to predict does not log
    if model.env is not None and model.tensorboard_log is not None and importlib.util.find_spec("tensorboard") is None:
        yield f'tensorboard_log="{model.tensorboard_log}" needs TensorBoard: pip install "sb3-grpo[tensorboard]".'


def _about_the_space(model: Any) -> Iterator[str]:
    policy = model.policy_class
    is_text = getattr(model.observation_space, "is_text", False)
    if is_text and not (policy.reads_texts or has_own_extractor(model.policy_kwargs)):
        yield (
            f"The observations are texts, and {policy.__name__} would take their token ids for quantities: "
            f'write {type(model).__name__}("TokenPolicy", env, ...), or "CausalLMPolicy" for a pretrained language model.'
        )
    if model.advantage == "gae" and policy.reads_texts:
        yield (
            f'advantage="gae" needs the states as numbers, and {policy.__name__} reads texts: '
            'use advantage="outcome" or advantage="return_to_go".'
        )
    # A model that was only loaded to predict acts as it was trained
    if model.env is not None:
        observations = model.observation_space
        parts = [*observations.spaces.values()] if isinstance(observations, spaces.Dict) else [observations]
        for kind, space in (("actions", model.action_space), *(("observations", part) for part in parts)):
            if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
                yield (
                    f"The {kind} are {space}, and Stable-Baselines3 counts from 0, whatever start says: let the environment, "
                    f"or a wrapper, have {kind} that start at 0."
                )


def _about_starts(model: Any) -> Iterator[str]:
    sampler = model.start_sampler
    needs = [name for name in ("vine_share", "horizon") if getattr(model, name)]
    if isinstance(sampler, StartSampler) and sampler.captures_states:
        needs.append(type(sampler).__name__)
        if model.vine_share > 0.0 or model.horizon is not None:
            yield (
                f"{type(sampler).__name__} begins groups in mid-episode already: leave vine_share=0 and horizon=None, got "
                f"vine_share={model.vine_share} and horizon={model.horizon}."
            )
    elif sampler is not None:
        needs.append(f"start_sampler={name_of(sampler)}")
    if needs and model.unrelated_starts:
        yield f"{needs[-1]} needs groups whose members share a start: leave unrelated_starts=False."
    if model.horizon is None:
        return
    if model.group_metric != RETURN:
        yield f"group_metric={model.group_metric!r} is of whole episodes, and a horizon cuts them into pieces."
    if model.vine_share > 0.0:
        yield "With a horizon, groups begin in mid-episode already: leave vine_share=0."
    if model.overlong_filter or model.overlong_penalty > 0.0:
        yield "overlong_filter and overlong_penalty judge whole episodes, and a horizon cuts them into pieces."


def _about_the_loss(model: Any) -> Iterator[str]:
    if model.loss_average == "constant" and model.constant_length is None:
        yield (
            'loss_average="constant" needs a positive constant_length, by which the sum over an episode is divided, '
            f"got {model.constant_length}."
        )
    if model.kl_target is not None and model.kl_coef == 0.0:
        yield f"kl_target={model.kl_target} adapts kl_coef, which must be positive to begin with (e.g. 0.04), got kl_coef=0."
    if model.ref_update_interval is not None and model.kl_coef == 0.0:
        yield f"ref_update_interval={model.ref_update_interval} needs a reference policy: kl_coef > 0 (e.g. 0.04), got 0."
    if model.overlong_penalty > 0.0 and not (model.overlong_cache_length or inf) <= (model.overlong_max_length or 0):
        yield (
            "overlong_penalty needs overlong_max_length and overlong_cache_length, both in steps, the second not above "
            f"the first, got {model.overlong_max_length} and {model.overlong_cache_length}."
        )


def _about_whole_episodes(model: Any) -> Iterator[str]:
    if model.n_steps is not None and (whole := judges_whole_episodes(model)) is not None:
        yield (
            f"n_steps={model.n_steps} takes episodes that have not ended, and {whole} needs whole ones: "
            f"write n_steps=None, n_groups={GROUPS_PER_UPDATE}."
        )
