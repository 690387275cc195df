"""Reward shaping of DAPO (arXiv:2503.14476)."""

import torch as th


def soft_overlong_penalty(lengths: th.Tensor, max_length: int, cache_length: int) -> th.Tensor:
    """
    Soft punishment of long episodes, DAPO eq. 13, to be added to the reward of the episode.

    0 up to ``max_length - cache_length`` steps, then falling linearly, to -1 at ``max_length`` and beyond. It tells equally
    successful members apart by their length: dynamic sampling has to look at the outcomes before this is added.

    :param lengths: lengths of the episodes in steps, any shape
    :param max_length: length from which on the penalty is full, in steps
    :param cache_length: length of the interval over which the penalty grows, in steps
    :return: same shape as ``lengths``, floating point, in [-1, 0]
    :raises ValueError: ``cache_length`` is not in (0, ``max_length``]
    """
    if not 0 < cache_length <= max_length:
        raise ValueError(f"cache_length must be in (0, max_length = {max_length}], got {cache_length}")
    return ((max_length - cache_length - lengths) / cache_length).clamp(min=-1.0, max=0.0)
