"""Dequantises GGUF blocks with torch where the format is common, with package `gguf` otherwise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as _dequantize

Bytes = npt.NDArray[np.uint8]


def row_bytes(kind: GGMLQuantizationType, columns: int) -> int:
    """Bytes of one row of `columns` elements. Raises `ValueError` when a row is not whole blocks."""
    block, size = map(int, GGML_QUANT_SIZES[kind])
    if columns % block:
        raise ValueError(f"{columns} columns are not whole blocks of {block}")
    return columns // block * size


def dequantised(raw: Bytes, kind: GGMLQuantizationType) -> torch.Tensor:  # [rows, bytes] -> [rows, columns]
    """float32 values of rows stored as `kind`. Raises `NotImplementedError` for a format nobody can read."""
    plain = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16,
             GGMLQuantizationType.BF16: torch.bfloat16}.get(kind)  # fmt: skip
    blocks = torch.from_numpy(raw)
    if plain is not None:
        return blocks.clone().view(plain).to(torch.float32)  # a copy is aligned, wherever the file put it
    if kind is GGMLQuantizationType.Q8_0:
        return _q8_0(blocks)
    if kind is GGMLQuantizationType.Q4_1:
        return _q4_1(blocks)
    return torch.from_numpy(_dequantize(raw, kind))


def _q8_0(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of 34 bytes: a float16 scale and 32 signed bytes."""
    blocks = raw.view(len(raw), -1, 34)
    scale = blocks[:, :, :2].contiguous().view(torch.float16).float()
    return (blocks[:, :, 2:].view(torch.int8) * scale).flatten(1)


def _q4_1(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of 20 bytes: a float16 scale, a float16 minimum, 32 nibbles (low ones first)."""
    blocks = raw.view(len(raw), -1, 20)
    scale_and_minimum = blocks[:, :, :4].contiguous().view(torch.float16).float()
    nibbles = blocks[:, :, 4:]
    levels = torch.cat([nibbles & 15, nibbles >> 4], dim=-1)
    return (levels * scale_and_minimum[:, :, :1]).add_(scale_and_minimum[:, :, 1:]).flatten(1)
