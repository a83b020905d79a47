"""Rows of the PyTorch target on the real model: bitwise those of plain decoding, in chains and trees."""

from __future__ import annotations

import pytest
import torch

from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult
from outrider.models.load import load

measured_kernels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available(),
    reason="bitwise equality of rows was measured on x86 with AVX-512 and MKL",
)


@pytest.mark.model
@measured_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_chains_are_bitwise_equal_at_any_width_and_beside_neighbours(dtype: str):
    smollm = load("smollm2-135m", target="torch", dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 49152, (280,), generator=generator).tolist()
    start = 180  # rows cross 192 and 256 keys
    smollm.extend([Chunk(0, tokens[: start - 1])])
    narrow = []
    for end in range(start, len(tokens)):
        scores = smollm.score([Context.of(tokens[:end])], [EMPTY_DRAFT])[0]
        narrow.append(scores.logits[0])
        smollm.commit([RoundResult(0, (tokens[end],), (), EMPTY_DRAFT, scores)])
    smollm.release(0)
    smollm.extend([Chunk(0, tokens[:100]), Chunk(1, tokens[:7])])
    smollm.extend([Chunk(0, tokens[100 : start - 1])])
    contexts = [Context.of(tokens[:8], sequence_id=1), Context.of(tokens[:start])]
    for width in (2, 3, 4, 5, 8, 13, 16, 17, 64, 100):
        draft = Draft.chain(tokens[start : start + width - 1])
        neighbour = Draft.chain(tokens[: width % 4])
        (wide,) = smollm.score([contexts[1]], [draft])
        assert torch.equal(wide.logits, torch.stack(narrow[:width])), f"width {width}"
        _, beside = smollm.score(contexts, [neighbour, draft])
        assert torch.equal(beside.logits, wide.logits), f"width {width} beside a neighbour"


@pytest.mark.model
@measured_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_trees_are_bitwise_equal_to_plain_decoding_between_cuts_of_the_cache(dtype: str):
    smollm = load("smollm2-135m", target="torch", dtype=dtype)
    tokens = torch.randint(0, 49152, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    tree = Draft.tree([5, 9, 7, 3, 5, 11, 2, 8, 4], [None, None, 0, 1, 1, 4, 2, 5, 0])
    smollm.extend([Chunk(0, tokens[:-1])])
    logits = smollm.score([Context.of(tokens)], [tree])[0].logits.clone()
    for node in range(len(tree)):
        path = tree.nodes.path_tokens(node)
        smollm.release(1)
        smollm.extend([Chunk(1, [*tokens, *path[:-1]])])
        plain = smollm.score([Context.of([*tokens, *path], sequence_id=1)], [EMPTY_DRAFT])[0].logits[0]
        assert torch.equal(logits[node + 1], plain), f"node {node}"
    emitted = (*(tree.nodes.tokens[node] for node in (1, 4, 5, 7)), 50)
    scores = smollm.score([Context.of(tokens)], [tree])[0]
    smollm.commit([RoundResult(0, emitted, (1, 4, 5, 7), tree, scores)])
    tokens += emitted
    after = smollm.score([Context.of(tokens)], [EMPTY_DRAFT])[0].logits[0].clone()
    smollm.release(1)
    smollm.extend([Chunk(1, tokens[:-1])])
    assert torch.equal(after, smollm.score([Context.of(tokens, sequence_id=1)], [EMPTY_DRAFT])[0].logits[0])
