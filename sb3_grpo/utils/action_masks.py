"""What environments allow: action masks, in the format of SB3-Contrib."""

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_grpo.utils.parameters import short_repr
from sb3_grpo.utils.vec_envs import ask, call, innermost, names_of, offers

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
        wrappers
    :raises ValueError: if only some copies in this process do, or its actions have no masks
    """
    inner = innermost(env)
    have = [_has(each) for each in inner.envs] if isinstance(inner, DummyVecEnv) else [offers(inner, METHOD)]
    if len({*have}) > 1:
        raise ValueError(f"Environment copy {have.index(False)} has no method {METHOD}(), and others do: give it one.")
    if not (_has(inner) or have[0]):
        return False
    if not n_choices(env.action_space):
        raise ValueError(
            f"The environments have a method {METHOD}(), and actions of {env.action_space} have no masks, only those of "
            "Discrete, MultiDiscrete and MultiBinary. To ignore the method: use_masking=False."
        )
    return True


def _has(env: gym.Env | VecEnv) -> bool:
    # A property may fail with an AttributeError before the first reset, which looks as if it were not there
    method = ask(inspect.getattr_static(env, METHOD, None), getattr, env, METHOD)
    if method is None:
        return isinstance(env, gym.Wrapper) and _has(env.env)
    if not callable(method):
        raise ValueError(f"{METHOD} of {type(env).__name__} is no method: write def {METHOD}(self), not @property.")
    return True


def as_mask(given: Any, sizes: list[int]) -> np.ndarray | None:
    """
    :param given: What an environment or a user gives as a mask: an array, or an array for each part of an action, as
        ``MultiDiscrete.sample(mask)`` of Gymnasium takes them
    :param sizes: Number of values of each part of an action
    :return: (A,) bool, a copy, which the environment does not change later; ``None`` if it is no mask
    """
    parts = _parts(given)
    flat = np.concatenate(parts)
    has_all = flat.size == sum(sizes) and {*np.cumsum([len(part) for part in parts])} <= {*np.cumsum(sizes)}
    is_mask = has_all and (flat.dtype == bool or np.all((flat == 0) | (flat == 1)))
    return flat.astype(bool) if is_mask else None


def _parts(given: Any) -> list[np.ndarray]:
    try:
        return [np.ravel(given)]
    except ValueError:  # parts of different sizes
        return [part for each in given for part in _parts(each)]


def ask_for_masks(env: VecEnv) -> np.ndarray:
    """
    :param env: A vectorized environment that offers masks
    :return: (n_envs, A) bool, the actions that each copy allows now
    :raises ValueError: if it has not an entry, True or False, for each value of each part of an action
    """
    inner = innermost(env)
    given: Any = call(inner, METHOD) if (at_once := ask(None, getattr, inner, METHOD)) is None else at_once()
    sizes = n_choices(env.action_space)
    n_values = sum(sizes)
    is_whole = getattr(given, "shape", None) == (env.num_envs, n_values)
    if is_whole and (whole := as_mask(given, [given.size])) is not None:
        return whole.reshape(given.shape)
    given = [*given] if np.iterable(given) else [given]
    masks = [as_mask(each, sizes) for each in given]
    idx = next((idx for idx, mask in enumerate(masks) if mask is None), 0)
    if masks[idx] is not None and len(masks) == env.num_envs:
        return np.stack(masks)  # type: ignore[arg-type]
    wrong = _parts(given[idx]) if given else [np.empty(0)]
    raise ValueError(
        f"{METHOD}() of {names_of(env)[0]} returns {short_repr(np.concatenate(wrong).tolist())} "
        f"({short_repr([*map(len, wrong)])} entries) for copy {idx} of {len(masks)}. Actions of {env.action_space} in "
        f"{env.num_envs} copies need {short_repr(sizes)} entries, True or False, one for each value of each part, in an array "
        f"of the shape ({n_values},). To ignore the masks: use_masking=False."
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
    mask = as_mask(env.get_wrapper_attr(METHOD)(), sizes) if sizes and _has(env) else None
    if mask is None:
        return action
    parts = np.array(np.ravel(action), dtype=np.int64)
    for place, allowed in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
        following = np.roll(allowed, -parts[place])
        parts[place] = (parts[place] + following.argmax()) % len(allowed)
    return parts.astype(np.asarray(action).dtype).reshape(np.shape(action))[()]


def checked_masks(action_masks: Any, n: int, action_space: spaces.Space) -> np.ndarray:
    """
    :param action_masks: Masks given to ``predict``
    :param n: Number of observations
    :param action_space: Action space
    :return: (n, A) bool
    :raises ValueError: if they are not for n observations, or for other actions
    """
    sizes = n_choices(action_space)
    if not sizes:
        raise ValueError(f"Actions of {action_space} have no masks: leave action_masks out.")
    shape = (n, sum(sizes))
    flat = as_mask(action_masks, sizes * n)
    if flat is None:
        raise ValueError(
            f"action_masks has the shape {getattr(action_masks, 'shape', '(...)')}, and for {n} observations and actions "
            f"of {action_space} it is {shape}, each entry True or False."
        )
    masks = flat.reshape(shape)
    idx = forbidding_copy(masks, action_space)
    if idx is not None:
        raise ValueError(f"action_masks allows no action for observation {idx} of {n}.")
    return masks
