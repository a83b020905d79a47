"""`NativeMatrices`: linear layers in the compiled library, for draft heads on the CPU."""

from __future__ import annotations

import weakref

import torch

from outrider.compiled.library import chosen_isa
from outrider.errors import ConfigError
from outrider.models.native_library import Activations, Format, library, thread_count
from outrider.models.openmp import pool_pause

FORMATS = {"float32": Format.FLOAT32, "bfloat16": Format.BFLOAT16, "int8": Format.INT8}


class NativeMatrices:
    """Matrices packed once, each multiplied by one call, on the threads of the compiled decoders.

    `dtype`: float32, bfloat16 (bfloat16 products, float32 sums) or int8 (groups of 32, int8 products). A row's result
    depends on that row alone, bit for bit. Raises `NativeUnavailable` where the library is not there.
    """

    def __init__(self, dtype: str, threads: int | None = None) -> None:
        if dtype not in FORMATS:
            raise ConfigError(f"draft_dtype must be one of {', '.join(FORMATS)} here, not {dtype!r}")
        self.dtype = dtype
        self._library = library()
        isa = chosen_isa(self._library.instruction_sets())
        self._matrices = self._library.create_matrices(Activations[dtype.upper()], thread_count(threads), isa)
        weakref.finalize(self, self._library.destroy_matrices, self._matrices)
        self._pause_torch = pool_pause()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
        """Packs a weight [out, in], which may be freed afterwards; the bias [out] is kept."""
        numbers = weight.detach().to("cpu", torch.float32).contiguous()
        outputs, inputs = numbers.shape
        index = self._library.add_matrix(
            self._matrices, FORMATS[self.dtype], outputs, inputs, numbers.data_ptr()
        )
        held = None if bias is None else bias.detach().to("cpu", torch.float32)
        return NativeLinear(self, index, outputs, held)

    def multiply(self, index: int, x: torch.Tensor, outputs: int) -> torch.Tensor:
        """Rows x [rows, in] by one matrix: [rows, outputs] float32."""
        rows = x.to(torch.float32).contiguous()
        out = torch.empty(len(rows), outputs)
        if len(rows):
            self._pause_torch()
            self._library.multiply(self._matrices, index, rows.data_ptr(), len(rows), out.data_ptr())
        return out


class NativeLinear:
    """x [rows, in] -> [rows, out], float32."""

    def __init__(self, matrices: NativeMatrices, index: int, outputs: int, bias: torch.Tensor | None) -> None:
        self._matrices, self._index, self._outputs, self._bias = matrices, index, outputs, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._matrices.multiply(self._index, x, self._outputs)
        return out if self._bias is None else out + self._bias
