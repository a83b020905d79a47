"""Residual rules, enumerated: the law of what they emit is the target's, to 1e-12, whatever the draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from outrider.config import MOST_DRAFTED
from outrider.core.accept import Block, NoiseMatch, TokenLevel, Traversal
from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, NodeLaw
from outrider.core.noise import Place, RoundNoise
from outrider.core.protocols import AcceptanceRule, Laws
from outrider.core.records import Draft, Group, Verdict
from outrider.core.tree import TokenTree
from outrider.errors import ScoreError
from outrider.testing.branching import BranchingNoise, outcomes
from outrider.testing.rule_contract import law_of_texts

Prefix = tuple[int, ...]
LawOf = Callable[[Prefix], np.ndarray]

RULES = [TokenLevel(), Block(), Traversal()]
TREE_RULES = [TokenLevel(), Traversal()]


def random_laws(seed: int, vocab: int, *, zeros: float = 0.0, peaked: float = 1.0) -> LawOf:
    """A law per prefix, drawn once: a share of the tokens has no mass."""
    known: dict[Prefix, np.ndarray] = {}

    def at(prefix: Prefix) -> np.ndarray:
        if prefix not in known:
            rng = np.random.default_rng([seed, len(prefix), *prefix])
            weights = np.exp(peaked * rng.normal(size=vocab))
            dead = rng.random(vocab) < zeros
            dead[rng.integers(vocab)] = False
            weights[dead] = 0.0
            known[prefix] = weights / weights.sum()
        return known[prefix]

    return at


def one_hot_laws(seed: int, vocab: int) -> LawOf:
    return lambda prefix: np.eye(vocab)[np.random.default_rng([seed, len(prefix), *prefix]).integers(vocab)]


def drawn_draft(noise: BranchingNoise, q: LawOf, widths: tuple[int, ...], fixed: int = 0) -> Draft:
    """A tree drawn from q: `widths[d]` children per node at depth d, the first `fixed` of them the largest of q."""
    tokens: list[int] = []
    parents: list[int | None] = []
    groups: list[list[Group]] = [[]]
    frontier: list[tuple[int | None, Prefix]] = [(None, ())]
    for depth, width in enumerate(widths):
        below: list[tuple[int | None, Prefix]] = []
        for parent, prefix in frontier:
            law = q(prefix)
            chosen: list[tuple[object, tuple[int, ...]]] = []
            top = tuple(int(t) for t in np.argsort(-law)[:fixed])
            if top:
                chosen.append((POINT_MASS, top))
                law = np.where(np.isin(np.arange(len(law)), top), 0.0, law)
                law = law / law.sum() if law.any() else law
            if law.any() and width > len(top):
                row = 0 if parent is None else parent + 1
                drawn = noise.draw(NodeLaw.of_probs(law), width - len(top), Place(depth, row))
                kind = Drawn(law) if len(drawn) == 1 else DrawnWithoutReplacement(law)
                chosen.append((kind, drawn))
            row = 0 if parent is None else parent + 1
            for kind, group in chosen:
                first = len(tokens)
                for token in group:
                    below.append((len(tokens), (*prefix, token)))
                    tokens.append(token)
                    parents.append(parent)
                    groups.append([])
                groups[row].append(Group(kind, tuple(range(first, len(tokens)))))  # type: ignore[arg-type]
        frontier = below
    return Draft(TokenTree(tuple(tokens), tuple(parents)), tuple(tuple(g) for g in groups))


def laws_of(p: LawOf) -> Callable[[Draft], Laws]:
    """The target law per row of any draft, built once per path."""
    known = cache(lambda path: NodeLaw.of_probs(p(path)))
    return lambda draft: lambda row: known(draft.nodes.path_tokens(row - 1) if row else ())


def emitted_law(
    rule: AcceptanceRule, p: LawOf, draft_of: Callable[[BranchingNoise], Draft], length: int
) -> np.ndarray:  # [vocab] * length
    """The law of the first `length` tokens: what a round emits, then plain sampling from p."""
    laws = laws_of(p)

    def run(noise: BranchingNoise) -> Prefix:
        draft = draft_of(noise)
        verdict = rule.judge(draft, laws(draft), noise)
        return (*(draft.nodes.tokens[n] for n in verdict.accepted), verdict.next_token)

    merged: dict[Prefix, float] = defaultdict(float)
    for chance, tokens in outcomes(run):
        merged[tokens[:length]] += chance
    return law_of_texts(((chance, tokens) for tokens, chance in merged.items()), p, length)


def error_of(
    rule: AcceptanceRule, p: LawOf, draft_of: Callable[[BranchingNoise], Draft], length: int
) -> float:
    wanted = law_of_texts([(1.0, ())], p, length)
    return float(np.abs(emitted_law(rule, p, draft_of, length) - wanted).max())


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("vocab", [2, 3, 5])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_drawn_chains_keep_the_target_law(rule: AcceptanceRule, vocab: int, zeros: float) -> None:
    p, q = random_laws(1, vocab, zeros=zeros), random_laws(2, vocab, zeros=zeros)
    for depth in (1, 2, 3) if vocab < 5 else (1, 2):
        assert error_of(rule, p, lambda n, d=depth: drawn_draft(n, q, (1,) * d), depth + 1) < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_chain_of_depth_three_over_five_tokens_keeps_the_target_law(rule: AcceptanceRule) -> None:
    p, q = random_laws(3, 5, zeros=0.4), random_laws(4, 5, zeros=0.4)
    assert error_of(rule, p, lambda n: drawn_draft(n, q, (1, 1, 1)), 4) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(
    ("vocab", "widths"), [(3, (2, 2)), (3, (3, 1)), (4, (2, 1)), (5, (3,)), (4, (4,)), (3, (2, 1, 1))]
)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_trees_drawn_without_replacement_keep_the_target_law(
    rule: AcceptanceRule, vocab: int, widths: tuple[int, ...], zeros: float
) -> None:
    p, q = random_laws(5, vocab, zeros=zeros), random_laws(6, vocab, zeros=zeros)
    assert error_of(rule, p, lambda n: drawn_draft(n, q, widths), len(widths) + 1) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("vocab", "widths"), [(5, (2, 1, 1)), (4, (2, 2)), (4, (2, 1, 1))])
def test_deep_trees_over_four_and_five_tokens_keep_the_target_law(
    rule: AcceptanceRule, vocab: int, widths: tuple[int, ...]
) -> None:
    p, q = random_laws(43, vocab, zeros=0.4), random_laws(44, vocab, zeros=0.4)
    assert error_of(rule, p, lambda n: drawn_draft(n, q, widths), len(widths) + 1) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("widths", [(2, 2), (3, 1), (2, 1, 1)])
def test_trees_of_equal_and_of_one_hot_laws_keep_the_target_law(
    rule: AcceptanceRule, widths: tuple[int, ...]
) -> None:
    p, hot = random_laws(45, 3), one_hot_laws(46, 3)
    for target, draft in ((p, p), (p, hot), (hot, p), (hot, hot)):
        assert error_of(rule, target, lambda n, q=draft: drawn_draft(n, q, widths), len(widths) + 1) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("widths", "fixed"), [((2,), 1), ((2, 2), 1), ((3, 2), 2), ((3, 1), 1)])
def test_point_masses_beside_drawn_siblings_keep_the_target_law(
    rule: AcceptanceRule, widths: tuple[int, ...], fixed: int
) -> None:
    p, q = random_laws(7, 4), random_laws(8, 4)
    assert error_of(rule, p, lambda n: drawn_draft(n, q, widths, fixed), len(widths) + 1) < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_point_mass_chains_keep_the_target_law(rule: AcceptanceRule) -> None:
    p = random_laws(9, 4, zeros=0.3)
    for tokens in ((0,), (1, 2), (3, 0, 1), (2, 2, 2)):
        assert error_of(rule, p, lambda n, t=tokens: Draft.chain(t), len(tokens) + 1) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
def test_point_mass_trees_keep_the_target_law(rule: AcceptanceRule) -> None:
    p = random_laws(10, 4, zeros=0.3)
    for tokens, parents in (
        ((0, 1, 2, 3), (None, None, None, None)),
        ((0, 1, 2, 0, 1), (None, None, 0, 0, 1)),
        ((1, 3, 3, 0, 2), (None, 0, None, 2, 3)),
    ):
        assert error_of(rule, p, lambda n, t=tokens, q=parents: Draft.tree(t, q), 4) < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_one_hot_drafts_and_targets_keep_the_target_law(rule: AcceptanceRule) -> None:
    for p, q in (
        (random_laws(11, 3), one_hot_laws(12, 3)),
        (one_hot_laws(13, 3), random_laws(14, 3)),
        (one_hot_laws(15, 3), one_hot_laws(16, 3)),
    ):
        assert error_of(rule, p, lambda n, q=q: drawn_draft(n, q, (1, 1)), 3) < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_draft_with_the_target_s_own_law_is_always_accepted(rule: AcceptanceRule) -> None:
    p = random_laws(17, 4)

    def judged(noise: BranchingNoise) -> Verdict:
        draft = drawn_draft(noise, p, (1, 1, 1))
        return rule.judge(
            draft, lambda row: NodeLaw.of_probs(p(draft.nodes.path_tokens(row - 1) if row else ())), noise
        )

    assert sum(c for c, v in outcomes(judged) if len(v.accepted) == 3) == pytest.approx(1.0, abs=1e-12)
    assert error_of(rule, p, lambda n: drawn_draft(n, p, (1, 1)), 3) < 1e-12


def accepted_length(rule: AcceptanceRule, p: LawOf, draft_of: Callable[[BranchingNoise], Draft]) -> float:
    laws = laws_of(p)

    def run(noise: BranchingNoise) -> int:
        draft = draft_of(noise)
        return len(rule.judge(draft, laws(draft), noise).accepted)

    return sum(chance * length for chance, length in outcomes(run))


def test_block_accepts_more_than_token_level_and_traversal_equals_it_on_chains() -> None:
    p, q = random_laws(18, 4), random_laws(19, 4)
    chain = lambda n: drawn_draft(n, q, (1, 1, 1))  # noqa: E731
    token, block, traversal = (accepted_length(rule, p, chain) for rule in RULES)
    assert block > token + 0.01
    assert traversal == pytest.approx(block, abs=1e-12)


def test_traversal_accepts_at_least_as_much_as_top_down_on_trees() -> None:
    for seed in range(20, 23):
        p, q = random_laws(seed, 3), random_laws(seed + 100, 3)
        tree = lambda n, q=q: drawn_draft(n, q, (2, 2))  # noqa: E731
        assert accepted_length(Traversal(), p, tree) >= accepted_length(TokenLevel(), p, tree) - 1e-12


# What must be caught: each of these breaks the law by far more than the tolerance.


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_misreported_draft_law_is_caught(rule: AcceptanceRule) -> None:
    p, q, other = random_laws(30, 3), random_laws(31, 3), random_laws(32, 3)

    def lying(noise: BranchingNoise) -> Draft:
        draft = drawn_draft(noise, q, (1, 1))
        laws = [Drawn(other(draft.nodes.tokens[:depth])) for depth in range(2)]
        return Draft.chain(draft.nodes.tokens, laws)

    assert error_of(rule, p, lying, 3) > 1e-3


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
def test_sorting_drawn_siblings_is_caught(rule: AcceptanceRule) -> None:
    p, q = random_laws(33, 3), random_laws(34, 3)

    def sorted_siblings(noise: BranchingNoise) -> Draft:
        tokens = sorted(noise.draw(NodeLaw.of_probs(q(())), 2, Place(0, 0)), key=lambda t: -q(())[t])
        return Draft(
            TokenTree(tuple(tokens), (None, None)), ((Group(DrawnWithoutReplacement(q(())), (0, 1)),), (), ())
        )

    assert error_of(rule, p, sorted_siblings, 2) > 1e-3


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda r: type(r).__name__)
def test_pruning_drawn_siblings_is_caught(rule: AcceptanceRule) -> None:
    p, q = random_laws(35, 3), random_laws(36, 3)

    def pruned(noise: BranchingNoise) -> Draft:
        drawn = noise.draw(NodeLaw.of_probs(q(())), 2, Place(0, 0))
        kept = [t for t in drawn if q(())[t] > 0.3] or list(drawn[:1])
        nodes = TokenTree(tuple(kept), (None,) * len(kept))
        return Draft(
            nodes, ((Group(DrawnWithoutReplacement(q(())), tuple(range(len(kept)))),), *((),) * len(kept))
        )

    assert error_of(rule, p, pruned, 2) > 1e-3


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_length_that_looks_at_the_token_it_judges_is_caught(rule: AcceptanceRule) -> None:
    p, q = random_laws(37, 3), random_laws(38, 3)

    def anticipating(noise: BranchingNoise) -> Draft:
        draft = drawn_draft(noise, q, (1,))
        token = draft.nodes.tokens[0]
        return draft if q(())[token] > 0.4 else Draft.chain(())

    assert error_of(rule, p, anticipating, 2) > 1e-3


# Degenerate masses.


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_token_without_target_mass_is_never_emitted(rule: AcceptanceRule) -> None:
    p = lambda prefix: np.array([0.0, 0.6, 0.4])  # noqa: E731
    law = emitted_law(rule, p, lambda n: Draft.chain((0, 0)), 1)
    assert law[0] == 0.0
    law = emitted_law(rule, p, lambda n: drawn_draft(n, lambda _: np.array([0.9, 0.1, 0.0]), (1, 1)), 2)
    assert not law[0].any()
    assert not law[:, 0].any()


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_residual_that_only_rounding_emptied_falls_back_to_the_target(rule: AcceptanceRule) -> None:
    class RefuseAll(BranchingNoise):
        def accept(self, probability: float, place: Place) -> bool:
            return False

    law = np.array([0.25, 0.75])
    verdict = rule.judge(Draft.chain((1,), [Drawn(law)]), lambda row: NodeLaw.of_probs(law), RefuseAll())
    assert verdict.accepted == ()
    assert verdict.next_token in (0, 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_row_without_a_law_fails_only_the_texts_that_lead_there(rule: AcceptanceRule) -> None:
    p, q = random_laws(41, 3), random_laws(42, 3)
    broken = (1,)

    def run(noise: BranchingNoise) -> Prefix:
        draft = drawn_draft(noise, q, (1, 1))

        def laws(row: int) -> NodeLaw:
            path = draft.nodes.path_tokens(row - 1) if row else ()
            if path == broken:
                raise ScoreError("no law")
            return NodeLaw.of_probs(p(path))

        try:
            verdict = rule.judge(draft, laws, noise)
        except ScoreError:
            return broken
        return (*(draft.nodes.tokens[n] for n in verdict.accepted), verdict.next_token)[:1]

    law: dict[Prefix, float] = defaultdict(float)
    for chance, first in outcomes(run):
        law[first] += chance
    assert max(abs(law[(t,)] - p(())[t]) for t in range(3)) < 1e-12


@pytest.mark.parametrize("rule", [NoiseMatch(), *TREE_RULES], ids=lambda rule: type(rule).__name__)
def test_trees_as_deep_as_any_draft_may_be_are_judged(rule: AcceptanceRule) -> None:
    depth = MOST_DRAFTED - 1
    tokens, parents = (0,) * depth, (None, *range(depth - 1))
    tree = TokenTree((*tokens, 1), (*parents, None))  # a second child of the root beside the long chain
    below = tuple((Group(POINT_MASS, (node,)),) for node in range(1, depth))
    draft = Draft(tree, ((Group(POINT_MASS, (0, depth)),), *below, (), ()))
    law = NodeLaw.of_probs(np.array([1.0, 0.0]))
    verdict = rule.judge(draft, lambda row: law, RoundNoise(1, 0))
    assert verdict.accepted == tuple(range(depth))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_judging_mutates_nothing(rule: AcceptanceRule) -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    draft = Draft.chain((2, 1), [Drawn(q), Drawn(q)])
    for seed in range(20):
        rule.judge(draft, lambda row: NodeLaw.of_probs(p), RoundNoise(seed, 3))
    assert p.tolist() == [0.5, 0.3, 0.2]
    assert q.tolist() == [0.2, 0.3, 0.5]


@pytest.mark.parametrize("shape", [(0, 1, 2), (2, 2, 1)])
def test_noise_match_equals_an_argmax_over_the_same_noise_whatever_the_draft(shape: tuple[int, ...]) -> None:
    p = random_laws(40, 4)
    for seed in range(300):
        noise = RoundNoise(seed, 7)
        text: list[int] = []
        for depth in range(4):
            law = NodeLaw.of_probs(p(tuple(text)))
            text.append(noise.argmax(law, Place(depth, 0)))
        for draft in (
            Draft.chain(shape),
            Draft.chain(text[:3]),
            Draft.tree((0, 1, 2, 3, text[1]), (None, None, None, None, text[0])),
        ):
            laws = lambda row, d=draft: NodeLaw.of_probs(p(d.nodes.path_tokens(row - 1) if row else ()))  # noqa: E731
            verdict = NoiseMatch().judge(draft, laws, noise)
            emitted = [*(draft.nodes.tokens[n] for n in verdict.accepted), verdict.next_token]
            assert emitted == text[: len(emitted)]
            if draft.nodes.tokens == tuple(text[:3]):
                assert len(verdict.accepted) == 3
