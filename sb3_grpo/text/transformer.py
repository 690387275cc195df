"""A small causal transformer."""

import torch as th
import torch.nn.functional as F
from torch import nn

from sb3_grpo.text.decoding import SlotCache
from sb3_grpo.utils.parameters import Whole


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

    def forward(self, hidden: th.Tensor, mask: th.Tensor | None, cache: SlotCache | None) -> th.Tensor:
        """
        :param hidden: (n, t, width) hidden states
        :param mask: See :class:`SequenceModel`
        :param cache: See :class:`SequenceModel`
        :return: (n, t, width) hidden states
        """
        n, t, width = hidden.shape
        heads = self.qkv(self.attention_norm(hidden)).view(n, t, 3, self.n_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            keys, values = cache.update(self.layer, keys, values)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
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
    """

    def __init__(self, vocab_size: int, context: int, n_layers: int = 2, width: int = 64, n_heads: int = 4):
        super().__init__()
        for name, value in (("n_layers", n_layers), ("width", width), ("n_heads", n_heads)):
            Whole().check(name, value)
        if width % n_heads != 0:
            raise ValueError(f"width must be a multiple of n_heads, got width={width} and n_heads={n_heads}.")
        self.width = width
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(layer, width, n_heads) for layer in range(n_layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(
        self, tokens: th.Tensor, positions: th.Tensor, mask: th.Tensor | None = None, cache: SlotCache | None = None
    ) -> th.Tensor:
        """See :class:`SequenceModel`."""
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden, mask, cache)
        return self.norm(hidden)
