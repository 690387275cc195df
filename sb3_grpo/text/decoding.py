"""Decoding token by token with a key/value cache, for rollouts where each step brings the observations of N texts."""

import numpy as np
import torch as th

from sb3_grpo.text.tokens import PAD, distinct_rows, token_lengths
from sb3_grpo.text.transformer import SequenceModel, SlotCache
from sb3_grpo.utils.devices import to_device


class CachedReader:
    """
    Reads the observations of N texts at each step, but only the new tokens of each text.

    The tokens already read are stored and compared with each observation: a text that does not continue the previous one
    (another episode, another environment) is read from its beginning. As long as the weights stay the same, the cache
    therefore changes the cost and nothing else. All of this is decided on the host, where the observations come from, without
    waiting for the device.

    :param network: The network
    :param device: PyTorch device of the network
    """

    def __init__(self, network: SequenceModel, device: th.device):
        self.network = network
        self.device = device
        self._cache: SlotCache | None = None
        self._read = np.empty((0, 0), np.int64)  # (N, L) the tokens in the cache
        self._n_read = np.empty(0, np.int64)

    def __call__(self, observations: np.ndarray) -> th.Tensor:
        """
        :param observations: (N, L) token ids padded on the right, at least one token each
        :return: (N, width) hidden states of the last tokens
        """
        if self._cache is None or observations.shape != self._read.shape:
            self._cache = SlotCache(*observations.shape)
            self._read = np.full(observations.shape, PAD)
            self._n_read = np.zeros(len(observations), np.int64)
        lengths = token_lengths(observations)
        changed = (observations != self._read) & (np.arange(observations.shape[1]) < self._n_read[:, None])
        # The hidden state of the last token is needed, so it is read again if no token is new
        begin = np.where(changed.any(axis=1), 0, np.minimum(self._n_read, lengths - 1))
        n_new = lengths - begin
        self._read, self._n_read = observations.copy(), lengths

        if (n_new == 1).all():
            return self._feed(self._cache, None, observations, begin, 1)
        hidden: th.Tensor | None = None
        new = begin == 0
        for slots in (np.flatnonzero(~new & (n_new == 1)), np.flatnonzero(~new & (n_new > 1)), np.flatnonzero(new)):
            if len(slots) == 0:
                continue
            read = self._read_distinct if new[slots[0]] else self._feed
            part = read(self._cache, slots, observations[slots], begin[slots], int(n_new[slots].max()))
            if hidden is None:
                hidden = part.new_empty((len(observations), part.shape[-1]))
            hidden[to_device(slots, self.device)] = part
        assert hidden is not None
        return hidden

    def _read_distinct(
        self, cache: SlotCache, slots: np.ndarray, observations: np.ndarray, begin: np.ndarray, n_tokens: int
    ) -> th.Tensor:
        """``_feed`` for texts read from their beginning: the prompt shared by the members of a group is read once."""
        first, same = distinct_rows(observations[:, :n_tokens])
        hidden = self._feed(cache, slots[first], observations[first], begin[first], n_tokens)
        if len(first) < len(slots):
            source, target = (to_device(each, self.device) for each in (slots[first][same], slots))
            cache.copy(source, target, n_tokens)
        return hidden[to_device(same, self.device)]

    def _feed(
        self, cache: SlotCache, slots: np.ndarray | None, observations: np.ndarray, begin: np.ndarray, n_tokens: int
    ) -> th.Tensor:
        """
        Read ``n_tokens`` tokens of each text. If a text has fewer, meaningless tokens are read in their place; no token
        attends to them before they are overwritten.

        :return: (n, width) hidden states of the last tokens
        """
        lengths = token_lengths(observations)
        positions = begin[:, None] + np.arange(n_tokens)
        end = int(positions.max()) + 1
        if end > observations.shape[1]:
            # A long text continues next to a new one: none may read beyond the end
            positions = np.minimum(positions, observations.shape[1] - 1)
            end = observations.shape[1]
        tokens = np.take_along_axis(observations, positions, axis=1).clip(min=0)
        on_device = [None if each is None else to_device(each, self.device) for each in (slots, positions, tokens)]
        assert on_device[1] is not None and on_device[2] is not None
        cache.begin(on_device[0], on_device[1], end)
        hidden = self.network(on_device[2], on_device[1], cache)
        if n_tokens == 1:
            return hidden[:, 0]
        last = to_device(lengths - 1 - begin, self.device)
        return hidden[th.arange(len(last), device=self.device), last]
