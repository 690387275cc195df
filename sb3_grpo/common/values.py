"""
Values without a critic network: returns are fitted to features of the states in closed form (Bayesian linear regression, no
gradient step), and what the states explain of them is subtracted.

References: [RFF] Rahimi and Recht, Random features for large-scale kernel machines (2007), [rllab] arXiv:1604.06778, whose
linear baseline this extends.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb3_grpo.common.advantages import discounted_returns_to_go, td_residuals
from sb3_grpo.common.batch import GroupBatch, Minibatch
from sb3_grpo.groups.group import live_groups

N_RANDOM_FEATURES = 200
# Prior variance of the sum of the random features, in units of the variance of the returns
_KERNEL_VARIANCE = 2.0
# Images with more entries are downscaled; several images in one observation share this number equally
MAX_PIXELS = 1024
_MANY_ROWS = 2**14
# Weight of the steps of earlier updates, per update. The hundreds of entries of images need tens of thousands of steps
MEMORY, MEMORY_OF_IMAGES = 0.5, 0.95


class StateFeatures(NamedTuple):
    """
    States as seen by a regression.

    :param numbers: (N, d) entries of which values can be any function
    :param pictures: (N, k) image entries, in which values are linear; k is 0 without images
    """

    numbers: th.Tensor
    pictures: th.Tensor


FeatureFunction = Callable[[Any], StateFeatures]


class Continuation(NamedTuple):
    """
    How returns go on whose episodes continue after the last known reward.

    :param states: M states from which episodes continue
    :param of_step: (N,) long, index of the state that continues the return of each step, -1 if the return is complete
    :param discounts: (N,) ``gamma^k`` if this state comes k steps later
    """

    states: StateFeatures
    of_step: th.Tensor
    discounts: th.Tensor


@dataclass(frozen=True)
class StepValues:
    """
    What a regression says of the states of an update.

    :param of_steps: (N,) values of the states
    :param last: (B, G) value of the state from which an episode continues, 0 if it has ended
    :param targets: (N,) the regression targets
    :param live: (B,) whether to judge the steps of a group; ``None``: those of all
    """

    of_steps: th.Tensor
    last: th.Tensor
    targets: th.Tensor
    live: th.Tensor | None

    def residuals(self, batch: GroupBatch, gamma: float) -> th.Tensor:
        """
        What groups compare with ``advantage="gae"``: see :func:`td_residuals`.

        :param batch: The groups of the update
        :param gamma: Discount factor
        :return: (B, G, T)
        """
        residuals = td_residuals(batch.rewards, batch.pad(self.of_steps), batch.mask, gamma, self.last)
        return residuals if self.live is None else th.where(self.live[:, None, None], residuals, 0.0)


def image_features(images: th.Tensor, max_pixels: int = MAX_PIXELS) -> th.Tensor:
    """
    Downscale images for a regression. Images with few entries are kept unchanged; others are average-pooled over areas (at
    most 21 by 21). Two to four channels (stacked frames or colours, rather than planes of a board) are replaced by their mean
    and by the last minus the first, which in stacked frames is the motion.

    :param images: (N, C, H, W) of any type
    :param max_pixels: maximum number of entries to keep; at least one is kept per channel
    :return: (N, k) in single precision
    """
    if images.shape[1:].numel() <= max_pixels:
        return images.float().flatten(1)
    n_channels = images.shape[1]
    if 1 < n_channels <= 4:
        # Not all of them are converted to single precision
        total = images.sum(1, dtype=None if images.is_floating_point() else th.int32)
        images = th.stack([total.float() / n_channels, images[:, -1].float() - images[:, 0].float()], 1)
    else:
        images = images.float()
    side = max(min(21, math.isqrt(max_pixels // images.shape[1])), 1)
    size = min(side, images.shape[2]), min(side, images.shape[3])
    return th.nn.functional.adaptive_avg_pool2d(images, size).flatten(1)


def r_squared(values: th.Tensor, returns: th.Tensor) -> float:
    """
    Share of the variance of the returns that the values explain, R^2.

    :param values: (N,)
    :param returns: (N,)
    :return: 1 if they are equal, 0 if the values are no better than a constant or the returns have no variance
    """
    variance = returns.var(correction=0).item()
    return 1.0 - (returns - values).var(correction=0).item() / variance if variance > 0.0 else 0.0


class ValueRegression:
    """
    Values of states, ``V(s) = phi(s)' w``: the posterior mean of a Bayesian linear regression of returns on features of the
    states, ``w = (Phi' Phi + I)^-1 Phi' y``.

    The features of a state with numbers x (standardised) are a constant, x, x^2, and random Fourier features of x ([RFF],
    approximately a Gaussian kernel), and, in an :class:`UpdateRegression`, t, t^2, t^3 of the time. With more than 512
    numbers, there are no x^2. The random features, and the projection of states with more than 1,024 numbers, are always the
    same. The noise has variance 1, all x together 1, all x^2 together about 3, all random features together 2, each power of
    t 1, and the constant is unregularised: with few steps, values stay closer to the mean. The standardised entries of
    pictures have variance 1 together, but no squares and no random features: their hundreds of entries are already enough to
    memorise single episodes.
    """

    # Number of rows whose features are in memory at a time
    _part: ClassVar[int]

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as before the first fit."""
        self._met: list[RunningMeanStd] = []  # of numbers and of pictures
        self._weights: th.Tensor | None = None
        self._mean: th.Tensor | float = 0.0
        self._std: th.Tensor | float = 1.0

    def state_dict(self) -> dict[str, Any]:
        """
        :return: What later updates depend on
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        :param state: The result of ``state_dict``
        """

    @property
    def is_fitted(self) -> bool:
        """Whether the regression has been fitted, so that it can predict values."""
        return self._weights is not None

    def update(self, state_features: FeatureFunction, batch: GroupBatch, gamma: float) -> StepValues | None:
        """
        Value the states of an update, and fit the regression to them.

        :param state_features: Maps observations to what the regression sees of the states
        :param batch: The groups of an update
        :param gamma: Discount factor
        :return: The values; ``None`` if nothing was fitted: all rewards are equal and no episode has ended, or they are zero
            and always have been
        """
        raise NotImplementedError

    def predict(self, states: StateFeatures, time: th.Tensor | None = None) -> th.Tensor:
        """
        :param states: N states
        :param time: (N,) index of each step in its episode, if it was among the features of the fit
        :return: (N,) their values, in double precision
        :raises ValueError: before the first fit
        """
        if self._weights is None:
            raise ValueError("There are no values before the first fit.")
        features, weights = _features(states, self._met, time), self._weights.to(states.numbers.device)
        values = th.cat([features(rows).to(weights.dtype) @ weights for rows in self._parts(len(states.numbers))])
        return values.double() * self._std + self._mean

    def _says_nothing(self, batch: GroupBatch) -> bool:
        # If all actions led to the same result, residuals would only be the error of the regression. But zeros are a signal
        # for values that expect a reward
        n_ended = (batch.lengths > 0).sum() - len(batch.unfinished)
        steps = batch.flatten(batch.rewards)
        return bool((steps == steps[0]).all() and (n_ended == 0 or (steps[0] == 0.0 and not self.is_fitted)))

    def _meet(self, states: StateFeatures, precision: th.dtype) -> None:
        """
        :param states: N states, with which features are standardised from now on
        :param precision: That of their standard deviation
        """
        if not self._met:
            self._met = [RunningMeanStd(0.0, (inputs.shape[1],)) for inputs in states]
        for met, inputs in zip(self._met, states, strict=True):
            if inputs.shape[1] > 0:
                std, mean = inputs.to(precision).std(0, correction=0).double(), inputs.mean(0, dtype=th.float64)
                met.update_from_moments(mean.cpu().numpy(), std.square().cpu().numpy(), len(inputs))

    def _sum(self, features: Callable[[slice], th.Tensor], targets: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        :param features: Maps rows to their features Phi
        :param targets: (N,) the regression targets y
        :return: ``Phi' Phi`` and ``Phi' y``, summed over these steps
        """
        # The rounding errors of single precision grow with the number of rows, the contribution of the prior does not
        precision = th.float32 if len(targets) <= _MANY_ROWS else th.float64
        gram = moment = targets.new_zeros((), dtype=th.float64)
        for rows in self._parts(len(targets)):
            phi = features(rows).to(precision)
            gram = gram + (phi.T @ phi).double()
            moment = moment + (phi.T.to(targets.dtype) @ targets[rows]).double()
        return gram, moment

    def _solve(self, gram: th.Tensor, moment: th.Tensor, dtype: th.dtype) -> None:
        """
        Compute the weights.

        :param gram: ``Phi' Phi``
        :param moment: ``Phi' y``
        :param dtype: Type of the weights
        """
        prior = th.ones_like(moment)
        prior[0] = 1e-6  # the constant is unregularised
        factor = th.linalg.cholesky(gram + prior.diag())
        self._weights = th.cholesky_solve(moment[:, None], factor)[:, 0].to(dtype)

    def _parts(self, n_rows: int) -> list[slice]:
        """
        :param n_rows: Number of steps
        :return: Their rows, in parts whose features are in memory at a time
        """
        return [slice(begin, begin + self._part) for begin in range(0, max(n_rows, 1), self._part)]


class UpdateRegression(ValueRegression):
    """
    A regression for whole groups, fitted anew to each update, which it judges. A step takes part in the fit of its own value,
    and so does the rest of its episode, whose returns share much of their noise: if a whole episode was lucky, part of its
    luck is attributed to the value of its states. Returns end with the episode, so the time (the steps left until a time
    limit) is among the features. States and returns are standardised over the update: variances are in units of that of the
    returns.
    """

    _part = 256  # groups may be of any length

    @th.no_grad()
    def update(self, state_features: FeatureFunction, batch: GroupBatch, gamma: float) -> StepValues | None:
        self.forget()
        if self._says_nothing(batch):
            return None
        states, returns = _states(state_features, batch), discounted_returns_to_go(batch.rewards, batch.mask, gamma)
        # The time limit also counts the steps before a start in mid-episode
        time = batch.time + batch.elapsed.flatten()[batch.episode]
        targets = batch.flatten(returns).double()
        self.fit(states, targets, time)
        values, last = self.predict(states, time), th.zeros_like(batch.lengths, dtype=th.float64)
        # If all members have the same return, the residuals are only the error of the regression
        return StepValues(values, last, targets, live_groups(returns[..., 0]))

    def fit(self, states: StateFeatures, returns: th.Tensor, time: th.Tensor) -> None:
        """
        :param states: N states
        :param returns: (N,) discounted returns from each state on
        :param time: (N,) index of each step in its episode
        """
        self.forget()
        self._meet(states, states.numbers.dtype)
        returns = returns.double()
        self._mean, self._std = returns.mean(), returns.std(correction=0) + 1e-8
        targets = ((returns - self._mean) / self._std).float()
        self._solve(*self._sum(_features(states, self._met, time), targets), targets.dtype)


class RunningRegression(ValueRegression):
    """
    A regression for updates in steps, with memory: the steps of an update are judged by the values of the previous fit, which
    preserve the whole signal. Then the values are fitted to these steps. The target of ``s_t`` is ``R_t``, the discounted
    sum of the known rewards, or ``R_t + gamma^k V(s_{t+k})`` with the previous fit V if the episode continues k steps later.
    Steps of earlier updates count as well, with weights that are multiplied by ``memory`` at each update: only their sums
    are stored. States are standardised with all states seen so far, so that the features in these sums are alike. The first
    update has no previous fit and is judged by its own. So is each update with ``fits_first``, for more copies than a fit can
    memorise: if they are in lockstep, the previous fit knows an earlier moment of the episode only.

    :param memory: Factor by which the weight of earlier steps is multiplied at each update, up to 1 (all steps count the same)
    :param fits_first: Judge steps by values that have been fitted to them, too
    """

    _part = _MANY_ROWS

    def __init__(self, memory: float = MEMORY, fits_first: bool = False):
        self.memory = memory
        self.fits_first = fits_first
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self._sums: tuple[th.Tensor, th.Tensor] | None = None

    def state_dict(self) -> dict[str, Any]:
        if self._sums is None or self._weights is None:
            return {"met": [], "sums": None, "weights": None}
        return {"met": self._met, "sums": [each.cpu() for each in self._sums], "weights": self._weights.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._met, self._weights = state["met"], state["weights"]
        self._sums = None if state["sums"] is None else (state["sums"][0], state["sums"][1])

    @th.no_grad()
    def update(self, state_features: FeatureFunction, batch: GroupBatch, gamma: float) -> StepValues | None:
        if self._says_nothing(batch):
            return None
        states, continuation = _states(state_features, batch), _continuation(state_features, batch, gamma)
        returns = batch.flatten(discounted_returns_to_go(batch.rewards, batch.mask, gamma))
        fits_first = self.fits_first or not self.is_fitted
        if fits_first:
            targets = self.fit(states, returns, continuation)
        values, last = self.predict(states), th.zeros_like(batch.lengths, dtype=th.float64)
        if continuation is not None:
            last.view(-1)[batch.unfinished] = self.predict(continuation.states)
        if not fits_first:
            targets = self.fit(states, returns, continuation)
        return StepValues(values, last, targets, None)

    def fit(self, states: StateFeatures, returns: th.Tensor, continuation: Continuation | None = None) -> th.Tensor:
        """
        :param states: N states
        :param returns: (N,) discounted returns of the known rewards from each state on
        :param continuation: How they go on, ``None`` if all of them are complete
        :return: (N,) the regression targets
        """
        # At first, more fits make up for the missing earlier ones
        n_fits = 3 if continuation is not None and not self.is_fitted else 1
        targets = self._targets(returns, continuation)  # before the standardisation of the features changes
        # Differences between the moments of many updates need double precision
        self._meet(states, th.float64)
        features = _features(states, self._met, None)
        for number in range(n_fits):
            if number > 0:
                targets = self._targets(returns, continuation)
            gram, moment = self._sum(features, targets)
            if self._sums is not None:
                # Loaded from a checkpoint, they are on the host
                old_gram, old_moment = (each.to(gram.device) for each in self._sums)
                gram, moment = gram + self.memory * old_gram, moment + self.memory * old_moment
            self._solve(gram, moment, targets.dtype)
        self._sums = gram, moment
        return targets

    def _targets(self, returns: th.Tensor, continuation: Continuation | None) -> th.Tensor:
        """
        :param returns: (N,) see ``fit``
        :param continuation: See ``fit``
        :return: (N,) the regression targets, with the values of the last fit, if there are any
        """
        if continuation is None or not self.is_fitted:
            return returns.double()
        after = th.cat([self.predict(continuation.states), returns.new_zeros(1)])
        return returns + continuation.discounts * after[continuation.of_step]


def _features(states: StateFeatures, met: list[RunningMeanStd], time: th.Tensor | None) -> Callable[[slice], th.Tensor]:
    """
    :param states: N states
    :param met: Moments with which their numbers and their pictures are standardised
    :param time: (N,) index of each step in its episode, ``None``: not among the features
    :return: Function that maps rows to features in single precision, see :class:`ValueRegression`
    """
    generator = th.Generator().manual_seed(0)
    with_numbers, with_squares = states.numbers.shape[1] > 0, states.numbers.shape[1] <= 512
    numbers, n_columns, n_varying = _standardised(states.numbers, met[0], generator)
    frequencies = th.randn(n_columns, N_RANDOM_FEATURES, generator=generator).to(states.numbers.device)
    phases = 2 * math.pi * th.rand(N_RANDOM_FEATURES, generator=generator).to(states.numbers.device)
    # Squared bandwidth of the kernel: a sixth of the mean squared distance between two standardised states, 2 * n_varying
    frequencies /= math.sqrt(2 * n_varying * (1 / 6))
    amplitude = math.sqrt(2 * _KERNEL_VARIANCE / N_RANDOM_FEATURES)
    pictures, _, n_varying_pixels = _standardised(states.pictures, met[1], generator)
    u = states.numbers.new_zeros(len(states.numbers), 1)
    if time is not None:
        u = time.float()[:, None] / max(int(time.max()), 1)

    def features(rows: slice) -> th.Tensor:
        blocks = [u[rows] ** power for power in range(1 if time is None else 4)]
        if with_numbers:
            x = numbers(rows)
            linear = x / math.sqrt(n_varying)
            blocks += [linear, *([linear * x] if with_squares else []), amplitude * th.cos(x @ frequencies + phases)]
        return th.cat([*blocks, pictures(rows) / math.sqrt(n_varying_pixels)], dim=1)

    return features


def _standardised(
    inputs: th.Tensor, met: RunningMeanStd, generator: th.Generator
) -> tuple[Callable[[slice], th.Tensor], int, int]:
    """
    :param inputs: (N, d) entries of states
    :param met: Their moments
    :param generator: Draws the projection of states with more than 1,024 entries
    :return: Function that maps rows to their standardised entries (M, c); c; the number of non-constant entries
    """
    mean, std = th.as_tensor(met.mean, device=inputs.device), th.as_tensor(met.var, device=inputs.device).sqrt()
    varies = std > 1e-8
    scale = th.where(varies, 1.0 / std, 0.0)
    n_columns, n_varying, n_projected = inputs.shape[1], max(int(varies.sum()), 1), 1024

    def standardise(rows: slice) -> th.Tensor:
        # Clipped, as the squares of outliers would dominate
        return ((inputs[rows].double() - mean) * scale).clamp(-5.0, 5.0).float()

    if n_columns <= n_projected:
        return standardise, n_columns, n_varying
    projection = th.randn(n_columns, n_projected, generator=generator).to(inputs.device) / math.sqrt(n_varying)
    return lambda rows: standardise(rows) @ projection, n_projected, n_projected


def _states(state_features: FeatureFunction, batch: GroupBatch) -> StateFeatures:
    """
    :param state_features: Maps observations to what the regression sees of the states
    :param batch: The steps of an update
    :return: The state of each step
    """
    n_steps = len(batch.episode)
    parts = th.arange(n_steps, device=batch.episode.device).split(512)
    states: StateFeatures | None = None
    for steps in parts:
        part = state_features(batch.observations_at(Minibatch(steps, None, len(parts))))
        if states is None:
            # A list of parts would be allocated between the temporaries of the forward passes and fragment the heap
            states = StateFeatures(*(each.new_empty((n_steps, each.shape[1])) for each in part))
        for of_all, of_part in zip(states, part, strict=True):
            of_all[steps] = of_part
    assert states is not None
    return states


def _continuation(state_features: FeatureFunction, batch: GroupBatch, gamma: float) -> Continuation | None:
    """
    :param state_features: Maps observations to what the regression sees of the states
    :param batch: The steps of an update
    :param gamma: Discount factor
    :return: How the returns of the steps go on, ``None`` if all episodes have ended
    """
    if batch.next_observations is None:
        return None
    lengths = batch.lengths.flatten()
    of_episode = th.full_like(lengths, -1)
    of_episode[batch.unfinished] = th.arange(len(batch.unfinished), device=lengths.device)
    discounts = gamma ** (lengths[batch.episode] - batch.time).double()
    return Continuation(state_features(batch.next_observations), of_episode[batch.episode], discounts)
