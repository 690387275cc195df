"""A small causal transformer, and the key/value cache with which texts of different lengths go on token by token."""

from typing import Protocol

import torch as th
import torch.nn.functional as F
from torch import nn


class SlotCache:
    """
    Keys and values of N texts that are at different places, in ``n_slots`` rows of one buffer per layer.

    Slots are written one after the other or many at once, each at its own positions. What lies beyond a position is never
    attended to, so a slot is used again without being cleared.

    :param n_slots: N
    :param length: Tokens per text at the most
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
        Say what the next forward pass writes.

        :param slots: (n,) which slots, ``None`` for all
        :param positions: (n, t) where in the text its tokens stand
        :param end: No position is as large as this
        """
        self._slots, self._positions, self._end = slots, positions, end
        self._rows = (th.arange(self.n_slots, device=positions.device) if slots is None else slots)[:, None]
        places = th.arange(end, device=positions.device)
        self.mask = (places <= positions[..., None])[:, None]

    def update(self, layer: int, keys: th.Tensor, values: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Write the new keys and values.

        :param layer: Number of the layer
        :param keys: (n, heads, t, size)
        :param values: (n, heads, t, size)
        :return: (n, heads, end, size) keys and values, to be attended to where ``mask`` (n, 1, t, end) is True
        """
        if layer == len(self._layers):
            shape = (self.n_slots, self.length, keys.shape[1], keys.shape[3])
            # Zeros, as what is masked may be anything but nan
            self._layers.append((keys.new_zeros(shape), values.new_zeros(shape)))
        return self._write(self._layers[layer][0], keys), self._write(self._layers[layer][1], values)

    def _write(self, buffer: th.Tensor, new: th.Tensor) -> th.Tensor:
        buffer[self._rows, self._positions] = new.transpose(1, 2)
        written = buffer[:, : self._end]
        # Much faster than buffer[slots]
        return (written if self._slots is None else written.index_select(0, self._slots)).transpose(1, 2)

    def copy(self, source: th.Tensor, target: th.Tensor, end: int) -> None:
        """
        Let slots begin with the same text as others.

        :param source: (n,) from which slots
        :param target: (n,) to which slots
        :param end: Length of the text
        """
        for buffers in self._layers:
            for buffer in buffers:
                written = buffer[:, :end]
                written.index_copy_(0, target, written.index_select(0, source))


class SequenceModel(Protocol):
    """What a policy of text needs of a network, be it the one below or a pretrained language model."""

    def __call__(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """
        :param tokens: (n, t) token ids
        :param positions: (n, t) their places in the text; without cache these are 0 to t - 1
        :param cache: What came before, for which ``begin`` was called. ``None``: nothing
        :return: (n, t, width) the last hidden states
        """


class Block(nn.Module):
    """
    Attention and a two-layer network, each with layer norm before and a residual connection around.

    :param layer: Number of the layer
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
        :param hidden: (n, t, width)
        :param cache: See :class:`SequenceModel`
        :return: (n, t, width)
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
    A decoder-only transformer with learned positions.

    :param vocab_size: Number of tokens
    :param context: Longest text, in tokens
    :param n_layers: Number of blocks
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    :raises ValueError: if one of these is not positive, or if the heads do not share ``width`` evenly
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
