"""Checks of spaces, whose messages name the space and say what would do in its place."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from torch import nn

SUPPORTED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# Sides of the smallest images for NatureCNN
_MIN_SIDE = 36
# In characters
_MAX_NAME = 80


class SpaceError(ValueError):
    """A space that cannot be used."""


def parts_of(space: spaces.Space) -> dict[str, spaces.Space]:
    """
    :param space: An observation space
    :return: The spaces of a Dict by key, or the observation space with the key ``""``
    """
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def name_of_space(space: spaces.Space) -> str:
    """
    :param space: Any space
    :return: Its ``repr`` if that is short, or else its type, with the shape or the keys
    """
    if len(name := repr(space)) <= _MAX_NAME:
        return name
    more = f"entries {', '.join(space.spaces)}" if isinstance(space, spaces.Dict) else f"shape {space.shape}"
    return f"a {type(space).__name__} with the {more}"


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """
    :param observation_space: Observation space of an environment
    :param action_space: Its action space
    :raises SpaceError: if one of them cannot be used, whatever the policy
    """
    parts = parts_of(observation_space)
    if not parts:
        raise SpaceError("The observations are a Dict without an entry: there is nothing to act on.")
    for key, part in parts.items():
        problem = _problem_of_observations(part) or _problem_of_both(part, "observations")
        if problem is not None:
            entry = f" of the entry {key!r}" if key else ""
            raise SpaceError(f"The observations{entry} are {name_of_space(part)}. {problem}")
    problem = _problem_of_actions(action_space) or _problem_of_both(action_space, "actions")
    if problem is not None:
        raise SpaceError(f"The actions are {name_of_space(action_space)}. {problem}")


def _problem_of_observations(space: Any) -> str | None:
    if not isinstance(space, SUPPORTED):
        if isinstance(space, spaces.Dict | spaces.OneOf | spaces.Text | spaces.Tuple) and space.is_np_flattenable:
            return 'gymnasium.wrappers.FlattenObservation(env) makes a vector of them, for "MlpPolicy".'
        return "Their size varies, and a policy needs a fixed one: pad them to a Box, or to a Dict of several."
    if isinstance(space, spaces.Box) and not space.shape:
        return "They have no axis: write shape=(1,), or take gymnasium.wrappers.ReshapeObservation(env, (1,))."
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim > 1:
        return 'Only one axis is possible: gymnasium.wrappers.FlattenObservation(env) makes a vector of them, for "MlpPolicy".'
    try:
        th.as_tensor(np.zeros(1, space.dtype))
    except TypeError:
        return f"PyTorch has no numbers of the type {space.dtype}: write dtype=np.float32."
    return None


def _problem_of_actions(space: Any) -> str | None:
    if not isinstance(space, SUPPORTED):
        names = ", ".join(each.__name__ for each in SUPPORTED)
        return f"They have to be one of {names}: write a MultiDiscrete in place of several choices, a Box in place of numbers."
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and len(space.shape) > 1:
        size = f"nvec={space.nvec.ravel().tolist()}" if isinstance(space, spaces.MultiDiscrete) else int(np.prod(space.shape))
        return f"Only one axis is possible: write {type(space).__name__}({size}), and let the environment reshape its actions."
    if isinstance(space, spaces.Box) and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return "They need finite bounds, such as Box(-1, 1, shape): let the environment, or a wrapper, scale them."
    return None


def _problem_of_both(space: Any, what: str) -> str | None:
    if isinstance(space, spaces.Box) and 0 in space.shape:
        return "They are empty: at least one number is needed."
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return (
            "Stable-Baselines3 counts from 0, whatever start says: let the environment, or a wrapper, have "
            f"{what} that start at 0."
        )
    return None


def check_extractor(extractor: type[nn.Module], space: spaces.Space, images: list[str], memory: str = "") -> None:
    """
    :param extractor: Class of the features extractor. Only those of Stable-Baselines3 are checked
    :param space: Observation space of the policy
    :param images: The keys of its images, see :func:`parts_of`
    :param memory: What the names of policies have before "Policy": ``"Lstm"`` if the policy is recurrent
    :raises SpaceError: if it is for other observations
    """
    is_dict, found = isinstance(space, spaces.Dict), name_of_space(space)
    if extractor is CombinedExtractor and not is_dict:
        kind = "Cnn" if images else "Mlp"
        raise SpaceError(
            f"MultiInput{memory}Policy is for observations that are a Dict, and these are {found}: "
            f'write "{kind}{memory}Policy".'
        )
    if extractor in (FlattenExtractor, NatureCNN) and is_dict:
        raise SpaceError(f'The observations are {found}: write "MultiInput{memory}Policy".')
    if extractor is NatureCNN and len(space.shape or ()) != 3:
        raise SpaceError(f'Cnn{memory}Policy is for images, and the observations are {found}: write "Mlp{memory}Policy".')
    if extractor not in (NatureCNN, CombinedExtractor):
        return
    for key, part in parts_of(space).items():
        if key in images and min(part.shape[1:]) < _MIN_SIDE:  # type: ignore[index]
            raise SpaceError(
                f"The images{f' of the entry {key!r}' if key else ''} have {part.shape[1]} x {part.shape[2]} pixels, and "  # type: ignore[index]
                f"NatureCNN needs at least {_MIN_SIDE} x {_MIN_SIDE}: enlarge them, with gymnasium.wrappers.ResizeObservation "
                f'for example, write "Mlp{memory}Policy" where they are the only observation, or give '
                "policy_kwargs=dict(features_extractor_class=...)."
            )
        try:
            nn.ModuleDict({key: nn.Identity()} if is_dict else {})
        except (KeyError, TypeError) as error:
            raise SpaceError(
                f"The observations have the entry {key!r}, and PyTorch does not allow this name of a layer: {error.args[0]}. "
                "Write another key."
            ) from error
