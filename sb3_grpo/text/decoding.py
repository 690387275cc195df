"""Reading texts token by token with a key/value cache, for rollouts where each step brings the observations of N texts."""

from typing import Protocol

import numpy as np
import torch as th

from sb3_grpo.text.tokens import PAD, check_token_ids, distinct_rows, token_lengths
from sb3_grpo.utils.devices import to_device


class SlotCache:
    """
    Keys and values of N texts that are at different positions, in ``n_slots`` rows of one buffer per layer.

    Slots are written one by one or many at once, each at its own positions. Nothing beyond a position is ever attended to, so
    a slot can be reused without being cleared.

    :param n_slots: Number of texts N
    :param length: Maximum number of tokens per text
    """

    def __init__(self, n_slots: int, length: int):
        self.n_slots = n_slots
        self.length = length
        self._layers: list[tuple[th.Tensor, th.Tensor]] = []
        self._slots: th.Tensor | None = None
        self._rows = th.empty(0)
        self._positions = th.empty(0)
        self._end = 0
        self.mask = th.empty(0)

    def begin(self, slots: th.Tensor | None, positions: th.Tensor, end: int) -> None:
        """
        Prepare the next forward pass.

        :param slots: (n,) slots that it writes, ``None`` for all
        :param positions: (n, t) positions of its tokens in the texts
        :param end: Upper bound of the positions, exclusive
        """
        self._slots, self._positions, self._end = slots, positions, end
        self._rows = (th.arange(self.n_slots, device=positions.device) if slots is None else slots)[:, None]
        places = th.arange(end, device=positions.device)
        self.mask = (places <= positions[..., None])[:, None]

    def update(self, layer: int, keys: th.Tensor, values: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Write the new keys and values.

        :param layer: Index of the layer
        :param keys: (n, heads, t, size) new keys
        :param values: (n, heads, t, size) new values
        :return: (n, heads, end, size) keys and values, to attend to where ``mask`` (n, 1, t, end) is True
        """
        if layer == len(self._layers):
            shape = (self.n_slots, self.length, keys.shape[1], keys.shape[3])
            # Zeros, as masked values may be anything except NaN
            self._layers.append((keys.new_zeros(shape), values.new_zeros(shape)))
        return self._write(self._layers[layer][0], keys), self._write(self._layers[layer][1], values)

    def _write(self, buffer: th.Tensor, new: th.Tensor) -> th.Tensor:
        buffer[self._rows, self._positions] = new.transpose(1, 2)
        written = buffer[:, : self._end]
        # Much faster than buffer[slots]
        return (written if self._slots is None else written.index_select(0, self._slots)).transpose(1, 2)

    def keep(self, slots: th.Tensor) -> None:
        """
        :param slots: (n,) the slots to keep, which become the first ones
        """
        self.n_slots = len(slots)
        self._layers = [(keys.index_select(0, slots), values.index_select(0, slots)) for keys, values in self._layers]

    def copy(self, source: th.Tensor, target: th.Tensor, end: int) -> None:
        """
        Copy the beginning of some slots to others.

        :param source: (n,) slots to copy from
        :param target: (n,) slots to copy to
        :param end: Number of tokens to copy
        """
        for buffers in self._layers:
            for buffer in buffers:
                written = buffer[:, :end]
                written.index_copy_(0, target, written.index_select(0, source))


class SequenceModel(Protocol):
    """Interface of the network of a text policy: our own transformer, or a pretrained language model."""

    def __call__(
        self, tokens: th.Tensor, positions: th.Tensor, mask: th.Tensor | None = None, cache: SlotCache | None = None
    ) -> th.Tensor:
        """
        :param tokens: (n, t) token ids
        :param positions: (n, t) their positions in the text, 0 to t - 1 without a mask
        :param mask: (n, 1, t, keys) which keys each token attends to. ``None``: all tokens up to its own
        :param cache: Cache of the earlier tokens, for which ``begin`` was called. ``None``: there are none
        :return: (n, t, width) hidden states of the last layer
        """


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
        self._cache = SlotCache(0, 0)
        self._read = np.empty((0, 0), np.int64)  # (N, L) the tokens in the cache
        self._n_read = np.empty(0, np.int64)

    def __call__(self, observations: np.ndarray) -> th.Tensor:
        """
        :param observations: (N, L) token ids padded on the right, at least one token each
        :return: (N, width) hidden states of the last tokens
        """
        check_token_ids(observations)
        if observations.shape != self._read.shape:
            self._cache = SlotCache(*observations.shape)
            self._read = np.full(observations.shape, PAD)
            self._n_read = np.zeros(len(observations), np.int64)
        lengths = token_lengths(observations)
        changed = (observations != self._read) & (np.arange(observations.shape[1]) < self._n_read[:, None])
        # The hidden state of the last token is needed, so it is read again if no token is new
        begin = np.where(changed.any(axis=1), 0, np.minimum(self._n_read, lengths - 1))
        self._read, self._n_read = observations.copy(), lengths

        goes_on, one = begin > 0, lengths - begin == 1
        if (goes_on & one).all():
            return self._feed(None, observations, begin)
        new = np.flatnonzero(~goes_on)
        first, same = distinct_rows(observations[new])  # a prompt shared by the members of a group is read once
        parts = [np.flatnonzero(goes_on & one), np.flatnonzero(goes_on & ~one), new[first]]
        hidden = th.cat([self._feed(slots, observations[slots], begin[slots]) for slots in parts if len(slots) > 0])
        row = np.empty(len(observations), np.int64)
        row[np.concatenate(parts)] = np.arange(len(hidden))
        row[new] = row[new[first]][same]
        if len(first) < len(new):
            source, target = (to_device(each, self.device) for each in (new[first][same], new))
            self._cache.copy(source, target, int(lengths[new].max()))
        return hidden[to_device(row, self.device)]

    def keep(self, rows: np.ndarray) -> None:
        """
        :param rows: (n,) indices of the texts that will still be read, in this order
        """
        self._cache.keep(to_device(rows, self.device))
        self._read, self._n_read = self._read[rows], self._n_read[rows]

    def _feed(self, slots: np.ndarray | None, texts: np.ndarray, begin: np.ndarray) -> th.Tensor:
        """
        Read texts from ``begin`` on. If one has fewer new tokens than another, meaningless tokens are read in their place; no
        token attends to them before they are overwritten.

        :return: (n, width) hidden states of the last tokens
        """
        last = token_lengths(texts) - 1 - begin
        # A long text continues next to a short one: none may read beyond the end
        positions = np.minimum(begin[:, None] + np.arange(last.max() + 1), texts.shape[1] - 1)
        tokens = np.take_along_axis(texts, positions, axis=1).clip(min=0)
        places = to_device(positions, self.device)
        self._cache.begin(None if slots is None else to_device(slots, self.device), places, int(positions.max()) + 1)
        hidden = self.network(to_device(tokens, self.device), places, self._cache.mask, self._cache)
        return hidden[th.arange(len(texts), device=self.device), to_device(last, self.device)]
