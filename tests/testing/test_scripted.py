"""Scripted drafts: right where they should be, wrong at the share asked for."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.core.law import DrawnWithoutReplacement, Law
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft
from outrider.testing.scripted import ScriptedDrafter

TEXT = [(5 * place + place * place) % 11 for place in range(400)]


def drafted(drafter: ScriptedDrafter, length: int, budget: Budget, given: Draft = EMPTY_DRAFT) -> Draft:
    (draft,) = drafter.propose([Context.of(TEXT[:length])], [budget], [given])
    return draft


def test_an_uncorrupted_chain_is_the_text() -> None:
    draft = drafted(ScriptedDrafter({0: TEXT}, vocab_size=11), 10, Budget(4, 4))
    assert draft == Draft.chain(TEXT[10:14])


def test_the_share_of_corrupted_positions_is_kept_and_does_not_depend_on_the_round() -> None:
    drafter = ScriptedDrafter({0: TEXT}, vocab_size=11, corrupted=0.3, seed=5)
    drafts = {start: drafted(drafter, start, Budget(8, 8)).nodes.tokens for start in range(1, 380)}
    wrong = {start: drafts[start][0] != TEXT[start] for start in drafts}
    assert 0.22 < sum(wrong.values()) / len(wrong) < 0.38
    assert all(drafts[start][1] == drafts[start + 1][0] for start in range(1, 379))


@pytest.mark.parametrize("corrupted", [0.0, 0.4, 1.0])
def test_trees_hold_the_right_token_among_distinct_siblings_where_not_corrupted(corrupted: float) -> None:
    drafter = ScriptedDrafter({0: TEXT}, vocab_size=11, corrupted=corrupted, width=3)
    places = set()
    right = 0
    for start in range(1, 300):
        draft = drafted(drafter, start, Budget(3, 8))
        assert len(draft) == 8
        assert [len(below) for below in draft.nodes.children].count(3) == 2
        first = [draft.nodes.tokens[node] for node in draft.nodes.children[0]]
        if TEXT[start] in first:
            right += 1
            places.add(first.index(TEXT[start]))
            node = draft.nodes.children[0][first.index(TEXT[start])]
            assert draft.nodes.children[node + 1], "the next level hangs below the right token"
    assert abs(right / 299 - (1 - corrupted)) < 0.1
    assert places == (set() if corrupted == 1.0 else {0, 1, 2})


def test_a_given_chain_is_continued_and_a_tree_left_alone() -> None:
    drafter = ScriptedDrafter({0: TEXT}, vocab_size=11)
    given = Draft.chain([TEXT[10], 7])
    assert drafted(drafter, 10, Budget(4, 9), given).nodes.tokens == (TEXT[10], 7, TEXT[12], TEXT[13])
    tree = Draft.tree([1, 2], [None, None])
    assert drafted(drafter, 10, Budget(4, 9), tree) is tree


def test_drafts_end_with_the_text_and_the_budget() -> None:
    drafter = ScriptedDrafter({0: TEXT[:12]}, vocab_size=11)
    assert len(drafted(drafter, 10, Budget(8, 8))) == 2
    assert drafted(drafter, 12, Budget(8, 8)) == EMPTY_DRAFT
    assert drafted(drafter, 5, Budget(0, 0)) == EMPTY_DRAFT
    assert drafted(ScriptedDrafter({}, vocab_size=11), 5, Budget(4, 4)) == EMPTY_DRAFT


def test_texts_may_be_found_from_the_context() -> None:
    drafter = ScriptedDrafter(lambda context: TEXT if context.tokens[0] == TEXT[0] else (), vocab_size=11)
    assert drafted(drafter, 3, Budget(2, 2)) == Draft.chain(TEXT[3:5])


def test_claimed_laws_are_attached_per_level() -> None:
    flat = DrawnWithoutReplacement(np.full(11, 1 / 11))

    def claim(siblings: tuple[int, ...]) -> Law:
        return flat

    draft = drafted(ScriptedDrafter({0: TEXT}, vocab_size=11, width=2, claim=claim), 10, Budget(2, 4))
    assert [group.law for groups in draft.groups for group in groups] == [flat, flat]
