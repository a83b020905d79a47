"""Folders that hold a tiny model: a decoder of one layer with random weights, and a tokenizer of bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import tokenizers
import torch

WIDTH = 16


def letters(*swapped: int) -> list[str]:
    """The bytes in the order of their ids; two of them exchanged when two ids are given."""
    found = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        first, second = swapped
        found[first], found[second] = found[second], found[first]
    return found


def save_model(folder: Path, rows: int, vocabulary: Sequence[str]) -> None:
    """A model whose logits have `rows` rows; tokens by id. Equal shapes have equal weights."""
    config = {
        "model_type": "llama", "vocab_size": rows, "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    linear = [f"self_attn.{name}_proj" for name in "qkvo"]
    linear += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    random = torch.Generator().manual_seed(3)
    state = {f"model.layers.0.{n}.weight": torch.randn(WIDTH, WIDTH, generator=random) / 4 for n in linear}
    state |= {f"model.{name}.weight": torch.ones(WIDTH) for name in norms}
    state["model.embed_tokens.weight"] = torch.randn(rows, WIDTH, generator=random)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[])).save(str(folder / "tokenizer.json"))
