"""The decoder layer of an EAGLE head: its shape from the config, what the tensors reveal taking precedence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outrider.errors import ModelLoadError
from outrider.models.arch import FAMILIES, Arch, UnsupportedArchitecture
from outrider.models.head_formats.settings import count, flag
from outrider.models.head_formats.tensors import HeadTensors

LAYER = "layers.0."
_REVEALED = {
    "qkv_bias": "self_attn.q_proj.bias",
    "output_bias": "self_attn.o_proj.bias",
    "mlp_bias": "mlp.gate_proj.bias",
    "qk_norm": "self_attn.q_norm.weight",
}


def head_arch(config: Mapping[str, Any], tensors: HeadTensors, findings: list[str]) -> Arch:
    """The layer as `Arch`, with biases and norms as stored. Raises `ModelLoadError` on what is not computed here."""
    layers = count(config, "num_hidden_layers")
    if layers not in (None, 1):
        raise ModelLoadError(
            f"num_hidden_layers {layers}: heads of one decoder layer are supported: use one of those"
        )
    family = config.get("model_type", "llama")
    if family not in FAMILIES:
        raise ModelLoadError(
            f"model_type {family!r}: the layer of a head must be one of {', '.join(FAMILIES)}: use another head"
        )
    _refuse_rope_by_layer(config)
    arch = _stated(config, {"num_hidden_layers": 1, "model_type": family}, tensors, findings)
    qkv_bias = flag(config, "qkv_bias")  # the key of EAGLE's own code
    stated = arch if qkv_bias is None else replace(arch, qkv_bias=qkv_bias)
    revealed = {}
    for field, name in _REVEALED.items():
        revealed[field] = LAYER + name in tensors
        if getattr(stated, field) != revealed[field]:
            findings.append(
                f"the config {'means' if getattr(stated, field) else 'has no'} {field}, but {LAYER + name} is "
                f"{'stored' if revealed[field] else 'not stored'}: the tensors count"
            )
    # Biases and norms are told by their own fields: the family's name says nothing beyond them.
    return replace(
        arch,
        family="qwen3" if revealed["qk_norm"] else "llama",
        qkv_bias=revealed["qkv_bias"],
        output_bias=revealed["output_bias"],
        mlp_bias=revealed["mlp_bias"],
        qk_norm=revealed["qk_norm"],
        tied_head=False,
    )


def take_layer(tensors: HeadTensors, arch: Arch, inputs: int) -> None:
    """Takes the layer's tensors; query, key and value read `inputs` values. Norms before it are the caller's."""
    attention, mlp = LAYER + "self_attn.", LAYER + "mlp."
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    _linear(tensors, attention + "q_proj", queries, inputs, bias=arch.qkv_bias)
    _linear(tensors, attention + "k_proj", keys, inputs, bias=arch.qkv_bias)
    _linear(tensors, attention + "v_proj", keys, inputs, bias=arch.qkv_bias)
    _linear(tensors, attention + "o_proj", arch.hidden, queries, bias=arch.output_bias)
    _linear(tensors, mlp + "gate_proj", arch.intermediate, arch.hidden, bias=arch.mlp_bias)
    _linear(tensors, mlp + "up_proj", arch.intermediate, arch.hidden, bias=arch.mlp_bias)
    _linear(tensors, mlp + "down_proj", arch.hidden, arch.intermediate, bias=arch.mlp_bias)
    if arch.qk_norm:
        tensors.take(attention + "q_norm.weight", arch.head_dim)
        tensors.take(attention + "k_norm.weight", arch.head_dim)
    tensors.take(LAYER + "post_attention_layernorm.weight", arch.hidden)


def _linear(tensors: HeadTensors, name: str, outputs: int, inputs: int, *, bias: bool) -> None:
    tensors.take(f"{name}.weight", outputs, inputs)
    if bias:
        tensors.take(f"{name}.bias", outputs)


def _stated(
    config: Mapping[str, Any], settled: Mapping[str, Any], tensors: HeadTensors, findings: list[str]
) -> Arch:
    """What the config states; a head size it leaves out is read off the query matrix."""
    table = {**config, **settled}
    heads = count(table, "num_attention_heads")
    if count(table, "head_dim") is None and heads is not None:
        rows = tensors.shape(LAYER + "self_attn.q_proj.weight", 2)[0]
        hidden = count(table, "hidden_size")
        if rows % heads == 0:
            table["head_dim"] = rows // heads
            if hidden is not None and rows // heads != hidden // heads:
                findings.append(f"head_dim is not in the config: q_proj has {rows} rows for {heads} heads")
    try:
        return Arch.from_config(table)
    except UnsupportedArchitecture as error:
        reason = str(error).partition(": use target=")[0]
        raise ModelLoadError(f"the layer of this head cannot be computed: {reason}") from None


def _refuse_rope_by_layer(config: Mapping[str, Any]) -> None:
    found = config.get("rope_parameters")
    for key, value in found.items() if isinstance(found, Mapping) else ():
        if isinstance(value, Mapping):
            raise ModelLoadError(
                f"rope_parameters has settings for {key!r} apart, which a head of one layer cannot choose from: "
                "state rope_theta and rope_type once"
            )
