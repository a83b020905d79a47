"""`SequenceCache`: the keys and values of one sequence, certain ones first, scratch behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCK = 512
_STEPS = (0, 192, 384, 512)


def padded_length(length: int) -> int:
    """Slots that attention reads for `length` keys: the next of 192, 384, 512, 512 + 192, ...

    Attention sums in blocks of 512 slots, and the BLAS beneath it cuts a block into pieces of 192. With lengths
    rounded to these cuts, more masked slots only add zeros at the end of a sum, so they cannot change a bit of it.
    """
    whole, rest = divmod(length, _BLOCK)
    return whole * _BLOCK + next(step for step in _STEPS if rest <= step)


@dataclass(frozen=True)
class CacheShape:
    """What all caches of one model share."""

    layers: int
    kv_heads: int
    head_dim: int
    max_length: int
    dtype: torch.dtype
    device: torch.device


class SequenceCache:
    """Keys and values [kv_heads, capacity, head_dim] per layer; `length` of the slots hold certain tokens.

    Slots from `length` on are scratch: any pass may overwrite them, and they always hold finite numbers.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.length = 0
        self.device = shape.device
        self.keys: tuple[torch.Tensor, ...] = ()
        self.values: tuple[torch.Tensor, ...] = ()
        self._shape = shape
        self._store = torch.empty(0)
        self._capacity = 0

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

    def reserve(self, length: int) -> None:
        """Makes room for `length` keys and voids old views of the cache; what is cached stays.

        Grows by half or more, but past the context limit only as far as scratch needs.
        """
        needed = padded_length(length)
        if needed <= self._capacity:
            return
        shape = self._shape
        grown = min(self._capacity + self._capacity // 2, shape.max_length)
        capacity = max(needed, padded_length(grown))
        store = torch.zeros(
            shape.layers, 2, shape.kv_heads, capacity, shape.head_dim, dtype=shape.dtype, device=shape.device
        )
        if self.length:
            store[:, :, :, : self.length] = self._store[:, :, :, : self.length]
        self._store, self._capacity = store, capacity
        self.keys = tuple(layer[0] for layer in store)
        self.values = tuple(layer[1] for layer in store)

    def keep(self, slots: Sequence[int]) -> None:
        """Makes certain what a pass wrote to `slots`, in this order; drops the rest. A run from `length` is free."""
        start, end = self.length, self.length + len(slots)
        if any(slot != start + index for index, slot in enumerate(slots)):
            picked = torch.tensor(slots, device=self._store.device)
            self._store[:, :, :, start:end] = self._store.index_select(3, picked)
        self.length = end

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` certain tokens."""
        assert 0 <= length <= self.length, "a cache can only be cut back"
        self.length = length

    def copy(self, length: int) -> SequenceCache:
        """A cache of its own that holds the first `length` certain tokens."""
        assert 0 <= length <= self.length, "a fork cannot hold more than its parent"
        child = SequenceCache(self._shape)
        child.reserve(max(length, 1))
        if length:  # a parent that never cached anything has no store yet
            child._store[:, :, :, :length] = self._store[:, :, :, :length]
        child.length = length
        return child
