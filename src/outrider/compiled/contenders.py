"""The compiled search for columns of a row that may be best under noise (csrc/contenders.cpp)."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_byte, c_char_p, c_float, c_int32, c_uint64, c_void_p
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.compiled.library import NativeUnavailable, SharedLibrary, chosen_isa, shared_library

_ROOM = 1024  # columns; a search for few finds more than so many in strange rows alone
_SPARE = 64  # columns for which there must be room beyond those that are found


class Wanted(NamedTuple):
    """What a search takes: tokens above a floor that few exceed, and those with a large hash.

    The floor: columns that are equal modulo `groups` form a group; the `near`-th largest of the groups' largest
    numbers, at least the lowest finite one.
    """

    groups: int  # at most as many as columns
    near: int  # at most as many as groups
    top: int  # a hash is large if its first 31 bits are so much or more


class Contenders(NamedTuple):
    """What a search finds: columns, ascending, with their numbers in the row and the uniforms of their tokens.

    No other column has a number above `floor` or a large hash.
    """

    columns: npt.NDArray[np.int64]  # [k]
    values: npt.NDArray[np.float64]  # [k]
    uniforms: npt.NDArray[np.float64]  # [k]
    floor: float


class _Search(ctypes.Structure):
    """`OutriderContenders` of csrc/outrider.h."""

    _fields_: ClassVar = [
        ("row", c_void_p), ("tokens", c_void_p), ("size", c_int32), ("groups", c_int32), ("near", c_int32),
        ("capacity", c_int32), ("key", c_uint64), ("least", c_uint64), ("columns", c_void_p),
        ("values", c_void_p), ("uniforms", c_void_p), ("floor", c_float),
    ]  # fmt: skip


class CompiledSearch:
    """The search on one instruction set. All sets find the same."""

    def __init__(self, shared: SharedLibrary, isa: str) -> None:
        self._shared, self._isa = shared, isa.encode()
        declared = shared.declared({"contenders": (c_int32, [c_char_p, POINTER(_Search)])})
        self._call = declared.outrider_contenders

    def find(
        self, row: npt.NDArray[Any], tokens: npt.NDArray[np.int64] | None, key: int, wanted: Wanted
    ) -> Contenders:
        """Searches a `row` [n] of contiguous float32 numbers without NaN; nothing is kept of it.

        `tokens` [n]: the ids of its columns, contiguous; None where column i is token i.
        """
        assert row.dtype == np.float32, "other rows are searched by NumPy"
        assert row.flags.c_contiguous
        assert tokens is None or (tokens.size == row.size and tokens.dtype == np.int64)
        assert tokens is None or tokens.flags.c_contiguous
        ids = None if tokens is None else tokens.ctypes.data
        room = _ROOM
        while True:
            out = np.empty(3 * room)
            at = ctypes.addressof(c_byte.from_buffer(out.data))  # a third of the time of `out.ctypes`
            search = _Search(
                row.ctypes.data, ids, row.size, wanted.groups, wanted.near, room, key, wanted.top << 33,
                at, at + 8 * room, at + 16 * room,
            )  # fmt: skip
            found: int = self._call(self._isa, byref(search))
            if found < 0:
                raise self._shared.refusal()
            if found <= room - _SPARE:
                columns, values, uniforms = out[:found], out[room : room + found], out[2 * room :][:found]
                return Contenders(columns.view(np.int64), values, uniforms, search.floor)
            room = found + _SPARE


@functools.lru_cache(maxsize=1)
def compiled_search() -> CompiledSearch | None:
    """The search on the instruction set of this process; None where the library is not there."""
    try:
        shared = shared_library()
    except NativeUnavailable:
        return None
    return CompiledSearch(shared, chosen_isa(shared.instruction_sets()))
