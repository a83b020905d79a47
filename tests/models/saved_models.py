"""A tiny Llama as the suites of loading save it, and what is said when one cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import (
    LlamaConfig,
)

from outrider.errors import OutriderError
from outrider.models.load import load

CONFIG = LlamaConfig(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3,
)  # fmt: skip


TOKENS = [1, 2, 3, 4, 5, 6]


def message_of(model: str, **options: object) -> str:
    with pytest.raises(OutriderError) as caught:
        load(model, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
