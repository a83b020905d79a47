"""Reads EAGLE heads: EAGLE-1 and 2 (one feature), and EAGLE-3 (fused features of several layers).

Facts of the formats: SafeAILab/EAGLE, SpecForge, SGLang's and vLLM's loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch
from outrider.models.head_formats.layer import LAYER, head_arch, take_layer
from outrider.models.head_formats.settings import count, flag, layer_ids, section
from outrider.models.head_formats.tensors import HeadTensors
from outrider.models.head_formats.vocabulary import read_offsets
from outrider.models.heads import EagleConfig, Head

_QUERY = LAYER + "self_attn.q_proj.weight"
_TAPS = "eagle_aux_hidden_state_layer_ids"
_PUBLISHED_POSITIONS = 2048


def plain_name(stored: str) -> str:
    """The name of `Head` for a name in a file: without `model.`, the layer as `layers.0.`."""
    name = stored.removeprefix("model.")
    return LAYER + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def read_eagle(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    """An EAGLE head of either kind: the input width of the layer's query matrix tells which.

    Raises `ModelLoadError` naming the tensor or key that does not fit.
    """
    tensors = HeadTensors(state, plain_name)
    findings: list[str] = []
    arch = head_arch(config, tensors, findings)
    width = tensors.shape(_QUERY, 2)[1]
    is_eagle3 = width == 2 * arch.hidden
    if not is_eagle3 and width != arch.hidden:
        raise ModelLoadError(
            f"{_QUERY} reads {width} values; with hidden_size {arch.hidden} an EAGLE-1 head reads {arch.hidden}, an "
            f"EAGLE-3 head {2 * arch.hidden}: use the config.json that belongs to the head"
        )
    _compare_class(config, is_eagle3, findings)
    take_layer(tensors, arch, width)
    if "embed_tokens.weight" in tensors:
        tensors.take("embed_tokens.weight", arch.vocab_size, arch.hidden)
    else:
        findings.append("embed_tokens.weight is not stored: the target's embeddings are read")
    read = _read_eagle3 if is_eagle3 else _read_eagle1
    settings, token_map = read(config, tensors, arch, findings)
    kind = "an EAGLE-3 head" if is_eagle3 else "an EAGLE-1 head"
    return Head(settings, tensors.finish(kind), token_map, name, tuple(findings))


def _read_eagle1(
    config: Mapping[str, Any], tensors: HeadTensors, arch: Arch, findings: list[str]
) -> tuple[EagleConfig, None]:
    tensors.take("fc.weight", arch.hidden, 2 * arch.hidden)
    fc_bias = _take_fc_bias(config, tensors, arch, True, findings)
    if tensors.forget("lm_head.weight"):
        findings.append(
            "lm_head.weight is stored, but a head of this kind speaks with the target's: left out"
        )
    settings = EagleConfig(
        is_eagle3=False, arch=arch, target_hidden=arch.hidden, draft_vocab=arch.vocab_size, fc_bias=fc_bias
    )
    return settings, None


def _read_eagle3(
    config: Mapping[str, Any], tensors: HeadTensors, arch: Arch, findings: list[str]
) -> tuple[EagleConfig, torch.Tensor | None]:
    if flag(section(config, "eagle_config"), "use_aux_hidden_state") is False:
        raise ModelLoadError(
            "use_aux_hidden_state is false: heads on the last hidden state alone are not supported in the EAGLE-3 "
            "form: use one with three tapped layers"
        )
    taps = _taps(config, findings)
    features = len(taps) if taps else 3
    target_hidden = _target_hidden(config, tensors, arch, features, findings)
    tensors.take("fc.weight", arch.hidden, features * target_hidden)
    fc_bias = _take_fc_bias(config, tensors, arch, False, findings)
    norm_before_fc, fc_norm = _fusing_norms(config, tensors, features, target_hidden, findings)
    for norm in (LAYER + "hidden_norm.weight", LAYER + "input_layernorm.weight", "norm.weight"):
        tensors.take(norm, arch.hidden)
    rows = _take_output(config, tensors, arch, findings)
    token_map = read_offsets(tensors, rows, arch.vocab_size, findings)
    if arch.max_positions == _PUBLISHED_POSITIONS:
        findings.append(
            f"max_position_embeddings {_PUBLISHED_POSITIONS} is a habit of published heads, not their limit: the "
            "target's context counts"
        )
    settings = EagleConfig(
        is_eagle3=True,
        arch=arch,
        target_hidden=target_hidden,
        draft_vocab=rows,
        taps=taps,
        fc_bias=fc_bias,
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_before_residual=flag(config, "norm_before_residual") or False,
        norm_output=flag(config, "norm_output") or False,
    )
    return settings, token_map


def _compare_class(config: Mapping[str, Any], is_eagle3: bool, findings: list[str]) -> None:
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) and not is_eagle3 else ():
        if "eagle3" in str(name).lower():
            findings.append(f"architectures says {name!r}, but q_proj reads one feature: an EAGLE-1 head")


def _take_fc_bias(
    config: Mapping[str, Any], tensors: HeadTensors, arch: Arch, unsaid: bool, findings: list[str]
) -> bool:
    """Takes `fc.bias` where there is one. `unsaid` is what a config without the key means."""
    stored, stated = "fc.bias" in tensors, flag(config, "bias")
    if stored:
        tensors.take("fc.bias", arch.hidden)
    if stored is not (unsaid if stated is None else stated):
        meant = f"absent, which means {str(unsaid).lower()}" if stated is None else str(stated).lower()
        findings.append(
            f"bias is {meant}, but fc.bias is {'stored' if stored else 'not stored'}: the tensors count"
        )
    return stored


def _taps(config: Mapping[str, Any], findings: list[str]) -> tuple[int, ...] | None:
    """The layers whose inputs are tapped.

    At the top level (speculators, vLLM) the ids are those of the layers entered; in `eagle_config` (SpecForge, SGLang)
    those of the layers left, one less.
    """
    entered, left = layer_ids(config, _TAPS), layer_ids(section(config, "eagle_config"), _TAPS)
    if entered is not None:
        if left is not None and tuple(layer + 1 for layer in left) != entered:
            findings.append(f"{_TAPS} {list(entered)} counts, not {list(left)} in eagle_config")
        return entered
    if left is None:
        return None
    taps = tuple(layer + 1 for layer in left)
    findings.append(
        f"eagle_config names the outputs of layers {list(left)}: the states entering {list(taps)}"
    )
    return taps


def _target_hidden(
    config: Mapping[str, Any], tensors: HeadTensors, arch: Arch, features: int, findings: list[str]
) -> int:
    inputs = tensors.shape("fc.weight", 2)[1]
    stated = count(config, "target_hidden_size")
    if inputs % features or (stated is not None and inputs != features * stated):
        wanted = f"{features * stated} (target_hidden_size {stated})" if stated else "a multiple of that"
        raise ModelLoadError(
            f"fc.weight reads {inputs} values, but {features} tapped layers give {wanted}: use the config.json that "
            "belongs to the head"
        )
    found = inputs // features
    if found != arch.hidden:
        source = "target_hidden_size" if stated else "fc.weight"
        findings.append(
            f"{source} says that the target's hidden size is {found}; the head's own is {arch.hidden}"
        )
    return found


def _fusing_norms(
    config: Mapping[str, Any], tensors: HeadTensors, features: int, target_hidden: int, findings: list[str]
) -> tuple[bool, bool]:
    """Takes the norms before `fc`; whether there is one over all features, and whether there is one for each."""
    stored = {"norm_before_fc": "input_norm.weight" in tensors, "fc_norm": "fc_norm.0.weight" in tensors}
    for key, found in stored.items():
        stated = flag(config, key)
        if stated and not found:
            name = "input_norm.weight" if key == "norm_before_fc" else "fc_norm.0.weight"
            raise ModelLoadError(f"{key} is true, but tensor {name!r} is missing: download the head again")
        if found and not stated:
            findings.append(
                f"{key} is {'false' if stated is False else 'absent'}, but its norm is stored: taken as true"
            )
    if all(stored.values()):
        raise ModelLoadError(
            "input_norm.weight and fc_norm.0.weight are both stored, and a head has one of them: remove the other"
        )
    if stored["norm_before_fc"]:
        tensors.take("input_norm.weight", features * target_hidden)
    for index in range(features if stored["fc_norm"] else 0):
        tensors.take(f"fc_norm.{index}.weight", target_hidden)
    return stored["norm_before_fc"], stored["fc_norm"]


def _take_output(config: Mapping[str, Any], tensors: HeadTensors, arch: Arch, findings: list[str]) -> int:
    """Takes the output matrix; its rows are the draft vocabulary."""
    name, stated = "lm_head.weight", count(config, "draft_vocab_size")
    if name not in tensors and stated in (None, arch.vocab_size):
        if flag(config, "tie_word_embeddings") and "embed_tokens.weight" in tensors:
            findings.append(
                "lm_head.weight is not stored, tie_word_embeddings is true: embed_tokens.weight is both"
            )
            tensors.taken[name] = tensors.taken["embed_tokens.weight"]
        else:
            findings.append("lm_head.weight is not stored: the head speaks with the target's")
        return arch.vocab_size
    rows = tensors.shape(name, 2)[0]
    tensors.take(name, rows, arch.hidden)
    if stated is None and rows != arch.vocab_size:
        findings.append(f"draft_vocab_size is not in the config: lm_head.weight has {rows} rows")
    elif stated is not None and stated != rows:
        findings.append(
            f"draft_vocab_size is {stated}, but lm_head.weight has {rows} rows: the tensors count"
        )
    return rows
