"""Medusa heads in the v1 form and in that of vLLM."""

from __future__ import annotations

from outrider.models.head_formats.files import MEDUSA_FILE
from outrider.models.head_formats.form import HeadForm, cannot_hold, dtype_name
from outrider.models.heads import Head, MedusaConfig


def medusa_form(head: Head, config: MedusaConfig, target: str | None) -> HeadForm:
    """v1; `target` is written as the name of the base model. Raises `ModelLoadError` for what it has no place for."""
    if head.token_map is not None:
        raise cannot_hold("medusa", "it has a draft vocabulary of its own: use form 'medusa_vllm'")
    if not config.bias:
        raise cannot_hold(
            "medusa", "its blocks have no biases, which v1 loaders expect: use form 'medusa_vllm'"
        )
    tensors = {}
    for index in range(config.heads):
        for layer in range(config.layers):
            for part in ("weight", "bias"):
                tensors[f"{index}.{layer}.linear.{part}"] = head.tensors[f"heads.{index}.{layer}.{part}"]
        tensors[f"{index}.{config.layers}.weight"] = head.tensors[f"heads.{index}.out.weight"]
    settings = {
        "base_model_name_or_path": target,
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.layers,
        "hidden_size": config.hidden,
        "vocab_size": config.vocab_size,
    }
    return HeadForm(settings, tensors, f"{MEDUSA_FILE}.safetensors")


def medusa_vllm_form(head: Head, config: MedusaConfig, target: str | None) -> HeadForm:
    """vLLM's; an output matrix that all heads share is stored once."""
    outs = [head.tensors[f"heads.{index}.out.weight"] for index in range(config.heads)]
    shared = config.heads > 1 and all(out is outs[0] for out in outs)
    tensors = {}
    for index in range(config.heads):
        for layer in range(config.layers):
            for part in ("weight", "bias") if config.bias else ("weight",):
                tensors[f"blocks.{index}.layers.{layer}.{part}"] = head.tensors[
                    f"heads.{index}.{layer}.{part}"
                ]
        if index == 0 or not shared:
            tensors[f"lm_heads.{index}.weight"] = outs[index]
    if head.token_map is not None:
        tensors["token_map"] = head.token_map
    settings = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": config.heads,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.draft_vocab,
        "medusa_fc_bias": config.bias,
        "original_lm_head": shared,
        "torch_dtype": dtype_name(outs[0]),
    }
    return HeadForm(settings, tensors)
