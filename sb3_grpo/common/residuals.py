"""TD residuals of a batch with values from a regression: what groups compare with ``advantage="gae"``."""

from typing import TYPE_CHECKING

import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go
from sb3_grpo.common.baselines import StateFeatures, ValueRegression, r_squared, regression_values, td_residuals
from sb3_grpo.common.buffers import GroupBatch, Minibatch
from sb3_grpo.groups.group import live_groups

if TYPE_CHECKING:
    from sb3_grpo.common.policies import ActorPolicy

# Number of states that the features extractor processes at a time
_ROWS_AT_A_TIME = 512


def residuals_of_groups(policy: "ActorPolicy", batch: GroupBatch, rewards: th.Tensor, gamma: float) -> tuple[th.Tensor, float]:
    """
    Residuals of whole groups, with values that :func:`regression_values` fits to the returns of this update alone.

    :param policy: The policy, which extracts the state features for the regression
    :param batch: Whole groups
    :param rewards: (B, G, T)
    :param gamma: Discount factor
    :return: (B, G, T) residuals, 0 in dead groups; share of the variance of the returns that the values explain
    """
    returns = discounted_returns_to_go(rewards, batch.mask, gamma)
    states, fitted = _states(policy, batch), batch.flatten(returns)
    # The time left until a time limit matters: time includes the steps before a start in mid-episode
    time = batch.time + batch.elapsed.flatten()[batch.episode]
    values = regression_values(states.numbers, time, fitted, states.pictures)
    residuals = td_residuals(rewards, batch.pad(values), batch.mask, gamma)
    # If all members have the same return, the residuals are only the error of the regression
    is_live = live_groups(returns[..., 0])[:, None, None]
    return th.where(is_live, residuals, 0.0), r_squared(values, fitted)


def residuals_of_steps(
    policy: "ActorPolicy", regression: ValueRegression, batch: GroupBatch, rewards: th.Tensor, gamma: float
) -> tuple[th.Tensor, float | None]:
    """
    Residuals of steps whose episodes may continue, with the values of ``regression`` before it is fitted to this batch,
    which preserve the whole signal. In the first update, the values are fitted to the batch itself.

    :param policy: The policy, which extracts the state features for the regression
    :param regression: The regression, which is also fitted to this batch
    :param batch: Steps of an update
    :param rewards: (B, G, T)
    :param gamma: Discount factor
    :return: (B, G, T) residuals; share of the variance of the regression targets that the values explain, ``None`` if
        nothing was fitted: all rewards are equal and no episode has ended, or they are zero and always have been
    """
    n_ended = (batch.lengths > 0).sum() - len(batch.going_on)
    steps = batch.flatten(rewards)
    if (steps == steps[0]).all() and (n_ended == 0 or (steps[0] == 0.0 and not regression.is_fitted)):
        # All actions led to the same result: residuals would only be the error of the regression. But zeros are a signal
        # for values that expect a reward
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
    :param policy: The policy, which extracts the state features for the regression
    :param batch: The steps of an update
    :return: The state of each step
    """
    parts = th.arange(len(batch.rows), device=batch.rows.device).split(_ROWS_AT_A_TIME)
    states: StateFeatures | None = None
    with th.no_grad():
        for steps in parts:
            part = policy.state_features(batch.observations_at(Minibatch(steps, None, len(parts))))
            if states is None:
                # A list of parts would be allocated between the temporaries of the forward passes and fragment the heap
                states = StateFeatures(*(each.new_empty((len(batch.rows), each.shape[1])) for each in part))
            for of_all, of_part in zip(states, part, strict=True):
                of_all[steps] = of_part
    assert states is not None
    return states


def _next_states(policy: "ActorPolicy", batch: GroupBatch, states: StateFeatures) -> StateFeatures:
    """
    :param policy: The policy, which extracts the state features for the regression
    :param batch: The steps of an update
    :param states: The states of these steps
    :return: The states from which episodes continue
    """
    if batch.next_observations is None:
        return StateFeatures(*(each[:0] for each in states))
    with th.no_grad():
        return policy.state_features(batch.next_observations)
