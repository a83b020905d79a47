"""The compiled decoder as Python sees it: its structs and its functions, checked at the border."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from outrider.compiled.library import SharedLibrary, Signatures, shared_library

PAGE = 64  # positions of a cache page


class Activations(IntEnum):
    """What the inputs of a product are rounded to."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class Stream(IntEnum):
    """What the residual stream of a row starts from; a given state is read beside the token by layer 0."""

    TOKEN = 0
    STATE = 1
    NORMED_STATE = 2


class Source(IntEnum):
    """What a matrix arrives as."""

    FLOAT32 = 0
    Q4_0 = 1
    Q4_1 = 2
    Q8_0 = 3


class Format(IntEnum):
    """What a matrix is kept as."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q8_0 = 6


class CacheType(IntEnum):
    """How keys and values are stored."""

    FLOAT32 = 0
    BFLOAT16 = 1


class MatrixRole(IntEnum):
    """A matrix of the decoder; the first two and the last belong to no layer."""

    EMBEDDING = 0
    HEAD = 1
    QUERY = 2
    KEY = 3
    VALUE = 4
    OUTPUT = 5
    GATE = 6
    UP = 7
    DOWN = 8
    FUSE = 9


class VectorRole(IntEnum):
    """A norm or bias of the decoder; those of embeddings, features and the last state belong to no layer."""

    FINAL_NORM = 0
    ATTENTION_NORM = 1
    MLP_NORM = 2
    QUERY_NORM = 3
    KEY_NORM = 4
    TOKEN_NORM = 5
    COLUMN_NORM = 6
    FEATURE_NORM = 7
    BIAS = 8  # + MatrixRole


# The structs of csrc/outrider.h, field by field. They hold addresses: whoever fills them keeps the arrays alive.
class Shape(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_int32) for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        *((name, c_int32) for name in ("vocab", "spoken", "stream", "features", "columns", "activations")),
        *((name, c_int32) for name in ("cache", "threads")),
        ("rms_eps", c_float),
    ]  # fmt: skip


class Rows(ctypes.Structure):
    _fields_: ClassVar = [
        (name, c_int32)
        for name in ("matrix", "layer", "source", "format", "outputs", "inputs", "first", "count")
    ]


class SegmentStruct(ctypes.Structure):
    _fields_: ClassVar = [
        ("pages", c_void_p), ("length", c_int32), ("known", c_int32), ("rows", c_int32),
        ("tokens", c_void_p), ("states", c_void_p), ("features", c_void_p), ("fresh", c_int32),
        ("parents", c_void_p),
    ]  # fmt: skip


class BatchStruct(ctypes.Structure):
    _fields_: ClassVar = [
        ("segments", POINTER(SegmentStruct)), ("segment_count", c_int32),
        ("layers", c_void_p), ("layer_count", c_int32),
        ("cosines", c_void_p), ("sines", c_void_p), ("positions", c_int32),
        ("taps", c_void_p), ("tap_count", c_int32), ("features", c_void_p),
        ("wanted", c_void_p), ("wanted_count", c_int32), ("logits", c_void_p),
    ]  # fmt: skip


_SIGNATURES: Signatures = {
    "create": (c_void_p, [POINTER(Shape), c_char_p]),
    "destroy": (None, [c_void_p]),
    "set_rows": (c_int, [c_void_p, POINTER(Rows), c_void_p]),
    "set_vector": (c_int, [c_void_p, c_int32, c_int32, c_void_p, c_int32]),
    "finish": (c_int, [c_void_p]),
    "weight_bytes": (c_int64, [c_void_p]),
    "page_bytes": (c_int64, [c_void_p]),
    "forward": (c_int, [c_void_p, POINTER(BatchStruct)]),
    "keep": (c_int, [c_void_p, c_void_p, c_int32, c_void_p, c_int32]),
    "unpack": (c_int, [c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    "matrices_create": (c_void_p, [c_int32, c_int32, c_char_p]),
    "matrices_destroy": (None, [c_void_p]),
    "matrices_add": (c_int, [c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    "multiply": (c_int, [c_void_p, c_int32, c_void_p, c_int32, c_void_p]),
    "best": (c_int, [c_void_p, c_int32, c_int32, c_int32, c_void_p, c_void_p]),
    "read_rate": (c_double, [c_char_p, c_int32]),
    "product_rate": (c_double, [c_char_p, c_int32, c_int32]),
}


class NativeLibrary:
    """The functions of the shared library; a call that fails raises `NativeError` with the library's reason."""

    def __init__(self, shared: SharedLibrary) -> None:
        self._shared = shared
        self._c = shared.declared(_SIGNATURES)

    def instruction_sets(self) -> list[str]:
        """What this machine runs and the library was built for, best first."""
        return self._shared.instruction_sets()

    def create(self, shape: Shape, isa: str) -> int:
        """A model without weights, to be given back to `destroy`."""
        model: int | None = self._c.outrider_create(ctypes.byref(shape), isa.encode())
        if model is None:
            raise self._shared.refusal()
        return model

    def destroy(self, model: int) -> None:
        """Frees a model, and ends threads that nothing else works with; no other call with it may be under way."""
        self._c.outrider_destroy(model)

    def set_rows(self, model: int, rows: Rows, data: int) -> None:
        """Packs rows of a matrix. `data`: address of the rows, contiguous; it is read here and not kept."""
        self._check(self._c.outrider_set_rows(model, ctypes.byref(rows), data))

    def set_vector(self, model: int, vector: int, layer: int, data: int, count: int) -> None:
        """Copies a norm or bias. `data`: address of `count` float32 numbers."""
        self._check(self._c.outrider_set_vector(model, vector, layer, data, count))

    def finish(self, model: int) -> None:
        """Checks that every weight was set and starts the threads; `forward` comes after this."""
        self._check(self._c.outrider_finish(model))

    def weight_bytes(self, model: int) -> int:
        """Bytes that a pass reads: all packed matrices but an embedding beside a head of its own."""
        return int(self._c.outrider_weight_bytes(model))

    def page_bytes(self, model: int) -> int:
        """Bytes of a cache page of `PAGE` positions."""
        return int(self._c.outrider_page_bytes(model))

    def forward(self, model: int, batch: BatchStruct) -> None:
        """One pass: writes keys and values of the new rows to their slots, then logits and features."""
        self._check(self._c.outrider_forward(model, ctypes.byref(batch)))

    def keep(self, model: int, pages: Any, length: int, rows: Any, count: int) -> None:
        """Moves keys and values of slots `length + rows[i]` to `length + i`. Both are ctypes arrays; rows ascend."""
        self._check(self._c.outrider_keep(model, pages, length, rows, count))

    def unpack(self, model: int, matrix: int, layer: int, row: int, out: int) -> None:
        """Writes one dequantised row. `out`: address of as many float32 numbers as the matrix has inputs."""
        self._check(self._c.outrider_unpack(model, matrix, layer, row, out))

    def unpacked(
        self, model: int, matrix: int, layer: int, outputs: int, inputs: int
    ) -> npt.NDArray[np.float32]:  # [outputs, inputs]
        """What a packed matrix stands for."""
        out = np.empty((outputs, inputs), dtype=np.float32)
        for row in range(outputs):
            self.unpack(model, matrix, layer, row, out.ctypes.data + row * out.strides[0])
        return out

    def create_matrices(self, activations: Activations, threads: int, isa: str) -> int:
        """A place for matrices of the caller's own, to be given back to `destroy_matrices`."""
        made: int | None = self._c.outrider_matrices_create(int(activations), threads, isa.encode())
        if made is None:
            raise self._shared.refusal()
        return made

    def destroy_matrices(self, matrices: int) -> None:
        """Frees them, and ends threads that nothing else works with; no other call with them may be under way."""
        self._c.outrider_matrices_destroy(matrices)

    def add_matrix(self, matrices: int, form: Format, outputs: int, inputs: int, data: int) -> int:
        """Packs a matrix and returns its index. `data`: address of outputs x inputs float32 numbers, not kept."""
        index = int(self._c.outrider_matrices_add(matrices, int(form), outputs, inputs, data))
        if index < 0:
            raise self._shared.refusal()
        return index

    def multiply(self, matrices: int, index: int, x: int, rows: int, out: int) -> None:
        """Multiplies rows by one of the matrices. `x` [rows, in], `out` [rows, out]: addresses of float32 numbers."""
        self._check(self._c.outrider_multiply(matrices, index, x, rows, out))

    def best(self, rows: int, row_count: int, size: int, count: int, ids: int, values: int) -> None:
        """The largest numbers of float32 rows [row_count, size]: `ids` int32, `values` float32, [row_count, count].

        All three are addresses. Largest first, lowest place first where equal; NaN for a row that holds one.
        """
        self._check(self._c.outrider_best(rows, row_count, size, count, ids, values))

    def read_rate(self, isa: str, threads: int) -> float:
        """Bytes per second read from memory."""
        return self._rate(self._c.outrider_read_rate(isa.encode(), threads))

    def product_rate(self, isa: str, activations: Activations, threads: int) -> float:
        """Operations (two per multiply-add) per second of this arithmetic, operands at hand."""
        return self._rate(self._c.outrider_product_rate(isa.encode(), int(activations), threads))

    def _rate(self, rate: float) -> float:
        if rate <= 0.0:
            raise self._shared.refusal()
        return rate

    def _check(self, code: int) -> None:
        if code != 0:
            raise self._shared.refusal()


@functools.lru_cache(maxsize=1)
def library() -> NativeLibrary:
    """The decoder of this installation, opened once. Raises `NativeUnavailable` saying why it is not there."""
    return NativeLibrary(shared_library())


def thread_count(threads: int | None) -> int:
    """How many threads a decoder runs: as asked, else one for each core of this process."""
    return len(os.sched_getaffinity(0)) if threads is None else threads
