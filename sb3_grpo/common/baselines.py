"""
A state-dependent baseline without a critic: values are fitted to returns in closed form (ridge regression, no network,
no gradient step) and subtracted. For whole groups, they are fitted to the returns of one update and then discarded; for
updates sized in steps, earlier updates are remembered.

References: [GAE] arXiv:1506.02438, [RFF] Rahimi and Recht, Random features for large-scale kernel machines (2007),
[rllab] arXiv:1604.06778, whose linear baseline this extends.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd

N_RANDOM_FEATURES = 200
# Prior variance of the sum of the random features, in units of the variance of the returns
_KERNEL_VARIANCE = 2.0
# Squared bandwidth of the kernel, as a share of the mean squared distance between two states
_BANDWIDTH = 1 / 6
# Standardised entries of a state are clipped to this: the squares of larger ones would dominate
_MAX_DEVIATION = 5.0
# States with more numbers get no squared features: the cost grows with the square of the number of columns
_MAX_SQUARED = 512
# States with more numbers are projected down to this many
_MAX_NUMBERS = 1024
# Images with more entries are downscaled; several images in one observation share this number equally
MAX_PIXELS = 1024
# Rows and columns of a downscaled image
_IMAGE_SIDE = 21
# Images with more channels are not averaged over them
_MAX_FRAMES = 4
# In a regression with memory, the weight of earlier steps is multiplied by this factor at each update
MEMORY = 0.5
_N_FIRST_FITS = 3
# Number of rows whose features (in single precision) are in memory at a time. Their sums of products are added up in double.
_CHUNK = 256
# With more rows, a regression with memory adds up in double precision, this many rows at a time: the rounding errors of single
# precision grow with the number of rows, the contribution of the prior does not
_MANY_ROWS = 2**14


class StateFeatures(NamedTuple):
    """
    States as seen by a regression.

    :param numbers: (N, d) entries of which values can be any function
    :param pictures: (N, k) image entries, in which values are linear; k is 0 without images
    """

    numbers: th.Tensor
    pictures: th.Tensor


def image_features(images: th.Tensor, max_pixels: int = MAX_PIXELS) -> th.Tensor:
    """
    Downscale images for a regression. Images with few entries are kept unchanged; others are average-pooled over areas,
    and averaged over their channels if there are at most four (colours or stacked frames, rather than planes of a board).

    :param images: (N, C, H, W) of any type
    :param max_pixels: maximum number of entries to keep; at least one is kept per channel
    :return: (N, k) in single precision
    """
    if images.shape[1:].numel() <= max_pixels:
        return images.float().flatten(1)
    n_channels = images.shape[1]
    if n_channels > _MAX_FRAMES:
        images = images.float()
    elif images.is_floating_point():
        images = images.mean(1, keepdim=True)
    else:
        # The same, without converting all of them to single precision
        images = images.sum(1, keepdim=True, dtype=th.int32).float() / n_channels
    side = max(min(_IMAGE_SIDE, math.isqrt(max_pixels // images.shape[1])), 1)
    size = min(side, images.shape[2]), min(side, images.shape[3])
    return th.nn.functional.adaptive_avg_pool2d(images, size).flatten(1)


class Moments(NamedTuple):
    """
    Mean and standard deviation with which the entries of states are standardised.

    :param mean: (d,) double precision
    :param std: (d,) double precision
    """

    mean: th.Tensor
    std: th.Tensor


def _moments(inputs: th.Tensor) -> Moments:
    """
    :param inputs: (N, d) states
    :return: the moments of their entries
    """
    if inputs.shape[1] == 0:
        return Moments(*inputs.new_zeros((2, 0), dtype=th.float64))
    return Moments(inputs.mean(0, dtype=th.float64), inputs.std(0, correction=0).double())


def _columns(inputs: th.Tensor, moments: Moments, generator: th.Generator) -> tuple[Callable[[slice], th.Tensor], int, int]:
    """
    :param inputs: (N, d) states
    :param moments: moments of these states, or of a larger set of them
    :param generator: draws the projection of large states
    :return: function that maps rows to their standardised entries (M, c); c; the number of non-constant entries
    """
    mean, std = moments
    varies = std > 1e-8
    scale = th.where(varies, 1.0 / std, 0.0)
    n_columns, n_varying = inputs.shape[1], max(int(varies.sum()), 1)

    def standardise(rows: slice) -> th.Tensor:
        return ((inputs[rows].double() - mean) * scale).clamp(-_MAX_DEVIATION, _MAX_DEVIATION).float()

    if n_columns <= _MAX_NUMBERS:
        return standardise, n_columns, n_varying
    projection = th.randn(n_columns, _MAX_NUMBERS, generator=generator).to(inputs.device)
    projection /= math.sqrt(n_varying)
    return lambda rows: standardise(rows) @ projection, _MAX_NUMBERS, _MAX_NUMBERS


def _features_of_numbers(
    numbers: th.Tensor, moments: Moments, generator: th.Generator
) -> tuple[Callable[[slice], list[th.Tensor]], int]:
    """
    :param numbers: (N, d) states
    :param moments: moments of these states, or of a larger set of them
    :param generator: draws the random features
    :return: function that maps rows to x, x^2 (unless there are many numbers) and random Fourier features; the number of
        columns
    """
    with_squares = numbers.shape[1] <= _MAX_SQUARED
    columns, n_columns, n_varying = _columns(numbers, moments, generator)
    frequencies = th.randn(n_columns, N_RANDOM_FEATURES, generator=generator).to(numbers.device)
    phases = 2 * math.pi * th.rand(N_RANDOM_FEATURES, generator=generator).to(numbers.device)
    # The mean squared distance between two standardised states is 2 * n_varying
    frequencies /= math.sqrt(2 * n_varying * _BANDWIDTH)
    amplitude = math.sqrt(2 * _KERNEL_VARIANCE / N_RANDOM_FEATURES)

    def features(rows: slice) -> list[th.Tensor]:
        x = columns(rows)
        linear = x / math.sqrt(n_varying)
        return [linear, *([linear * x] if with_squares else []), amplitude * th.cos(x @ frequencies + phases)]

    return features, (2 if with_squares else 1) * n_columns + N_RANDOM_FEATURES


def _features_of_pictures(
    pictures: th.Tensor, moments: Moments, generator: th.Generator
) -> tuple[Callable[[slice], list[th.Tensor]], int]:
    """
    :param pictures: (N, k) image entries
    :param moments: moments of these states, or of a larger set of them
    :param generator: draws the projection of images with more channels than the maximum number of entries
    :return: function that maps rows to x; the number of columns
    """
    columns, n_columns, n_varying = _columns(pictures, moments, generator)
    return lambda rows: [columns(rows) / math.sqrt(n_varying)], n_columns


def _features(states: StateFeatures, moments: tuple[Moments, Moments]) -> tuple[Callable[[slice], list[th.Tensor]], int]:
    """
    :param states: N states
    :param moments: moments of their numbers and of their pictures
    :return: function that maps rows to blocks of features; the number of columns. States of the same kind get the same
        features at every call
    """
    generator = th.Generator().manual_seed(0)
    kinds = zip(states, moments, (_features_of_numbers, _features_of_pictures), strict=True)
    blocks = [features_of(inputs, of_inputs, generator) for inputs, of_inputs, features_of in kinds if inputs.shape[1]]
    return lambda rows: [part for block, _ in blocks for part in block(rows)], sum(n_columns for _, n_columns in blocks)


def regression_values(numbers: th.Tensor, time: th.Tensor, returns: th.Tensor, pictures: th.Tensor | None = None) -> th.Tensor:
    """
    Values of the visited states: the posterior mean of a Bayesian linear regression of the returns on features of the
    states, ``V = Phi (Phi' Phi + I)^-1 Phi' z`` with z the standardised returns, converted back to the units of the returns.

    The features of a state with numbers x (standardised over the batch) at time t are a constant, x, x^2, t, t^2, t^3, and
    random Fourier features of x ([RFF], approximately a Gaussian kernel). With more than 512 numbers, there are no x^2. The
    random features, and the projection of states with more than 1,024 numbers, are the same at every call. In units of the
    variance of the returns, the noise has variance 1, all x together 1, all x^2 together about 3, all random features
    together 2, each power of t 1, and the constant is unregularised. So with few steps, values stay closer to the mean. The
    standardised entries of pictures have variance 1 together, but no squares and no random features: their hundreds of
    entries are already enough to memorise single episodes.

    A step takes part in the fit of its own value, and so does the rest of its episode, whose returns share much of their
    noise: if a whole episode was lucky, part of its luck is attributed to the value of its states.

    :param numbers: (N, d) observations, or features of them
    :param time: (N,) index of each step in its episode
    :param returns: (N,) regression targets
    :param pictures: (N, k) image entries
    :return: (N,) in double precision
    """
    states = StateFeatures(numbers, numbers[:, :0] if pictures is None else pictures)
    of_state, n_columns = _features(states, (_moments(states.numbers), _moments(states.pictures)))
    u = time.float()[:, None] / max(int(time.max()), 1)

    def features(rows: slice) -> th.Tensor:
        return th.cat([u[rows] ** power for power in range(4)] + of_state(rows), dim=1)

    mean, std = returns.mean(dtype=th.float64), returns.double().std(correction=0) + 1e-8
    chunks = [slice(begin, begin + _CHUNK) for begin in range(0, len(returns), _CHUNK)]
    n_features = 4 + n_columns
    precision = th.eye(n_features, dtype=th.float64, device=returns.device)
    precision[0, 0] = 1e-6
    moment = th.zeros(n_features, dtype=th.float64, device=returns.device)
    for rows in chunks:
        phi = features(rows)
        precision += phi.T @ phi
        moment += phi.T @ ((returns[rows].double() - mean) / std).float()
    weights = th.linalg.solve(precision, moment).float()
    return th.cat([features(rows) @ weights for rows in chunks]).double() * std + mean


def _gram(phi: th.Tensor) -> th.Tensor:
    """
    :param phi: (N, c) in single precision
    :return: (c, c) ``phi' phi`` in double precision
    """
    if len(phi) <= _MANY_ROWS:
        return (phi.T @ phi).double()
    gram = phi.new_zeros((phi.shape[1], phi.shape[1]), dtype=th.float64)
    for part in phi.split(_MANY_ROWS):
        gram += part.double().T @ part.double()
    return gram


def _moment(phi: th.Tensor, targets: th.Tensor) -> th.Tensor:
    """
    :param phi: (N, c) in single precision
    :param targets: (N,) in double precision
    :return: (c,) ``phi' targets`` in double precision
    """
    moment = phi.new_zeros(phi.shape[1], dtype=th.float64)
    for part, of_part in zip(phi.split(_MANY_ROWS), targets.split(_MANY_ROWS), strict=True):
        moment += part.T.double() @ of_part
    return moment


def _times(phi: th.Tensor, weights: th.Tensor) -> th.Tensor:
    """
    :param phi: (N, c) in single precision
    :param weights: (c,) in double precision
    :return: (N,) ``phi weights`` in double precision
    """
    return th.cat([part.double() @ weights for part in phi.split(_MANY_ROWS)])


class ValueRegression:
    """
    Values of states whose returns are only partly known because their episodes continue: the value of ``s_t`` is fitted to
    ``R_t + gamma^k V(s_{t+k})``, where R_t are the discounted rewards of the k known steps, and V is the previous fit.

    Each update performs one such regression in closed form, as in :func:`regression_values`, with the same features except
    time. Steps of earlier updates count as well, with weights that are multiplied by ``memory`` at each update: only their
    sums are stored. States are standardised with all states seen so far, so that the features in these sums are alike.

    :param memory: Factor by which the weight of earlier steps is multiplied at each update, between 0 (only the newest steps
        count) and 1 (all steps count the same)
    """

    def __init__(self, memory: float = MEMORY):
        self.memory = memory
        self._met: list[RunningMeanStd] = []
        self._sums: tuple[th.Tensor, th.Tensor] | None = None
        self._weights: th.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        """
        :return: The remembered sums, statistics and weights
        """
        sums = None if self._sums is None else [each.cpu() for each in self._sums]
        return {"met": self._met, "sums": sums, "weights": None if self._weights is None else self._weights.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict``
        """
        self._met, self._weights = state["met"], state["weights"]
        self._sums = None if state["sums"] is None else (state["sums"][0], state["sums"][1])

    @property
    def is_fitted(self) -> bool:
        """Whether the regression has been fitted, so that it can predict values."""
        return self._weights is not None

    def fit(
        self, states: StateFeatures, returns: th.Tensor, next_states: StateFeatures, ends: th.Tensor, discounts: th.Tensor
    ) -> th.Tensor:
        """
        :param states: N states
        :param returns: (N,) in double precision, discounted sum of the known rewards from each state on
        :param next_states: M states after the last known rewards
        :param ends: (N,) long, index of the next state for each return, -1 if the return is complete
        :param discounts: (N,) ``gamma^k`` if the next state comes k steps later
        :return: (N,) the regression targets
        """
        # Before the standardisation of the features changes
        after = self.predict(next_states) if self.is_fitted else None
        self._meet(states)
        phi, phi_next = self._features(states), self._features(next_states)
        gram, moment = _gram(phi), th.zeros(phi.shape[1], dtype=th.float64, device=phi.device)
        if self._sums is not None:
            # Loaded from a checkpoint, they are on the host
            old_gram, old_moment = (each.to(phi.device) for each in self._sums)
            gram, moment = gram + self.memory * old_gram, self.memory * old_moment
        prior = th.ones_like(moment)
        prior[0] = 1e-6  # the constant is unregularised
        factor = th.linalg.cholesky(gram + prior.diag())
        # At first, several fits make up for the missing earlier ones
        for _ in range(_N_FIRST_FITS if after is None else 1):
            if after is None:
                after = returns.new_zeros(len(next_states.numbers))
            targets = returns + discounts * th.cat([after, returns.new_zeros(1)])[ends]
            new_moment = moment + _moment(phi, targets)
            self._weights = th.cholesky_solve(new_moment[:, None], factor)[:, 0]
            after = _times(phi_next, self._weights)
        self._sums = gram, new_moment
        return targets

    def predict(self, states: StateFeatures) -> th.Tensor:
        """
        :param states: N states
        :return: (N,) their values, in double precision
        :raises ValueError: before the first fit
        """
        if self._weights is None:
            raise ValueError("There are no values before the first fit.")
        return _times(self._features(states), self._weights.to(states.numbers.device))

    def _meet(self, states: StateFeatures) -> None:
        """
        :param states: States to add to the statistics used for standardisation
        """
        if not self._met:
            self._met = [RunningMeanStd(0.0, (inputs.shape[1],)) for inputs in states]
        for met, inputs in zip(self._met, states, strict=True):
            met.update(inputs.double().cpu().numpy())

    def _features(self, states: StateFeatures) -> th.Tensor:
        """
        :param states: N states
        :return: (N, c) in single precision
        """
        device = states.numbers.device
        numbers, pictures = (
            Moments(th.as_tensor(met.mean, device=device), th.as_tensor(met.var, device=device).sqrt()) for met in self._met
        )
        of_state, _ = _features(states, (numbers, pictures))
        return th.cat([states.numbers.new_ones(len(states.numbers), 1), *of_state(slice(None))], dim=1)


def r_squared(values: th.Tensor, returns: th.Tensor) -> float:
    """
    Share of the variance of the returns that the values explain, R^2.

    :param values: (N,)
    :param returns: (N,)
    :return: 1 if they are equal, 0 if the values are no better than a constant or the returns have no variance
    """
    variance = returns.var(correction=0).item()
    return 1.0 - (returns - values).var(correction=0).item() / variance if variance > 0.0 else 0.0


def td_residuals(
    rewards: th.Tensor, values: th.Tensor, mask: th.Tensor, gamma: float, last_values: th.Tensor | None = None
) -> th.Tensor:
    """
    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, [GAE] eq. 10. Their sums discounted by ``gamma * lambda`` are the
    generalised advantage estimates (eq. 16); with lambda = 1, this is the return to go minus the value.

    After the last step of an episode, the value is 0 unless given by ``last_values``, even if a time limit truncated the
    episode: the values are fitted to returns that end there, too, and a larger value would look like a reward for the last
    steps.

    :param rewards: (B, G, T)
    :param values: (B, G, T) values of the states in which the actions were chosen
    :param mask: (B, G, T), True for existing steps
    :param gamma: discount factor in [0, 1]
    :param last_values: (B, G) values of the states after the last steps, 0 where the episode has ended
    :return: (B, G, T), 0 where ``mask`` is False
    """
    values = th.where(mask, values, 0.0)
    after = th.cat([values[..., 1:], th.zeros_like(values[..., :1])], dim=-1)
    if last_values is not None:
        is_last = mask & ~th.cat([mask[..., 1:], th.zeros_like(mask[..., :1])], dim=-1)
        after = th.where(is_last, last_values[..., None], after)
    return th.where(mask, rewards + gamma * after - values, 0.0)
