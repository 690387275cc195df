"""A small causal transformer, and a key/value cache for decoding texts of different lengths token by token."""

from typing import Protocol

import torch as th
import torch.nn.functional as F
from torch import nn


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
    """Interface of the network of a text policy: the transformer below, or a pretrained language model."""

    def __call__(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """
        :param tokens: (n, t) token ids
        :param positions: (n, t) their positions in the text, 0 to t - 1 without a cache
        :param cache: Cache of the earlier tokens, for which ``begin`` was called. ``None``: there are none
        :return: (n, t, width) hidden states of the last layer
        """


class Block(nn.Module):
    """
    Attention and a two-layer MLP, each with a preceding layer norm and a residual connection.

    :param layer: Index of the layer
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    """

    def __init__(self, layer: int, width: int, n_heads: int):
        super().__init__()
        self.layer = layer
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """
        :param hidden: (n, t, width) hidden states
        :param cache: See :class:`SequenceModel`
        :return: (n, t, width) hidden states
        """
        n, t, width = hidden.shape
        heads = self.qkv(self.attention_norm(hidden)).view(n, t, 3, self.n_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        if cache is None:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            keys, values = cache.update(self.layer, keys, values)
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=cache.mask)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).reshape(n, t, width))
        return hidden + self.mlp(self.mlp_norm(hidden))


class CausalTransformer(nn.Module):
    """
    A decoder-only transformer with learned position embeddings.

    :param vocab_size: Number of tokens
    :param context: Maximum length of a text in tokens
    :param n_layers: Number of blocks
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    :raises ValueError: if ``n_layers``, ``width`` or ``n_heads`` is not positive, or ``n_heads`` does not divide ``width``
    """

    def __init__(self, vocab_size: int, context: int, n_layers: int = 2, width: int = 64, n_heads: int = 4):
        super().__init__()
        for name, value in (("n_layers", n_layers), ("width", width), ("n_heads", n_heads)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if width % n_heads != 0:
            raise ValueError(f"width must be a multiple of n_heads, got width={width} and n_heads={n_heads}.")
        self.width = width
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(layer, width, n_heads) for layer in range(n_layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """See :class:`SequenceModel`."""
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden, cache)
        return self.norm(hidden)
