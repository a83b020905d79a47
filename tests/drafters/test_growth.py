"""Growing drafts: what a group claims as its law is what it was drawn from, and the text's law is kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.core.accept import Block, TokenLevel, Traversal
from outrider.core.law import Drawn, DrawnWithoutReplacement, Floats, NodeLaw, PointMass
from outrider.core.noise import Noise, Place
from outrider.core.protocols import AcceptanceRule
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee, RoundResult, Scores
from outrider.core.sampling import SamplingParams
from outrider.core.tree import TokenTree
from outrider.drafters.growth import Growth, SampleMethod, ScoreRows
from outrider.errors import ConfigError
from outrider.models.row_costs import FREE, DraftCosts, RowCosts
from outrider.testing.branching import outcomes
from outrider.testing.language import BlurredLanguage, HashedLanguage, Language, TableLanguage
from outrider.testing.rule_contract import law_of_texts

VOCAB = 10
LANGUAGE = HashedLanguage(VOCAB, seed=4, order=3, sharpness=1.5)
HOT = SamplingParams(temperature=1.0)


def scorer(language: Language) -> ScoreRows:
    """A draft model without a cache."""

    def score(
        contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        return [
            torch.from_numpy(
                np.stack([language([*c.tokens, *tree.path_tokens(row - 1 if row else None)]) for row in rows])
            )
            for c, tree, rows in zip(contexts, trees, wanted)
        ]

    return score


def grown(growth: Growth, context: Context, budget: Budget, given: Draft = EMPTY_DRAFT,
          language: Language = LANGUAGE) -> Draft:  # fmt: skip
    (draft,) = growth.grow([context], [budget], [given], scorer(language))
    return draft


def context(seed: int = 0, sampling: SamplingParams = HOT,
            guarantee: Guarantee = Guarantee.SAME_DISTRIBUTION) -> Context:  # fmt: skip
    return Context.of([1, 2, 3], seed=seed, sampling=sampling, guarantee=guarantee)


def law_at(place: Context, draft: Draft, row: int) -> NodeLaw:
    path = draft.nodes.path_tokens(row - 1 if row else None)
    return place.law.node(torch.from_numpy(LANGUAGE([*place.tokens, *path]).copy()), path)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize(
    "sampling",
    [HOT, SamplingParams(temperature=0.6, top_k=4), SamplingParams(top_p=0.8, frequency_penalty=1.0)],
)
def test_drawn_groups_claim_the_processed_law_they_were_drawn_from(
    topk: int, sampling: SamplingParams
) -> None:
    place = context(sampling=sampling)
    draft = grown(Growth(VOCAB, topk), place, Budget(3, 3 * topk))
    kinds = set()
    for row, groups in enumerate(draft.groups):
        for group in groups:
            assert not isinstance(group.law, PointMass)
            law = law_at(place, draft, row)
            np.testing.assert_array_equal(group.law.probs, law.probs)
            tokens = tuple(draft.nodes.tokens[node] for node in group.nodes)
            depth = draft.nodes.depths[row - 1] if row else 0
            assert tokens == place.noise.draw(law, len(tokens), Place(depth, row))
            kinds.add(type(group.law))
    wanted = {Drawn if topk == 1 else DrawnWithoutReplacement}
    assert wanted <= kinds <= {Drawn, *wanted}


@pytest.mark.parametrize("topk", [1, 3])
def test_same_text_ranks_children_by_the_noise_of_the_text(topk: int) -> None:
    place = context(seed=9, guarantee=Guarantee.SAME_TEXT)
    draft = grown(Growth(VOCAB, topk), place, Budget(3, 3 * topk))
    assert len(draft) == 3 * topk
    for row, below in enumerate(draft.nodes.children):
        if below:
            depth = draft.nodes.depths[row - 1] if row else 0
            tokens = place.noise.ranked(law_at(place, draft, row), len(below), Place(depth, row))
            assert tuple(draft.nodes.tokens[node] for node in below) == tokens
    assert {type(group.law) for groups in draft.groups for group in groups} == {PointMass}


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_temperature_zero_drafts_the_best_tokens(guarantee: Guarantee) -> None:
    place = context(sampling=SamplingParams(temperature=0.0), guarantee=guarantee)
    chain = grown(Growth(VOCAB), place, Budget(4, 4))
    text = [1, 2, 3]
    for token in chain.nodes.tokens:
        assert token == LANGUAGE(text).argmax()
        text.append(token)
    tree = grown(Growth(VOCAB, topk=3), place, Budget(2, 6))
    first = [tree.nodes.tokens[node] for node in tree.nodes.children[0]]
    assert first == np.argsort(-LANGUAGE([1, 2, 3]))[:3].tolist()


def test_at_temperature_zero_a_tree_is_deep_where_the_draft_model_is_sure_and_wide_where_not() -> None:
    sure, unsure = (HashedLanguage(VOCAB, seed=4, order=3, sharpness=sharpness) for sharpness in (30.0, 0.2))
    for start in range(VOCAB):
        place = Context.of([start], sampling=SamplingParams(temperature=0.0))
        chain = grown(Growth(VOCAB), place, Budget(4, 4), language=sure)
        tree = grown(Growth(VOCAB, topk=3), place, Budget(4, 5), language=sure)
        assert chain.nodes.tokens in [tree.nodes.path_tokens(node) for node in range(len(tree))]
        wide = grown(Growth(VOCAB, topk=3), place, Budget(4, 5), language=unsure)
        assert wide.nodes.depths.count(1) == 3


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_end_where_they_cost_more_than_they_promise(
    topk: int, guarantee: Guarantee, temperature: float
) -> None:
    place = context(sampling=SamplingParams(temperature=temperature), guarantee=guarantee)
    budget = Budget(4, 4 * topk)

    def drafted(rows: float, level: float) -> Draft:
        return grown(Growth(VOCAB, topk, costs=DraftCosts(RowCosts.linear(rows), level)), place, budget)

    assert len(drafted(0.0, 0.0)) == 4 * topk, "what costs nothing is as long as it may be"
    assert max(drafted(0.0, 9.0).nodes.depths) == 1, "another forward costs more than all tokens below it"
    assert drafted(9.0, 0.0) is EMPTY_DRAFT, "a row costs more than its token"
    assert 0 < len(drafted(0.15, 0.0)) < len(drafted(0.0, 0.0))


def test_a_sure_draft_model_drafts_further_at_the_same_costs() -> None:
    place = context(sampling=SamplingParams(temperature=0.0))
    costs = DraftCosts(RowCosts.linear(0.1), 0.1)
    sure, unsure = (
        grown(
            Growth(VOCAB, costs=costs), place, Budget(8, 8), language=HashedLanguage(VOCAB, 4, 3, sharpness)
        )
        for sharpness in (30.0, 0.2)
    )
    assert len(sure) > len(unsure)


def test_what_a_given_chain_promises_counts() -> None:
    """Below a chain that was never kept nothing is worth a row."""
    place = context(sampling=SamplingParams(temperature=0.0))
    growth = Growth(VOCAB, costs=DraftCosts(RowCosts.linear(0.1), 0.0))
    given = Draft.chain([7, 7])
    first = grown(growth, place, Budget(4, 4), given)
    assert len(first) > 2
    for _ in range(40):
        draft = grown(growth, place, Budget(4, 4), given)
        growth.observe([RoundResult(place.sequence_id, (0,), (), draft, Scores(torch.empty(0)))])
    assert grown(growth, place, Budget(4, 4), given) is given


def test_at_temperature_zero_the_first_child_obeys_the_processors() -> None:
    worst = int(LANGUAGE([1, 2, 3]).argmin())
    sampling = SamplingParams(temperature=0.0, logit_bias={worst: 50.0})
    draft = grown(Growth(VOCAB, topk=3), context(sampling=sampling), Budget(1, 3))
    assert draft.nodes.tokens[0] == worst
    assert len(draft) == 3


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_greedy_drafting_takes_the_most_probable_tokens_at_any_temperature(guarantee: Guarantee) -> None:
    growth = Growth(VOCAB, topk=2, sample_method=SampleMethod.GREEDY)
    draft = grown(growth, context(guarantee=guarantee), Budget(1, 2))
    assert draft == Draft.tree(np.argsort(-LANGUAGE([1, 2, 3]))[:2].tolist(), [None, None])


P = {(): (0.5, 0.3, 0.2), (0,): (0.1, 0.9, 0.0), (1,): (0.3, 0.3, 0.4), (0, 1): (0.0, 0.2, 0.8)}
Q = {(): (0.2, 0.45, 0.35), (0,): (0.6, 0.2, 0.2), (2, 2): (0.0, 1.0, 0.0), (1, 1): (0.2, 0.2, 0.6)}


@pytest.mark.parametrize(
    ("rule", "topk", "budget"),
    [
        (Block(), 1, Budget(3, 3)),
        (TokenLevel(), 1, Budget(3, 3)),
        (Traversal(), 2, Budget(2, 4)),
        (Traversal(), 2, Budget(2, 3)),
        (TokenLevel(), 2, Budget(2, 4)),
    ],
)
@pytest.mark.parametrize("sampling", [HOT, SamplingParams(temperature=0.8, top_k=2)])
@pytest.mark.parametrize("costs", [FREE, DraftCosts(RowCosts.linear(0.05), 0.12)], ids=["free", "cut"])
def test_the_enumerated_law_of_the_text_is_the_targets(rule: AcceptanceRule, topk: int, budget: Budget,
                                                       sampling: SamplingParams,
                                                       costs: DraftCosts) -> None:  # fmt: skip
    """Cut and heated laws, trees whose shape hangs on all rows seen, drafts as long as they are worth."""
    target, draft_model = TableLanguage(P), TableLanguage(Q)
    place = Context.of([2], sampling=sampling, guarantee=Guarantee.SAME_DISTRIBUTION)
    sizes: set[int] = set()

    def after(path: tuple[int, ...]) -> NodeLaw:
        return place.law.node(torch.from_numpy(target([2, *path])), path)

    def run(noise: Noise) -> tuple[int, ...]:
        growth = Growth(3, topk, costs=costs)
        draft = grown(growth, replace(place, noise=noise), budget, language=draft_model)
        sizes.add(len(draft))
        verdict = rule.judge(
            draft, lambda row: after(draft.nodes.path_tokens(row - 1 if row else None)), noise
        )
        return (*(draft.nodes.tokens[node] for node in verdict.accepted), verdict.next_token)

    def law(path: tuple[int, ...]) -> Floats:
        return after(path).probs

    error = np.abs(law_of_texts(outcomes(run), law, 2) - law_of_texts([(1.0, ())], law, 2)).max()
    assert error < 1e-12
    assert min(sizes) > 1, "of a single node neither siblings nor children can betray what was drawn"
    assert (max(sizes) < budget.nodes) == (costs is not FREE and budget != Budget(2, 3)), "three nodes pay"


def test_a_row_without_a_law_gets_no_children_and_its_neighbours_do() -> None:
    def broken(tokens: Sequence[int]) -> Floats:
        row = LANGUAGE(tokens).copy()
        if tokens[-1] == worst:
            row[0] = np.nan
        return row

    place = context(sampling=SamplingParams(temperature=0.0))
    best, worst = np.argsort(-LANGUAGE([1, 2, 3]))[:2].tolist()
    draft = grown(Growth(VOCAB, topk=2), place, Budget(3, 12), language=broken)
    assert draft.nodes.tokens[:2] == (best, worst)
    assert draft.nodes.children[1]
    assert not draft.nodes.children[2]
    nothing = grown(Growth(VOCAB), place, Budget(3, 3), language=lambda tokens: np.full(VOCAB, np.nan))
    assert nothing is EMPTY_DRAFT


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB + 4])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_rows_of_another_width_are_padded_or_cut(size: int, guarantee: Guarantee) -> None:
    loud = BlurredLanguage(HashedLanguage(size, seed=1), size, noise=0.0)
    for seed in range(30):
        draft = grown(Growth(VOCAB, topk=3), context(seed, guarantee=guarantee), Budget(2, 6), language=loud)
        assert max(draft.nodes.tokens) < min(size, VOCAB)
        for groups in draft.groups:
            assert all(isinstance(g.law, PointMass) or g.law.probs.shape == (VOCAB,) for g in groups)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_the_child_that_noise_chose_first_is_expanded_before_its_siblings(guarantee: Guarantee) -> None:
    """Its chance of being kept hangs on its rank: a token of small q must not be dropped for that."""
    unlikelier = 0  # first children that the draft's own law holds for less likely than a sibling left alone
    for seed in range(60):
        place = context(seed, guarantee=guarantee)
        draft = grown(Growth(VOCAB, topk=3), place, Budget(4, 30))  # room for all
        children, tokens = draft.nodes.children, draft.nodes.tokens
        for row, below in enumerate(children):
            if not any(children[node + 1] for node in below):
                continue
            first, *others = below
            assert children[first + 1], f"seed {seed}, row {row}"
            path = draft.nodes.path_tokens(row - 1 if row else None)
            q = LANGUAGE([*place.tokens, *path])
            unlikelier += any(not children[o + 1] and q[tokens[o]] > q[tokens[first]] for o in others)
    assert unlikelier > 20


@pytest.mark.parametrize("nodes", [1, 3, 4, 7, 16, 30])
def test_what_is_drawn_is_spread_evenly_over_the_levels(nodes: int) -> None:
    draft = grown(Growth(VOCAB, topk=4), context(), Budget(4, nodes))
    assert len(draft) == nodes
    widths = [draft.nodes.depths.count(depth) for depth in range(1, 5)]
    assert max(draft.nodes.depths) == min(4, nodes)
    assert max(widths) - min(widths[: min(4, nodes)]) <= 1 or nodes == 30


@pytest.mark.parametrize("nodes", [1, 3, 7, 12])
def test_of_point_masses_the_most_probable_paths_are_kept(nodes: int) -> None:
    """Against all paths of three tokens: with as many children as tokens nothing is cut on the way."""
    growth = Growth(VOCAB, topk=VOCAB, sample_method=SampleMethod.GREEDY)
    draft = grown(growth, context(), Budget(3, nodes))
    chances: dict[tuple[int, ...], float] = {}
    for length in (1, 2, 3):
        for path in itertools.product(range(VOCAB), repeat=length):
            text = [1, 2, 3, *path]
            laws = (law_of(text[: 3 + index]) for index in range(length))
            chances[path] = float(np.prod([law[token] for law, token in zip(laws, path)]))
    found = {draft.nodes.path_tokens(node) for node in range(len(draft))}
    assert len(found) == nodes
    assert found == set(sorted(chances, key=lambda path: -chances[path])[:nodes])


def law_of(text: Sequence[int]) -> Floats:
    logits = LANGUAGE(text)
    weights: Floats = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_values_of_ranked_children_follow_what_this_text_kept() -> None:
    """A draft model that is never right loses its place to siblings; one that always is keeps chains."""
    place = context(seed=3, guarantee=Guarantee.SAME_TEXT)
    shapes = {}
    for name, kept in (("first", True), ("never", False)):
        growth = Growth(VOCAB, topk=3)
        for _ in range(60):
            draft = grown(growth, place, Budget(4, 6))
            path = _leftmost(draft) if kept else ()
            tokens = tuple(draft.nodes.tokens[node] for node in path)
            growth.observe(
                [RoundResult(place.sequence_id, (*tokens, 0), path, draft, Scores(torch.empty(0)))]
            )
        shapes[name] = grown(growth, place, Budget(4, 6)).nodes
    assert max(shapes["first"].depths) == 4
    assert len(shapes["never"].children[0]) > len(shapes["first"].children[0])


def _leftmost(draft: Draft) -> tuple[int, ...]:
    path: list[int] = []
    row = 0
    while draft.nodes.children[row]:
        path.append(draft.nodes.children[row][0])
        row = path[-1] + 1
    return tuple(path)


def test_a_given_chain_grows_from_its_leaf_and_a_tree_is_left_alone() -> None:
    place = context(sampling=SamplingParams(temperature=0.0))
    draft = grown(Growth(VOCAB), place, Budget(4, 4), Draft.chain([7, 7]))
    assert draft.nodes.tokens[:3] == (7, 7, int(LANGUAGE([1, 2, 3, 7, 7]).argmax()))
    assert len(draft) == 4
    tree = Draft.tree([1, 2], [None, None])
    assert grown(Growth(VOCAB), place, Budget(4, 4), tree) is tree
    full = Draft.chain([7, 7])
    assert grown(Growth(VOCAB), place, Budget(2, 9), full) is full


def test_all_sequences_grow_in_one_forward_per_level() -> None:
    widths: list[int] = []

    def score(
        contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        widths.append(len(contexts))
        return scorer(LANGUAGE)(contexts, trees, wanted)

    budgets = [Budget(3, 3), Budget(0, 0), Budget(1, 1), Budget(3, 3)]
    contexts = [Context.of([1, 2], sequence_id=i) for i in range(4)]
    drafts = Growth(VOCAB).grow(contexts, budgets, [EMPTY_DRAFT] * 4, score)
    assert [len(draft) for draft in drafts] == [3, 0, 1, 3]
    assert widths == [3, 2, 2]


def test_a_tree_without_children_is_refused() -> None:
    with pytest.raises(ConfigError, match="topk must be at least 1"):
        Growth(VOCAB, topk=0)
