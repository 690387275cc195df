"""Soft overlong punishment."""

import pytest
import torch as th

from sb3_grpo.common.rewards import soft_overlong_penalty


def test_penalty_by_hand():
    # Free up to 16, falling over 4 steps, full from 20 on
    lengths = th.tensor([[1, 15, 16, 17], [18, 19, 20, 21]])
    expected = th.tensor([[0.0, 0.0, 0.0, -0.25], [-0.5, -0.75, -1.0, -1.0]])
    th.testing.assert_close(soft_overlong_penalty(lengths, max_length=20, cache_length=4), expected)
    th.testing.assert_close(soft_overlong_penalty(lengths.double(), 20, 4), expected.double())


def test_penalty_with_the_numbers_of_the_paper():
    # Expected maximum 16384 tokens, cache 4096, generation stopped at 20480
    lengths = th.tensor([16384, 18432, 20480, 30000])
    assert soft_overlong_penalty(lengths, 20480, 4096).tolist() == [0.0, -0.5, -1.0, -1.0]


def test_cache_as_long_as_the_episode():
    assert soft_overlong_penalty(th.tensor([0, 5, 10]), 10, 10).tolist() == [0.0, -0.5, -1.0]


@pytest.mark.parametrize("cache_length", [0, -1, 21])
def test_impossible_cache_is_refused(cache_length):
    with pytest.raises(ValueError, match="cache_length"):
        soft_overlong_penalty(th.tensor([1]), 20, cache_length)
