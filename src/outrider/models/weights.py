"""`DecoderWeights`: a state dict under Hugging Face names, fused and packed for the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch
from outrider.models.linear import Linear

# Buffers that old checkpoints carry and every implementation recomputes.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias")


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One decoder layer; query, key and value are one linear, gate and up another."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: Linear
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None  # [head_dim]
    output: Linear
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.qkv, self.output, self.gate_up, self.down)


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """`norm` and `head` are at least float32: half-precision logits tie exactly, often among the very best tokens."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [hidden]
    head: Linear

    @property
    def nbytes(self) -> int:
        """Bytes that a pass reads: all but the embedding, of which it reads a few rows."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        return self.head.nbytes + sum(linear.nbytes for linear in linears)


def decoder_weights(
    arch: Arch, state: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device, spoken_size: int
) -> DecoderWeights:
    """Fuses and packs `state`; `spoken_size`: rows of the head, the vocabulary's where that is tied.

    Raises `ModelLoadError` naming a tensor that is missing, misshapen or left over.
    """
    reader = StateReader(state, dtype, device)
    embedding = reader.take("model.embed_tokens.weight", arch.vocab_size, arch.hidden)
    layers = tuple(_layer(arch, reader, f"model.layers.{index}.") for index in range(arch.layers))
    wide = torch.promote_types(dtype, torch.float32)
    norm = reader.take("model.norm.weight", arch.hidden).to(wide)
    head_name = "model.embed_tokens.weight" if arch.tied_head else "lm_head.weight"
    head = Linear(reader.take(head_name, spoken_size, arch.hidden).to(wide))
    reader.forget("lm_head.weight")
    reader.finish()
    return DecoderWeights(embedding, layers, norm, head)


def _layer(arch: Arch, reader: StateReader, prefix: str) -> LayerWeights:
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv = [(attention + "q_proj", queries), (attention + "k_proj", keys), (attention + "v_proj", keys)]
    gate_up = [(mlp + "gate_proj", arch.intermediate), (mlp + "up_proj", arch.intermediate)]
    norm = "_norm.weight"
    return LayerWeights(
        attention_norm=reader.take(prefix + "input_layernorm.weight", arch.hidden),
        qkv=reader.linear(qkv, arch.hidden, bias=arch.qkv_bias),
        query_norm=reader.take(attention + "q" + norm, arch.head_dim) if arch.qk_norm else None,
        key_norm=reader.take(attention + "k" + norm, arch.head_dim) if arch.qk_norm else None,
        output=reader.linear([(attention + "o_proj", arch.hidden)], queries, bias=arch.output_bias),
        mlp_norm=reader.take(prefix + "post_attention_layernorm.weight", arch.hidden),
        gate_up=reader.linear(gate_up, arch.hidden, bias=arch.mlp_bias),
        down=reader.linear([(mlp + "down_proj", arch.hidden)], arch.intermediate, bias=arch.mlp_bias),
    )


class StateReader:
    """Hands out tensors of a state dict, checked and converted, and tells what nobody asked for."""

    def __init__(
        self, state: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self._state, self._dtype, self._device = state, dtype, device
        self._left = {name for name in state if not name.endswith(_IGNORED_SUFFIXES)}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor, converted. Raises `ModelLoadError` when it is missing or has another shape."""
        return self.found(name, *shape).to(self._device, self._dtype)

    def found(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as stored. Raises as `take`."""
        tensor = self._state.get(name)
        if tensor is None:
            raise ModelLoadError(f"tensor {name!r} is missing from the checkpoint: download it again")
        self.note(name, tuple(tensor.shape), shape)
        return tensor.detach()

    def note(self, name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Counts a tensor as used that was read by other means. Raises `ModelLoadError` when its shape is another."""
        if actual != expected:
            raise ModelLoadError(
                f"tensor {name!r} has shape {list(actual)}, the config says {list(expected)}"
            )
        self._left.discard(name)

    def linear(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        weight = torch.cat([self.take(f"{name}.weight", outputs, inputs) for name, outputs in parts])
        biases = [self.take(f"{name}.bias", outputs) for name, outputs in parts] if bias else []
        return Linear(weight, torch.cat(biases) if biases else None)

    def forget(self, name: str) -> None:
        self._left.discard(name)

    def finish(self) -> None:
        if self._left:
            name = min(self._left)
            raise ModelLoadError(
                f"tensor {name!r} ({len(self._left)} in all) is not part of this architecture: use target='hf'"
            )
