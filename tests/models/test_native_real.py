"""The compiled decoder on the real model: bit for bit one answer in every precision, near the PyTorch decoder.

The lengths lie on both sides of a block of 16 keys and of page borders; SmolLM2's 576 hidden numbers are 18 groups,
its 1536 inner ones 48, its 49,152 tokens 1536 pairs of panels.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from native_models import alone, expect_same, prefilled, random_tree, rows_of, tokens_of

from outrider.compiled.library import NativeUnavailable
from outrider.core.records import Draft
from outrider.models.load import load, load_arch, load_state, resolve
from outrider.models.native import NativeDecoder
from outrider.models.native_library import library
from outrider.models.native_load import load_native
from outrider.models.settings import RunSettings

try:
    library()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

pytestmark = pytest.mark.model
NAME = "smollm2-135m"
DOCS = Path(__file__).parents[2] / "docs"
PRECISIONS = [("float32", "auto"), ("bfloat16", "auto"), ("int8", "auto"), ("int8", "int8"), ("int4", "int8"),
              ("gguf", "auto"), ("gguf", "int8")]  # fmt: skip
LENGTHS = (14, 63, 130)


@pytest.fixture(scope="module")
def state() -> Mapping[str, torch.Tensor]:
    return load_state(resolve(NAME))


def decoder(state: Mapping[str, torch.Tensor], dtype: str, activations: str, threads: int) -> NativeDecoder:
    source = resolve(NAME)
    return load_native(load_arch(source), state, source.gguf, RunSettings(dtype, activations, threads))


@pytest.mark.parametrize(("dtype", "activations"), PRECISIONS)
def test_widths_neighbours_trees_chunks_and_threads_change_no_bit(
    state: Mapping[str, torch.Tensor], dtype: str, activations: str
):
    one, two = (decoder(state, dtype, activations, threads) for threads in (1, 2))
    vocab, chance = two.vocab_size, random.Random(f"{dtype} {activations}")
    others = [
        prefilled(two, tokens_of(chance.randint(2, 90), i, vocab), i, chunk=chance.randint(5, 90))
        for i in range(1, 9)
    ]
    for length in LENGTHS:
        tokens = tokens_of(length + 15, length, vocab)
        mine = prefilled(two, tokens[:length], chunk=chance.choice([1, 7, 64]))
        singles = {row: alone(one, tokens[: length + row]) for row in (0, 2, 5, 8, 11, 15)}
        for row in singles:
            before = chance.randint(0, 4)
            contexts = [*others[:before], mine, *others[before : chance.randint(before, 8)]]
            drafts = [Draft.chain(tokens_of(chance.randint(0, 4), row, vocab)) for _ in contexts]
            drafts[before] = Draft.chain(tokens[length : length + row])
            rows = two.score(contexts, drafts)[before].logits
            for earlier in (r for r in singles if r <= row):
                expect_same(rows[[earlier]], singles[earlier][None], f"row {earlier} of {row + 1}")
        tree = random_tree(chance, chance.randint(8, 31), vocab)
        rows = rows_of(two, mine, tree)
        for node in chance.sample(range(len(tree)), 3):
            path = [*tokens[:length], *tree.nodes.path_tokens(node)]
            expect_same(rows[[node + 1]], alone(one, path)[None], f"node {node} of {tree.nodes.parents}")


def test_float32_is_near_the_pytorch_decoder(state: Mapping[str, torch.Tensor]):
    native = decoder(state, "float32", "auto", 2)
    plain = load(NAME, target="torch", dtype="float32")
    text = [*range(1000, 1060), *range(2000, 2040)]
    tree = random_tree(random.Random(1), 20)
    mine, theirs = (rows_of(target, prefilled(target, text), tree) for target in (native, plain))
    torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=0)


@pytest.mark.parametrize(("dtype", "activations"), [("bfloat16", "auto"), ("int8", "int8")])
def test_a_long_context_changes_no_bit(state: Mapping[str, torch.Tensor], dtype: str, activations: str):
    one, two = (decoder(state, dtype, activations, threads) for threads in (1, 2))
    tokens = tokens_of(1100, 3, two.vocab_size)
    rows = rows_of(two, prefilled(two, tokens[:1090], chunk=133), Draft.chain(tokens[1090:1098]))
    expect_same(rows[[7]], alone(one, tokens[:1097])[None], "row 7 of 9 after 1,090 tokens")


def test_the_script_on_the_page_about_exactness_finds_every_bit_equal():
    (script,) = re.findall(r"```python\n(.*?)```", (DOCS / "exactness.md").read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line]
    assert len(lines) <= 20
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(script, "exactness.md", "exec"), {})
    assert printed.getvalue() == "passes of 1 to 16 rows and a tree: every bit equal\n"
