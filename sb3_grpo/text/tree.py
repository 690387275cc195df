"""Texts as a tree: what several texts begin with is read once."""

from dataclasses import dataclass, field

import numpy as np
import torch as th

from sb3_grpo.text.tokens import PAD, token_lengths
from sb3_grpo.utils.devices import to_device


@dataclass
class TokenTree:
    """
    The distinct beginnings of S texts, in R rows of up to N tokens that are each read in one forward pass. A row holds a tree
    in depth-first order: a token's descendants, the continuations of the text that ends with it, follow it directly.

    :param tokens: (R, N) token ids, 0 where a row is shorter
    :param positions: (R, N) position of each token in its texts
    :param ends: (R, N) place in the row after the last descendant of each token
    :param places: (S, L) for each token of the texts, its place in the R * N tokens
    """

    tokens: np.ndarray
    positions: np.ndarray
    ends: np.ndarray
    places: np.ndarray

    def mask(self, device: th.device) -> th.Tensor:
        """
        :param device: PyTorch device
        :return: (R, 1, N, N) which tokens each token attends to: itself and its ancestors
        """
        places = th.arange(self.tokens.shape[1], device=device)
        descends = places[:, None] < to_device(self.ends, device)[:, None]
        return ((places[:, None] >= places) & descends)[:, None]


def row_limit(width: int, length: int) -> int:
    """
    :param width: Size of a network's hidden states
    :param length: Length of the longest text
    :return: How long the rows of a tree may be. From 6 times the width on, attention costs more than the rest of a layer, and
        a mask of 8,192 tokens takes 64 MiB; but a prompt should share its row with about as many tokens of continuations
    """
    return max(min(6 * width, 8192), 2 * length)


def token_tree(texts: np.ndarray, max_tokens: int) -> TokenTree:
    """
    Merge the common beginnings of texts. Attention costs the square of a row's length, so a long tree is split into rows of
    similar length, which each begin with the whole of their first text.

    :param texts: (S, L) token ids padded on the right, at least one token each
    :param max_tokens: Length from which on a tree is split
    :return: The tree
    """
    order = np.lexsort(texts.T[::-1])
    texts = texts[order]
    exists = texts != PAD
    # In this order, all texts with a common beginning are neighbours, and a prefix of another text comes before it
    is_new = exists.copy()
    is_new[1:] &= ~np.logical_and.accumulate(texts[1:] == texts[:-1], axis=1)
    row = _rows(is_new.sum(1), token_lengths(texts), max_tokens)
    begins_row = np.diff(row, prepend=-1) > 0
    is_new[begins_row] = exists[begins_row]

    n_new = is_new.sum(1)
    n_before = np.concatenate([[0], n_new.cumsum()])  # number of tokens in the tree before each text
    begin = n_before[:-1][begins_row]  # of each row
    lengths = np.diff(begin, append=n_before[-1])
    # A token that is not new is that of the text before
    numbered = np.where(is_new, np.cumsum(is_new).reshape(is_new.shape) - 1, 0)
    node = np.maximum.accumulate(numbered, axis=0)
    end = np.zeros(n_before[-1], np.int64)
    text, depth = exists.nonzero()
    np.maximum.at(end, node[text, depth], n_before[1:][text])

    row_of_new, new_depth = np.repeat(row, n_new), is_new.nonzero()[1]
    column = np.arange(len(end)) - begin[row_of_new]
    shape = (len(begin), int(lengths.max()))
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    ends = np.broadcast_to(np.arange(1, shape[1] + 1), shape).copy()  # padding attends to itself: softmax needs something
    tokens[row_of_new, column] = texts[is_new]
    positions[row_of_new, column] = new_depth
    ends[row_of_new, column] = end - begin[row_of_new]
    places = np.zeros_like(texts)
    places[order] = node - begin[row][:, None] + row[:, None] * shape[1]
    return TokenTree(tokens, positions, ends, places)


def _rows(n_new: np.ndarray, n_tokens: np.ndarray, max_tokens: int) -> np.ndarray:
    """
    :param n_new: (S,) number of tokens that each text adds to those before it
    :param n_tokens: (S,) lengths of the texts
    :param max_tokens: Length from which on a row is split
    :return: (S,) row of each text
    """

    def fill(limit: float) -> np.ndarray:
        row, rows, used = -1, [], np.inf
        for new, whole in zip(n_new.tolist(), n_tokens.tolist(), strict=True):
            if used + new > limit:
                row, used = row + 1, whole
            else:
                used += new
            rows.append(row)
        return np.array(rows)

    rows = fill(max_tokens)
    n_rows = rows[-1] + 1
    if n_rows == 1:
        return rows
    # As even as they can be in as many rows: shorter ones are filled up
    limits = np.linspace(n_new.sum() / n_rows, max_tokens, 8)
    return next(each for each in map(fill, limits) if each[-1] < n_rows)


@dataclass
class TokenSteps:
    """
    M steps in S texts, in a form that needs one forward pass per text instead of one per token.

    :param texts: (S, L) token ids padded on the right, on the host
    :param text: (M,) index of each step's text
    :param last: (M,) position of the last token that had been written at that step; later tokens were not yet there
    """

    texts: np.ndarray
    text: th.Tensor
    last: th.Tensor
    _trees: dict[int, TokenTree] = field(default_factory=dict, repr=False)

    def tree(self, max_tokens: int) -> TokenTree:
        """
        :param max_tokens: Length from which on a tree is split
        :return: The tree of the texts. Kept, as the reference policy reads the same one
        """
        if max_tokens not in self._trees:
            self._trees[max_tokens] = token_tree(self.texts, max_tokens)
        return self._trees[max_tokens]
