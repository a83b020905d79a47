"""`NativeCache`: the keys and values of one sequence in pages that the compiled decoder reads and writes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
import numpy.typing as npt

from outrider.models.native_library import PAGE

_SLAB = 16 << 20  # bytes asked of the system at once
_ALIGNMENT = 64

Page = npt.NDArray[np.uint8]


class PagePool:
    """Pages of one model's caches, cut from large pieces of memory; pages given back are used again.

    The system is asked for huge pages: a pass over a long context touches too many small ones to look up quickly.
    """

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._stride = -(-page_bytes // _ALIGNMENT) * _ALIGNMENT
        self._free: list[Page] = []

    def take(self) -> Page:
        if not self._free:
            count = max(1, _SLAB // self._stride)
            slab = mmap.mmap(-1, count * self._stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a system without huge pages refuses the hint
                slab.madvise(mmap.MADV_HUGEPAGE)
            memory = np.frombuffer(slab, dtype=np.uint8)
            starts = range(0, count * self._stride, self._stride)
            self._free = [memory[start : start + self.page_bytes] for start in reversed(starts)]
        return self._free.pop()

    def give_back(self, pages: list[Page]) -> None:
        self._free += reversed(pages)


class NativeCache:
    """Pages of 64 positions each, all layers together; `length` positions hold certain tokens, the rest is scratch."""

    def __init__(self, pool: PagePool) -> None:
        self.length = 0
        self.addresses = (ctypes.c_void_p * 0)()
        self._pool = pool
        self._pages: list[Page] = []

    @property
    def nbytes(self) -> int:
        return len(self._pages) * self._pool.page_bytes

    def reserve(self, length: int) -> None:
        """Makes room for `length` positions; what is cached stays where it is."""
        missing = -(-length // PAGE) - len(self._pages)
        if missing > 0:
            self._pages += [self._pool.take() for _ in range(missing)]
            self.addresses = (ctypes.c_void_p * len(self._pages))(*(page.ctypes.data for page in self._pages))

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length, "only cached positions can be forgotten"
        self.length = length

    def copy(self, length: int) -> NativeCache:
        """An independent cache of the first `length` positions."""
        assert 0 <= length <= self.length, "only cached positions can be copied"
        twin = NativeCache(self._pool)
        twin.reserve(length)
        for page, source in zip(twin._pages, self._pages):
            page[:] = source
        twin.length = length
        return twin

    def release(self) -> None:
        """Gives its pages back to the pool; the cache is empty afterwards."""
        self._pool.give_back(self._pages)
        self._pages, self.addresses, self.length = [], (ctypes.c_void_p * 0)(), 0
