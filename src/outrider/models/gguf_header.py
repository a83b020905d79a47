"""Parses the header of a GGUF file: metadata, and where each tensor lies (GGUF specification, versions 2 and 3)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGMLQuantizationType, GGUFValueType

from outrider.models.quants import Bytes, row_bytes

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_SCALARS = {
    GGUFValueType.UINT8: "B", GGUFValueType.INT8: "b", GGUFValueType.UINT16: "H", GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I", GGUFValueType.INT32: "i", GGUFValueType.FLOAT32: "f", GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q", GGUFValueType.INT64: "q", GGUFValueType.FLOAT64: "d",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor's bytes lie and how to read them."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # rows first, as torch has it
    offset: int  # bytes from the start of the file
    nbytes: int


def parse_header(data: Bytes) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Metadata by key and tensors by name. Raises `ValueError` or `struct.error` on bytes that make no sense."""
    cursor = _Cursor(data)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is unknown")
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        metadata[key] = cursor.value(GGUFValueType(cursor.scalar("I")))
    entries = [_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, kind, shape, offset in entries:
        nbytes = math.prod(shape[:-1]) * row_bytes(kind, shape[-1])
        tensors[name] = TensorInfo(kind, shape, start + offset, nbytes)
    return metadata, tensors


def _entry(cursor: _Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.text()
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= 4:
        raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(reversed(cursor.scalars("Q", dimensions)))
    kind = GGMLQuantizationType(cursor.scalar("I"))
    return name, kind, shape, cursor.scalar("Q")


class _Cursor:
    """Reads little-endian values one after another, never past the end."""

    def __init__(self, data: Bytes) -> None:
        self._data = data.data
        self.position = len(MAGIC)

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(code) * count
        if size > len(self._data) - self.position:
            raise ValueError(f"{count} values end past the end of the file")
        found = struct.unpack_from(f"<{count}{code}", self._data, self.position)
        self.position += size
        return found

    def scalar(self, code: str) -> Any:
        return self.scalars(code, 1)[0]

    def text(self) -> str:
        return self._texts(1)[0]

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind != GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind])
        item, count = GGUFValueType(self.scalar("I")), self.scalar("Q")
        if item == GGUFValueType.STRING:
            return self._texts(count)
        if item == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        return list(self.scalars(_SCALARS[item], count))

    def _texts(self, count: int) -> list[str]:
        data, position, end = self._data, self.position, len(self._data)
        if count * 8 > end - position:
            raise ValueError(f"{count} strings end past the end of the file")
        length_at, texts = struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > end:
                raise ValueError("a string ends past the end of the file")
            texts.append(str(data[start:position], "utf-8"))
        self.position = position
        return texts
