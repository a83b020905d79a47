"""The compiled decoder on random small models: near `TorchDecoder`, one answer at any width, safe on damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from native_models import alone, prefilled, random_tree, weights, written

from outrider.compiled.library import NativeUnavailable
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult
from outrider.errors import OutriderError
from outrider.models.arch import Arch, RopeKind, RopeScaling
from outrider.models.gguf import GGUFFile
from outrider.models.native import NativeDecoder
from outrider.models.native_library import library
from outrider.models.native_load import load_native
from outrider.models.settings import RunSettings
from outrider.models.torch_decoder import TorchDecoder

try:
    SETS = library().instruction_sets()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

PRECISIONS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "bfloat16"), ("int8", "int8"),
              ("int4", "bfloat16"), ("int4", "int8")]  # fmt: skip
PAGE = 64
Quant = gguf.GGMLQuantizationType


def random_arch(chance: random.Random, *, head_dim: int | None = None, whole_blocks: bool = False) -> Arch:
    """Sizes that are multiples of nothing, unless blocks of 32 inputs must fit."""
    kv_heads, share = chance.randint(1, 3), chance.choice([1, 2, 3, 5, 7, 8])
    size = head_dim or 2 * chance.randint(1, 40)
    hidden, intermediate = chance.randint(3, 100), chance.randint(2, 110)
    if whole_blocks:
        hidden, intermediate, size = 32 * chance.randint(1, 3), 32 * chance.randint(1, 3), 32
    return Arch(
        family="qwen2", layers=chance.randint(1, 3), hidden=hidden, intermediate=intermediate, heads=kv_heads * share,
        kv_heads=kv_heads, head_dim=size, vocab_size=chance.randint(20, 150), rms_eps=1e-5,
        rope_theta=chance.choice([500.0, 10000.0]),
        rope_scaling=RopeScaling(chance.choice(list(RopeKind)), 2.0, 1.0, 4.0, 64),
        qkv_bias=chance.random() < 0.5, output_bias=chance.random() < 0.5, mlp_bias=chance.random() < 0.5,
        qk_norm=chance.random() < 0.5, tied_head=chance.random() < 0.5, max_positions=300,
    )  # fmt: skip


def expect_one_answer(target: NativeDecoder, chance: random.Random) -> None:
    """Chunks, widths, trees and neighbours around a page border, each against one row of a fresh sequence."""
    vocab = target.vocab_size
    length = PAGE * chance.randint(1, 2) + chance.randint(-6, 1)
    tokens = [chance.randrange(vocab) for _ in range(length + 8)]
    expected = torch.stack([alone(target, tokens[: length + i]) for i in range(9)])
    context = prefilled(target, tokens[:length], chunk=chance.randint(3, length))
    wide = target.score([context], [Draft.chain(tokens[length:])])[0].logits
    assert torch.equal(wide, expected), "a chain differs from single rows"
    tree = random_tree(chance, chance.randint(2, 31), vocab)
    nodes = sorted({*chance.sample(range(len(tree)), min(4, len(tree))), len(tree) - 1})
    branches = torch.stack(
        [alone(target, [*tokens[:length], *tree.nodes.path_tokens(node)]) for node in nodes]
    )
    neighbour = prefilled(target, tokens[: chance.randint(2, length)], 1)
    chain = Draft.chain(tokens[: chance.randint(0, 5)])
    scores = target.score([neighbour, context], [chain, tree])[1]
    assert torch.equal(scores.logits[[node + 1 for node in nodes]], branches), "a tree differs from its paths"
    kept, node = [], nodes[-1]
    while node is not None:
        kept.insert(0, node)
        node = tree.nodes.parents[node]
    emitted = (*tree.nodes.path_tokens(kept[-1]), 1)
    target.commit([RoundResult(0, emitted, tuple(kept), tree, scores)])
    after = target.score([Context.of([*tokens[:length], *emitted])], [EMPTY_DRAFT])[0].logits[0]
    assert torch.equal(after, alone(target, [*tokens[:length], *emitted])), (
        "a kept path differs from a prefill"
    )


@pytest.mark.parametrize("head_dim", [2, 6, 16, 30, 48, 64, 66, 80])
def test_float32_is_near_the_pytorch_decoder_for_any_shape(head_dim: int):
    chance = random.Random(head_dim)
    arch = random_arch(chance, head_dim=head_dim)
    state = weights(arch, head_dim)
    native = load_native(arch, state, None, RunSettings("float32", threads=2))
    plain = TorchDecoder(arch, state, dtype=torch.float32)
    tokens = [chance.randrange(arch.vocab_size) for _ in range(chance.randint(60, 140))]
    tree = random_tree(chance, 31, arch.vocab_size)
    contexts = [prefilled(target, tokens, chunk=33) for target in (native, plain)]
    got, expected = (
        target.score([context], [tree])[0].logits for target, context in zip((native, plain), contexts)
    )
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize(("dtype", "activations"), PRECISIONS)
def test_every_precision_gives_one_answer(
    dtype: str, activations: str, isa: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTRIDER_ISA", isa)
    chance = random.Random(f"{dtype} {activations} {isa}")
    for _ in range(2):
        arch = random_arch(chance)
        state = weights(arch, chance.randrange(1000))
        threads = chance.randint(1, 3)
        target = load_native(arch, state, None, RunSettings(dtype, activations, threads))
        assert target.setup.isa == isa
        expect_one_answer(target, chance)


def test_threads_do_not_change_an_answer():
    chance = random.Random(4)
    arch = random_arch(chance, head_dim=20)
    state = weights(arch, 4)
    tokens = [chance.randrange(arch.vocab_size) for _ in range(70)]
    for dtype, activations in PRECISIONS:
        rows = []
        for threads in (1, 2, 3):
            target = load_native(arch, state, None, RunSettings(dtype, activations, threads))
            context = prefilled(target, tokens)
            rows.append(target.score([context], [Draft.chain(tokens[:9])])[0].logits.clone())
        assert torch.equal(rows[0], rows[1]), f"{dtype} with {activations} inputs on 2 threads"
        assert torch.equal(rows[0], rows[2]), f"{dtype} with {activations} inputs on 3 threads"


def opened(path: Path, activations: str) -> NativeDecoder:
    file = GGUFFile(path)
    return load_native(file.arch(), file.state(), file, RunSettings("gguf", activations, threads=2))


@pytest.mark.parametrize("activations", ["bfloat16", "int8"])
@pytest.mark.parametrize("quant", [Quant.Q4_0, Quant.Q4_1, Quant.Q8_0])
def test_blocks_of_a_file_give_one_answer_near_the_pytorch_decoder(
    tmp_path: Path, quant: Quant, activations: str
):
    chance = random.Random(f"{quant.name} {activations}")
    arch = random_arch(chance, whole_blocks=True)
    path = written(tmp_path / "m.gguf", arch, weights(arch, 3), quant)
    target = opened(path, activations)
    expect_one_answer(target, chance)
    file = GGUFFile(path)
    plain = TorchDecoder(file.arch(), file.state(), dtype=torch.float32)
    tokens = [chance.randrange(arch.vocab_size) for _ in range(40)]
    got, expected = (
        each.score([prefilled(each, tokens)], [Draft.chain(tokens[:20])])[0].logits
        for each in (target, plain)
    )
    assert (got - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.parametrize("quant", [Quant.Q4_1, Quant.Q8_0])
def test_damaged_files_are_refused_or_computed_but_never_crash(tmp_path: Path, quant: Quant):
    chance = random.Random(quant.name)
    arch = random_arch(chance, whole_blocks=True)
    whole = written(tmp_path / "m.gguf", arch, weights(arch, 5), quant).read_bytes()
    header = whole.rindex(b"output_norm") + 60
    broken = tmp_path / "broken.gguf"
    refused: list[str] = []
    computed = 0
    for attempt in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 40)):
            data[chance.randrange(4, header if attempt % 2 else len(whole))] = chance.randrange(256)
        broken.write_bytes(data[: chance.randrange(len(data))] if attempt % 5 == 0 else data)
        try:
            target = opened(broken, chance.choice(["bfloat16", "int8"]))
        except OutriderError as error:
            refused.append(str(error))
            continue
        scores = target.score([prefilled(target, [1, 2, 3, 4])], [random_tree(chance, 9, target.vocab_size)])
        assert scores[0].logits.shape == (10, target.vocab_size)
        computed += 1
    assert len(refused) > 5
    assert not any("\n" in message for message in refused)
    assert computed > 5


def test_blocks_with_the_lowest_level_and_odd_scales_give_one_answer(tmp_path: Path):
    chance = random.Random(8)
    arch = random_arch(chance, whole_blocks=True)
    path = written(tmp_path / "m.gguf", arch, weights(arch, 6), Quant.Q8_0)
    data = bytearray(path.read_bytes())
    levels = np.frombuffer(data, dtype=np.int8)
    start = len(data) // 2
    at = start + int(np.argmax(levels[start:] == -127))
    data[at] = 0x80  # the one level that signs and magnitudes of bytes cannot hold
    path.write_bytes(data)
    for activations in ("bfloat16", "int8"):
        expect_one_answer(opened(path, activations), random.Random(9))
