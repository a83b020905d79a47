"""Reads Medusa heads: the v1 form (FasterDecoding), heads saved within a full model, and vLLM's form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from outrider.errors import ModelLoadError
from outrider.models.head_formats.settings import count, flag
from outrider.models.head_formats.tensors import HeadTensors
from outrider.models.head_formats.vocabulary import check_map
from outrider.models.heads import Head, MedusaConfig

_FULL_MODEL = "medusa_head."
_V1 = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)$")
_VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$")
_VLLM_OUT = re.compile(r"lm_heads\.(\d+)\.weight$")
_V1_KEYS = {"heads": ("medusa_num_heads",), "layers": ("medusa_num_layers",)}
_VLLM_KEYS = {
    "heads": ("num_heads", "medusa_num_heads"),
    "layers": ("num_hidden_layers", "medusa_num_layers"),
}
_OURS = re.compile(r"heads\.(\d+)\.(?:(\d+)\.(?:weight|bias)|out\.weight)$")


def medusa_names(names: Iterable[str]) -> list[str]:
    """The names that belong to Medusa heads: within a full model those with its prefix, else all that look so."""
    all_names = list(names)
    within = [name for name in all_names if name.startswith(_FULL_MODEL)]
    if within:
        return within
    looks = any(_V1.match(name) or _VLLM_BLOCK.match(_bare(name)) for name in all_names)
    return all_names if looks else []


def read_medusa(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    """Medusa heads in any of the forms. Raises `ModelLoadError` naming the tensor or key that does not fit."""
    is_vllm = any(_VLLM_BLOCK.match(_bare(stored)) for stored in state)
    return (_read_vllm if is_vllm else _read_v1)(config, state, name)


def _read_v1(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    findings: list[str] = []
    tensors = HeadTensors(state, _v1_name)
    shape = _shape(tensors, config, _V1_KEYS, findings)
    _take_blocks(tensors, shape)
    _take_outputs(tensors, shape)
    if any(stored.startswith(_FULL_MODEL) for stored in state):
        findings.append(
            "the heads lie within a full model, which may have been trained with them: use it as target"
        )
    return Head(shape, tensors.finish("Medusa heads"), None, name, tuple(findings))


def _read_vllm(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    findings: list[str] = []
    tensors = HeadTensors(state, _vllm_name)
    shape = _shape(tensors, config, _VLLM_KEYS, findings)
    stated_bias = flag(config, "medusa_fc_bias") or False
    if stated_bias != shape.bias:
        findings.append(
            f"medusa_fc_bias is {str(stated_bias).lower()}, but biases are {'stored' if shape.bias else 'not stored'}: "
            "the tensors count"
        )
    _take_blocks(tensors, shape)
    vocab_size, token_map = _vllm_vocabulary(tensors, shape.draft_vocab, config, findings)
    if flag(config, "original_lm_head"):
        _share_output(tensors, shape, findings)
    else:
        _take_outputs(tensors, shape)
    if token_map is not None and shape.draft_vocab > len(token_map):
        findings.append(
            f"the output matrices have all {shape.draft_vocab} rows: the {len(token_map)} of token_map are kept"
        )
        _keep_rows(shape, tensors.taken, token_map)
    draft_vocab = vocab_size if token_map is None else len(token_map)
    shape = replace(shape, vocab_size=vocab_size, draft_vocab=draft_vocab)
    return Head(shape, tensors.finish("Medusa heads"), token_map, name, tuple(findings))


def _v1_name(stored: str) -> str:
    found = _V1.match(stored)
    if found is None:
        return stored
    head, layer, part = found.groups()
    return (
        f"heads.{head}.out.weight"
        if part == "weight"
        else f"heads.{head}.{layer}.{part.removeprefix('linear.')}"
    )


def _bare(stored: str) -> str:
    return stored.replace("medusa_heads.", "")


def _vllm_name(stored: str) -> str:
    name = _bare(stored)
    block, out = _VLLM_BLOCK.match(name), _VLLM_OUT.match(name)
    if block is not None:
        return f"heads.{block[1]}.{block[2]}.{block[3]}"
    if out is not None:
        return f"heads.{out[1]}.out.weight"
    return "heads.0.out.weight" if name == "lm_head.weight" else name


def _shape(
    tensors: HeadTensors, config: Mapping[str, Any], keys: Mapping[str, Sequence[str]], findings: list[str]
) -> MedusaConfig:
    """Numbers of heads and layers, and sizes, as the tensors have them; what the config says is compared."""
    found = [match for match in map(_OURS.match, tensors.names) if match is not None]
    heads = 1 + max(int(match[1]) for match in found)
    layers = 1 + max((int(match[2]) for match in found if match[2] is not None), default=-1)
    for number, what in ((heads, "heads"), (layers, "layers")):
        key = next((key for key in keys[what] if config.get(key) is not None), None)
        if key is not None and count(config, key) != number:
            findings.append(f"{key} is {config[key]}, but the file has {number} {what}: the tensors count")
    rows, hidden = tensors.shape("heads.0.out.weight", 2)
    if count(config, "hidden_size") not in (None, hidden):
        findings.append(
            f"hidden_size is {config['hidden_size']}, but the output matrices read {hidden} values: the tensors count"
        )
    bias = "heads.0.0.bias" in tensors or not layers
    return MedusaConfig(heads, layers, hidden, vocab_size=rows, draft_vocab=rows, bias=bias)


def _take_blocks(tensors: HeadTensors, shape: MedusaConfig) -> None:
    for head in range(shape.heads):
        for layer in range(shape.layers):
            tensors.take(f"heads.{head}.{layer}.weight", shape.hidden, shape.hidden)
            if shape.bias:
                tensors.take(f"heads.{head}.{layer}.bias", shape.hidden)


def _take_outputs(tensors: HeadTensors, shape: MedusaConfig) -> None:
    for head in range(shape.heads):
        tensors.take(f"heads.{head}.out.weight", shape.draft_vocab, shape.hidden)


def _share_output(tensors: HeadTensors, shape: MedusaConfig, findings: list[str]) -> None:
    """Takes the one output matrix of all heads."""
    matrix = tensors.take("heads.0.out.weight", shape.draft_vocab, shape.hidden)
    for head in range(1, shape.heads):
        if tensors.forget(f"heads.{head}.out.weight"):
            findings.append(
                f"original_lm_head is true: lm_heads.{head}.weight is left out for lm_heads.0.weight"
            )
        tensors.taken[f"heads.{head}.out.weight"] = matrix


def _vllm_vocabulary(
    tensors: HeadTensors, rows: int, config: Mapping[str, Any], findings: list[str]
) -> tuple[int, torch.Tensor | None]:
    """The target's vocabulary, and the map of draft ids where the heads have fewer."""
    vocab_size = count(config, "vocab_size") or rows
    truncated = count(config, "truncated_vocab_size") or vocab_size
    token_map = tensors.take_index("token_map")
    if rows not in (truncated, vocab_size):
        raise ModelLoadError(
            f"lm_heads.0.weight has {rows} rows, but truncated_vocab_size is {truncated} and vocab_size {vocab_size}: "
            "use the config.json that belongs to the heads"
        )
    if truncated == vocab_size:
        if token_map is not None:
            findings.append(
                f"token_map is left out: truncated_vocab_size is the whole vocabulary of {vocab_size}"
            )
        return vocab_size, None
    if token_map is None:
        raise ModelLoadError(
            f"truncated_vocab_size is {truncated} of {vocab_size}, but tensor 'token_map' is missing: download the "
            "heads again"
        )
    check_map(token_map, truncated, vocab_size, "token_map")
    return vocab_size, token_map


def _keep_rows(shape: MedusaConfig, taken: dict[str, torch.Tensor], token_map: torch.Tensor) -> None:
    """Cuts whole output matrices down to the draft vocabulary; a shared one stays shared."""
    kept: dict[int, torch.Tensor] = {}
    for head in range(shape.heads):
        whole = taken[f"heads.{head}.out.weight"]
        taken[f"heads.{head}.out.weight"] = kept.setdefault(id(whole), whole[token_map])
