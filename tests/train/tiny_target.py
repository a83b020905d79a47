"""Folders of tiny targets with random weights and a tokenizer of bytes, for drafts that borrow from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tokenizers

from outrider.models.arch import Arch, RopeKind, RopeScaling
from outrider.models.arch_config import arch_config
from outrider.models.new_folder import write_model
from outrider.testing.random_weights import random_weights

VOCAB = 256
ARCH = Arch(
    "llama", 3, 32, 48, 4, 2, 8, VOCAB, 1e-5, 10000.0, RopeScaling(), False, False, False, False, True, 128
)
VARIANTS = {
    "tied": ARCH,
    "own head, normed queries": replace(ARCH, family="qwen3", tied_head=False, qk_norm=True, head_dim=12),
    "biased queries": replace(ARCH, family="qwen2", qkv_bias=True),
    "every bias, scaled positions": replace(
        ARCH, qkv_bias=True, output_bias=True, mlp_bias=True, kv_heads=4,
        rope_scaling=RopeScaling(RopeKind.LLAMA3, 4.0, 1.0, 4.0, 32),
    ),
}  # fmt: skip


def save_target(folder: Path, arch: Arch = ARCH, seed: int = 1) -> str:
    """The folder of a target; equal shapes and seeds have equal weights."""
    folder.mkdir()
    write_model(folder, arch_config(arch), random_weights(arch, seed))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {token: index for index, token in enumerate(letters)}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[])).save(str(folder / "tokenizer.json"))
    return str(folder)
