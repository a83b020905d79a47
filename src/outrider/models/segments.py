"""`Segment`: the rows of one sequence in a pass, their positions, cache slots and mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.tree import TokenTree
from outrider.models.cache import SequenceCache, padded_length
from outrider.models.linear import MIN_ROWS

_LANES = 16  # float32 numbers in the widest vector registers: a softmax adds up slot j in lane j % 16


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

    The path of first children takes the slots that plain decoding would use, so keeping it moves nothing.
    """
    if tree.is_chain:
        return chain_segment(cache, first, (pending, *tree.tokens), dtype)
    start, offsets = cache.length, _slot_offsets(tree)
    span = max(offsets) + 1
    cache.reserve(start + span)
    visible = torch.zeros(_grouped(len(offsets)), span, dtype=torch.bool)
    visible[:, 0] = True  # for padding rows too: a row that sees nothing is nan
    visible[: len(offsets), offsets] = torch.tensor(tree.sees)
    mask = torch.full((len(visible), padded_length(start + span)), -math.inf, dtype=dtype)
    mask[:, :start] = 0.0
    mask[:, start : start + span].masked_fill_(visible, 0.0)
    slots = tuple(start + offset for offset in offsets)
    positions = (start, *(start + depth for depth in tree.depths))
    write = torch.tensor(slots, device=cache.device)
    return Segment(cache, first, (pending, *tree.tokens), positions, slots, write, mask.to(cache.device))


def _grouped(count: int) -> int:
    return -(-count // MIN_ROWS) * MIN_ROWS


def _slot_offsets(tree: TokenTree) -> list[int]:
    """Slot of each row, counted from the pending token's: right after its parent's, or a multiple of `_LANES` later.

    So every row meets its keys in the order and in the vector lanes of plain decoding, with only masked slots, which
    add zero, in between: its sums are the same to the last bit, unless it is pushed over a cut of `padded_length`.
    """
    offsets, taken = [0], {0}
    for parent in tree.parents:
        offset = offsets[0 if parent is None else parent + 1] + 1
        while offset in taken:
            offset += _LANES
        offsets.append(offset)
        taken.add(offset)
    return offsets
