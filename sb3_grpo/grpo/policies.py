"""The policies by name."""

import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from stable_baselines3.common.policies import BasePolicy

from sb3_grpo.common.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy
from sb3_grpo.common.recurrent import RecurrentActorCnnPolicy, RecurrentActorMultiInputPolicy, RecurrentActorPolicy


class Policies(Mapping[str, type[BasePolicy]]):
    """
    Policies by name. Those that are given by their dotted names are imported when they are asked for.

    :param policies: Classes, or their dotted names
    """

    def __init__(self, policies: Mapping[str, Any]):
        self._policies = policies

    def __getitem__(self, name: str) -> type[BasePolicy]:
        policy = self._policies[name]
        return pkgutil.resolve_name(policy) if isinstance(policy, str) else policy

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)


# Of GRPO and DAPO
POLICIES = Policies(
    {
        "MlpPolicy": ActorPolicy,
        "CnnPolicy": ActorCnnPolicy,
        "MultiInputPolicy": ActorMultiInputPolicy,
        "MlpLstmPolicy": RecurrentActorPolicy,
        "CnnLstmPolicy": RecurrentActorCnnPolicy,
        "MultiInputLstmPolicy": RecurrentActorMultiInputPolicy,
        "TokenPolicy": "sb3_grpo.text.policies.TokenPolicy",
        "CausalLMPolicy": "sb3_grpo.text.causal_lm.CausalLMPolicy",
    }
)


def __getattr__(name: str) -> Any:
    # ``from sb3_grpo.grpo import MlpPolicy``, as in SB3-Contrib
    if name == "TokenActorCriticPolicy":  # of PPO
        return pkgutil.resolve_name("sb3_grpo.text.policies.TokenActorCriticPolicy")
    if name in POLICIES:
        return POLICIES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
