"""What values by a regression leave of the rewards of a batch: the residuals that groups compare with ``advantage="gae"``."""

from typing import TYPE_CHECKING

import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go
from sb3_grpo.common.baselines import StateFeatures, ValueRegression, r_squared, regression_values, td_residuals
from sb3_grpo.common.buffers import GroupBatch, Minibatch
from sb3_grpo.groups.group import live_groups

if TYPE_CHECKING:
    from sb3_grpo.common.policies import ActorPolicy

# Of states that the features extractor reads at a time
_ROWS_AT_A_TIME = 512


def residuals_of_groups(
    policy: "ActorPolicy", batch: GroupBatch, rewards: th.Tensor, gamma: float, time_limit: bool
) -> tuple[th.Tensor, float]:
    """
    Residuals of whole groups: of the values that :func:`regression_values` fits to the returns of this update alone.

    :param policy: It says what the regression takes for a state
    :param batch: Whole groups
    :param rewards: (B, G, T)
    :param gamma: Discount factor
    :param time_limit: Whether what is left until a time limit matters, also where an episode began in the middle of another
    :return: (B, G, T) residuals, 0 in dead groups; share of the variance of the returns that the values explain
    """
    returns = discounted_returns_to_go(rewards, batch.mask, gamma)
    states, fitted = _states(policy, batch), batch.flatten(returns)
    time = batch.time + batch.elapsed.flatten()[batch.episode] if time_limit else batch.time
    values = regression_values(states.numbers, time, fitted, states.pictures)
    residuals = td_residuals(rewards, batch.pad(values), batch.mask, gamma)
    # Where all members have the same return, what is left is the error of the regression
    is_live = live_groups(returns[..., 0])[:, None, None]
    return th.where(is_live, residuals, 0.0), r_squared(values, fitted)


def residuals_of_steps(
    policy: "ActorPolicy", regression: ValueRegression, batch: GroupBatch, rewards: th.Tensor, gamma: float
) -> tuple[th.Tensor, float | None]:
    """
    Residuals of steps whose episodes may go on: of the values that ``regression`` had before it was fitted to this batch,
    which leave all of the signal in them. Those of the first update are its own.

    :param policy: It says what the regression takes for a state
    :param regression: Is fitted to this batch, too
    :param batch: Steps of an update
    :param rewards: (B, G, T)
    :param gamma: Discount factor
    :return: (B, G, T) residuals; share of the variance of what was fitted that these values explain, ``None`` where there
        was nothing to fit: all rewards are the same, and no episode has ended, or they are zero and have always been
    """
    n_ended = (batch.lengths > 0).sum() - len(batch.going_on)
    steps = batch.flatten(rewards)
    if (steps == steps[0]).all() and (n_ended == 0 or (steps[0] == 0.0 and not regression.is_fitted)):
        # Whatever was done came to the same: what is left is the error of the regression. Zeros are a signal to values
        # that expect a reward
        return th.zeros_like(rewards), None
    states = _states(policy, batch)
    next_states = _next_states(policy, batch, states)
    lengths = batch.lengths.flatten()
    end_of = th.full_like(lengths, -1)
    end_of[batch.going_on] = th.arange(len(batch.going_on), device=lengths.device)
    discounts = gamma ** (lengths[batch.episode] - batch.time).double()
    returns = batch.flatten(discounted_returns_to_go(rewards, batch.mask, gamma))

    is_first = not regression.is_fitted
    if is_first:
        targets = regression.fit(states, returns, next_states, end_of[batch.episode], discounts)
    values, last_values = regression.predict(states), th.zeros_like(lengths, dtype=th.float64)
    last_values[batch.going_on] = regression.predict(next_states)
    if not is_first:
        targets = regression.fit(states, returns, next_states, end_of[batch.episode], discounts)
    residuals = td_residuals(rewards, batch.pad(values), batch.mask, gamma, last_values.view(batch.lengths.shape))
    return residuals, r_squared(values, targets)


def _states(policy: "ActorPolicy", batch: GroupBatch) -> StateFeatures:
    """
    :param policy: It says what the regression takes for a state
    :param batch: The steps of an update
    :return: The state of each of them
    """
    parts = th.arange(len(batch.rows), device=batch.rows.device).split(_ROWS_AT_A_TIME)
    states: StateFeatures | None = None
    with th.no_grad():
        for steps in parts:
            part = policy.state_features(batch.observations_at(Minibatch(steps, None, len(parts))))
            if states is None:
                # A list of parts would lie between the temporaries of the forward passes, and fragment the heap
                states = StateFeatures(*(each.new_empty((len(batch.rows), each.shape[1])) for each in part))
            for of_all, of_part in zip(states, part, strict=True):
                of_all[steps] = of_part
    assert states is not None
    return states


def _next_states(policy: "ActorPolicy", batch: GroupBatch, states: StateFeatures) -> StateFeatures:
    """
    :param policy: It says what the regression takes for a state
    :param batch: The steps of an update
    :param states: Of these steps
    :return: The states in which episodes go on
    """
    if batch.next_observations is None:
        return StateFeatures(*(each[:0] for each in states))
    with th.no_grad():
        return policy.state_features(batch.next_observations)
