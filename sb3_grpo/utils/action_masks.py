"""What environments allow: action masks, in the format of SB3-Contrib."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.utils.parameters import short_repr
from sb3_grpo.utils.vec_envs import ask_all, innermost, offers

# Name of the method with which an environment says what it allows
METHOD = "action_masks"


def n_choices(action_space: spaces.Space) -> list[int]:
    """
    :param action_space: Action space
    :return: The number of values of each part of an action, which have one entry each in a mask; empty if actions of this
        space are not masked
    """
    if isinstance(action_space, spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, spaces.MultiDiscrete):
        return action_space.nvec.ravel().tolist()
    if isinstance(action_space, spaces.MultiBinary):
        return [2] * int(np.prod(action_space.shape))
    return []


def offers_masks(env: VecEnv) -> bool:
    """
    :param env: A vectorized environment
    :return: Whether it says which actions it allows, with a method of each copy or of the vectorized environment without its
        wrappers, and has actions that can be masked
    :raises ValueError: if only some copies in this process do
    """
    inner = innermost(env)
    if isinstance(inner, DummyVecEnv):
        have = [_has_masks(each) for each in inner.envs]
        if len({*have}) > 1:
            raise ValueError(f"Environment copy {have.index(False)} has no method {METHOD}(), and others do: give it one.")
    return bool(n_choices(env.action_space)) and (hasattr(inner, METHOD) or offers(env, METHOD))


def _has_masks(env: gym.Env) -> bool:
    try:
        method = env.get_wrapper_attr(METHOD)
    except AttributeError:
        return False
    if not callable(method):
        raise ValueError(f"{METHOD} of {type(env.unwrapped).__name__} is no method: write def {METHOD}(self), not @property.")
    return True


def ask_for_masks(env: VecEnv) -> np.ndarray:
    """
    :param env: A vectorized environment that offers masks
    :return: (n_envs, A) bool, the actions that each copy allows now. A copy, which the environment does not change later
    :raises ValueError: if it has not an entry, True or False, for each value of each part of an action
    """
    ask_at_once = getattr(innermost(env), METHOD, None)
    masks = [np.ravel(mask) for mask in (env.env_method(METHOD) if ask_at_once is None else ask_at_once())]
    n_values = sum(n_choices(env.action_space))
    if [len(mask) for mask in masks] == [n_values] * env.num_envs:
        stacked = np.array(masks)
        if stacked.dtype == bool or np.isin(stacked, (0, 1)).all():
            return stacked.astype(bool)
    wrong = next((mask for mask in masks if len(mask) != n_values or not np.isin(mask, (0, 1)).all()), masks[0])
    name = ask_all(env, "env_name", type(innermost(env)).__name__)[0]
    raise ValueError(
        f"{METHOD}() of {name} returns {short_repr(wrong.tolist())} ({len(wrong)} entries) for one of {len(masks)} copies. "
        f"Actions of {env.action_space} in {env.num_envs} copies need {n_values} entries, True or False, one for each value "
        "of each part. To ignore the masks: use_masking=False."
    )


def forbidding_copy(masks: np.ndarray, action_space: spaces.Space) -> int | None:
    """
    :param masks: (n_envs, A) masks of all copies
    :param action_space: Action space
    :return: The first copy that allows no value for some part of an action; ``None`` if there is none
    """
    begins = np.cumsum([0, *n_choices(action_space)[:-1]])
    allowed = np.logical_or.reduceat(masks, begins, axis=1).all(axis=1)
    return None if allowed.all() else int(np.argmin(allowed))


def allowed_action(env: gym.Env, action: Any) -> Any:
    """
    :param env: An environment in an episode
    :param action: A random action
    :return: The same action, in which the next value takes the place of one that the environment does not allow now
    """
    sizes = n_choices(env.action_space)
    if not sizes or not _has_masks(env):
        return action
    mask = np.ravel(env.get_wrapper_attr(METHOD)()).astype(bool)
    parts = np.array(np.ravel(action), dtype=np.int64)
    for place, allowed in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
        following = np.roll(allowed, -parts[place])
        parts[place] = (parts[place] + following.argmax()) % len(allowed)
    return parts.astype(np.asarray(action).dtype).reshape(np.shape(action))[()]
