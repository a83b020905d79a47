"""`check_target`: what every target model must do, checked against its own logits on fresh caches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from outrider.core.protocols import Chunk, LayeredTarget, TappedTarget, TargetModel
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult, Scores
from outrider.core.sampling import SamplingParams

_ORDINARY_IDS = 256  # prompts are drawn from the first ids, which every vocabulary uses


def check_target(make_target: Callable[[], TargetModel], *, tolerance: float = 0.0, seed: int = 0) -> None:
    """Asserts the contract of `TargetModel` on short random texts; `AssertionError` says what differs.

    A target that calls itself `row_invariant` must give bitwise equal logits whatever the width, batch, chunking
    and tree; any other must stay within `tolerance`, the largest absolute difference of one logit. The target
    must have room for 24 tokens. All sequences it opens are released.
    """
    bench = _Bench(make_target(), tolerance, np.random.default_rng(seed))
    assert bench.target.max_length is None or bench.target.max_length >= 24, "too short a context to check"
    for check in (
        _chunks_add_up_to_the_whole,
        _ragged_batches_equal_solo_runs,
        _wide_chains_equal_single_rows,
        _tree_rows_equal_their_paths,
        _commits_equal_a_fresh_prefill,
        _rewinding_forgets,
        _forks_are_independent,
        _released_sequences_are_gone,
        _scoring_leaves_no_trace,
        _layers_leave_no_trace,
    ):
        check(bench)


@dataclass
class _Bench:
    """The target under test, a source of texts, and fresh sequence ids."""

    target: TargetModel
    tolerance: float
    rng: np.random.Generator
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000))

    def text(self, length: int) -> list[int]:
        high = min(self.target.vocab_size, _ORDINARY_IDS)
        return [int(token) for token in self.rng.integers(0, high, length)]

    def siblings(self, count: int) -> list[int]:
        high = min(self.target.vocab_size, _ORDINARY_IDS)
        return [int(token) for token in self.rng.permutation(high)[:count]]

    def open(self, text: Sequence[int], chunks: Sequence[int] = ()) -> Context:
        """A sequence that caches all of `text` but its last token, read in chunks of these sizes, then the rest."""
        sequence_id, start = next(self._ids), 0
        for size in (*chunks, len(text) - 1 - sum(chunks)):
            self.target.extend([Chunk(sequence_id, text[start : start + size])])
            start += size
        return self.context(sequence_id, text)

    def context(self, sequence_id: int, text: Sequence[int]) -> Context:
        """The context of an open sequence whose cache holds `text[:-1]`."""
        cached = self.target.cached_length(sequence_id)
        assert cached == len(text) - 1, f"cached_length is {cached}, not {len(text) - 1}"
        return Context.of(text, sequence_id=sequence_id)

    def rows(self, context: Context, draft: Draft = EMPTY_DRAFT) -> torch.Tensor:  # [n + 1, vocab]
        return self.score(context, draft).logits.clone()

    def score(self, context: Context, draft: Draft) -> Scores:
        (scores,) = self.target.score([context], [draft])
        shape = (len(draft) + 1, self.target.vocab_size)
        assert tuple(scores.logits.shape) == shape, f"score gave {tuple(scores.logits.shape)}, not {shape}"
        return scores

    def fresh(self, text: Sequence[int]) -> torch.Tensor:  # [vocab]
        """The logits after `text` on a new cache: what every other road must lead to."""
        context = self.open(text)
        row = self.rows(context)[0]
        self.target.release(context.sequence_id)
        return row

    def same(self, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        """Equal logits, and on a row-invariant target equal laws too, bit for bit."""
        if not self.target.row_invariant:
            gap = float((found.double() - wanted.double()).abs().max())
            assert gap <= self.tolerance, (
                f"{what}: logits differ by {gap:.3g}, more than {self.tolerance:.3g}"
            )
            return
        assert torch.equal(found, wanted), (
            f"{what}: logits differ, though the target calls itself row-invariant"
        )
        for row, other in zip(found.reshape(-1, found.shape[-1]), wanted.reshape(-1, wanted.shape[-1])):
            law = Context.of([0], sampling=SamplingParams(temperature=0.7, top_p=0.9)).law
            laws = [law.node(logits, ()) for logits in (row, other)]
            assert np.array_equal(laws[0].logits, laws[1].logits), f"{what}: equal logits, different laws"


def _chunks_add_up_to_the_whole(bench: _Bench) -> None:
    text = bench.text(9)
    whole = bench.fresh(text)
    for chunks in ((1, 1, 1), (5,), (0, 3), (2, 4, 2)):
        context = bench.open(text, chunks)
        bench.same(bench.rows(context)[0], whole, f"a text read in chunks of {chunks} and the rest")
        bench.target.release(context.sequence_id)


def _ragged_batches_equal_solo_runs(bench: _Bench) -> None:
    texts = [bench.text(length) for length in (2, 9, 5)]
    drafts = [Draft.chain(bench.text(length)) for length in (3, 0, 1)]
    ids = [next(bench._ids) for _ in texts]
    bench.target.extend([Chunk(i, text[:-1]) for i, text in zip(ids, texts)])
    contexts = [bench.context(i, text) for i, text in zip(ids, texts)]
    batch = [scores.logits.clone() for scores in bench.target.score(contexts, drafts)]
    for text, draft, rows, sequence_id in zip(texts, drafts, batch, ids):
        solo = bench.open(text)
        bench.same(rows, bench.rows(solo, draft), f"a batch of {len(texts)} and the same sequence alone")
        bench.target.release(solo.sequence_id)
        bench.target.release(sequence_id)


def _wide_chains_equal_single_rows(bench: _Bench) -> None:
    text, chain = bench.text(4), bench.text(11)
    context = bench.open(text)
    for width in (1, 2, 5, 11):
        rows = bench.rows(context, Draft.chain(chain[:width]))
        for row in range(width + 1):
            single = bench.fresh(text + chain[:row])
            bench.same(rows[row], single, f"row {row} of a chain of {width} and the same text alone")
    bench.target.release(context.sequence_id)


def _tree(bench: _Bench) -> Draft:
    """Two branches that interleave: nodes 1, 3, 5 are a path, and so are 0, 2."""
    a, b, c, d, e, f = bench.siblings(6)
    return Draft.tree([a, b, c, d, e, f, a], [None, None, 0, 1, 1, 3, 3])


def _tree_rows_equal_their_paths(bench: _Bench) -> None:
    if not bench.target.supports_trees:
        return
    text, tree = bench.text(5), _tree(bench)
    context = bench.open(text)
    rows = bench.rows(context, tree)
    for node in (None, *range(len(tree))):
        path = list(tree.nodes.path_tokens(node))
        row = 0 if node is None else node + 1
        bench.same(rows[row], bench.fresh(text + path), f"row {row} of a tree and its path {path} alone")
    bench.target.release(context.sequence_id)


def _commits_equal_a_fresh_prefill(bench: _Bench) -> None:
    text, extra = bench.text(5), bench.text(1)[0]
    chain = Draft.chain(bench.text(4))
    cases = [(chain, ()), (chain, (0, 1)), (chain, (0, 1, 2, 3))]
    if bench.target.supports_trees:
        tree = _tree(bench)
        cases += [(tree, (1, 3, 5)), (tree, (0, 2)), (tree, (1, 4)), (tree, ())]
    for draft, accepted in cases:
        context = bench.open(text)
        kept = [draft.nodes.tokens[node] for node in accepted]
        _commit(bench, context, draft, (*kept, extra), accepted)
        after = bench.context(context.sequence_id, [*text, *kept, extra])
        fresh = bench.fresh([*text, *kept, extra])
        bench.same(bench.rows(after)[0], fresh, f"after a commit of nodes {accepted} and a fresh prefill")
        bench.target.release(context.sequence_id)
    _truncated_commits_keep_one_node_less(bench, text, chain)


def _truncated_commits_keep_one_node_less(bench: _Bench, text: list[int], chain: Draft) -> None:
    """Truncation at a stop or cap ends the emitted tokens on an accepted node, which becomes pending."""
    context = bench.open(text)
    emitted = chain.nodes.tokens[:2]
    _commit(bench, context, chain, emitted, (0, 1))
    after = bench.context(context.sequence_id, [*text, *emitted])
    bench.same(bench.rows(after)[0], bench.fresh([*text, *emitted]), "after a truncated commit")
    bench.target.release(context.sequence_id)


def _commit(
    bench: _Bench, context: Context, draft: Draft, emitted: tuple[int, ...], accepted: tuple[int, ...]
) -> None:
    scores = bench.score(context, draft)
    bench.target.commit([RoundResult(context.sequence_id, emitted, accepted, draft, scores)])


def _rewinding_forgets(bench: _Bench) -> None:
    text, other = bench.text(8), bench.text(3)
    context = bench.open(text)
    bench.target.rewind(context.sequence_id, 3)
    bench.target.extend([Chunk(context.sequence_id, other[:-1])])
    changed = [*text[:3], *other]
    after = bench.context(context.sequence_id, changed)
    bench.same(bench.rows(after)[0], bench.fresh(changed), "after a rewind to 3 tokens and another text")
    bench.target.release(context.sequence_id)


def _forks_are_independent(bench: _Bench) -> None:
    text, other = bench.text(8), bench.text(3)
    parent = bench.open(text)
    for length in (0, 4, 7):
        child = next(bench._ids)
        bench.target.fork(parent.sequence_id, child, length)
        bench.target.extend([Chunk(child, other[:-1])])
        branched = [*text[:length], *other]
        after = bench.context(child, branched)
        bench.same(bench.rows(after)[0], bench.fresh(branched), f"a fork at {length} that goes its own way")
        bench.same(bench.rows(parent)[0], bench.fresh(text), f"the parent of a fork at {length}")
        bench.target.release(child)
    bench.target.release(parent.sequence_id)


def _released_sequences_are_gone(bench: _Bench) -> None:
    text = bench.text(6)
    context = bench.open(bench.text(9))
    neighbour = bench.open(text)
    bench.target.release(context.sequence_id)
    bench.target.release(context.sequence_id)
    bench.target.release(next(bench._ids))
    length = bench.target.cached_length(context.sequence_id)
    assert length == 0, f"a released sequence still caches {length} tokens"
    bench.same(bench.rows(neighbour)[0], bench.fresh(text), "the neighbour of a released sequence")
    bench.target.extend([Chunk(context.sequence_id, text[:-1])])
    again = bench.context(context.sequence_id, text)
    bench.same(bench.rows(again)[0], bench.fresh(text), "a sequence opened again under a released id")
    bench.target.release(context.sequence_id)
    bench.target.release(neighbour.sequence_id)


def _scoring_leaves_no_trace(bench: _Bench) -> None:
    text, more = bench.text(6), bench.text(3)
    context = bench.open(text)
    for _ in range(2):
        bench.rows(context, Draft.chain(bench.text(7)))
        bench.same(bench.rows(context)[0], bench.fresh(text), "a score after the score of a draft")
    bench.rows(context, Draft.chain(bench.text(7)))
    bench.target.extend([Chunk(context.sequence_id, [text[-1], *more[:-1]])])
    after = bench.context(context.sequence_id, [*text, *more])
    bench.same(bench.rows(after)[0], bench.fresh([*text, *more]), "an extend after the score of a draft")
    bench.target.release(context.sequence_id)


def _layers_leave_no_trace(bench: _Bench) -> None:
    target = bench.target
    if not isinstance(target, LayeredTarget):
        return
    text, draft = bench.text(6), Draft.chain(bench.text(3))
    context = bench.open(text)
    wanted = bench.rows(context, draft)
    (rows,) = target.draft_rows([context], [draft.nodes], range(max(1, target.num_layers // 2)))
    assert rows.shape == wanted.shape, f"draft_rows gave {tuple(rows.shape)}, not {tuple(wanted.shape)}"
    bench.same(bench.rows(context, draft), wanted, "a score after draft_rows and one before")
    (all_layers,) = target.draft_rows([context], [draft.nodes], range(target.num_layers))
    bench.same(all_layers, wanted, "draft_rows of all layers and score")
    if isinstance(target, TappedTarget):
        tap = max(1, target.num_layers // 2)
        target.tap((tap,))
        [scored] = target.score([context], [draft])
        assert scored.features is not None, "features of a tapped target"
        states = scored.features[:, target.taps.index(tap)].clone()
        bench.same(
            target.draft_states([context], [draft.nodes], range(tap))[0], states, "draft_states and a tap"
        )
        bench.same(bench.rows(context, draft), wanted, "a score after draft_states and one before")
    target.release(context.sequence_id)
