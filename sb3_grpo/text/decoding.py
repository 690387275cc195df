"""Reading texts token by token with a key/value cache, for rollouts where each step brings the observations of N texts."""

from typing import Protocol

import numpy as np
import torch as th

from sb3_grpo.text.tokens import PAD, check_token_ids, token_lengths
from sb3_grpo.text.tree import row_limit, token_tree
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
        self._places: th.Tensor | None = None
        self._rows = th.empty(0)
        self._positions = th.empty(0)
        self._end = 0

    def begin(self, slots: th.Tensor | None, positions: th.Tensor, end: int) -> th.Tensor:
        """
        Prepare the next forward pass over new tokens of texts.

        :param slots: (n,) slots that it writes, ``None`` for all
        :param positions: (n, t) positions of its tokens in the texts
        :param end: Upper bound of the positions, exclusive
        :return: (n, 1, t, end) which keys each token attends to
        """
        self._slots, self._places, self._positions, self._end = slots, None, positions, end
        self._rows = (th.arange(self.n_slots, device=positions.device) if slots is None else slots)[:, None]
        places = th.arange(end, device=positions.device)
        return (places <= positions[..., None])[:, None]

    def begin_tree(self, slots: th.Tensor, places: th.Tensor) -> None:
        """
        Prepare the next forward pass over a :class:`TokenTree` of whole texts.

        :param slots: (n,) slots that it writes
        :param places: (n, t) for each token of the texts, its place in the tree
        """
        self._places = places
        self._rows = slots[:, None]
        self._positions = th.arange(places.shape[1], device=places.device)

    def update(self, layer: int, keys: th.Tensor, values: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Write the new keys and values.

        :param layer: Index of the layer
        :param keys: (n, heads, t, size) new keys
        :param values: (n, heads, t, size) new values
        :return: (n, heads, end, size) keys and values to attend to
        """
        if layer == len(self._layers):
            shape = (self.n_slots, self.length, keys.shape[1], keys.shape[3])
            # Zeros, as masked values may be anything except NaN
            self._layers.append((keys.new_zeros(shape), values.new_zeros(shape)))
        return self._write(self._layers[layer][0], keys), self._write(self._layers[layer][1], values)

    def _write(self, buffer: th.Tensor, new: th.Tensor) -> th.Tensor:
        by_token = new.transpose(1, 2)
        if self._places is not None:
            buffer[self._rows, self._positions] = by_token.flatten(0, 1)[self._places]
            return new
        buffer[self._rows, self._positions] = by_token
        written = buffer[:, : self._end]
        # Much faster than buffer[slots]
        return (written if self._slots is None else written.index_select(0, self._slots)).transpose(1, 2)

    def keep(self, slots: th.Tensor) -> None:
        """
        :param slots: (n,) the slots to keep, which become the first ones
        """
        self.n_slots = len(slots)
        self._layers = [(keys.index_select(0, slots), values.index_select(0, slots)) for keys, values in self._layers]


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
    :param width: Size of its hidden states
    """

    def __init__(self, network: SequenceModel, device: th.device, width: int):
        self.network = network
        self.device = device
        self.width = width
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
        parts = [np.flatnonzero(goes_on & one), np.flatnonzero(goes_on & ~one)]
        hidden = [self._feed(slots, observations[slots], begin[slots]) for slots in parts if len(slots) > 0]
        new = np.flatnonzero(~goes_on)
        if len(new) > 0:
            parts.append(new)
            hidden.append(self._feed_whole(new, observations[new, : lengths[new].max()]))
        row = np.empty(len(observations), np.int64)
        row[np.concatenate(parts)] = np.arange(len(observations))
        return th.cat(hidden)[to_device(row, self.device)]

    def keep(self, rows: np.ndarray) -> None:
        """
        :param rows: (n,) indices of the texts that will still be read, in this order
        """
        if len(self._read) > 0:  # a policy with its own distribution does not use it
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
        mask = self._cache.begin(None if slots is None else to_device(slots, self.device), places, int(positions.max()) + 1)
        hidden = self.network(to_device(tokens, self.device), places, mask, self._cache)
        return hidden[th.arange(len(texts), device=self.device), to_device(last, self.device)]

    def _feed_whole(self, slots: np.ndarray, texts: np.ndarray) -> th.Tensor:
        """
        Read texts from their beginning, and what several of them begin with, such as the prompt of a group, once.

        :return: (n, width) hidden states of the last tokens
        """
        tree = token_tree(texts, row_limit(self.width, texts.shape[1]))
        tokens, positions, places = (to_device(each, self.device) for each in (tree.tokens, tree.positions, tree.places))
        self._cache.begin_tree(to_device(slots, self.device), places)
        hidden = self.network(tokens, positions, tree.mask(self.device), self._cache).flatten(0, 1)
        last = np.take_along_axis(tree.places, token_lengths(texts)[:, None] - 1, axis=1).squeeze(1)
        return hidden[to_device(last, self.device)]
