"""`NativeModel`: packed weights of the compiled library, and the pass over new rows of several sequences."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.models.arch import Arch
from outrider.models.native_cache import NativeCache, PagePool
from outrider.models.native_library import (
    Activations,
    BatchStruct,
    MatrixRole,
    NativeLibrary,
    SegmentStruct,
    Stream,
)
from outrider.models.openmp import pool_pause
from outrider.models.rope import angles

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
_NOTHING = ctypes.c_char * 0


@dataclass(frozen=True)
class Fusing:
    """How a state is made of features: norms, then a matrix [hidden, inputs]; without one they are the state."""

    inputs: int
    columns: int  # equal parts of the inputs
    has_column_norms: bool
    has_feature_norm: bool  # over all of them, after those of columns
    has_matrix: bool
    has_bias: bool


@dataclass(frozen=True)
class NativeSetup:
    """How a native model is built; `doctor` and `inspect` show it."""

    dtype: str
    activations: Activations
    isa: str
    threads: int
    spoken_size: int  # rows of the head: fewer than the vocabulary where a draft model speaks a part of it
    stream: Stream = Stream.TOKEN
    fusing: Fusing | None = None  # where the stream starts from a state


@dataclass(frozen=True, eq=False)
class Segment:
    """New rows of one sequence behind the first `length` positions of its cache.

    `parents` are nodes of a tree of which the first `known` came in earlier passes, -1 for the last cached position;
    None for a chain. `states` are what the stream starts from, where it does not from tokens; those of the last rows
    are made of `features`, as many as there are, and written.
    """

    cache: NativeCache
    length: int
    tokens: Ints  # [rows]
    parents: Ints | None = None  # [known + rows]
    known: int = 0
    states: Floats | None = None  # [rows, hidden]
    features: Floats | None = None  # [fresh rows, inputs]


class NativeModel:
    """Owns a finished handle of the library, the pages of its caches and its rotary tables."""

    def __init__(self, library: NativeLibrary, handle: int, arch: Arch, setup: NativeSetup) -> None:
        """Takes over `handle` and frees it with itself."""
        self.library, self.handle, self.arch, self.setup = library, handle, arch, setup
        weakref.finalize(self, library.destroy, handle)
        self._pause_torch = pool_pause()
        self._pool = PagePool(library.page_bytes(handle))
        self._tables = angles(arch, 0)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a pass reads: all packed matrices but an embedding beside a head of its own."""
        return self.library.weight_bytes(self.handle)

    def new_cache(self) -> NativeCache:
        return NativeCache(self._pool)

    def matrix(self, role: MatrixRole, rows: int) -> torch.Tensor:  # [rows, hidden] float32
        """What the embedding or the head stands for as it is packed."""
        return torch.from_numpy(self.library.unpacked(self.handle, role, -1, rows, self.arch.hidden))

    def forward(
        self, segments: Sequence[Segment], layers: Ints, taps: Ints, wanted: Ints, logits: Floats
    ) -> Floats:  # [rows, taps, hidden]
        """Writes the `logits` [wanted, spoken] of the `wanted` rows; returns the hidden states at `taps`.

        `layers` run in this order. `taps` ascend: the states entering these layers, their number for the last state and
        one more for that after the final norm. `wanted` ascend over the rows of all segments.
        """
        structs = (SegmentStruct * len(segments))()
        limit = rows = 0
        addresses = []  # held here and not by the caches alone: no misuse from another thread may free them
        for struct, segment in zip(structs, segments):
            cache, count = segment.cache, len(segment.tokens)
            end = segment.length + segment.known + count
            cache.reserve(end)
            limit, rows = max(limit, end), rows + count
            addresses.append(cache.addresses)
            struct.pages, struct.length = ctypes.addressof(addresses[-1]), segment.length
            struct.known, struct.rows = segment.known, count
            struct.tokens = _address(segment.tokens)
            if segment.parents is not None:
                struct.parents = _address(segment.parents)
            if segment.states is not None:
                struct.states = _address(segment.states)
            if segment.features is not None:
                struct.features, struct.fresh = _address(segment.features), len(segment.features)
        cosines, sines = self._angles(limit)
        features = np.empty((rows, len(taps), self.arch.hidden), dtype=np.float32)
        batch = BatchStruct(
            structs, len(segments), _address(layers), len(layers),
            _address(cosines), _address(sines), len(cosines),
            _address(taps), len(taps), _address(features),
            _address(wanted), len(wanted), _address(logits),
        )  # fmt: skip
        self._pause_torch()
        self.library.forward(self.handle, batch)
        return features

    def keep(self, cache: NativeCache, rows: Sequence[int]) -> None:
        """Moves keys and values of the last pass's `rows`, ascending, to the slots behind the cached positions."""
        kept = (ctypes.c_int32 * len(rows))(*rows)
        self.library.keep(self.handle, cache.addresses, cache.length, kept, len(rows))

    def _angles(self, limit: int) -> tuple[Floats, Floats]:
        """Cosines and sines of at least `limit` positions, each [positions, head_dim / 2]."""
        if limit > len(self._tables[0]):
            self._tables = angles(self.arch, max(limit, 2 * len(self._tables[0]), 1024))
        return self._tables


def _address(array: npt.NDArray[Any]) -> int:
    """Where a contiguous, writable array lies, in half the time that `array.ctypes.data` takes."""
    return ctypes.addressof(_NOTHING.from_buffer(array.data))
