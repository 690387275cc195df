"""``--set KEY=VALUE``: set hyperparameters on the command line."""

import inspect
from collections.abc import Sequence
from typing import Any

from sb3_grpo import GRPO
from sb3_grpo.common.arguments import REFUSED_ARGUMENTS
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.console import ALGORITHMS, UsageError, parse_assignment
from sb3_grpo.utils.parameters import did_you_mean

# Constructor parameters that have their own option or cannot be written as a Python literal
NOT_SETTABLE = ("policy", "env", "n_envs", "seed", "device", "verbose", "start_sampler", "_init_setup_model")


def known_settings(algorithm: type[GRPO]) -> dict[str, Any]:
    """
    :param algorithm: the algorithm
    :return: the constructor parameters that ``--set`` can set, with their defaults: those for control, if it is the policy
        that has them
    """
    known = {name: each.default for name, each in inspect.signature(algorithm).parameters.items() if name not in NOT_SETTABLE}
    of_policy = ActorPolicy.default_arguments({})
    return {name: of_policy.get(name) if default is None else default for name, default in known.items()}


def describe_settings() -> str:
    """
    :return: a list of all hyperparameters and their defaults, for ``--help``
    """
    known = {name: known_settings(algorithm) for name, algorithm in ALGORITHMS.items()}
    lines = []
    for key, default in known["grpo"].items():
        own = known["dapo"][key]
        dapo = f" (dapo: {own!r})" if own != default else ""
        lines.append(f"  {key}={default!r}{dapo}")
    return "hyperparameters for --set and their defaults:\n" + "\n".join(lines)


def parse_settings(algorithm: type[GRPO], assignments: Sequence[str]) -> dict[str, Any]:
    """
    :param algorithm: the algorithm
    :param assignments: strings of the form ``key=value``
    :return: keyword arguments for the constructor of the algorithm, which says what is wrong with those of PPO and TRL
    """
    known = known_settings(algorithm)
    settings = dict(map(parse_assignment, assignments))
    for name in settings.keys() - known.keys() - REFUSED_ARGUMENTS.keys():
        if name in NOT_SETTABLE:
            raise UsageError(f"--set {name}: it has an option of its own (--help), or can only be chosen in a script")
        meant = did_you_mean(name, known)
        raise UsageError(f"--set {name}: there is no hyperparameter {name}, {meant} --help lists all of them")
    return settings
