"""What may change under a wrapped transformers model: its factors by length, its mode after loading."""

from __future__ import annotations

import pytest
import torch
from hf_models import model

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft
from outrider.errors import ModelLoadError
from outrider.models.hf import HfTarget

ORIGINAL = 16


def longrope(**rope: object) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "factor": 8.0,
        **rope,
    }
    config = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=48, max_position_embeddings=128, initializer_range=0.4,
                         rope_scaling=scaling)  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def test_no_draft_of_a_longrope_model_reaches_where_its_factors_change() -> None:
    target = HfTarget.wrap(longrope(original_max_position_embeddings=ORIGINAL))
    assert target.max_length == ORIGINAL
    tokens = list(range(1, ORIGINAL + 1))
    target.extend([Chunk(0, tokens[:5])])
    [wide] = target.score([Context.of(tokens[:6])], [Draft.chain(tokens[6:])])
    with torch.no_grad():
        for end in (6, 10, ORIGINAL):
            row = target.model(torch.tensor([tokens[:end]])).logits[0, -1]
            assert (wide.logits[end - 6] - row).abs().max() < 1e-9


def test_a_model_put_into_training_mode_later_is_refused_where_it_is_used() -> None:
    held = model("llama")
    target = HfTarget.wrap(held)
    held.train()
    try:
        with pytest.raises(ModelLoadError, match="training mode"):
            target.extend([Chunk(0, [1, 2, 3])])
    finally:
        held.eval()
