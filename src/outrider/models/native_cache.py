"""`NativeCache`: the keys and values of one sequence in pages that the compiled decoder reads and writes."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from outrider.models.native_library import PAGE

_ALIGNMENT = 64


class NativeCache:
    """Pages of 64 positions each, all layers together; `length` positions hold certain tokens, the rest is scratch."""

    def __init__(self, page_bytes: int) -> None:
        self.length = 0
        self.addresses = (ctypes.c_void_p * 0)()
        self._page_bytes = page_bytes
        self._pages: list[npt.NDArray[np.uint8]] = []

    @property
    def nbytes(self) -> int:
        return len(self._pages) * self._page_bytes

    def reserve(self, length: int) -> None:
        """Makes room for `length` positions; what is cached stays where it is."""
        missing = -(-length // PAGE) - len(self._pages)
        if missing > 0:
            self._pages += [_page(self._page_bytes) for _ in range(missing)]
            self.addresses = (ctypes.c_void_p * len(self._pages))(*(page.ctypes.data for page in self._pages))

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length, "only cached positions can be forgotten"
        self.length = length

    def copy(self, length: int) -> NativeCache:
        """An independent cache of the first `length` positions."""
        assert 0 <= length <= self.length, "only cached positions can be copied"
        twin = NativeCache(self._page_bytes)
        twin.reserve(length)
        for page, source in zip(twin._pages, self._pages):
            page[:] = source
        twin.length = length
        return twin


def _page(size: int) -> npt.NDArray[np.uint8]:
    memory = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
