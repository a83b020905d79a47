"""Rows over a draft vocabulary draft what the same rows over all of the target's tokens would, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.core.law import PointMass
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw
from outrider.core.token_map import TokenMap
from outrider.core.tree import TokenTree
from outrider.drafters.growth import Growth, GrowthSettings, SampleMethod
from outrider.drafters.medusa import MedusaDrafter
from outrider.drafters.rows import DraftRows, DraftVocabulary
from outrider.errors import ParameterError

VOCAB, DRAFT = 400, 90
ASCENDING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:DRAFT].sort().values
SHUFFLED = ASCENDING[torch.randperm(DRAFT, generator=torch.Generator().manual_seed(4))]
PROMPT = [1, *ASCENDING[:6].tolist(), *range(20)]
BIASED = {int(ASCENDING[5]): 4.0, int(ASCENDING[9]): -50.0, 0: 3.0, VOCAB - 1: 9.0}
SAMPLINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logit_bias=BIASED, repetition_penalty=1.4, no_repeat_ngram_size=2),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.8, top_k=20, min_p=0.02, top_p=0.95),
    SamplingParams(temperature=0.8, logit_bias=BIASED, presence_penalty=0.5, frequency_penalty=0.7),
    SamplingParams(temperature=1.2, top_k=200, repetition_penalty=1.4, no_repeat_ngram_size=2, min_tokens=5),
]
SHAPES = [(1, Budget(5, 5)), (4, Budget(4, 16))]


class Spoken:
    """A draft model over the draft vocabulary, and the same one spread over all tokens. Rows hang on the path alone;
    some values tie."""

    def __init__(self, token_map: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> None:
        self._map, self._dtype = token_map, dtype
        self._vocabulary = DraftVocabulary(token_map, VOCAB)

    def drafted(self, contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
                ) -> list[DraftRows]:  # fmt: skip
        return [self._vocabulary.rows(self._rows(tree, rows)) for tree, rows in zip(trees, wanted)]

    def spread(self, contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
               ) -> list[torch.Tensor]:  # fmt: skip
        found = [self._rows(tree, rows) for tree, rows in zip(trees, wanted)]
        return [spread(rows, self._map) for rows in found]

    def _rows(self, tree: TokenTree, rows: Sequence[int]) -> torch.Tensor:  # [rows, DRAFT]
        made = []
        for row in rows:
            path = tree.path_tokens(row - 1 if row else None)
            noise = np.random.default_rng([1, *path]).standard_normal(VOCAB) * 3.0
            made.append(torch.from_numpy(noise.round(1))[self._map])
        return torch.stack(made).to(self._dtype)


def spread(rows: torch.Tensor, token_map: torch.Tensor) -> torch.Tensor:  # [..., DRAFT] -> [..., VOCAB]
    return rows.new_full((*rows.shape[:-1], VOCAB), -torch.inf).index_copy(-1, token_map, rows)


def context(sampling: SamplingParams, guarantee: Guarantee, seed: int) -> Context:
    place = Context.of(PROMPT, seed=seed, sampling=sampling, guarantee=guarantee)
    law = TargetLaw(sampling, prompt=PROMPT[:20], stop_ids=frozenset({int(ASCENDING[0]), 3}),
                    bad_word_ids=((int(ASCENDING[11]),), (7,)))  # fmt: skip
    law.append(PROMPT[20:])
    return Context(0, place.tokens, sampling, place.noise, guarantee, law)


def assert_same(found: Draft, expected: Draft) -> None:
    assert found.nodes == expected.nodes
    for groups, others in zip(found.groups, expected.groups):
        assert [(type(g.law), g.nodes) for g in groups] == [(type(g.law), g.nodes) for g in others]
        for group, other in zip(groups, others):
            if not isinstance(group.law, PointMass):
                assert not isinstance(other.law, PointMass)
                np.testing.assert_array_equal(group.law.probs, other.law.probs)
                assert group.law.probs.shape == (VOCAB,)


@pytest.mark.parametrize("token_map", [ASCENDING, SHUFFLED], ids=["ascending", "shuffled"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_vocabulary_changes_no_draft(sampling: SamplingParams, token_map: torch.Tensor) -> None:
    spoken, lengths = Spoken(token_map), set()
    for guarantee, method, (topk, budget) in itertools.product(Guarantee, SampleMethod, SHAPES):
        for seed in range(3):
            place = context(sampling, guarantee, seed)
            [found] = Growth(VOCAB, topk, method).grow([place], [budget], [EMPTY_DRAFT], spoken.drafted)
            [expected] = Growth(VOCAB, topk, method).grow([place], [budget], [EMPTY_DRAFT], spoken.spread)
            assert_same(found, expected)
            lengths.add(len(found))
    assert max(lengths) == 16


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_of_any_precision_are_read_the_same(dtype: torch.dtype) -> None:
    spoken = Spoken(SHUFFLED, dtype=dtype)
    place = context(SamplingParams(temperature=0.8), Guarantee.SAME_TEXT, seed=1)
    jobs = [place], [Budget(4, 16)], [EMPTY_DRAFT]
    assert Growth(VOCAB, 4).grow(*jobs, spoken.drafted) == Growth(VOCAB, 4).grow(*jobs, spoken.spread)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_medusa_heads_with_a_draft_vocabulary_draft_the_same(sampling: SamplingParams) -> None:
    rows = torch.randn(4, DRAFT, generator=torch.Generator().manual_seed(2)) * 3.0
    for guarantee, method, (topk, budget) in itertools.product(Guarantee, SampleMethod, SHAPES):
        place = context(sampling, guarantee, seed=5)
        found = []
        for heads in (Heads(rows, SHUFFLED), Heads(spread(rows, SHUFFLED), None)):
            drafter = MedusaDrafter(
                heads, tap=4, target_vocab_size=VOCAB, topk=topk, settings=GrowthSettings(method)
            )
            drafter.ingest(place, torch.zeros(len(place.tokens) - 1, 1, 16))
            found += drafter.propose([place], [budget], [EMPTY_DRAFT])
        assert_same(*found)
        assert len(found[0]) in (4, 16)


class Heads:
    """Medusa heads that say the same of every state."""

    row_invariant = True

    def __init__(self, rows: torch.Tensor, token_map: torch.Tensor | None) -> None:
        self.count, self.token_map, self._rows = len(rows), token_map, rows

    def __call__(self, states: torch.Tensor, count: int) -> torch.Tensor:
        return self._rows[None, :count].expand(len(states), -1, -1)


def test_no_token_outside_the_draft_vocabulary_has_a_chance() -> None:
    place = context(
        SamplingParams(temperature=0.8, logit_bias={0: 90.0}), Guarantee.SAME_DISTRIBUTION, seed=0
    )
    [draft] = Growth(VOCAB, 3).grow([place], [Budget(3, 9)], [EMPTY_DRAFT], Spoken(ASCENDING).drafted)
    assert 0 not in ASCENDING
    assert set(draft.nodes.tokens) <= set(ASCENDING.tolist())
    outside = np.setdiff1d(np.arange(VOCAB), ASCENDING.numpy())
    for groups in draft.groups:
        assert all(not group.law.probs[outside].any() for group in groups)
        assert all(group.law.probs.sum() == pytest.approx(1.0) for group in groups)


def test_a_bias_beyond_the_vocabulary_is_an_error_with_a_draft_vocabulary_too() -> None:
    sampling = SamplingParams(temperature=0.8, logit_bias={VOCAB: 1.0})
    with pytest.raises(ParameterError, match=f"token {VOCAB}, but the vocabulary ends at {VOCAB - 1}"):
        TargetLaw(sampling).node(np.zeros(DRAFT), (), TokenMap(ASCENDING.numpy(), VOCAB))
