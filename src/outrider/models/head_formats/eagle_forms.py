"""EAGLE heads in the forms of EAGLE-1, EAGLE-3 (SGLang, vLLM) and speculators."""

from __future__ import annotations

from typing import Any

import torch

from outrider.models.arch import Arch
from outrider.models.arch_config import arch_config
from outrider.models.head_formats.form import HeadForm, cannot_hold, dtype_name
from outrider.models.head_formats.layer import LAYER
from outrider.models.head_formats.vocabulary import d2t_of, t2d_of
from outrider.models.heads import EagleConfig, Head

_SPECULATORS_VERSION = "0.6.0"  # the version of the format that is written
_SPECULATORS_TOKENS = 5  # speculators' own default of what a server drafts


def eagle_form(head: Head, config: EagleConfig, target: str | None) -> HeadForm:
    """EAGLE-1 and 2. Raises `ModelLoadError` for what the form has no place for."""
    arch = config.arch
    if config.is_eagle3:
        raise cannot_hold("eagle", "it is an EAGLE-3 head: use form 'eagle3' or 'speculators'")
    if head.token_map is not None:
        raise cannot_hold("eagle", "it has a draft vocabulary of its own: keep the target's vocabulary")
    if arch.qk_norm or arch.output_bias or arch.mlp_bias:
        part = "q_norm" if arch.qk_norm else "o_proj.bias" if arch.output_bias else "mlp biases"
        raise cannot_hold("eagle", f"its layer has {part}: keep the files it came in")
    settings = {
        **_layer_config(arch),
        "architectures": ["LlamaForCausalLM"],
        "bias": config.fc_bias,
        "qkv_bias": arch.qkv_bias,
        "torch_dtype": dtype_name(head.tensors["fc.weight"]),
    }
    return HeadForm(settings, head.tensors)


def eagle3_form(head: Head, config: EagleConfig, target: str | None) -> HeadForm:
    """EAGLE-3 as SGLang and vLLM load it: `d2t` and `t2d` always, `midlayer.`. Raises `ModelLoadError`."""
    _check_eagle3("eagle3", config)
    if config.arch.qk_norm:
        raise cannot_hold("eagle3", "its layer has q_norm: use form 'speculators'")
    settings = {
        **_layer_config(config.arch),
        **_eagle3_config(config),
        "architectures": ["LlamaForCausalLMEagle3"],
        "bias": config.fc_bias,
        "torch_dtype": dtype_name(head.tensors["fc.weight"]),
    }
    if config.taps is not None and min(config.taps) > 0:
        # SGLang reads the ids here and counts the layers left, not those entered.
        left = [tap - 1 for tap in config.taps]
        settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": left, "use_aux_hidden_state": True}
    token_map = head.token_map if head.token_map is not None else torch.arange(config.draft_vocab)
    tensors = {
        f"midlayer.{name.removeprefix(LAYER)}" if name.startswith(LAYER) else name: tensor
        for name, tensor in head.tensors.items()
    }
    return HeadForm(settings, {**tensors, **_maps(token_map, config.arch.vocab_size)})


def speculators_form(head: Head, config: EagleConfig, target: str | None) -> HeadForm:
    """speculators' eagle3; `target` is written as the name of its verifier. Raises `ModelLoadError`."""
    _check_eagle3("speculators", config)
    if config.fc_bias:
        raise cannot_hold("speculators", "it has fc.bias: use form 'eagle3'")
    layer = {**_layer_config(config.arch), "torch_dtype": dtype_name(head.tensors["fc.weight"])}
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": _SPECULATORS_TOKENS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    settings = {
        **_eagle3_config(config),
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": layer,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": layer["torch_dtype"],
    }
    maps = {} if head.token_map is None else _maps(head.token_map, config.arch.vocab_size)
    return HeadForm(settings, {**head.tensors, **maps})


def _check_eagle3(form: str, config: EagleConfig) -> None:
    if not config.is_eagle3:
        raise cannot_hold(form, "it is an EAGLE-1 head: use form 'eagle'")
    if config.arch.qkv_bias != config.arch.output_bias:
        raise cannot_hold(form, "its layer has biases on q, k, v or on o alone: keep the files it came in")


def _maps(token_map: torch.Tensor, vocab_size: int) -> dict[str, torch.Tensor]:
    return {"d2t": d2t_of(token_map), "t2d": t2d_of(token_map, vocab_size)}


def _eagle3_config(config: EagleConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "draft_vocab_size": config.draft_vocab,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "target_hidden_size": config.target_hidden,
    }
    if config.taps is not None:
        settings["eagle_aux_hidden_state_layer_ids"] = list(config.taps)
    return settings


def _layer_config(arch: Arch) -> dict[str, Any]:
    family = "qwen3" if arch.qk_norm else "llama"
    return {**arch_config(arch), "model_type": family, "num_hidden_layers": 1, "tie_word_embeddings": False}
