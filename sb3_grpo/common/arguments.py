"""Checks of the arguments of GRPO and DAPO, each one by a table, and together by :func:`check_together`."""

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo.common.advantages import KINDS, SCALES
from sb3_grpo.common.kl import KL_ESTIMATORS
from sb3_grpo.common.losses import LOSS_WEIGHTS, POLICY_LOSSES
from sb3_grpo.common.policies import ActorCnnPolicy, ActorPolicy, has_own_extractor
from sb3_grpo.groups.collector import MIN_STEPS_PER_COPY
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.starts.group_env import MAX_SEED, refuse_frame_stack
from sb3_grpo.utils.parameters import Check, Choice, Flag, Instance, Number, Whole, did_you_mean, short_repr
from sb3_grpo.utils.plugins import name_of

P = ParamSpec("P")
T = TypeVar("T")

# Arguments that only PPO or the policy has, and what to do with them here
REFUSED_ARGUMENTS = {
    "clip_range_vf": "leave it out, as there is no critic network",
    "rollout_buffer_class": "leave it out",
    "rollout_buffer_kwargs": "leave it out",
    "normalize_advantage": 'write advantage_scale="batch", the default, or "none"',
    "aux_vf_coef": "write vf_coef",
    "lr": "write learning_rate",
    # TRL's names
    "beta": "write kl_coef",
    "num_generations": "write group_size",
    "epsilon": "write clip_range",
    "epsilon_high": "write clip_range_high",
    "num_iterations": "write n_epochs",
    "loss_type": "write policy_loss and loss_average, or take one of sb3_grpo.presets",
    "scale_rewards": "write advantage_scale",
    "reward_funcs": "write verifier, which is an argument of the environment",
    "max_completion_length": "write max_answer_tokens, which is an argument of the environment",
}
# Names of losses elsewhere that are more, or something else, than the objective of a step
NOT_A_LOSS = {
    "ppo": '"clip"',
    "grpo": '"clip", the default, or take presets.GRPO_PAPER (--preset grpo-paper)',
    "bnpo": '"clip" and loss_average="step"',
    "dr_grpo": '"clip", or take presets.DR_GRPO (--preset dr-grpo)',
    "dapo": '"clip" with the algorithm DAPO, or take presets.DAPO_PAPER (--preset dapo-paper)',
    "gspo": 'ratio_level="episode" with whole groups, or take presets.GSPO (--preset gspo)',
    "maxrl": 'advantage="maxrl" with whole groups',
    "tpo": '"target_policy" with whole groups, or take presets.TPO (--preset tpo)',
}
# The argument that learn() of SB3-Contrib's MaskablePPO has
LEARN_ARGUMENTS = {"use_masking": 'it is an argument of the algorithm, as in GRPO("MlpPolicy", env, use_masking=False)'}
# Default size of an update: the number of groups, if whole ones are needed; the steps over all copies; the share of all steps
# so far, used instead once it is larger; and its maximum
GROUPS_PER_UPDATE = 4
STEPS_PER_UPDATE, SHARE_PER_UPDATE, MAX_STEPS_PER_UPDATE = 2048, 0.02, 8192
# Values of the arguments with which each step is judged on its own
PER_STEP = dict(
    advantage="gae",
    normalize_reward_parts=False,
    ratio_level="step",
    loss_average="step",
    overlong_filter=False,
    overlong_range=None,
)


class Device(Check):
    """A device of PyTorch, or "auto"."""

    def check(self, name: str, value: Any) -> Any:
        try:
            get_device(value)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            wanted = '"auto", "cpu", "cuda" or another device of PyTorch'
            raise ValueError(f"{name} must be {wanted}, got {short_repr(value)}: {error}") from error
        return value


class Range(Check):
    """Two whole numbers from 0 on, the first one smaller, or ``None``."""

    def check(self, name: str, value: Any) -> tuple[int, int] | None:
        if value is None:
            return None
        if isinstance(value, tuple | list) and len(value) == 2:
            low, high = (Whole(0).check(f"{name}[{place}]", each) for place, each in enumerate(value))
            if low < high:
                return low, high
        wanted = "a pair of numbers, the first one smaller, or None for no penalty"
        raise ValueError(f"{name} must be {wanted}, got {short_repr(value)}.")


# Meaning of None
OF_POLICY = "the default of the policy"
KEYWORDS = Instance(dict, "a dictionary of keyword arguments, such as policy_kwargs=dict(net_arch=[64, 64])", "no arguments")

# Allowed values of each argument
ARGUMENTS: dict[str, Check] = {
    # The update
    "learning_rate": Number(low=0, schedule=True, none=OF_POLICY),
    "batch_size": Whole(none="all steps of the update at once"),
    "gradient_accumulation_steps": Whole(),
    "n_epochs": Whole(none=OF_POLICY),
    "ent_coef": Number(),
    "vf_coef": Number(low=0, none='0.5 for CnnPolicy with advantage="gae", otherwise 0'),
    "max_grad_norm": Number(positive=True, limit=True),
    "target_kl": Number(positive=True, limit=True, none="no limit"),
    # Groups
    "n_envs": Whole(none="16 copies"),
    "group_size": Whole(2, why="an episode is compared with the others of its group, and a group of one gives no signal"),
    "n_steps": Whole(none="whole groups"),
    "n_groups": Whole(none="n_steps of each copy"),
    "dynamic_sampling": Flag(call="outcomes"),
    "max_sampling_rounds": Whole(none="no limit"),
    # Advantages
    "gamma": Number(0, 1, none=OF_POLICY),
    "advantage": Choice(("auto", *KINDS), call="rewards, mask, *, gamma, leave_one_out, scale, eps"),
    "gae_lambda": Number(0, 1),
    "leave_one_out": Flag(),
    "advantage_scale": Choice(SCALES),
    "normalize_reward_parts": Flag(),
    # Loss
    "policy_loss": Choice(tuple(POLICY_LOSSES), call="steps", elsewhere=NOT_A_LOSS),
    "clip_range": Number(low=0, limit=True, schedule=True),
    "clip_range_high": Number(low=0, limit=True, schedule=True, none="the same as clip_range"),
    "loss_average": Choice(("auto", *LOSS_WEIGHTS), call="episode, n_episodes, *, kept", number=Number(low=1)),
    "ratio_level": Choice(("step", "episode")),
    # KL divergence from a reference policy
    "kl_coef": Number(low=0),
    "kl_estimator": Choice(("exact", *KL_ESTIMATORS, "k3_plain", "k1_in_reward"), call="log_prob, ref_log_prob"),
    "ref_update_interval": Whole(none="never"),
    # Overlong episodes
    "overlong_filter": Flag(),
    "overlong_range": Range(),
    # Starts
    "unrelated_starts": Flag(),
    "start_sampler": Instance(Callable, "a function of a numpy.random.Generator that returns a start", "fresh seeds", "rng"),
    # As in Stable-Baselines3
    "use_masking": Flag(),
    "use_sde": Flag(),
    "sde_sample_freq": Whole(-1),
    "stats_window_size": Whole(),
    "tensorboard_log": Instance((str, os.PathLike), "a path", none="no logging"),
    "policy_kwargs": KEYWORDS,
    "verbose": Whole(0, flag=True),
    "seed": Whole(0, MAX_SEED, none="no seed"),
    "device": Device(),
}


def check_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param values: Arguments by name
    :return: The same arguments, each one checked, with NumPy numbers converted to Python
    :raises ValueError: if an argument is invalid
    """
    return {name: ARGUMENTS[name].check(name, value) for name, value in values.items()}


def refuse_arguments(others: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """
    :param others: Arguments of other algorithms, and what to do with them here
    :return: Decorator of a method, with an error that says so
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        known = inspect.signature(method).parameters
        by_position = [name for name, each in known.items() if each.kind is each.POSITIONAL_OR_KEYWORD]

        @functools.wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs.keys() - known:
                advice = f"{others[name]}." if name in others else did_you_mean(name, known)
                raise TypeError(f"{method.__qualname__}() got an unexpected keyword argument {name!r}: {advice}")
            if more := args[len(by_position) :]:
                of_ppo = [*inspect.signature(PPO.__init__).parameters][len(by_position) :]
                named = ", ".join(f"{name}={short_repr(value)}" for name, value in zip(of_ppo, more, strict=False))
                raise TypeError(
                    f"{method.__qualname__}() takes only {', '.join(by_position[1:])} by position: name the others, which are "
                    f"{named} in PPO."
                )
            return method(*args, **kwargs)

        return checked

    return decorate


def check_policy(policy: Any, known: Mapping[str, type[BasePolicy]]) -> None:
    """
    :param policy: ``policy`` given by the user
    :param known: Policy classes by name
    :raises ValueError: if it is neither one of these names nor a policy class without a critic
    """
    chosen = known.get(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, type) or not issubclass(chosen, ActorPolicy):
        name = getattr(policy, "__name__", "")
        is_sb3s = getattr(policy, "__module__", "").startswith(("stable_baselines3.", "sb3_contrib."))
        if is_sb3s and "ActorCritic" in name:
            kind = next((each for each in ("Cnn", "MultiInput") if each in name), "Mlp")
            raise ValueError(f'policy={name} has a critic network: write "{kind}{"Lstm" * ("Recurrent" in name)}Policy".')
        raise ValueError(
            f"policy={short_repr(policy)} is not a policy without a critic network: use one of the names {', '.join(known)}, "
            "or a subclass of sb3_grpo.common.policies.ActorPolicy."
        )


def check_env(env: Any, n_envs: int | None = None) -> None:
    """
    :param env: ``env`` given by the user
    :param n_envs: Number of copies given by the user, or ``None``
    :raises ValueError: if ``env`` is not an environment, or has a different number of copies
    """
    if isinstance(env, type) and not issubclass(env, VecEnv):
        raise ValueError(
            f"env must be an environment, got the class {env.__name__}: write {env.__name__}() for one copy, or "
            f"make_group_env({env.__name__}, n_envs=16)."
        )
    parts = ("reset", "step", "observation_space", "action_space")
    missing = [] if isinstance(env, str) else [name for name in parts if not hasattr(env, name)]
    if missing or isinstance(env, type):
        how = (
            "write make_group_env(function, n_envs=16) with a function that makes one copy"
            if callable(env) or isinstance(env, list | tuple)
            else f"it has no {missing[0]}"
        )
        raise ValueError(
            f"env must be the id of a registered environment, an environment or a VecEnv, got {short_repr(env)} "
            f"({type(env).__name__}): {how}."
        )
    n_there = env.num_envs if isinstance(env, VecEnv | VectorEnv) else 1
    if n_envs is not None and not isinstance(env, str) and n_envs != n_there:
        raise ValueError(
            f"n_envs={n_envs} only applies when env is an id, and this environment has n_envs={n_there}: leave n_envs out, "
            f"and make as many copies as you want with make_group_env(..., n_envs={n_envs})."
        )


def judges_whole_episodes(model: Any) -> str | None:
    """
    :param model: The algorithm
    :return: An argument that judges whole episodes, ``None`` if each step is judged on its own
    """
    for name, per_step in PER_STEP.items():
        value = getattr(model, name)
        if value != per_step:
            return f"{name}={name_of(value) if callable(value) else repr(value)}"
    return None


def resolve(model: Any) -> dict[str, Any]:
    """
    Check each argument of an algorithm, and choose those that were left at ``None`` or ``"auto"``: by the policy, by others of
    them, and by the number of copies.

    :param model: The algorithm
    :return: What was chosen
    :raises ValueError: if an argument is invalid
    """
    check_policy(model.policy_class, model.policy_aliases)
    vars(model).update(check_arguments({name: getattr(model, name) for name in ARGUMENTS if hasattr(model, name)}))

    chosen: dict[str, Any] = {}

    def choose(name: str, value: Any) -> None:
        if getattr(model, name) is None or getattr(model, name) == "auto":
            chosen[name] = value
            setattr(model, name, value)

    for name, value in model.policy_class.default_arguments(model.policy_kwargs).items():
        choose(name, value)
    extractor = model.policy_kwargs.get("features_extractor_class", NatureCNN)
    is_plain = model.policy_class is ActorCnnPolicy and extractor is NatureCNN
    # Returns train the convolutions, as the critic's loss does in PPO
    choose("vf_coef", 0.5 if is_plain and model.advantage == "gae" else 0.0)
    is_per_step = model.advantage == "gae" and model.ratio_level == "step"
    choose("loss_average", "step" if is_per_step else "episode")
    steps_per_copy = max(MIN_STEPS_PER_COPY, STEPS_PER_UPDATE // model.n_copies)
    if model.n_steps is None and model.n_groups is None and not hasattr(model, "policy"):
        if judges_whole_episodes(model) is None:
            choose("n_steps", steps_per_copy)
            model.default_n_steps = steps_per_copy
        else:
            choose("n_groups", GROUPS_PER_UPDATE)
    elif model.n_steps is not None and model.n_steps == model.default_n_steps:
        # A loaded model, perhaps with a different number of copies
        model.n_steps = model.default_n_steps = steps_per_copy
    return chosen


def _check_value_head(model: Any) -> None:
    if "aux_value_head" in model.policy_kwargs:
        raise ValueError("policy_kwargs=dict(aux_value_head=...) is set by vf_coef: write vf_coef=0.5.")
    if model.vf_coef > 0.0 and hasattr(model, "policy") and not model.policy.aux_value_head:
        raise ValueError(f"vf_coef={model.vf_coef} needs a value head, and this model was made without: make a new one.")


def _check_loss(model: Any) -> None:
    if model.policy_loss == "target_policy" and (model.n_groups is None or model.batch_size is not None):
        raise ValueError(
            'policy_loss="target_policy" compares the members of a group with each other, which must be whole and in one '
            f"minibatch: write n_steps=None, n_groups={GROUPS_PER_UPDATE}, batch_size=None, or take presets.TPO."
        )
    if model.policy_loss == "dppo" and isinstance(model.action_space, spaces.Box):
        raise ValueError(
            'policy_loss="dppo" compares probabilities, and actions of a Box have densities: write policy_loss="clip".'
        )


def check_together(model: Any) -> None:
    """
    :param model: An algorithm whose arguments are individually valid
    :raises ValueError: if they contradict each other, or the environments
    :raises StartNotSupportedError: if groups are to begin mid-episode, but frames are stacked outside of the copies
    """
    if model.n_steps is not None and model.n_groups is not None:
        raise ValueError(
            f"Give n_steps={model.n_steps} or n_groups={model.n_groups}, and not both: an update is sized in steps of "
            "each copy, or in whole groups. Write None for the other, also in load(): a model keeps its own."
        )
    if model.n_steps is None and model.n_groups is None:
        raise ValueError("n_steps and n_groups are both None: set one of them, n_groups=4 for example.")
    if model.n_steps is not None and (whole := judges_whole_episodes(model)) is not None:
        raise ValueError(
            f"n_steps={model.n_steps} takes episodes that have not ended, and {whole} needs whole ones: "
            f"write n_steps=None, n_groups={GROUPS_PER_UPDATE}."
        )
    if model.batch_size is None and model.gradient_accumulation_steps > 1:
        raise ValueError(
            f"gradient_accumulation_steps={model.gradient_accumulation_steps} takes several minibatches together, and with "
            "batch_size=None there is only one: give batch_size the number of steps that fit into memory."
        )
    _check_loss(model)
    if model.start_sampler is not None and model.unrelated_starts:
        raise ValueError(
            f"start_sampler={name_of(model.start_sampler)} needs groups with a shared start: leave unrelated_starts=False."
        )
    _check_value_head(model)
    if model.ref_update_interval is not None and model.kl_coef == 0.0:
        raise ValueError(f"ref_update_interval={model.ref_update_interval} needs a reference policy: kl_coef > 0, e.g. 0.04.")
    policy = model.policy_class
    is_text = getattr(model.observation_space, "is_text", False)
    if is_text and not (policy.reads_texts or has_own_extractor(model.policy_kwargs)):
        raise ValueError(
            f"The observations are texts, and {policy.__name__} would take their token ids for quantities: "
            f'write {type(model).__name__}("TokenPolicy", env, ...), or "CausalLMPolicy" for a pretrained language model.'
        )
    if model.advantage == "gae" and policy.reads_texts:
        raise ValueError(
            f'advantage="gae" needs the states as numbers, and {policy.__name__} reads texts: '
            'use advantage="outcome" or advantage="return_to_go".'
        )
    if model.kl_coef > 0.0 and model.n_steps is not None and policy.is_recurrent:
        raise ValueError(
            f"kl_coef={model.kl_coef} with {policy.__name__} needs whole episodes, as the reference policy has to read them "
            f"from the beginning: write n_steps=None, n_groups={GROUPS_PER_UPDATE}."
        )
    # A model that was only loaded to predict needs none of the following
    if model.env is None:
        return
    if model.n_steps == model.n_copies == 1:
        raise ValueError(
            "n_steps * n_envs must be greater than 1, got n_steps=1 and n_envs=1: a step needs others to be compared with."
        )
    if model.tensorboard_log is not None and importlib.util.find_spec("tensorboard") is None:
        raise ValueError(f'tensorboard_log="{model.tensorboard_log}" needs TensorBoard: pip install "sb3-grpo[tensorboard]".')
    if isinstance(model.start_sampler, StartSampler) and model.start_sampler.captures_states:
        refuse_frame_stack(model.env)
