"""Hands the weights of a model to the compiled decoder, one matrix at a time, so that no second copy is ever held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from gguf.constants import GGMLQuantizationType

from outrider.errors import ConfigError
from outrider.models.arch import Arch
from outrider.models.gguf import GGUFFile
from outrider.models.native_library import Format, MatrixRole, NativeLibrary, Rows, Source, Stream, VectorRole
from outrider.models.native_model import Fusing, NativeSetup
from outrider.models.weights import StateReader

_ROWS = 4096  # rows converted to float32 at once
BLOCKS = {
    GGMLQuantizationType.Q4_0: (Source.Q4_0, Format.Q4_0),
    GGMLQuantizationType.Q4_1: (Source.Q4_1, Format.Q4_1),
    GGMLQuantizationType.Q8_0: (Source.Q8_0, Format.Q8_0),
}
_PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


@dataclass(frozen=True)
class MatrixPlan:
    """One matrix of the decoder and the tensor it comes from."""

    role: MatrixRole
    layer: int
    name: str
    outputs: int
    inputs: int


def matrix_plans(
    arch: Arch, spoken_size: int | None = None, stream: Stream = Stream.TOKEN, fusing: Fusing | None = None
) -> Iterator[MatrixPlan]:
    """Every matrix of the architecture, in the order in which a pass reads them.

    `spoken_size`: rows of a head of its own; None: the vocabulary. `stream`: layer 0 reads more than the stream where
    that starts from a given state. `fusing`: how states are made of features.
    """
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    if fusing is not None and fusing.has_matrix:
        yield MatrixPlan(MatrixRole.FUSE, -1, "model.fuse.weight", arch.hidden, fusing.inputs)
    yield MatrixPlan(MatrixRole.EMBEDDING, -1, "model.embed_tokens.weight", arch.vocab_size, arch.hidden)
    for layer in range(arch.layers):
        prefix = f"model.layers.{layer}."
        seen = arch.hidden if layer or stream is Stream.TOKEN else 2 * arch.hidden
        for role, name, outputs, inputs in (
            (MatrixRole.QUERY, "self_attn.q_proj", queries, seen),
            (MatrixRole.KEY, "self_attn.k_proj", keys, seen),
            (MatrixRole.VALUE, "self_attn.v_proj", keys, seen),
            (MatrixRole.OUTPUT, "self_attn.o_proj", arch.hidden, queries),
            (MatrixRole.GATE, "mlp.gate_proj", arch.intermediate, arch.hidden),
            (MatrixRole.UP, "mlp.up_proj", arch.intermediate, arch.hidden),
            (MatrixRole.DOWN, "mlp.down_proj", arch.hidden, arch.intermediate),
        ):
            yield MatrixPlan(role, layer, f"{prefix}{name}.weight", outputs, inputs)
    if not arch.tied_head:
        yield MatrixPlan(MatrixRole.HEAD, -1, "lm_head.weight", spoken_size or arch.vocab_size, arch.hidden)


def vector_plans(
    arch: Arch, stream: Stream = Stream.TOKEN, fusing: Fusing | None = None
) -> Iterator[tuple[int, int, str, int]]:
    """(role, layer, tensor, numbers) of every norm and bias."""
    if fusing is not None:
        for found, role, name, count in (
            (fusing.has_column_norms, VectorRole.COLUMN_NORM, "column_norms", fusing.inputs),
            (fusing.has_feature_norm, VectorRole.FEATURE_NORM, "feature_norm", fusing.inputs),
            (fusing.has_bias, VectorRole.BIAS + MatrixRole.FUSE, "fuse.bias", arch.hidden),
        ):
            if found:
                yield role, -1, f"model.{name}", count
    yield VectorRole.FINAL_NORM, -1, "model.norm.weight", arch.hidden
    if stream is not Stream.TOKEN:
        yield VectorRole.TOKEN_NORM, -1, "model.token_norm.weight", arch.hidden
    qkv = ((MatrixRole.QUERY, "self_attn.q_proj"), (MatrixRole.KEY, "self_attn.k_proj"),
           (MatrixRole.VALUE, "self_attn.v_proj"))  # fmt: skip
    mlp = (
        (MatrixRole.GATE, "mlp.gate_proj"),
        (MatrixRole.UP, "mlp.up_proj"),
        (MatrixRole.DOWN, "mlp.down_proj"),
    )
    biased = [*(qkv if arch.qkv_bias else ()), *(mlp if arch.mlp_bias else ())]
    if arch.output_bias:
        biased.append((MatrixRole.OUTPUT, "self_attn.o_proj"))
    sizes = {plan.role: plan.outputs for plan in matrix_plans(arch)}
    for layer in range(arch.layers):
        prefix = f"model.layers.{layer}."
        yield VectorRole.ATTENTION_NORM, layer, f"{prefix}input_layernorm.weight", arch.hidden
        yield VectorRole.MLP_NORM, layer, f"{prefix}post_attention_layernorm.weight", arch.hidden
        if arch.qk_norm:
            yield VectorRole.QUERY_NORM, layer, f"{prefix}self_attn.q_norm.weight", arch.head_dim
            yield VectorRole.KEY_NORM, layer, f"{prefix}self_attn.k_norm.weight", arch.head_dim
        for role, name in biased:
            yield VectorRole.BIAS + role, layer, f"{prefix}{name}.bias", sizes[role]


def stored_as_blocks(file: GGUFFile) -> bool:
    """Whether every matrix of the file is stored in a form that is kept as it stands, and some as blocks."""
    kinds = set(file.matrix_kinds().values())
    return kinds <= {*BLOCKS, *_PLAIN} and bool(kinds & {*BLOCKS})


class WeightFeed:
    """Passes tensors to one model of the library. `plain`: the format of matrices that are not kept as blocks."""

    def __init__(self, library: NativeLibrary, model: int, plain: Format, setup: NativeSetup) -> None:
        self._library, self._model, self._plain, self._setup = library, model, plain, setup

    def numbers(self, arch: Arch, reader: StateReader) -> None:
        """All matrices from their numbers. Raises `ModelLoadError` naming a tensor that does not fit."""
        for plan in self._plans(arch):
            self._matrix(plan, reader)

    def blocks(self, arch: Arch, reader: StateReader, file: GGUFFile) -> None:
        """Matrices stored as blocks from those, others from their numbers. Raises as `numbers`, and `ConfigError`."""
        kinds = file.matrix_kinds()
        for plan in self._plans(arch):
            kind = kinds.get(plan.name)
            if kind in BLOCKS:
                raw = file.blocks(plan.name)
                reader.note(plan.name, file.shape(plan.name), (plan.outputs, plan.inputs))
                source, form = BLOCKS[kind]
                self._rows(plan, source, form, 0, plan.outputs, raw.ctypes.data)
                file.forget_pages()
            elif kind is None or kind in _PLAIN:
                self._matrix(plan, reader)
            else:
                raise ConfigError(
                    f"dtype 'gguf' keeps Q4_0, Q4_1 and Q8_0 blocks, and {plan.name!r} is stored as {kind.name}: "
                    "use dtype='bfloat16' or 'int8'"
                )

    def vectors(self, arch: Arch, reader: StateReader) -> None:
        """All norms and biases. Raises `ModelLoadError` naming a tensor that does not fit."""
        for role, layer, name, count in vector_plans(arch, self._setup.stream, self._setup.fusing):
            numbers = reader.take(name, count).contiguous()
            self._library.set_vector(self._model, role, layer, numbers.data_ptr(), count)

    def _plans(self, arch: Arch) -> Iterator[MatrixPlan]:
        setup = self._setup
        return matrix_plans(arch, setup.spoken_size, setup.stream, setup.fusing)

    def _matrix(self, plan: MatrixPlan, reader: StateReader) -> None:
        tensor = reader.found(plan.name, plan.outputs, plan.inputs)
        for first in range(0, plan.outputs, _ROWS):
            part = tensor[first : first + _ROWS].to(torch.float32).contiguous()
            self._rows(plan, Source.FLOAT32, self._plain, first, len(part), part.data_ptr())

    def _rows(
        self, plan: MatrixPlan, source: Source, form: Format, first: int, count: int, data: int
    ) -> None:
        rows = Rows(plan.role, plan.layer, source, form, plan.outputs, plan.inputs, first, count)
        self._library.set_rows(self._model, rows, data)
