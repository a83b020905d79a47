"""`Student`: some layers of a target as a small language model of their own, trained over padded texts.

Embedding and output head stay the target's and are not trained, so that a student's files hold its layers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from outrider.errors import ConfigError
from outrider.models.arch import Arch
from outrider.models.rope import RopeTable, rotate
from outrider.models.weights import StateReader


class _Attention(nn.Module):
    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self._arch = arch
        queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        self.q_proj = nn.Linear(arch.hidden, queries, bias=arch.qkv_bias)
        self.k_proj = nn.Linear(arch.hidden, keys, bias=arch.qkv_bias)
        self.v_proj = nn.Linear(arch.hidden, keys, bias=arch.qkv_bias)
        self.o_proj = nn.Linear(queries, arch.hidden, bias=arch.output_bias)
        if arch.qk_norm:
            self.q_norm = nn.RMSNorm(arch.head_dim, arch.rms_eps)
            self.k_norm = nn.RMSNorm(arch.head_dim, arch.rms_eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[texts, length, hidden] to the same; position t sees positions up to t."""
        arch = self._arch
        joint = _joint(x, self.q_proj, self.k_proj, self.v_proj).view(*x.shape[:2], -1, arch.head_dim)
        queries, keys, values = torch.split(joint, [arch.heads, arch.kv_heads, arch.kv_heads], dim=2)
        if arch.qk_norm:
            wide = self.q_norm.weight.dtype  # products of an autocast forward are narrower
            queries, keys = self.q_norm(queries.to(wide)), self.k_norm(keys.to(wide))
        queries, keys = rotate(queries, cos, sin).to(values), rotate(keys, cos, sin).to(values)
        read = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            is_causal=True,
            enable_gqa=arch.heads != arch.kv_heads,
        )
        mixed: torch.Tensor = self.o_proj(read.transpose(1, 2).flatten(2))
        return mixed


class _Mlp(nn.Module):
    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(arch.hidden, arch.intermediate, bias=arch.mlp_bias)
        self.up_proj = nn.Linear(arch.hidden, arch.intermediate, bias=arch.mlp_bias)
        self.down_proj = nn.Linear(arch.intermediate, arch.hidden, bias=arch.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., hidden] to the same
        gate, up = _joint(x, self.gate_proj, self.up_proj).chunk(2, dim=-1)
        mixed: torch.Tensor = self.down_proj(F.silu(gate) * up)
        return mixed


class _Layer(nn.Module):
    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(arch.hidden, arch.rms_eps)
        self.self_attn = _Attention(arch)
        self.post_attention_layernorm = nn.RMSNorm(arch.hidden, arch.rms_eps)
        self.mlp = _Mlp(arch)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        mixed: torch.Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + mixed


class Student(nn.Module):
    """A decoder of `arch` between an embedding and a head that it is lent.

    `state_dict()` has Hugging Face names without their `model.`, and holds what is trained alone.
    """

    def __init__(self, arch: Arch) -> None:
        """Untrained; `initialised` starts from a target."""
        super().__init__()
        self.arch = arch
        self.layers = nn.ModuleList(_Layer(arch) for _ in range(arch.layers))
        self.norm = nn.RMSNorm(arch.hidden, arch.rms_eps)
        self._rope = RopeTable(arch, torch.float32, torch.device("cpu"))

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:  # [texts, length, hidden] to the same
        """States after the final norm, ready for the head."""
        length = embedded.shape[1]
        cos, sin = (part.to(embedded.device) for part in self._rope.at(torch.arange(length), length))
        x = embedded
        for layer in self.layers:
            x = layer(x, cos, sin)
        normed: torch.Tensor = self.norm(x)
        return normed


def _joint(x: torch.Tensor, *parts: nn.Linear) -> torch.Tensor:  # [..., in] -> [..., all their out]
    """Several linears of one input as one product, which rounds that input once under autocast."""
    bias = torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None
    return F.linear(x, torch.cat([part.weight for part in parts]), bias)


def initialised(arch: Arch, state: Mapping[str, torch.Tensor], layers: Sequence[int]) -> Student:
    """A float32 student of the target's `layers`, in this order, with copies of their weights and of its final norm.

    `arch` and `state` (Hugging Face names) are the target's. Raises `ConfigError` on a layer that it does not have,
    and `ModelLoadError` naming a tensor that does not fit.
    """
    check_layers(layers, arch)
    student = Student(replace(arch, layers=len(layers), tied_head=False))
    reader = StateReader(state, torch.float32)
    own = student.state_dict()
    student.load_state_dict({name: reader.take(_source(name, layers), *own[name].shape) for name in own})
    return student


def check_layers(layers: Sequence[int], arch: Arch) -> None:
    """Raises `ConfigError` on layers that the target does not have, and where there are none."""
    if not layers:
        raise ConfigError("a student needs at least one layer of the target: name some")
    for layer in layers:
        if not 0 <= layer < arch.layers:
            raise ConfigError(f"layer {layer} is not one of the target's: they are 0 to {arch.layers - 1}")


def _source(name: str, layers: Sequence[int]) -> str:
    """The target's tensor that a student's starts from."""
    if not name.startswith("layers."):
        return f"model.{name}"
    _, index, rest = name.split(".", 2)
    return f"model.layers.{layers[int(index)]}.{rest}"
