"""Tiny models for the compiled decoder: every form of weights, with the same weights for the PyTorch decoder."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import torch

from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import EMPTY_DRAFT, Context, Draft
from outrider.core.sampling import SamplingParams
from outrider.models.arch import Arch, RopeKind, RopeScaling
from outrider.models.gguf import GGUFFile
from outrider.models.native import NativeDecoder
from outrider.models.native_load import load_native
from outrider.models.settings import RunSettings
from outrider.testing.random_weights import random_weights

Quant = gguf.GGMLQuantizationType
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1)

# Inputs of two, three and five groups of 32; outputs that fill no whole pair of panels; queries 3 to a key-value head.
ARCH = Arch(
    family="qwen2", layers=2, hidden=64, intermediate=160, heads=6, kv_heads=2, head_dim=16, vocab_size=203,
    rms_eps=1e-5, rope_theta=10000.0, rope_scaling=RopeScaling(RopeKind.DEFAULT, 1.0, 1.0, 4.0, 64), qkv_bias=True,
    output_bias=False, mlp_bias=False, qk_norm=False, tied_head=True, max_positions=400,
)  # fmt: skip
VARIANTS = {
    "tied, biased queries": ARCH,
    "own head, normed queries": replace(ARCH, tied_head=False, qk_norm=True, qkv_bias=False, head_dim=24),
    "every bias": replace(ARCH, mlp_bias=True, output_bias=True, heads=4, kv_heads=4),
    "one key-value head, scaled positions": replace(
        ARCH, kv_heads=1, rope_scaling=RopeScaling(RopeKind.LLAMA3, 4.0, 1.0, 4.0, 32)
    ),
}


@dataclass(frozen=True)
class Form:
    """Weights and what inputs are rounded to; `quant`: the blocks of the file that `gguf` keeps."""

    dtype: str
    activations: str
    quant: Quant | None = None

    def __str__(self) -> str:
        return " ".join((self.quant.name if self.quant else self.dtype, self.activations))


FORMS = (
    Form("float32", "float32"), Form("bfloat16", "bfloat16"), Form("int8", "bfloat16"), Form("int8", "int8"),
    Form("int4", "bfloat16"), Form("int4", "int8"),
    *(Form("gguf", rounding, quant)
      for quant in (Quant.Q4_0, Quant.Q4_1, Quant.Q8_0) for rounding in ("bfloat16", "int8")),
)  # fmt: skip


def weights(arch: Arch = ARCH, seed: int = 1) -> dict[str, torch.Tensor]:
    """Random weights, of `ARCH` unless told otherwise."""
    return random_weights(arch, seed)


def build(
    form: Form, folder: Path, *, arch: Arch = ARCH, threads: int = 1, taps: Sequence[int] = ()
) -> NativeDecoder:
    """The model in this form; a file of blocks is written to `folder` where the form wants one."""
    settings = RunSettings(form.dtype, form.activations, threads, taps)
    if form.quant is None:
        return load_native(arch, weights(arch), None, settings)
    file = GGUFFile(written(folder / f"{form.quant.name}.gguf", arch, weights(arch), form.quant))
    return load_native(file.arch(), file.state(), file, settings)


_GGUF_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "model.layers": "blk",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def written(path: Path, arch: Arch, state: Mapping[str, torch.Tensor], quant: Quant) -> Path:
    """A GGUF file of family qwen2, whose tensors keep their order of rows; made once."""
    if path.exists():
        return path
    writer = gguf.GGUFWriter(path, arch.family)
    writer.add_block_count(arch.layers)
    writer.add_context_length(arch.max_positions)
    writer.add_embedding_length(arch.hidden)
    writer.add_feed_forward_length(arch.intermediate)
    writer.add_head_count(arch.heads)
    writer.add_head_count_kv(arch.kv_heads)
    writer.add_key_length(arch.head_dim)
    writer.add_value_length(arch.head_dim)
    writer.add_layer_norm_rms_eps(arch.rms_eps)
    writer.add_rope_freq_base(arch.rope_theta)
    writer.add_vocab_size(arch.vocab_size)
    for name, tensor in state.items():
        own = name
        for theirs, ours in _GGUF_PARTS.items():
            own = own.replace(theirs, ours)
        if tensor.ndim == 1:
            writer.add_tensor(own, tensor.numpy())
        else:
            writer.add_tensor(own, gguf.quantize(tensor.numpy(), quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokens_of(count: int, seed: int, vocab: int = ARCH.vocab_size) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def prefilled(target: TargetModel, tokens: Sequence[int], sequence_id: int = 0, chunk: int = 400) -> Context:
    """A new sequence that caches all but the last token, read in chunks of this size."""
    target.release(sequence_id)
    certain = tokens[:-1]
    for start in range(0, len(certain), chunk):
        target.extend([Chunk(sequence_id, certain[start : start + chunk])])
    return Context.of(tokens, sequence_id=sequence_id)


def rows_of(
    target: TargetModel, context: Context, draft: Draft = EMPTY_DRAFT
) -> torch.Tensor:  # [n + 1, vocab]
    return target.score([context], [draft])[0].logits.clone()


def alone(target: TargetModel, tokens: Sequence[int]) -> torch.Tensor:  # [vocab]
    """The logits after `tokens` from one row of a fresh sequence: what every other road must lead to."""
    (row,) = rows_of(target, prefilled(target, tokens, 9999))
    target.release(9999)
    return row


def random_tree(chance: random.Random, nodes: int, vocab: int = ARCH.vocab_size) -> Draft:
    """Siblings differ; most nodes hang near the end, so that trees are deep as well as wide."""
    drawn: dict[tuple[int | None, int], None] = {}  # (parent, token) of each node, in order
    while len(drawn) < nodes:
        parent = chance.choice([None, *range(max(0, len(drawn) - 4), len(drawn))])
        drawn[parent, chance.randrange(vocab)] = None
    return Draft.tree([token for _, token in drawn], [parent for parent, _ in drawn])


def expect_same(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:  # [n, vocab] each
    """Equal bits (so that 0 and -0 differ), and equal laws of every row."""
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32)), what
    law = Context.of([1, 2, 3], sampling=SAMPLED).law
    for row, other in zip(found, wanted):
        mine, theirs = law.node(row, ()), law.node(other, ())
        assert np.array_equal(mine.logits.view(np.int64), theirs.logits.view(np.int64)), f"{what}: the law"
