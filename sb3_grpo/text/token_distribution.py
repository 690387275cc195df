"""
Distribution over the next token, without the logits of all steps in memory at once.

A language model has 10^5 logits per step, 100 times as many as there are numbers in a hidden state. Log probabilities,
entropies and KL divergences are therefore computed from hidden states in pieces, in the forward as in the backward pass.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch as th
from stable_baselines3.common.distributions import CategoricalDistribution
from torch.autograd.function import once_differentiable
from torch.distributions import Categorical
from torch.utils.checkpoint import checkpoint

# Memory for the logits of one piece, and for each temporary array made from some of its rows
PIECE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20


def nucleus(log_probs: th.Tensor, top_p: float) -> th.Tensor:
    """
    The nucleus (arXiv:1904.09751, sec. 3.1): the most likely tokens whose probabilities add up to ``top_p``.

    :param log_probs: (n, V) log probabilities
    :param top_p: Probability of the nucleus, at least
    :return: (n, V) whether a token belongs to it. All tokens as likely as its least likely one do
    """
    descending = log_probs.sort(dim=-1, descending=True).values
    n_before = (descending.exp().cumsum(dim=-1) < top_p).sum(dim=-1, keepdim=True)
    return log_probs >= descending.gather(-1, n_before.clamp(max=log_probs.shape[-1] - 1))


def within_nucleus(log_probs: th.Tensor, top_p: float) -> th.Tensor:
    """
    :param log_probs: (n, V) log probabilities
    :param top_p: See :func:`nucleus`
    :return: (n, V) log probabilities given that the token is in the nucleus
    """
    return log_probs.masked_fill(~nucleus(log_probs, top_p), -math.inf).log_softmax(dim=-1)


def choose_tokens(distribution: Any, deterministic: bool) -> tuple[th.Tensor, th.Tensor]:
    """
    :param distribution: Distributions over n next tokens
    :param deterministic: Whether to choose the most likely token
    :return: (n,) tokens, and (n,) their log probabilities
    """
    log_probs = distribution.distribution.logits
    top_p = getattr(distribution, "top_p", 1.0)
    if top_p < 1.0:
        log_probs = within_nucleus(log_probs, top_p)
    if deterministic:
        tokens = log_probs.argmax(dim=-1)
    else:
        tokens = th.cat([_draw(log_probs[rows]) for rows in _blocks(log_probs)])
    return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)


def _draw(log_probs: th.Tensor) -> th.Tensor:
    """
    :param log_probs: (n, V) log probabilities
    :return: (n,) tokens, by the inverse of the cumulative distribution: a third of the time of a multinomial
    """
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=th.float64)
    drawn = th.rand((len(log_probs), 1), dtype=th.float64, device=log_probs.device) * cumulative[:, -1:]
    # With NaN there is no token: the log probability says so
    return th.searchsorted(cumulative, drawn, right=True).squeeze(1).clamp(max=log_probs.shape[1] - 1)


class TokenDistribution(CategoricalDistribution):
    """
    Distributions over the next token in M texts.

    Tokens are sampled from softmax(logits / temperature), restricted to its nucleus if ``top_p`` < 1, and ``log_prob`` is that
    of what is sampled from. A token outside of the nucleus, as may happen once the policy has changed, keeps its probability
    before the restriction. The gradient is for a given nucleus. Entropy and KL divergence are those before the restriction.

    :param hidden: (M, width) hidden states
    :param head: Function from hidden states to new logits, of which there may be more than tokens. The backward pass
        overwrites them
    :param n_tokens: Number of tokens V
    :param temperature: Divisor of the logits
    :param top_p: Probability of the nucleus
    """

    def __init__(
        self,
        hidden: th.Tensor,
        head: Callable[[th.Tensor], th.Tensor],
        n_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ):
        # Not super().__init__(), which sets distribution
        self.action_dim = n_tokens
        self.hidden = hidden
        self.head = head
        self.temperature = temperature
        self.top_p = top_p
        self._entropy: th.Tensor | None = None

    @functools.cached_property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """All logits, for as few steps as in a rollout."""
        return Categorical(logits=_scaled(self.head(self.hidden)[..., : self.action_dim], self.temperature))

    def proba_distribution(self, action_logits: th.Tensor) -> CategoricalDistribution:  # type: ignore[override]
        """
        :param action_logits: (M, V) other logits, e.g. with a mask
        :return: The distribution with these
        """
        return CategoricalDistribution(self.action_dim).proba_distribution(action_logits)

    def sample(self) -> th.Tensor:
        return choose_tokens(self, deterministic=False)[0]

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: (M,) tokens
        :return: (M,) their log probabilities
        """

        def of_piece(rows: slice) -> tuple[th.Tensor, th.Tensor]:
            logits = self.head(self.hidden[rows])
            return _LogProbAndEntropy.apply(logits, actions[rows], self.action_dim, self.temperature, self.top_p)

        log_prob, self._entropy = self._in_pieces(of_piece)
        return log_prob

    def entropy(self) -> th.Tensor:
        """
        :return: (M,) entropies, in nats
        """
        if self._entropy is None or (th.is_grad_enabled() and not self._entropy.requires_grad):
            self.log_prob(th.zeros(len(self.hidden), dtype=th.int64, device=self.hidden.device))
        assert self._entropy is not None
        return self._entropy

    def exact_kl(self, reference: "TokenDistribution") -> th.Tensor:
        """
        :param reference: Distributions over the next token in the same texts, without gradient
        :return: (M,) KL divergence from the reference, in nats
        """

        def of_piece(rows: slice) -> tuple[th.Tensor]:
            with th.no_grad():
                ref_logits = reference.head(reference.hidden[rows])
            logits = self.head(self.hidden[rows])
            return (_KLDivergence.apply(logits, ref_logits, self.action_dim, self.temperature),)

        return self._in_pieces(of_piece, n_logits=2)[0]

    def _in_pieces(self, function: Callable[[slice], tuple[th.Tensor, ...]], n_logits: int = 1) -> tuple[th.Tensor, ...]:
        """
        :param function: Function of the rows of a piece
        :param n_logits: How many logits it needs for each token
        :return: Its results for all rows. Only those are kept for the backward pass, which computes each piece anew
        """
        n_rows = max(1, PIECE_BYTES // (4 * self.action_dim * n_logits))
        if len(self.hidden) <= n_rows:
            return function(slice(None))
        begins = range(0, len(self.hidden), n_rows)
        pieces = [checkpoint(function, slice(begin, begin + n_rows), use_reentrant=False) for begin in begins]
        return tuple(th.cat(each) for each in zip(*pieces, strict=True))


def _scaled(logits: th.Tensor, temperature: float) -> th.Tensor:
    """
    :param logits: Logits of any precision
    :param temperature: Their divisor
    :return: The scaled logits, at least in single precision
    """
    return logits.to(th.promote_types(logits.dtype, th.float32)) / temperature


def _blocks(logits: th.Tensor) -> Iterator[slice]:
    """
    :param logits: (n, V)
    :return: Slices of its rows, small enough for temporary arrays
    """
    size = max(1, _BLOCK_BYTES // (4 * logits.shape[1]))
    return (slice(begin, begin + size) for begin in range(0, len(logits), size))


def _overwrite(logits: th.Tensor, n_tokens: int, gradient: Callable[[slice], th.Tensor]) -> th.Tensor:
    """
    Replace the logits, which are needed no longer, by their gradient. Another backward pass raises PyTorch's error.

    :param logits: (n, V') logits
    :param n_tokens: V, of which the others are not used
    :param gradient: Function from rows to the gradient of their logits, (rows, V)
    :return: The gradient
    """
    for rows in _blocks(logits):
        logits[rows, :n_tokens] = gradient(rows)
    logits[:, n_tokens:] = 0.0
    return logits


class _LogProbAndEntropy(th.autograd.Function):
    """Of the tokens of one piece. See :class:`TokenDistribution`."""

    @staticmethod
    def forward(
        ctx: Any, logits: th.Tensor, actions: th.Tensor, n_tokens: int, temperature: float, top_p: float
    ) -> tuple[th.Tensor, th.Tensor]:
        parts = []
        for rows in _blocks(logits):
            scaled = _scaled(logits[rows, :n_tokens], temperature)
            total = scaled.logsumexp(dim=-1, keepdim=True)
            log_probs = scaled.sub_(total)
            log_prob = log_probs.gather(1, actions[rows, None])
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1, keepdim=True)
            # What is renormalised: the nucleus if it has the action, otherwise all tokens
            least, mass = th.full_like(total, -math.inf), th.zeros_like(total)
            if top_p < 1.0:
                inside = nucleus(log_probs, top_p)
                has_action = inside.gather(1, actions[rows, None])
                lowest = log_probs.masked_fill(~inside, math.inf).amin(dim=-1, keepdim=True)
                least = lowest.where(has_action, least)
                mass = log_probs.masked_fill(~inside, -math.inf).logsumexp(dim=-1, keepdim=True).where(has_action, mass)
            parts.append(th.cat([log_prob - mass, entropy, total, least, mass], dim=1))
        log_prob, entropy, total, least, mass = th.cat(parts).unbind(1)
        ctx.save_for_backward(logits, actions, entropy, total, least, mass)
        ctx.settings = n_tokens, temperature
        return log_prob.contiguous(), entropy.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_prob: th.Tensor, grad_entropy: th.Tensor) -> Any:
        logits, actions, *columns = ctx.saved_tensors
        n_tokens, temperature = ctx.settings

        def gradient(rows: slice) -> th.Tensor:
            # d log p(a) / dz = 1[a] - p, over what is renormalised; dH / dz = -p (log p + H)
            entropy, total, least, mass, of_log_prob, of_entropy = (
                each[rows, None] for each in (*columns, grad_log_prob, grad_entropy)
            )
            log_probs = _scaled(logits[rows, :n_tokens], temperature).sub_(total)
            probs = log_probs.exp()
            wanted = -of_entropy * probs * (log_probs + entropy)
            wanted -= of_log_prob * (probs / mass.exp()).masked_fill_(log_probs < least, 0.0)
            wanted.scatter_add_(1, actions[rows, None], of_log_prob)
            return wanted.div_(temperature)

        return _overwrite(logits, n_tokens, gradient), None, None, None, None


class _KLDivergence(th.autograd.Function):
    """Of one piece. See :meth:`TokenDistribution.exact_kl`."""

    @staticmethod
    def forward(ctx: Any, logits: th.Tensor, ref_logits: th.Tensor, n_tokens: int, temperature: float) -> th.Tensor:
        parts = []
        for rows in _blocks(logits):
            log_probs, ref = (_scaled(each[rows, :n_tokens], temperature).log_softmax(-1) for each in (logits, ref_logits))
            parts.append((log_probs.exp() * (log_probs - ref)).sum(dim=-1))
        kl = th.cat(parts)
        ctx.save_for_backward(logits, ref_logits, kl)
        ctx.settings = n_tokens, temperature
        return kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_kl: th.Tensor) -> Any:
        logits, ref_logits, kl = ctx.saved_tensors
        n_tokens, temperature = ctx.settings

        def gradient(rows: slice) -> th.Tensor:
            # dKL / dz = p (log p - log ref - KL)
            log_probs, ref = (_scaled(each[rows, :n_tokens], temperature).log_softmax(-1) for each in (logits, ref_logits))
            return grad_kl[rows, None] * log_probs.exp() * (log_probs - ref - kl[rows, None]) / temperature

        return _overwrite(logits, n_tokens, gradient), None, None, None
