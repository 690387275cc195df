"""The layers of an environment: its wrappers and the base environment below them."""

import gymnasium as gym
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor

# Attributes that connect or describe the layers of an environment
DESCRIPTIVE = frozenset(
    {
        "env",
        "spec",
        "metadata",
        "render_mode",
        "action_space",
        "observation_space",
        "_action_space",
        "_observation_space",
        "_metadata",
        "_cached_spec",
        "_saved_kwargs",
        "_ezpickle_args",
        "_ezpickle_kwargs",
    }
)

# Attributes with records of past episodes and clocks
_RECORDS: dict[type[gym.Wrapper], frozenset[str]] = {
    Monitor: frozenset({"results_writer", "t_start", "total_steps", "episode_returns", "episode_lengths", "episode_times"}),
    RecordEpisodeStatistics: frozenset({"episode_count", "episode_start_time", "time_queue", "return_queue", "length_queue"}),
}

# Packages for which it is known what their environments and wrappers hold
_KNOWN_PACKAGES = ("gymnasium", "stable_baselines3", "ale_py", "sb3_grpo")


def layers_of(env: gym.Env) -> list[gym.Env]:
    """
    :param env: an environment with its wrappers
    :return: each of them, the outermost first and the base environment last
    """
    layers = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(env)
    return layers


def env_name(env: gym.Env) -> str:
    """
    :param env: an environment with its wrappers
    :return: its id, or its class if it has none
    """
    base = env.unwrapped
    return type(base).__qualname__ if base.spec is None else base.spec.id


def records_of(layer: gym.Env) -> frozenset[str]:
    """
    :param layer: a wrapper or a base environment
    :return: its attributes that belong to the environment copy rather than to the current episode
    """
    return frozenset().union(*(names for wrapper, names in _RECORDS.items() if isinstance(layer, wrapper)))


def package_of(cls: type) -> str:
    """
    :param cls: a class
    :return: the package that it comes with
    """
    return cls.__module__.partition(".")[0]


def is_known(layer: gym.Env) -> bool:
    """
    :param layer: a wrapper or a base environment
    :return: whether it belongs to a package for which it is known what its environments and wrappers hold
    """
    return package_of(type(layer)) in _KNOWN_PACKAGES
