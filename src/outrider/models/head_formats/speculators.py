"""Reads heads in the format of vLLM's speculators: the tensors of EAGLE-3 under a config with a section per part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from outrider.errors import ModelLoadError, nearest
from outrider.models.head_formats.eagle import read_eagle
from outrider.models.head_formats.settings import flag, section, text
from outrider.models.heads import Head

TYPE_KEY = "speculators_model_type"
# Known to the format, without a drafter here.
_OTHERS = ("eagle", "peagle", "dflash", "dspark", "mtp", "mlp", "independent")
_HEAD_KEYS = (
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "target_hidden_size",
)
# Parts of the target that some versions save along.
_OF_THE_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")


def read_speculators(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    """An eagle3 head. Raises `ModelLoadError` on another type, naming it, and as `read_eagle`."""
    kind = text(config, TYPE_KEY)
    if kind in _OTHERS:
        raise ModelLoadError(
            f"{TYPE_KEY} {kind!r} is a known kind of head that is not supported: use an 'eagle3' head"
        )
    if kind != "eagle3":
        raise ModelLoadError(
            f"{TYPE_KEY} {kind!r} is unknown{nearest(kind, ('eagle3', *_OTHERS))}: use an 'eagle3' head"
        )
    layer = section(config, "transformer_layer_config")
    if not layer:
        raise ModelLoadError(
            "transformer_layer_config is missing: use the config.json that belongs to the head"
        )
    flat = {
        **layer,
        **{key: config.get(key) for key in _HEAD_KEYS},
        "architectures": config.get("architectures"),
    }
    findings = []
    if flag(config, "norm_before_residual") is None:
        # vLLM, which serves this format, takes true for a config that is silent.
        flat["norm_before_residual"] = True
        findings.append(
            "norm_before_residual is not in the config: taken as true, as vLLM does for this format"
        )
    own = {stored: tensor for stored, tensor in state.items() if stored not in _OF_THE_TARGET}
    if len(own) < len(state):
        findings.append("tensors of the target are stored with the head: left out")
    head = read_eagle(flat, own, name)
    if head.method != "eagle3":
        raise ModelLoadError(f"{TYPE_KEY} is 'eagle3', but q_proj reads one feature: download the head again")
    return replace(head, findings=(*findings, *head.findings))
