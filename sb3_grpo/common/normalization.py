"""Normalisation of observations as part of the policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

# Same values as in VecNormalize
CLIP = 10.0
EPSILON = 1e-8


class RunningNorm(nn.Module):
    """
    ``(x - mean) / sqrt(var + 1e-8)``, clipped to [-10, 10], as in ``VecNormalize``, but with statistics that do not change
    until ``sync``. Observations since then are part of the state as well. Before the first ``sync``, it only clips.

    :param shape: Shape of one observation
    """

    mean: th.Tensor
    var: th.Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        # On the host and in double precision: in single precision, a mean far from 0 would stop changing
        self._observed = RunningMeanStd(0.0, shape)
        # Means, variances and counts since the last sync
        self.recent: list[tuple[np.ndarray, np.ndarray, int]] = []
        self.register_buffer("mean", th.zeros(shape))
        self.register_buffer("var", th.ones(shape))

    def forward(self, x: th.Tensor) -> th.Tensor:
        return ((x - self.mean) * (self.var + EPSILON).rsqrt()).clamp(-CLIP, CLIP)

    def observe(self, x: np.ndarray) -> None:
        """
        :param x: (N, \\*shape) observations to add to the statistics
        """
        x = x.astype(np.float64)
        self.recent.append((x.mean(axis=0), x.var(axis=0), len(x)))

    @property
    def observed(self) -> RunningMeanStd:
        """Moments of all observations so far."""
        observed = self._observed.copy()
        for moments in self.recent:
            observed.update_from_moments(*moments)
        return observed

    def sync(self) -> None:
        """Update the statistics to all observations so far, if there are any."""
        self._observed, self.recent = self.observed, []
        if self._observed.count > 0:
            self.mean.copy_(th.as_tensor(self._observed.mean))
            self.var.copy_(th.as_tensor(self._observed.var))

    def get_extra_state(self) -> th.Tensor:
        """
        :return: (2 * n + 1,) means and variances of all observations so far, n numbers each, and their count
        """
        observed = self.observed
        return th.as_tensor(np.concatenate([np.ravel(observed.mean), np.ravel(observed.var), [observed.count]]))

    def set_extra_state(self, state: th.Tensor) -> None:
        """
        :param state: The result of ``get_extra_state``
        """
        values = state.cpu().double().numpy()
        if values.size != 2 * self.mean.numel() + 1:
            return  # other observations: PyTorch raises an error about the shapes of mean and var
        mean, var = values[:-1].reshape(2, *self.mean.shape)
        self._observed.mean, self._observed.var, self._observed.count = mean.copy(), var.copy(), float(values[-1])
        self.recent = []


class ObservationNorm(nn.Module):
    """
    A :class:`RunningNorm` for each ``Box`` of an observation. Other entries are left unchanged.

    :param parts: The spaces of a Dict by key, or the observation space with the key ``""``. Entries that should not be
        normalised are left out
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
        :param observations: Observations (N, \\*shape) of each key to add to the statistics
        """
        for key, norm in zip(self.keys, self.norms, strict=True):
            norm.observe(observations[key])  # type: ignore[operator]

    @property
    def recent(self) -> list[Any]:
        """What has been observed since the last ``sync``."""
        return [norm.recent for norm in self.norms]

    def sync(self) -> None:
        """Update the statistics to all observations so far."""
        for norm in self.norms:
            norm.sync()  # type: ignore[operator]

    def join(self, of_ranks: Sequence[list[Any]]) -> None:
        """
        :param of_ranks: What each rank has observed
        """
        for norm, recent in zip(self.norms, zip(*of_ranks, strict=True), strict=True):
            norm.recent = [moments for each in recent for moments in each]  # type: ignore[assignment]
