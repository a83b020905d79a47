"""`Segment`: the rows of one sequence in a pass, their positions, cache slots and mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.tree import TokenTree
from outrider.models.cache import SequenceCache, padded_length
from outrider.models.linear import MIN_ROWS


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows `first` to `first + len(tokens)` of a pass; keys of row i go to `slots[i]` of the cache."""

    cache: SequenceCache
    first: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    write: slice | torch.Tensor  # the same slots, as an index
    mask: torch.Tensor  # [attended rows, keys], 0 where visible, -inf elsewhere

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    @property
    def attended_end(self) -> int:
        """Attention takes rows in groups of MIN_ROWS: rows of a neighbour, or padding, ride along unused."""
        return self.first + len(self.mask)


def chain_segment(cache: SequenceCache, first: int, tokens: Sequence[int], dtype: torch.dtype) -> Segment:
    """Tokens that follow the cached ones one after another."""
    start, count = cache.length, len(tokens)
    cache.reserve(start + count)
    device = cache.device
    keys = torch.arange(padded_length(start + count), device=device)
    last = torch.arange(start, start + _grouped(count), device=device)
    mask = torch.zeros(len(last), len(keys), dtype=dtype, device=device)
    mask.masked_fill_(keys > last.unsqueeze(1), -math.inf)
    run = range(start, start + count)
    return Segment(cache, first, tuple(tokens), tuple(run), tuple(run), slice(start, start + count), mask)


def tree_segment(
    cache: SequenceCache, first: int, pending: int, tree: TokenTree, dtype: torch.dtype
) -> Segment:
    """The pending token and the nodes below it; a node sees the cached tokens, its ancestors and itself.

    The path of first children takes the first slots: on it a row sums over the very slots that plain decoding
    would use, and keeping it moves nothing.
    """
    if tree.is_chain:
        return chain_segment(cache, first, (pending, *tree.tokens), dtype)
    start, count = cache.length, len(tree) + 1
    cache.reserve(start + count)
    offsets = _slot_offsets(tree)
    visible = torch.zeros(_grouped(count), count, dtype=torch.bool)
    visible[:, 0] = True
    for node, parent in enumerate(tree.parents):
        if parent is not None:
            visible[node + 1] = visible[parent + 1]
        visible[node + 1, offsets[node + 1]] = True
    mask = torch.full((len(visible), padded_length(start + count)), -math.inf, dtype=dtype)
    mask[:, :start] = 0.0
    mask[:, start : start + count].masked_fill_(visible, 0.0)
    slots = tuple(start + offset for offset in offsets)
    positions = (start, *(start + depth for depth in tree.depths))
    write = torch.tensor(slots, device=cache.device)
    return Segment(cache, first, (pending, *tree.tokens), positions, slots, write, mask.to(cache.device))


def _grouped(count: int) -> int:
    return -(-count // MIN_ROWS) * MIN_ROWS


def _slot_offsets(tree: TokenTree) -> list[int]:
    """Slot of each row, counted from the pending token's: the path of first children, then the other nodes."""
    path, row = [0], 0
    while tree.children[row]:
        row = tree.children[row][0] + 1
        path.append(row)
    on_path = set(path)
    order = path + [row for row in range(len(tree) + 1) if row not in on_path]
    offsets = [0] * len(order)
    for offset, row in enumerate(order):
        offsets[row] = offset
    return offsets
