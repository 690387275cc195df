"""
A baseline that knows the state, without a critic: values are fitted to the returns of one update in closed form (ridge
regression, no network, no gradient step), subtracted, and forgotten.

References: [GAE] arXiv:1506.02438, [RFF] Rahimi and Recht, Random features for large-scale kernel machines (2007),
[rllab] arXiv:1604.06778, whose linear baseline this extends.
"""

import math

import torch as th

N_RANDOM_FEATURES = 200
# Prior variance of what the random features add up to, in units of the returns' variance
_KERNEL_VARIANCE = 2.0
# Squared bandwidth of the kernel, as a share of the mean squared distance between two states
_BANDWIDTH = 1 / 6
# Standardised observations beyond are outliers
_MAX_DEVIATION = 5.0
_CHUNK = 4096


def _standardised(inputs: th.Tensor) -> tuple[th.Tensor, int]:
    """
    :param inputs: (N, d)
    :return: (N, d) with mean 0 and standard deviation 1, and how many of the d columns are not constant
    """
    centred = inputs.double() - inputs.mean(0, dtype=th.float64)
    std = centred.square().mean(0).sqrt()
    varies = std > 1e-8
    return (centred * th.where(varies, 1.0 / std, 0.0)).clamp(-_MAX_DEVIATION, _MAX_DEVIATION), int(varies.sum())


def regression_values(inputs: th.Tensor, time: th.Tensor, returns: th.Tensor) -> th.Tensor:
    """
    Values of the visited states: the mean of Bayesian linear regression of the returns on features of the states,
    ``V = Phi (Phi' Phi + I)^-1 Phi' z`` with z the standardised returns, back in the units of the returns.

    The features of a state x, standardised over the batch, at time t are a constant, x, x^2, t, t^2, t^3, and random Fourier
    features of x ([RFF], approximately a Gaussian kernel), whose frequencies are the same at every call. In units of the
    variance of the returns, the noise has variance 1, x and x^2 together 1 each, the random features together 2, each power of
    t 1, and the constant is free. So with few steps the values stay nearer to the mean. A step takes part in the fit of its
    own value, which shrinks its advantage; fits that leave out its episode were tried, and are no better.

    :param inputs: (N, d) observations, or features of them
    :param time: (N,) the steps' places in their episodes
    :param returns: (N,) what is to be predicted
    :return: (N,) double precision
    """
    x, n_varying = _standardised(inputs)
    n_varying = max(n_varying, 1)
    u = time.double()[:, None] / max(int(time.max()), 1)
    generator = th.Generator().manual_seed(0)
    frequencies = th.randn(x.shape[1], N_RANDOM_FEATURES, generator=generator, dtype=th.float64).to(x.device)
    phases = 2 * math.pi * th.rand(N_RANDOM_FEATURES, generator=generator, dtype=th.float64).to(x.device)
    # Two standardised states are 2 * n_varying apart, squared, in the mean
    frequencies /= math.sqrt(2 * n_varying * _BANDWIDTH)
    amplitude = math.sqrt(2 * _KERNEL_VARIANCE / N_RANDOM_FEATURES)

    def features(rows: slice) -> th.Tensor:
        linear, powers = x[rows] / math.sqrt(n_varying), [u[rows] ** power for power in range(4)]
        waves = amplitude * th.cos(x[rows] @ frequencies + phases)
        return th.cat([*powers, linear, linear * x[rows], waves], dim=1)

    mean, std = returns.mean(dtype=th.float64), returns.double().std(correction=0) + 1e-8
    chunks = [slice(begin, begin + _CHUNK) for begin in range(0, len(x), _CHUNK)]
    n_features = 4 + 2 * x.shape[1] + N_RANDOM_FEATURES
    precision = th.eye(n_features, dtype=th.float64, device=x.device)
    precision[0, 0] = 1e-6
    moment = th.zeros(n_features, dtype=th.float64, device=x.device)
    for rows in chunks:
        phi = features(rows)
        precision += phi.T @ phi
        moment += phi.T @ ((returns[rows].double() - mean) / std)
    weights = th.linalg.solve(precision, moment)
    return th.cat([features(rows) @ weights for rows in chunks]) * std + mean


def td_residuals(rewards: th.Tensor, values: th.Tensor, mask: th.Tensor, truncated: th.Tensor, gamma: float) -> th.Tensor:
    """
    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, [GAE] eq. 10. Their sums discounted by ``gamma * lambda`` are the
    generalised advantage estimates (eq. 16); with lambda = 1 that is the return to go minus the value.

    After the last step of an episode the value is 0 if it terminated. If a time limit cut it off, the value of the state in
    which the last action was chosen stands for that of the state after it.

    :param rewards: (B, G, T)
    :param values: (B, G, T) of the states in which the actions were chosen
    :param mask: (B, G, T), True at existing steps
    :param truncated: (B, G), True where a time limit cut the episode off
    :param gamma: discount factor in [0, 1]
    :return: (B, G, T), 0 where ``mask`` is False
    """
    values = th.where(mask, values, 0.0)
    after = th.cat([values[..., 1:], th.zeros_like(values[..., :1])], dim=-1)
    last = mask.sum(-1, keepdim=True) - 1
    tail = th.where(truncated[..., None], values.gather(-1, last), 0.0)
    after = after.scatter(-1, last, tail)
    return th.where(mask, rewards + gamma * after - values, 0.0)
