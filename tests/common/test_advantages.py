"""Group-relative advantages against numbers computed by hand."""

import math

import pytest
import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages
from sb3_grpo.groups.group import live_groups

KINDS = ("outcome", "process", "return_to_go")


def pad(episodes, length=None, padding=0.0):
    """(B, G) nested lists of reward lists -> rewards and mask (B, G, T)."""
    longest = max(len(e) for group in episodes for e in group) if length is None else length
    rewards = [[list(map(float, e)) + [padding] * (longest - len(e)) for e in group] for group in episodes]
    mask = [[[t < len(e) for t in range(longest)] for e in group] for group in episodes]
    return th.tensor(rewards), th.tensor(mask)


def one_step(*outcomes):
    """One group of episodes of a single step."""
    return pad([[[outcome] for outcome in outcomes]])


def advantages_of(*outcomes, **kwargs):
    return group_advantages(*one_step(*outcomes), **kwargs)[0, :, 0].tolist()


# --- Numbers from lecture notes -----------------------------------------------------------------------------------------


def test_golden_sample_standard_deviation():
    # Mean 151/30, deviations -37/30, 5/30, 32/30, sum of squares 2418/900: the notes' -1.06, 0.14, 0.92 are of the sample
    std = math.sqrt(2418 / 900 / 2)
    exact = [-37 / 30 / std, 5 / 30 / std, 32 / 30 / std]
    assert advantages_of(3.8, 5.2, 6.1) == pytest.approx(exact, abs=1e-5)
    assert [round(a, 2) for a in advantages_of(3.8, 5.2, 6.1)] == [-1.06, 0.14, 0.92]


def test_golden_outcome_is_shared_by_all_steps_of_an_episode():
    # As in the notes, a score at the end of episodes of 5, 6 and 8 steps; the length does not enter
    rewards, mask = pad([[[0] * 4 + [3.8], [0] * 5 + [5.2], [0] * 7 + [6.1]]])
    advantages = group_advantages(rewards, mask)[0]
    for row, length, value in zip(advantages, (5, 6, 8), (-1.06, 0.14, 0.92), strict=True):
        assert row[:length].tolist() == pytest.approx([value] * length, abs=5e-3)
        assert row[length:].tolist() == [0.0] * (8 - length)


def test_golden_population_standard_deviation():
    # Rewards 2, 10, 3: mean 5, population variance 38/3, standard deviation 3.559. The sample's is larger, by the root of 3/2
    advantages = [a * math.sqrt(3 / 2) for a in advantages_of(2, 10, 3)]
    assert advantages == pytest.approx([-0.8429, 1.4049, -0.5620], abs=5e-5)
    # Some lecture notes round the standard deviation to 3.5 before dividing and obtain -0.86, 1.43, -0.57
    rounded = [a * math.sqrt(38 / 3) / 3.5 for a in advantages]
    assert [round(a, 2) for a in rounded] == [-0.86, 1.43, -0.57]
    # Sample standard deviation: variance 19
    assert advantages_of(2, 10, 3) == pytest.approx([-3 / 19**0.5, 5 / 19**0.5, -2 / 19**0.5], abs=1e-5)


# --- Dead groups --------------------------------------------------------------------------------------------------------


def test_live_groups():
    outcomes = th.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])
    assert live_groups(outcomes).tolist() == [False, True, True, False]
    zero_one = outcomes > 0
    assert live_groups(zero_one).tolist() == [False, True, True, False]
    # Exact equality: the smallest difference counts, as it would in the advantages
    assert live_groups(th.tensor([[0.1, 0.1], [0.1, math.nextafter(0.1, 1)]], dtype=th.float64)).tolist() == [False, True]
    with pytest.raises(ValueError, match="at least 2 members"):
        live_groups(th.ones(3, 1))
    with pytest.raises(ValueError, match="groups, members"):
        live_groups(th.ones(3))


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_group_of_equals_gets_exactly_zero(kind, scale, leave_one_out):
    # The mean of a few times 0.1 is not 0.1 in floating point: divided by eps the difference would be large
    for members in (3, 5, 6, 7):
        for value in (0.1, 0.7, 1.3, 1e5 + 0.1):
            rewards, mask = pad([[[value]] * members])
            assert not group_advantages(rewards, mask, kind=kind, scale=scale, leave_one_out=leave_one_out).any()
    # Next to a live group, and with equal members of several steps
    rewards, mask = pad([[[0.1, 0.3]] * 3, [[0.1, 0.3], [0.2, 0.1], [1.0, 0.1]]])
    advantages = group_advantages(rewards, mask, kind=kind, scale=scale, leave_one_out=leave_one_out)
    assert advantages[1].any()
    if kind != "process":  # its rewards differ between the steps, which normalising sees
        assert not advantages[0].any()


# --- Returns ------------------------------------------------------------------------------------------------------------


def test_discounted_returns_by_hand():
    rewards, mask = pad([[[1, 2, 4], [8]]])
    # From the end: 4, 2 + 0.5 * 4 = 4, 1 + 0.5 * 4 = 3
    assert discounted_returns_to_go(rewards, mask, 0.5).tolist() == [[[3, 4, 4], [8, 0, 0]]]
    assert discounted_returns_to_go(rewards, mask, 1.0).tolist() == [[[7, 6, 4], [8, 0, 0]]]
    assert discounted_returns_to_go(rewards, mask, 0.0).tolist() == [[[1, 2, 4], [8, 0, 0]]]
    for gamma in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="gamma"):
            discounted_returns_to_go(rewards, mask, gamma)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 64])
def test_discounted_returns_match_recursion(gamma, steps):
    generator = th.Generator().manual_seed(steps)
    rewards = th.randn(2, 3, steps, generator=generator, dtype=th.float64)
    original = rewards.clone()
    lengths = th.randint(1, steps + 1, (2, 3, 1), generator=generator)
    mask = th.arange(steps) < lengths
    returns = discounted_returns_to_go(rewards, mask, gamma)
    expected, running = th.zeros_like(rewards), th.zeros(2, 3, dtype=th.float64)
    for t in reversed(range(steps)):
        running = rewards[..., t] * mask[..., t] + gamma * running
        expected[..., t] = running
    th.testing.assert_close(returns, expected * mask, rtol=1e-12, atol=1e-12)
    assert th.equal(rewards, original), "the input must not be written to"


# --- The three kinds ----------------------------------------------------------------------------------------------------


def test_outcome_is_the_discounted_return_of_the_first_step():
    # Returns with gamma = 0.5: 1 + 0.5 * 2 = 2 and 4; deviations -1, 1
    rewards, mask = pad([[[1, 2], [4]]])
    assert group_advantages(rewards, mask, gamma=0.5, scale="none").tolist() == [[[-1, -1], [1, 0]]]


def test_process_by_hand():
    # Step rewards 1, 2, 3 and 6: mean 3, deviations -2, -1, 0, 3, sum of squares 14
    rewards, mask = pad([[[1, 2, 3], [6]]])
    assert group_advantages(rewards, mask, kind="process", scale="none").tolist() == [[[-3, -1, 0], [3, 0, 0]]]
    expected = th.tensor([[[-3.0, -1.0, 0.0], [3.0, 0.0, 0.0]]]) / math.sqrt(14 / 3)
    th.testing.assert_close(group_advantages(rewards, mask, kind="process"), expected)
    # gamma = 0.5: -2 + 0.5 * -1 + 0.25 * 0
    assert group_advantages(rewards, mask, kind="process", scale="none", gamma=0.5)[0, 0].tolist() == [-2.5, -1, 0]
    # Leave-one-out: the means over the other member's steps are 6 for the first and 2 for the second
    leave_one_out = group_advantages(rewards, mask, kind="process", scale="none", leave_one_out=True)
    th.testing.assert_close(leave_one_out, th.tensor([[[-12.0, -7.0, -3.0], [4.0, 0.0, 0.0]]]))


def test_return_to_go_by_hand():
    # gamma = 0.5, returns-to-go: A 3, 4, 4; B 3, 2; C 6. Means over those alive: 4 (A, B, C), 3 (A, B), 4 (A alone)
    rewards, mask = pad([[[1, 2, 4], [2, 2], [6]]])
    kwargs = {"kind": "return_to_go", "gamma": 0.5}
    plain = th.tensor([[[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0], [2.0, 0.0, 0.0]]])
    th.testing.assert_close(group_advantages(rewards, mask, scale="none", **kwargs), plain)
    # Six existing steps, sum of squares 1 + 1 + 1 + 1 + 4 = 8
    th.testing.assert_close(group_advantages(rewards, mask, **kwargs), plain / math.sqrt(8 / 5))
    # Leave-one-out: others' means at step 0 are 4.5, 4.5, 3, at step 1 2 and 4; alone there is nobody to compare with
    others = th.tensor([[[-1.5, 2.0, 0.0], [-1.5, -2.0, 0.0], [3.0, 0.0, 0.0]]])
    th.testing.assert_close(group_advantages(rewards, mask, scale="none", leave_one_out=True, **kwargs), others)


# --- Baseline and scale -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_leave_one_out_is_plain_times_group_over_group_minus_one(scale):
    plain = advantages_of(2, 10, 3, scale=scale)
    assert advantages_of(2, 10, 3, scale=scale, leave_one_out=True) == pytest.approx([1.5 * a for a in plain], rel=1e-6)
    # By hand: the others' means are 6.5, 2.5, 6
    assert advantages_of(2, 10, 3, scale="none", leave_one_out=True) == pytest.approx([-4.5, 7.5, -3.0])


def test_scales_by_hand():
    # Deviations -1, 1 | -3, 3; sums of squares 2 and 18
    rewards, mask = pad([[[9], [11]], [[0], [6]]])

    def scaled(scale):
        return group_advantages(rewards, mask, scale=scale).flatten().tolist()

    assert scaled("none") == [-1, 1, -3, 3]
    assert scaled("group") == pytest.approx([-(0.5**0.5), 0.5**0.5, -(0.5**0.5), 0.5**0.5])
    # The batch's spread is around the means of the groups: 20 / 3, though the raw rewards are 9, 11, 0, 6
    assert scaled("batch") == pytest.approx([x / (20 / 3) ** 0.5 for x in (-1, 1, -3, 3)])


def test_eps_bounds_the_amplification():
    assert advantages_of(0, 2, eps=1.0) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


# --- Padding and input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_matters(kind, scale, leave_one_out):
    episodes = [[[1, 2, 4], [2, -2], [6]], [[0.5], [0.25, 3, 1, 0], [0, 0, 1]]]
    kwargs = {"kind": kind, "scale": scale, "leave_one_out": leave_one_out, "gamma": 0.9}
    tight = group_advantages(*pad(episodes), **kwargs)
    for padding in (0.0, 1e3, math.nan, -math.inf):
        rewards, mask = pad(episodes, length=11, padding=padding)
        loose = group_advantages(rewards, mask, **kwargs)
        th.testing.assert_close(loose[..., :4], tight, rtol=1e-6, atol=1e-6)
        assert not loose[~mask].any()


def test_malformed_input_is_refused():
    rewards, mask = one_step(1, 2)

    def refused(match, rewards=rewards, mask=mask, **kwargs):
        with pytest.raises(ValueError, match=match):
            group_advantages(rewards, mask, **kwargs)

    refused("outcome, process, return_to_go", kind="vtrace")
    refused("group, batch, none", scale="std")
    refused("group, batch, none", kind="process", scale="std")
    refused("gamma", gamma=1.5)
    refused("at least 2 members", rewards[:, :1], mask[:, :1])
    refused(r"\(B, G, T\)", rewards[0], mask[0])
    refused(r"\(B, G, T\)", rewards, mask[:, :1])
    refused("floating point", rewards.long())
    refused("mask bool", mask=mask.long())
    refused("finite", rewards * math.nan)
    refused("finite", rewards * math.inf)
    refused("at least one step", mask=~mask)
    refused("at least one step", mask=th.tensor([[[True], [False]]]))
    gap = th.tensor([[[True, False, True], [True, True, True]]])
    refused("first to the last step", th.zeros(1, 2, 3), gap)
    refused("first to the last step", th.zeros(1, 2, 3), ~gap)


def test_gae_by_hand():
    residuals = th.tensor([[[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]]], dtype=th.float64)
    mask = th.tensor([[[True, True, True], [True, False, False]]])
    kwargs = {"kind": "gae", "gamma": 0.5, "scale": "none"}
    # The estimates are 3, 4, 4 and 8; their mean is 4.75
    assert group_advantages(residuals, mask, **kwargs).tolist() == [[[-1.75, -0.75, -0.75], [3.25, 0, 0]]]
    expected = th.tensor([[[-5.0, -4.0, -4.0], [8.0 - 11 / 3, 0, 0]]], dtype=th.float64)
    th.testing.assert_close(group_advantages(residuals, mask, leave_one_out=True, **kwargs), expected)
    # A member that is alone at the end has a signal there, which the mean over those alive would take away
    assert group_advantages(residuals, mask, **kwargs)[0, 0, 2] != 0
    assert group_advantages(residuals, mask, **kwargs | {"kind": "return_to_go"})[0, 0, 2] == 0


def test_maxrl_by_hand() -> None:
    # prime-rl: (r - mean) / mean, 0 where no member succeeds
    outcomes = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.5]]
    expected = [[3.0, -1.0, -1.0, -1.0], [0.0] * 4, [0.0] * 4, [0.0, 1.0, -1.0, 0.0]]
    assert [advantages_of(*each, kind="maxrl", scale="batch") for each in outcomes] == expected
    for negative in ([-1.0, 0.0], [-1.0, 1.0]):
        with pytest.raises(
            ValueError, match=r"divides by the mean return of each group, and one has (-0\.5|0): it is for rewards"
        ):
            advantages_of(*negative, kind="maxrl")
