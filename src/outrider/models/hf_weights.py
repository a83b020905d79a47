"""The token matrices and the final norm of a transformers model."""

from __future__ import annotations

from typing import Any

import torch

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError
from outrider.models.hf_layers import LayerList

_NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "final_norm")


def token_weights(model: Any, num_layers: int) -> TokenWeights:
    """Embedding, head and final RMSNorm. Raises `ModelLoadError` where one of them is not there, naming the class."""
    name = type(model).__name__
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found = LayerList.of_model(model, num_layers)
    norms = [getattr(found.holder, norm, None) for norm in _NORM_NAMES] if found else []
    norm = next((norm for norm in norms if norm is not None), None)
    eps = next((e for e in (getattr(norm, key, None) for key in ("variance_epsilon", "eps")) if e), None)
    shifts = getattr(norm, "bias", None) is not None
    if embedding is None or head is None or norm is None or eps is None or shifts:
        raise ModelLoadError(
            f"{name} has no embedding, head and final RMSNorm for a draft head to share: use a method without a head"
        )
    if getattr(head, "bias", None) is not None:
        raise ModelLoadError(f"the head of {name} has a bias, which draft heads do not share")

    def copied(weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().clone()

    return TokenWeights(copied(embedding.weight), copied(head.weight), copied(norm.weight), float(eps))
