"""The compiled decoder gives one answer: bit for bit the same logits and laws however a text is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from native_models import (
    ARCH,
    FORMS,
    VARIANTS,
    Form,
    alone,
    build,
    expect_same,
    prefilled,
    random_tree,
    rows_of,
    tokens_of,
)  # fmt: skip

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import Chunk, LayeredTarget
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ParameterError
from outrider.models.native import NativeDecoder
from outrider.models.native_cache import PagePool
from outrider.models.native_library import PAGE, library
from outrider.testing import check_target

try:
    SETS = library().instruction_sets()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

FLOAT32 = FORMS[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(params=SETS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OUTRIDER_ISA", request.param)
    return str(request.param)


@pytest.fixture(params=FORMS, ids=str)
def pair(request: pytest.FixtureRequest, isa: str, folder: Path) -> tuple[NativeDecoder, NativeDecoder]:
    """The same model on one thread and on two; the first is asked for one row at a time."""
    one, two = (build(request.param, folder, threads=threads) for threads in (1, 2))
    assert one.setup.isa == isa
    return one, two


@pytest.fixture(scope="module")
def plain(folder: Path) -> NativeDecoder:
    return build(FLOAT32, folder, threads=2)


def commit(
    target: NativeDecoder, context: Context, draft: Draft, accepted: Sequence[int], token: int
) -> list[int]:
    """Scores a draft, keeps these nodes and `token`; the text that is certain then."""
    (scores,) = target.score([context], [draft])
    emitted = (*(draft.nodes.tokens[node] for node in accepted), token)
    target.commit([RoundResult(context.sequence_id, emitted, tuple(accepted), draft, scores)])
    return [*context.tokens, *emitted]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_fulfils_the_contract_of_targets_exactly(form: Form, threads: int, isa: str, folder: Path):
    target = build(form, folder, threads=threads, taps=(0, 2))
    assert isinstance(target, LayeredTarget)
    assert target.row_invariant
    check_target(lambda: target, tolerance=0.0)
    assert target.cache_bytes == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_every_architecture_fulfils_the_contract(name: str, folder: Path):
    check_target(lambda: build(FLOAT32, folder, arch=VARIANTS[name], threads=2), tolerance=0.0)


def test_widths_1_to_16_beside_0_to_15_neighbours_equal_single_rows(
    pair: tuple[NativeDecoder, NativeDecoder],
):
    one, two = pair
    tokens = tokens_of(PAGE - 7 + 16, 1)  # rows lie on both sides of a page border
    start = len(tokens) - 15
    singles = torch.stack([alone(one, tokens[:end]) for end in range(start, len(tokens) + 1)])
    others = [prefilled(two, tokens_of(2 + 11 * i % 70, 20 + i), 1 + i) for i in range(15)]
    mine = prefilled(two, tokens[:start])
    for width in range(1, 17):
        draft = Draft.chain(tokens[start : start + width - 1])
        for count in {width - 1, 16 - width}:
            before = count // 2
            contexts = [*others[:before], mine, *others[before:count]]
            drafts = [Draft.chain(tokens_of(i % 4, i)) for i in range(len(contexts))]
            drafts[before] = draft
            rows = two.score(contexts, drafts)[before].logits
            expect_same(rows, singles[:width], f"{width} rows beside {count} sequences")


def test_rows_of_trees_equal_single_rows_of_their_paths(pair: tuple[NativeDecoder, NativeDecoder]):
    one, two = pair
    for nodes in (2, 7, 15, 31, 32):
        chance = random.Random(nodes)
        tokens = tokens_of(PAGE - nodes // 2, nodes)
        tree = random_tree(chance, nodes)
        rows = rows_of(two, prefilled(two, tokens), tree)
        for node in {nodes - 1, *chance.sample(range(nodes), min(nodes, 5))}:
            path = [*tokens, *tree.nodes.path_tokens(node)]
            expect_same(rows[[node + 1]], alone(one, path)[None], f"node {node} of {tree.nodes.parents}")


def test_prefill_in_chunks_of_1_7_64_and_whole_equals_decoding(pair: tuple[NativeDecoder, NativeDecoder]):
    one, two = pair
    tokens, tail = tokens_of(2 * PAGE + 5, 3), tokens_of(3, 4)
    context = prefilled(one, tokens[:2])
    for token in tokens[2:]:
        context = Context.of(commit(one, context, EMPTY_DRAFT, (), token))
    decoded = rows_of(one, context, Draft.chain(tail))
    for chunk in (1, 7, 64, len(tokens)):
        read = rows_of(two, prefilled(two, tokens, chunk=chunk), Draft.chain(tail))
        expect_same(read, decoded, f"read in chunks of {chunk}")


def test_after_any_kept_path_rows_equal_those_of_a_text_read_anew(pair: tuple[NativeDecoder, NativeDecoder]):
    one, two = pair
    chance = random.Random(5)
    tokens = tokens_of(PAGE - 3, 5)
    context = prefilled(two, tokens)
    for step in range(5):
        tree = random_tree(chance, 12)
        kept = tree.nodes.path(chance.randrange(12))
        tokens = commit(two, context, tree, kept[: chance.randint(0, len(kept))], step)
        context = Context.of(tokens)
    expect_same(rows_of(two, context), alone(one, tokens)[None], "after five rounds of trees")


def test_an_interrupted_sequence_read_again_goes_on_with_the_same_bits(plain: NativeDecoder):
    tokens = tokens_of(PAGE + 9, 6)
    context = prefilled(plain, tokens)
    tokens = commit(plain, context, Draft.chain([4, 5]), (0, 1), 6)
    before = rows_of(plain, Context.of(tokens), Draft.chain([7]))
    again = rows_of(plain, prefilled(plain, tokens), Draft.chain([7]))
    expect_same(again, before, "decoded, then recomputed")


@pytest.mark.parametrize("length", [1, 2, PAGE - 1, PAGE, PAGE + 3])
@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_memory_that_no_row_wrote_never_matters(
    form: Form, length: int, isa: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    target = build(form, folder, threads=2)
    tokens, tree, chain = (
        tokens_of(length, 7),
        random_tree(random.Random(7), 20),
        Draft.chain(tokens_of(4, 8)),
    )
    clean = [rows_of(target, prefilled(target, tokens), draft) for draft in (tree, chain)]
    take = PagePool.take

    def poisoned(pool: PagePool) -> np.ndarray:
        page = take(pool)
        page[:] = 0xFF  # NaN in either type of cache
        return page

    monkeypatch.setattr(PagePool, "take", poisoned)
    for draft, wanted in zip((tree, chain), clean):
        expect_same(rows_of(target, prefilled(target, tokens, 1), draft), wanted, "in pages full of NaN")


@pytest.mark.parametrize("form", FORMS[:2], ids=str)
def test_rejected_rows_leave_no_trace(form: Form, folder: Path):
    target = build(form, folder, threads=2)
    tokens = tokens_of(PAGE - 2, 8)
    context = prefilled(target, tokens)
    rows_of(target, context, random_tree(random.Random(8), 30))
    target.draft_rows([context], [TokenTree.chain(tokens_of(9, 9))], (1,))
    after = commit(target, context, Draft.chain([3, 4, 5]), (0,), 9)
    expect_same(rows_of(target, Context.of(after)), alone(target, after)[None], "after rejected rows")


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_forks_and_rewinds_at_page_borders_are_independent(plain: NativeDecoder, length: int):
    tokens, other = tokens_of(2 * PAGE + 9, 10), tokens_of(20, 11)
    parent = prefilled(plain, tokens)
    plain.release(1)
    plain.fork(0, 1, length)
    branch = [*tokens[:length], *other]
    plain.extend([Chunk(1, other[:-1])])
    expect_same(rows_of(plain, Context.of(branch, sequence_id=1)), alone(plain, branch)[None], "the fork")
    expect_same(rows_of(plain, parent), alone(plain, tokens)[None], "its parent")
    plain.rewind(0, length)
    plain.extend([Chunk(0, other[:-1])])
    expect_same(rows_of(plain, Context.of(branch)), alone(plain, branch)[None], "the parent rewound")
    plain.release(1)


def test_a_fork_takes_no_more_pages_than_it_caches(plain: NativeDecoder):
    plain.release(0)
    plain.release(1)
    empty = plain.cache_bytes
    prefilled(plain, tokens_of(3 * PAGE, 12))
    whole = plain.cache_bytes - empty
    plain.fork(0, 1, PAGE)
    assert plain.cache_bytes - empty == whole + whole // 3
    plain.release(0)
    plain.release(1)
    assert plain.cache_bytes == empty


def test_the_context_can_be_filled_to_its_last_token(plain: NativeDecoder):
    tokens = tokens_of(ARCH.max_positions - 2, 13)
    rows = rows_of(plain, prefilled(plain, tokens), Draft.chain([1, 2]))
    expect_same(rows[:1], alone(plain, tokens)[None], "two rows before the end")
    with pytest.raises(ParameterError, match=r"401 tokens exceed the model's context of 400"):
        plain.extend([Chunk(8, [1] * (ARCH.max_positions + 1))])


def test_score_refuses_a_cache_that_is_out_of_step(plain: NativeDecoder):
    tokens = tokens_of(9, 14)
    prefilled(plain, tokens)
    with pytest.raises(AssertionError, match="holds exactly"):
        plain.score([Context.of(tokens[:-2])], [EMPTY_DRAFT])


def test_commit_refuses_scratch_that_another_pass_has_overwritten(plain: NativeDecoder):
    context = prefilled(plain, tokens_of(9, 15))
    (scores,) = plain.score([context], [EMPTY_DRAFT])
    plain.draft_rows([context], [TokenTree.chain([1])], (0,))
    with pytest.raises(AssertionError, match="commit follows a score"):
        plain.commit([RoundResult(0, (1,), (), EMPTY_DRAFT, scores)])


def test_an_unknown_instruction_set_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, folder: Path):
    monkeypatch.setenv("OUTRIDER_ISA", SETS[0] + "x")
    with pytest.raises(ConfigError, match=rf"OUTRIDER_ISA '{SETS[0]}x' is not one of .*{SETS[0]}"):
        build(FLOAT32, folder)


def test_a_tap_beyond_the_model_is_refused(folder: Path):
    with pytest.raises(ConfigError, match=r"tap 3 .* choose 0 to 2"):
        build(FLOAT32, folder, taps=(3,))
