"""Observations in units of their own spread, as part of the policy."""

from collections.abc import Mapping

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

# Those of VecNormalize
CLIP = 10.0
EPSILON = 1e-8


class RunningNorm(nn.Module):
    """
    ``(x - mean) / sqrt(var + 1e-8)``, clipped to -10 to 10: what ``VecNormalize`` computes, with statistics that stay as they
    are until ``renew``.

    :param shape: Of one observation
    """

    mean: th.Tensor
    var: th.Tensor
    count: th.Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        initial = RunningMeanStd(shape=shape)
        for name in ("mean", "var", "count"):
            self.register_buffer(name, th.as_tensor(getattr(initial, name), dtype=th.float32))
        self._seen = RunningMeanStd(0.0, shape)

    def forward(self, x: th.Tensor) -> th.Tensor:
        return ((x - self.mean) * (self.var + EPSILON).rsqrt()).clamp(-CLIP, CLIP)

    def observe(self, x: np.ndarray) -> None:
        """
        :param x: (N, \\*shape) observations for the statistics
        """
        self._seen.update(x.astype(np.float64))

    def renew(self) -> None:
        """Let the statistics be those of all that was observed."""
        if self._seen.count == 0:
            return
        total = RunningMeanStd(shape=self._seen.mean.shape)
        total.mean, total.var = (each.cpu().double().numpy() for each in (self.mean, self.var))
        total.count = self.count.item()
        total.combine(self._seen)
        for name in ("mean", "var", "count"):
            getattr(self, name).copy_(th.as_tensor(getattr(total, name)))
        self._seen = RunningMeanStd(0.0, self._seen.mean.shape)


class ObservationNorm(nn.Module):
    """
    A :class:`RunningNorm` for each ``Box`` of an observation. What else is in it stays as it is.

    :param parts: The spaces of a Dict, or ``""``: that of the observation. Without those that are to stay as they are
    """

    def __init__(self, parts: Mapping[str, spaces.Space]):
        super().__init__()
        self.keys = [key for key, part in parts.items() if isinstance(part, spaces.Box)]
        self.norms = nn.ModuleList(RunningNorm(parts[key].shape) for key in self.keys)  # type: ignore[arg-type]

    def forward(self, observations: PyTorchObs) -> PyTorchObs:
        if not isinstance(observations, dict):
            return self.norms[0](observations) if self.keys else observations
        return {**observations, **{key: norm(observations[key]) for key, norm in zip(self.keys, self.norms, strict=True)}}

    def observe(self, observations: Mapping[str, np.ndarray]) -> None:
        """
        :param observations: (N, \\*shape) for each key
        """
        for key, norm in zip(self.keys, self.norms, strict=True):
            norm.observe(observations[key])  # type: ignore[operator]

    def renew(self) -> None:
        """Let the statistics be those of all that was observed."""
        for norm in self.norms:
            norm.renew()  # type: ignore[operator]
