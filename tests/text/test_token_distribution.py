"""Log probabilities, entropy and KL divergence from hidden states, in pieces."""

import math
from typing import Any

import numpy as np
import pytest
import torch as th
from digit_texts import LENGTH, make_policy
from torch.distributions import Categorical, kl_divergence

from sb3_grpo.common.kl import exact_kl
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.text import token_distribution
from sb3_grpo.text.token_distribution import TokenDistribution, nucleus
from sb3_grpo.text.tokens import PAD

N_TOKENS = 11


class Case:
    """Hidden states and a head with spare rows, in double precision."""

    def __init__(self) -> None:
        th.manual_seed(0)
        self.head = th.nn.Linear(5, N_TOKENS + 3, dtype=th.float64)
        self.ref_head = th.nn.Linear(5, N_TOKENS + 3, dtype=th.float64).requires_grad_(False)
        self.hidden = th.randn(9, 5, dtype=th.float64, requires_grad=True)
        self.actions = th.randint(N_TOKENS, (9,))
        self.weights = th.randn(3, 9, dtype=th.float64)

    def make(self, head: Any = None, **kwargs: Any) -> TokenDistribution:
        return TokenDistribution(self.hidden, head or self.head, N_TOKENS, **kwargs)

    def logits(self, head: Any = None) -> th.Tensor:
        return (head or self.head)(self.hidden)[:, :N_TOKENS]

    def gradient(self, *terms: th.Tensor) -> th.Tensor:
        total = sum((weights * term).sum() for weights, term in zip(self.weights, terms, strict=False))
        return th.cat([each.flatten() for each in th.autograd.grad(total, [self.hidden, *self.head.parameters()])])


@pytest.fixture(params=["one piece", "pieces"])
def case(request: Any, monkeypatch: pytest.MonkeyPatch) -> Case:
    if request.param == "pieces":
        monkeypatch.setattr(token_distribution, "PIECE_BYTES", 3 * 4 * N_TOKENS)
        monkeypatch.setattr(token_distribution, "_BLOCK_BYTES", 2 * 4 * N_TOKENS)
    return Case()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_a_categorical(case: Case, temperature: float) -> None:
    made, reference = case.make(temperature=temperature), case.make(case.ref_head, temperature=temperature)
    plain, ref = (Categorical(logits=case.logits(head) / temperature) for head in (case.head, case.ref_head))
    expected = plain.log_prob(case.actions), plain.entropy(), kl_divergence(plain, Categorical(logits=ref.logits.detach()))
    terms = made.log_prob(case.actions), made.entropy(), exact_kl(made, reference)
    for term, wanted in zip(terms, expected, strict=True):
        th.testing.assert_close(term, wanted)
    th.testing.assert_close(case.gradient(*terms), case.gradient(*expected))
    th.testing.assert_close(case.make(temperature=temperature).entropy(), expected[1])


@pytest.mark.parametrize("top_p", [0.3, 0.7, 0.95])
def test_within_the_nucleus_probabilities_add_up_to_one(case: Case, top_p: float) -> None:
    plain = (case.logits() / 0.7).log_softmax(-1)
    kept = nucleus(plain, top_p)
    action_kept = kept.gather(1, case.actions[:, None]).squeeze(1)
    assert action_kept.any() and not action_kept.all(), "both cases"
    restricted = plain.masked_fill(~kept, -math.inf).log_softmax(-1)
    expected = th.where(action_kept[:, None], restricted, plain).gather(1, case.actions[:, None]).squeeze(1)
    made = case.make(temperature=0.7, top_p=top_p)
    log_prob = made.log_prob(case.actions)
    th.testing.assert_close(log_prob, expected)
    th.testing.assert_close(made.entropy(), Categorical(logits=plain).entropy())
    # where() would give NaN for the gradient of what it does not choose
    chosen = th.where(action_kept[:, None] & ~kept, -1e30, plain).log_softmax(-1).gather(1, case.actions[:, None]).squeeze(1)
    th.testing.assert_close(
        case.gradient(log_prob, made.entropy()), case.gradient(chosen, Categorical(logits=plain).entropy())
    )


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [1, 0, 0, 0]), (0.5, [1, 0, 0, 0]), (0.51, [1, 1, 1, 0]), (0.95, [1, 1, 1, 1]), (1.0, [1, 1, 1, 1])],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, kept: list[int]) -> None:
    log_probs = th.tensor([[0.5, 0.2, 0.2, 0.1]], dtype=th.float64).log()
    assert nucleus(log_probs, top_p).int().tolist() == [kept]


def test_without_logits_nothing_is_sampled_that_could_be_taken_for_a_token() -> None:
    distribution = TokenDistribution(th.full((3, 5), th.nan), th.nn.Linear(5, N_TOKENS), N_TOKENS)
    with unchecked_distributions():  # as in rollouts
        tokens, log_prob = token_distribution.choose_tokens(distribution, deterministic=False)
    assert (tokens < N_TOKENS).all() and log_prob.isnan().all()


def test_another_backward_pass_raises_an_error() -> None:
    case = Case()
    log_prob = case.make().log_prob(case.actions).sum()
    log_prob.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_prob.backward()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.6)])
@th.inference_mode()
def test_what_is_sampled_has_the_log_probability_of_the_update(temperature: float, top_p: float) -> None:
    policy = make_policy(temperature=temperature, top_p=top_p)
    observations = np.full((4000, LENGTH), PAD)
    observations[:, :3] = [3, 7, 1]
    actions, log_prob, *_ = policy.action_sampler()(observations)
    distribution = policy.get_distribution(th.as_tensor(observations[:1]))
    every = th.arange(distribution.action_dim)
    probs = policy._get_action_dist_from_latent(distribution.hidden.expand(len(every), -1)).log_prob(every).exp()
    th.testing.assert_close(log_prob, probs.log()[actions], rtol=0, atol=1e-5)
    plain = make_policy().get_distribution(th.as_tensor(observations[:1])).distribution.logits[0]
    kept = nucleus((plain / temperature).log_softmax(-1)[None], top_p)[0]
    assert kept[actions].all()
    frequencies = np.bincount(actions, minlength=len(every)) / len(actions)
    np.testing.assert_allclose(frequencies, probs.where(kept, th.zeros(())), atol=0.03)
    sampled, _ = policy.predict(observations, deterministic=False)
    assert kept[sampled].all()
