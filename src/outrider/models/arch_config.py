"""`arch_config`: an architecture as a config.json states it, the way back of `Arch.from_config`."""

from __future__ import annotations

from typing import Any

from outrider.models.arch import Arch, RopeKind


def arch_config(arch: Arch) -> dict[str, Any]:
    """The settings under the names that transformers 4 and older loaders read.

    Biases on query, key and value alone have no setting of their own: only the family qwen2 implies them.
    """
    return {
        "model_type": arch.family,
        "num_hidden_layers": arch.layers,
        "hidden_size": arch.hidden,
        "intermediate_size": arch.intermediate,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.kv_heads,
        "head_dim": arch.head_dim,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_positions,
        "rms_norm_eps": arch.rms_eps,
        "rope_theta": arch.rope_theta,
        "rope_scaling": _rope_scaling(arch),
        "hidden_act": "silu",
        "attention_bias": arch.qkv_bias and arch.output_bias,
        "mlp_bias": arch.mlp_bias,
        "tie_word_embeddings": arch.tied_head,
    }


def _rope_scaling(arch: Arch) -> dict[str, Any] | None:
    scaling = arch.rope_scaling
    if scaling.kind is RopeKind.DEFAULT:
        return None
    # Older loaders read "type", newer ones "rope_type".
    settings = {"rope_type": scaling.kind.value, "type": scaling.kind.value, "factor": scaling.factor}
    if scaling.kind is RopeKind.LLAMA3:
        settings |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_positions,
        }
    return settings
