"""Build a model and its environments with the RL Zoo, and describe it before training."""

import argparse
import copy
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_grpo.classroom.compare.definition import NOT_SETTABLE, default_settings
from sb3_grpo.classroom.compare.experiment import Experiment, Job
from sb3_grpo.common.normalization import RunningNorm
from sb3_grpo.common.on_group_algorithm import OnGroupAlgorithm
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.console import UsageError, find_env, missing_env_extra
from sb3_grpo.utils.action_masks import offers_masks

# Importing the package registers grpo and dapo
from sb3_grpo.zoo.experiment import GroupExperimentManager

# Parameters that policies of SB3 and sb3-contrib use only to judge, not to act. DQN's q_net does both
_CRITIC = (
    "value_net",
    "aux_vf_head",
    "mlp_extractor.value_net",
    "vf_features_extractor",
    "lstm_critic",
    "critic",
    "critic_target",
    "actor_target",
    "q_net_target",
    "quantile_net_target",
)


class Built(NamedTuple):
    """
    What the RL Zoo builds from an entry.

    :param manager: its experiment manager, which creates environments
    :param model: the model, with its environments
    :param entry: the entry, including overrides
    """

    manager: GroupExperimentManager
    model: BaseAlgorithm
    entry: dict[str, Any]

    def hyperparams(self) -> dict[str, str]:
        """
        :return: the entry, and defaults of the parameters that it does not set
        """
        defaults = default_settings(type(self.model))
        names = [name for name in defaults if name not in NOT_SETTABLE and hasattr(self.model, name)]
        # The values that "auto" has become and the defaults of the policy, but not the functions that schedules have become
        chosen = {name for name in (*ActorPolicy.default_arguments({}), "vf_coef") if name not in self.entry}
        used = {name: getattr(self.model, name) for name in names if isinstance(defaults[name], str) or name in chosen}
        # A custom function stays "module.function": what it has become has another address in each process
        used = {name: value for name, value in used.items() if name not in self.entry or not callable(value)}
        # Chosen depending on the environment, and not recorded in older experiments
        used |= {
            name: value
            for name, value in getattr(self.model, "default_policy_kwargs", {}).items()
            if name not in self.model.policy_kwargs
        }
        return {name: str(value) for name, value in {**{name: defaults[name] for name in names}, **self.entry, **used}.items()}

    def evaluation_envs(self, n_envs: int) -> VecEnv:
        """
        :param n_envs: number of copies
        :return: separate environments of the same kind as the training environments
        """
        with preserve_generators():
            return self.manager.create_envs(n_envs, eval_env=True, no_log=True)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Random numbers drawn inside the ``with`` block do not affect the global generators."""
    python, numpy = random.getstate(), np.random.get_state()
    with th.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def build(settings: dict[str, Any]) -> Iterator[Built]:
    """
    Build the model of a run.

    :param settings: see :meth:`Experiment.settings`
    :return: the model, whose environments are closed at the end of the ``with`` block
    """
    env_id = find_env(settings["env"]).id
    variant = settings["variant"]
    with tempfile.TemporaryDirectory() as logs:
        manager = GroupExperimentManager(
            argparse.Namespace(),
            variant["algo"],
            env_id,
            logs,
            n_timesteps=settings["timesteps"],
            eval_freq=-1,
            # Algorithms add entries to dictionaries that they are given
            hyperparams=copy.deepcopy(variant["hyperparams"]),
            seed=settings["seed"],
            verbose=0,
            device=settings["device"],
        )
        experiment = manager.setup_experiment()
        assert experiment is not None  # None only with optimize_hyperparameters
        model, entry = experiment
        try:
            yield Built(manager, model, dict(entry))
        finally:
            env = model.get_env()
            assert env is not None
            env.close()


def check(experiment: Experiment, progress: Callable[[list[Job]], Iterable[Job]]) -> None:
    """
    Build each model once before anything runs, and record its hyperparameters and network.

    :param experiment: the experiment
    :param progress: wraps a list to show the progress of the iteration over it
    """
    first = experiment.seeds[0]
    for job in progress([job for job in experiment.jobs() if job.seed == first]):
        where = f"{job.variant.name} on {job.env}"
        try:
            # Output is silenced here, because each run has its own log for it
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                with build(experiment.settings(job)) as built:
                    if isinstance(built.model, OnGroupAlgorithm):
                        # Only a reset shows whether groups can begin in these environments
                        built.model._setup_learn(total_timesteps=1)
                    env = built.model.get_env()
                    if isinstance(built.model, MaskablePPO) and env is not None and not offers_masks(env):
                        raise ValueError("the environment has no action masks: compare with ppo instead")
                    hyperparams, network = built.hyperparams(), describe_network(built.model.policy)
        except Exception as error:
            # Constructors raise many kinds of errors for invalid values
            missing = missing_env_extra(job.env, error)
            raise missing or UsageError(f"{where} cannot be built: {type(error).__name__}: {error}") from error
        experiment.hyperparams.setdefault(job.env, {})[job.variant.name] = hyperparams
        experiment.networks.setdefault(job.env, {})[job.variant.name] = network


def describe_network(policy: BasePolicy) -> str:
    """
    :param policy: the policy of a model
    :return: the hidden layers that choose actions, such as ``64-64 Tanh``, and the memory: ``64 Tanh, LSTM 256``
    """
    if not isinstance(policy, ActorCriticPolicy | MaskableActorCriticPolicy):
        return f"{getattr(policy, 'net_arch', type(policy).__name__)}"
    layers: list[str] = []
    activations: dict[str, None] = {}
    memory = ""
    for name, module in policy.named_modules():
        if _is_critics(name) or name == "action_net" or any(True for _ in module.children()):
            continue
        if isinstance(module, nn.Linear):
            layers.append(str(module.out_features))
        elif isinstance(module, nn.Conv2d):
            layers.append(f"{module.out_channels}c{module.kernel_size[0]}s{module.stride[0]}")
        elif isinstance(module, nn.RNNBase):
            memory = f", {type(module).__name__} " + "-".join([str(module.hidden_size)] * module.num_layers)
        elif any(True for _ in module.parameters()):
            layers.append(type(module).__name__)
        elif not isinstance(module, nn.Flatten | nn.Identity | nn.Sequential | nn.ModuleList | RunningNorm):
            activations[type(module).__name__] = None
    return " ".join(["-".join(layers) or "no hidden layer", *activations]) + memory


def count_parameters(policy: nn.Module) -> tuple[int, int]:
    """
    :param policy: the policy of a model
    :return: the number of all parameters, and of those that are not used to choose actions: critics and target networks
    """
    counts = {name: parameter.numel() for name, parameter in policy.named_parameters()}
    return sum(counts.values()), sum(count for name, count in counts.items() if _is_critics(name))


def _is_critics(name: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in _CRITIC)
