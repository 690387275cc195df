"""Policy losses and their weights against numbers computed by hand."""

import math

import pytest
import torch as th

from sb3_grpo.common.losses import (
    LOSS_WEIGHTS,
    LossInputs,
    clipped_surrogate,
    cut_off,
    episode_log_ratio,
    policy_losses,
    step_weights,
    weighted_fractions,
)

LOW, HIGH = 0.2, 0.28


def loss_and_gradient(ratio, advantage, low=0.2, high=0.2):
    """Loss of one step and its gradient with respect to the log ratio."""
    log_ratio = th.tensor([ratio], dtype=th.float64).log().requires_grad_()
    loss = clipped_surrogate(log_ratio, th.tensor([advantage], dtype=th.float64), low, high)
    loss.sum().backward()
    return loss.item(), log_ratio.grad.item()


# --- Clipping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "ratio", "whole"),
    [
        (1.5, 1.3, False),  # good action, already more likely: enough
        (1.5, 0.7, True),  # good action that became less likely: corrected without limit
        (-1.5, 0.7, False),  # bad action, already less likely: enough
        (-1.5, 1.3, True),  # bad action that became more likely: corrected without limit
        (1.5, 1.1, True),
        (1.5, 0.9, True),
        (-1.5, 1.1, True),
        (-1.5, 0.9, True),
    ],
)
def test_four_cases_of_clipping(advantage, ratio, whole):
    _, gradient = loss_and_gradient(ratio, advantage)
    # The whole gradient of -r A with respect to log r is -r A
    assert gradient == pytest.approx(-ratio * advantage if whole else 0.0)


def test_ratio_above_both_upper_bounds():
    # 1.35 counts as 1.2 with the symmetric interval and as 1.28 with the higher bound
    assert loss_and_gradient(1.35, 1.4049, 0.2, 0.2)[0] == pytest.approx(-1.2 * 1.4049)
    assert loss_and_gradient(1.35, 1.4049, 0.2, 0.28)[0] == pytest.approx(-1.28 * 1.4049)
    # Between the bounds only clip-higher still learns
    assert loss_and_gradient(1.25, 1.0, 0.2, 0.2)[1] == 0.0
    assert loss_and_gradient(1.25, 1.0, 0.2, 0.28)[1] == pytest.approx(-1.25)
    # The lower bound is its own
    assert loss_and_gradient(0.75, -1.0, 0.2, 0.28) == pytest.approx((0.8, 0.0))
    assert loss_and_gradient(0.75, -1.0, 0.28, 0.2) == pytest.approx((0.75, 0.75))


def test_surrogate_at_ratio_one_is_the_policy_gradient():
    advantages = th.tensor([1.0, -2.0, 0.0, 3.0])
    log_ratio = th.zeros(4, requires_grad=True)
    loss = clipped_surrogate(log_ratio, advantages, LOW, HIGH)
    loss.sum().backward()
    assert loss.tolist() == (-advantages).tolist()
    assert log_ratio.grad.tolist() == (-advantages).tolist()


def clip_fractions(ratio: th.Tensor, advantages: th.Tensor, weights: th.Tensor) -> tuple[th.Tensor, ...]:
    marks = dict(zip(("low", "high"), cut_off(ratio, advantages, LOW, HIGH), strict=True))
    return tuple(weighted_fractions(marks, weights, weights).values())


def test_clip_fractions_by_hand():
    ratio = th.tensor([0.7, 0.7, 1.3, 1.3, 1.25, 1.0, 0.7, 1.3])
    advantages = th.tensor([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 0.0])
    everything = th.ones(8)
    # Below: steps 0 and 6. Above: step 2 only, as 1.25 < 1.28 and an advantage of 0 has no gradient to cut off
    low, high = clip_fractions(ratio, advantages, everything)
    assert (low.item(), high.item()) == (0.25, 0.125)
    # Without step 6
    low, high = clip_fractions(ratio, advantages, (th.arange(8) != 6).float())
    assert (low.item(), high.item()) == pytest.approx((1 / 7, 1 / 7))
    low, high = clip_fractions(ratio, advantages, th.tensor([0.3, 0, 0.1, 0, 0, 0, 0.0, 0.0]) * 1e-6)
    assert (low.item(), high.item()) == pytest.approx((0.75, 0.25))
    assert [f.item() for f in clip_fractions(ratio, advantages, 0 * everything)] == [0.0, 0.0]


def test_clip_fractions_count_the_vanishing_gradients():
    generator = th.Generator().manual_seed(0)
    log_ratio = th.randn(500, generator=generator).requires_grad_()
    advantages = th.randn(500, generator=generator)
    clipped_surrogate(log_ratio, advantages, LOW, HIGH).sum().backward()
    low, high = clip_fractions(log_ratio.exp(), advantages, th.ones(500))
    assert (low + high).item() == pytest.approx((log_ratio.grad == 0).float().mean().item())


# --- Losses by name -----------------------------------------------------------------------------------------------------


def slopes(name: str, ratio: list[float], advantage: float, low: float = 0.2, high: float = 0.28) -> list[float]:
    """The gradient of each step's loss with respect to the log of its ratio."""
    log_ratio = th.tensor(ratio).log().requires_grad_()
    n = len(ratio)
    advantages, zeros = th.full((n,), advantage), th.zeros(n, dtype=th.long)
    steps = LossInputs(log_ratio, log_ratio, th.zeros(n), advantages, low, high, None, zeros, zeros, th.zeros(n))
    losses, _ = policy_losses(name, steps)
    return th.autograd.grad(losses.sum(), log_ratio)[0].tolist()


def test_what_a_ratio_does_to_the_gradient() -> None:
    ratio = [0.5, 1.0, 3.0]
    # PPO cuts the gradient off where the policy has gone far enough
    assert slopes("clip", ratio, 1.0) == pytest.approx([-0.5, -1.0, 0.0])
    assert slopes("clip", ratio, -1.0) == pytest.approx([0.0, 1.0, 3.0])
    # CISPO bounds its weight, for either sign, and has no lower bound with clip_low=1
    assert slopes("cispo", ratio, 1.0, low=1.0, high=1.0) == pytest.approx([-0.5, -1.0, -2.0])
    assert slopes("cispo", ratio, -1.0, low=0.2, high=1.0) == pytest.approx([0.8, 1.0, 2.0])
    # SAPO: d/dr (4 / tau) sigmoid(tau (r - 1)) = 4 s (1 - s), times r
    s = [1 / (1 + math.exp(-1.05 * (each - 1.0))) for each in ratio]
    expected = [4 * each * (1 - each) * r for each, r in zip(s, ratio, strict=True)]
    assert slopes("sapo", ratio, -1.0) == pytest.approx(expected) and expected[1] == 1.0
    assert slopes("sapo", [1e4], 1.0) == pytest.approx([0.0])
    assert slopes("importance_sampling", ratio, 2.0) == pytest.approx([-1.0, -2.0, -6.0])


def test_dppo_looks_at_probabilities() -> None:
    """A rare action may become three times as likely, a frequent one may not gain as much."""
    old = th.tensor([0.01, 0.5, 0.5, 0.9, 0.5])
    new = th.tensor([0.03, 0.71, 0.69, 0.6, 0.6])
    advantages = th.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
    log_prob = new.log().requires_grad_()
    zeros = th.zeros(5, dtype=th.long)
    inputs = (log_prob - old.log(), log_prob, old.log(), advantages, 0.2, 0.2, None, zeros, zeros, th.zeros(5))
    losses, marks = policy_losses("dppo", LossInputs(*inputs))
    assert {name: marked.tolist() for name, marked in marks.items()} == {
        "clip_fraction_low": [False, False, False, True, False],
        "clip_fraction_high": [False, True, False, False, False],
    }
    gradient = th.autograd.grad(losses.sum(), log_prob)[0]
    assert gradient.tolist() == pytest.approx([-3.0, 0.0, -1.38, 0.0, 1.2])


def test_target_policy_has_the_gradient_of_the_cross_entropy() -> None:
    """Two groups of three episodes with 1 to 6 steps, whose steps come in another order."""
    generator = th.Generator().manual_seed(0)
    order = th.randperm(21, generator=generator)
    episode = th.arange(6).repeat_interleave(th.arange(1, 7))[order]
    outcome_of = th.tensor([1.0, 2.0, 4.0, 3.0, 3.0, 3.0], dtype=th.float64)
    old = -th.rand(21, generator=generator)
    new = (old + 0.3 * th.randn(21, generator=generator)).requires_grad_()
    group, outcomes = episode // 3, outcome_of[episode]
    inputs = (new - old, new, old, th.zeros(21), 0.2, 0.2, None, episode, group, outcomes)
    losses, _ = policy_losses("target_policy", LossInputs(*inputs))
    gradient = th.autograd.grad(losses.sum(), new)[0]

    total, before = (th.stack([values[episode == number].sum() for number in range(6)]).view(2, 3) for values in (new, old))
    standardised = th.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    standardised[0] = (standardised[0] - standardised[0].mean()) / standardised[0].std(correction=0)
    cross_entropy = -((before + standardised).softmax(1) * total.log_softmax(1)).sum()
    th.testing.assert_close(gradient, th.autograd.grad(cross_entropy, new)[0], rtol=1e-5, atol=1e-6)
    # At the target nothing is left to do, also for a group with equal outcomes that has not moved
    inputs = (old - old, old.requires_grad_(), old.detach(), th.zeros(21), 0.2, 0.2, None, episode, group, th.zeros(21))
    losses, _ = policy_losses("target_policy", LossInputs(*inputs))
    assert th.autograd.grad(losses.sum(), old)[0].abs().max() < 1e-6


# --- Sequence-level ratio -----------------------------------------------------------------------------------------------


def test_episode_log_ratio_by_hand():
    # Steps need not be in order: episode 0 has 1, 3, 5 (mean 3), episode 2 has -2, 4 (mean 1), episode 1 none
    episode = th.tensor([0, 2, 0, 2, 0])
    log_ratio = th.tensor([1.0, -2.0, 3.0, 4.0, 5.0], requires_grad=True)
    result = episode_log_ratio(log_ratio, episode, 3)
    assert result.tolist() == [3.0, 1.0, 3.0, 1.0, 3.0]
    # Gradient of the last entry alone: 1/3 for each step of its episode
    result[4].backward()
    assert log_ratio.grad.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])


# --- Weights ------------------------------------------------------------------------------------------------------------

EPISODE = th.tensor([0, 0, 0, 0, 1, 1, 3])
WEIGHTS = (*LOSS_WEIGHTS, 10.0)
KEPT = th.tensor([True, True, True, True, False, False, True])


@pytest.mark.parametrize(
    ("mode", "everything", "filtered"),
    [
        # Episodes of 4, 2 and 1 steps (and one without any); then without the second
        ("episode", [1 / 12] * 4 + [1 / 6] * 2 + [1 / 3], [1 / 8] * 4 + [0] * 2 + [1 / 2]),
        ("step", [1 / 7] * 7, [1 / 5] * 4 + [0] * 2 + [1 / 5]),
        (10.0, [1 / 30] * 7, [1 / 20] * 4 + [0] * 2 + [1 / 20]),
    ],
)
def test_step_weights_by_hand(mode, everything, filtered):
    assert step_weights(EPISODE, 4, mode).tolist() == pytest.approx(everything)
    assert step_weights(EPISODE, 4, mode, KEPT).tolist() == pytest.approx(filtered)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_filtering_is_the_same_as_never_having_sampled(mode):
    filtered = step_weights(EPISODE, 4, mode, KEPT)
    without = step_weights(EPISODE[KEPT], 4, mode)
    th.testing.assert_close(filtered[KEPT], without)
    assert not filtered[~KEPT].any()


def test_step_weights_refuse_bad_input():
    with pytest.raises(ValueError, match="episode, step, or a positive number"):
        step_weights(EPISODE, 4, "token")
    with pytest.raises(ValueError, match="same shape"):
        step_weights(EPISODE, 4, "step", KEPT[:3])
    for length in (0.0, -1.0):
        with pytest.raises(ValueError, match="positive number"):
            step_weights(EPISODE, 4, length)


def test_nothing_waits_for_the_device():
    # Tensors of the meta device have no values: reading one on the host would raise
    values, index = th.zeros(7, device="meta"), th.zeros(7, dtype=th.long, device="meta")
    clipped_surrogate(episode_log_ratio(values, index, 4), values, LOW, HIGH)
    clip_fractions(values, values, values)
    for mode in WEIGHTS:
        assert step_weights(index, 4, mode, values.bool()).device.type == "meta"
    with pytest.raises(RuntimeError):
        values.sum().item()
