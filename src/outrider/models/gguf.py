"""`GGUFFile`: metadata and weights of a GGUF file, weights under Hugging Face names."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch
from outrider.models.gguf_header import MAGIC, parse_header
from outrider.models.malformed import reading
from outrider.models.quants import Bytes, dequantised

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


class GGUFFile:
    """An open GGUF file: `metadata` read at once, tensors mapped and dequantised when asked for.

    The header is parsed here, in one pass over bytes, because package `gguf` takes seconds for a large vocabulary.
    Raises `ModelLoadError` in one line that names the file, what is wrong with it, and the remedy.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if self.path.stat().st_size == 0:
                raise self._broken("is empty")
            self._bytes: Bytes = np.memmap(self.path, dtype=np.uint8, mode="c")
        except OSError as error:
            raise ModelLoadError(f"{self.path}: cannot be read ({error.strerror}): check the path") from None
        if bytes(self._bytes[:4]) != MAGIC:
            raise ModelLoadError(
                f"{self.path}: is not a GGUF file (starts with {bytes(self._bytes[:4])!r}): give a .gguf"
            )
        try:
            self.metadata, self._tensors = parse_header(self._bytes)
        except (struct.error, ValueError) as error:
            raise self._broken(f"is truncated or corrupt ({error})") from None
        for name, info in self._tensors.items():
            if info.offset + info.nbytes > len(self._bytes):
                raise self._broken(f"is truncated: tensor {name!r} ends past the end of the file")

    def arch(self) -> Arch:
        """The architecture the metadata describes. Raises `ModelLoadError`."""
        try:
            return Arch.from_gguf(self.metadata, frozenset(self._tensors))
        except ModelLoadError as error:
            raise type(error)(f"{self.path}: {error}") from None

    @property
    def quantisation(self) -> str:
        """The most frequent storage type among the matrices, such as `Q4_1`."""
        kinds = [info.kind.name for info in self._tensors.values() if len(info.shape) > 1]
        return max(set(kinds), key=kinds.count) if kinds else "F32"

    def state(self) -> Mapping[str, torch.Tensor]:
        """All weights, float32, under Hugging Face names, each dequantised when it is asked for."""
        return _LazyState(self)

    def matrix_kinds(self) -> dict[str, GGMLQuantizationType]:
        """How each matrix is stored, by its Hugging Face name."""
        return {hf_name(name): info.kind for name, info in self._tensors.items() if len(info.shape) > 1}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor given by its Hugging Face name."""
        return self._tensors[self.names[name]].shape

    def blocks(self, name: str) -> Bytes:  # [rows, bytes]
        """The stored rows of a matrix, contiguous; queries and keys as Hugging Face orders them."""
        info = self._tensors[self.names[name]]
        raw = self._bytes[info.offset : info.offset + info.nbytes].reshape(info.shape[0], -1)
        heads = self._interleaved_heads(self.names[name])
        return np.ascontiguousarray(_unpermuted(torch.from_numpy(raw), heads).numpy() if heads else raw)

    def weight(self, name: str) -> torch.Tensor:
        """One tensor, float32, given by its Hugging Face name; queries and keys as Hugging Face orders them."""
        own = self.names[name]
        info = self._tensors[own]
        raw = self._bytes[info.offset : info.offset + info.nbytes]
        try:
            weight = dequantised(raw.reshape(math.prod(info.shape[:-1]), -1), info.kind).view(info.shape)
        except NotImplementedError:
            raise ModelLoadError(
                f"{self.path}: tensor {own!r} is stored as {info.kind.name}, which cannot be read: use Q8_0 or F16"
            ) from None
        heads = self._interleaved_heads(own)
        return _unpermuted(weight, heads) if heads else weight

    def forget_pages(self) -> None:
        """Lets the system take back the memory of what was read; reading it again costs time alone."""
        mapping = getattr(self._bytes, "_mmap", None)
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def names(self) -> dict[str, str]:
        """Hugging Face name -> the file's own name, of every tensor."""
        return {hf_name(name): name for name in self._tensors}

    def _interleaved_heads(self, own: str) -> int | None:
        """Heads of a tensor whose rotary halves the file interleaves; None for all others."""
        arch, part = self._arch, own.split(".")[-2]
        if arch.family != "llama" or part not in ("attn_q", "attn_k"):
            return None
        return arch.heads if part == "attn_q" else arch.kv_heads

    @cached_property
    def _arch(self) -> Arch:
        return self.arch()

    def _broken(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {what}: download the file again")


class _LazyState(Mapping[str, torch.Tensor]):
    """The weights of a file as a state dict that holds none of them."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._file.names:
            raise KeyError(name)
        with reading(self._file.path):
            return self._file.weight(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.names)

    def __len__(self) -> int:
        return len(self._file.names)


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown one keeps its own, so that it is reported as left over."""
    if name in _NAMES:
        return _NAMES[name]
    match name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    return name


def _unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes the order of llama files, which interleave the two halves that rotary embedding pairs."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
